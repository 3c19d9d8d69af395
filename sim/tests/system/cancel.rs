//! Requests that are given up at any moment leave nothing behind.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tessera_client::{Cluster, FetchOutcome, Presence, StoreOutcome};
use tessera_transport::{Lent, Region};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

use crate::node_process::{NodeProcess, open_descriptors, stat, until_stat};
use crate::tile::{PATIENCE, Tile, held, soon};

const REQUESTS: u64 = 10_000;
/// Requests that are open together.
const TOGETHER: u64 = 50;
const TILES: u64 = 8;

/// A node with a few objects, and a client of it.
async fn house() -> (NodeProcess, Cluster, Vec<Tile>) {
    let node = NodeProcess::start();
    let client = node.client();
    let tiles: Vec<Tile> = (0..TILES)
        .map(|number| Tile::new(number, 64 << 10))
        .collect();
    for tile in &tiles {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    }
    (node, client, tiles)
}

/// Awaits `future` for as long as the scheduler takes to come by `turns` times, then drops it
/// wherever it stands.
async fn within<F: Future>(turns: u64, future: F) -> Option<F::Output> {
    let patience = async {
        for _ in 0..turns {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = patience => None,
        output = future => Some(output),
    }
}

/// A number of turns that differs from request to request, over the whole life of a request.
fn turns(number: u64) -> u64 {
    (number.wrapping_mul(2_654_435_761) >> 16) % 96
}

/// Runs all requests, some at a time, and returns what they returned.
async fn storm<F, T>(
    client: &Cluster,
    tiles: &[Tile],
    request: impl Fn(Cluster, Tile, u64) -> F,
) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let mut ended = Vec::new();
    for round in 0..REQUESTS / TOGETHER {
        let mut requests = JoinSet::new();
        for number in round * TOGETHER..(round + 1) * TOGETHER {
            let tile = tiles[usize::try_from(number % TILES).expect("small")].clone();
            requests.spawn(request(client.clone(), tile, number));
        }
        while let Some(request) = requests.join_next().await {
            ended.push(request.expect("no request sees an error"));
        }
    }
    ended
}

/// Asserts that nothing is left of any request, and that the node serves as before.
async fn assert_baseline(client: &Cluster, tiles: &[Tile]) {
    for gauge in [
        "leases",
        "leased_bytes",
        "pins",
        "unpublished_bytes",
        "reserved_bytes",
    ] {
        until_stat(client, gauge, |value| value == 0).await;
    }
    assert_eq!(stat(client, "objects").await, TILES);
    assert_eq!(client.metrics().nodes[0].in_flight, 0);
    assert_eq!(client.metrics().integrity_failures(), 0);
    for tile in tiles {
        assert_eq!(tile.load(client, None, soon()).await, FetchOutcome::Loaded);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_cancelled_loads_leave_no_lease_no_pin_no_memory_and_no_descriptor() {
    let (_node, client, tiles) = house().await;
    let descriptors = open_descriptors();
    let ended = storm(&client, &tiles, |client, tile, number| async move {
        let lease = held(tile.acquire(&client, soon()).await);
        let (region, segments) = tile.memory();
        let memory = Arc::downgrade(&region);
        drop(region);
        let lent = Lent::new(segments).expect("lent to nobody");
        let load = client.fetch(tile.expectation(), Some(lease), lent, soon());
        let cancelled = within(turns(number), load).await.is_none();
        client.release(vec![(lease, Vec::new())], soon()).await;
        (memory, cancelled)
    });
    let (memory, cancelled): (Vec<_>, Vec<_>) = ended.await.into_iter().unzip();
    let cancelled = cancelled.into_iter().filter(|cancelled| *cancelled).count();
    assert!(
        (1_000..10_000).contains(&cancelled),
        "{cancelled} cancelled: the moments do not vary"
    );
    until_free(&memory).await;
    assert_baseline(&client, &tiles).await;
    assert!(open_descriptors() <= descriptors + 4, "descriptors leak");
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_cancelled_lookups_leave_no_lease() {
    let (_node, client, tiles) = house().await;
    let ended = storm(&client, &tiles, |client, tile, number| async move {
        match within(turns(number), tile.acquire(&client, soon())).await {
            Some(Presence::Held { lease, .. }) => {
                client.release(vec![(lease, Vec::new())], soon()).await;
                false
            }
            Some(other) => panic!("leases of cancelled lookups are in the way: {other:?}"),
            None => true,
        }
    });
    let cancelled = ended
        .await
        .into_iter()
        .filter(|cancelled| *cancelled)
        .count();
    assert!(
        (1_000..10_000).contains(&cancelled),
        "{cancelled} cancelled: the moments do not vary"
    );
    assert_baseline(&client, &tiles).await;
    client.shutdown().await;
}

/// Waits until no task holds memory of a load that was given up.
async fn until_free(memory: &[Weak<Region>]) {
    let until = Instant::now() + PATIENCE;
    while memory.iter().any(|region| region.strong_count() > 0) {
        assert!(
            Instant::now() < until,
            "memory of cancelled loads is still held"
        );
        sleep(Duration::from_millis(2)).await;
    }
}

//! Requests that are given up at any moment leave nothing behind.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tessera_client::{Cluster, Presence, StoreOutcome};
use tessera_transport::{Lent, Region};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::node_process::{NodeProcess, open_descriptors, stat, until_stat};
use crate::tile::{PATIENCE, Tile, soon};

const CANCELLED: u64 = 10_000;
/// Requests that are open together.
const TOGETHER: u64 = 50;
const TILES: u64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_cancelled_loads_leave_no_lease_no_pin_no_memory_and_no_descriptor() {
    let node = NodeProcess::start();
    let client = node.client();
    let tiles: Vec<Tile> = (0..TILES)
        .map(|number| Tile::new(number, 64 << 10))
        .collect();
    for tile in &tiles {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    }
    let descriptors = open_descriptors();
    let mut memory = Vec::new();
    for round in 0..CANCELLED / TOGETHER {
        let mut requests = JoinSet::new();
        for place in 0..TOGETHER {
            let number = round * TOGETHER + place;
            let tile = tiles[usize::try_from(number % TILES).expect("small")].clone();
            requests.spawn(cancelled_load(client.clone(), tile, number));
        }
        while let Some(request) = requests.join_next().await {
            memory.extend(request.expect("no request sees an error"));
        }
    }
    assert_eq!(client.metrics().integrity_failures(), 0);
    until_free(&memory).await;
    for gauge in [
        "leases",
        "leased_bytes",
        "pins",
        "unpublished_bytes",
        "reserved_bytes",
    ] {
        until_stat(&client, gauge, |value| value == 0).await;
    }
    assert_eq!(stat(&client, "objects").await, TILES);
    assert_eq!(client.metrics().nodes[0].in_flight, 0);
    assert!(open_descriptors() <= descriptors + 4, "descriptors leak");
    for tile in &tiles {
        tile.load(&client, None, soon()).await;
    }
    client.shutdown().await;
}

/// A lookup and a load, each given up after a moment that differs from request to request. Returns
/// the memory that was lent, to see that it is freed.
async fn cancelled_load(client: Cluster, tile: Tile, number: u64) -> Option<Weak<Region>> {
    let moment = |of: u64| Duration::from_micros(number.wrapping_mul(2_654_435_761) % of);
    let found = timeout(moment(1_000), tile.acquire(&client, soon())).await;
    let lease = match found {
        Ok(Presence::Held { lease, .. }) => Some(lease),
        _ => None,
    };
    let (region, segments) = tile.memory();
    let watched = Arc::downgrade(&region);
    drop(region);
    let load = client.fetch(tile.expectation(), lease, Lent::new(segments), soon());
    // The future is dropped wherever it stands.
    let _ = timeout(moment(700), load).await;
    if let Some(lease) = lease {
        client.release(vec![(lease, Vec::new())], soon()).await;
    }
    Some(watched)
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

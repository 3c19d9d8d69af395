//! Many streams through a node that is killed again and again: no wrong byte, no stuck stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tessera_client::{Cluster, FetchOutcome, Presence};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::node_process::NodeProcess;
use crate::tile::{PATIENCE, Tile, soon};

const STREAMS: u64 = 64;
const RESTARTS: u64 = 5;
/// Objects that the streams share, so that each reads what others wrote.
const OBJECTS: u64 = 96;
/// The deadline of each operation.
const DEADLINE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    finished: AtomicBool,
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_through_a_node_in_a_restart_loop_see_right_bytes_or_misses_and_never_wait() {
    let mut node = NodeProcess::start();
    let client = node.client();
    let counts = Arc::new(Counts::default());
    let mut streams = JoinSet::new();
    for stream in 0..STREAMS {
        streams.spawn(run(client.clone(), stream, Arc::clone(&counts)));
    }
    for _ in 0..=RESTARTS {
        until_hits_grow(&counts).await;
        node.restart();
    }
    until_hits_grow(&counts).await;
    counts.finished.store(true, Ordering::Relaxed);
    let joined = timeout(PATIENCE, async {
        while let Some(stream) = streams.join_next().await {
            stream.expect("no stream sees an error");
        }
    });
    joined.await.expect("no stream is stuck");
    assert_eq!(client.metrics().integrity_failures(), 0);
    assert_eq!(client.metrics().nodes[0].in_flight, 0);
    client.shutdown().await;
}

/// Waits until the streams hit again as often as there are streams.
async fn until_hits_grow(counts: &Counts) {
    let goal = counts.hits.load(Ordering::Relaxed) + STREAMS;
    let until = soon();
    while counts.hits.load(Ordering::Relaxed) < goal {
        assert!(Instant::now() < until, "hits do not return");
        sleep(Duration::from_millis(5)).await;
    }
}

/// One request after the other, as an engine does it: look up, load what is held, save what is not.
async fn run(client: Cluster, stream: u64, counts: Arc<Counts>) {
    let mut turn = stream;
    while !counts.finished.load(Ordering::Relaxed) {
        turn = turn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(stream | 1);
        let number = (turn >> 33) % OBJECTS;
        let tile = Tile::new(number, 4_096 << (number % 6));
        let began = Instant::now();
        match tile.acquire(&client, began + DEADLINE).await {
            Presence::Held { lease, .. } => {
                let outcome = tile
                    .load(&client, Some(lease), Instant::now() + DEADLINE)
                    .await;
                let hit = outcome == FetchOutcome::Loaded;
                counts.hits.fetch_add(u64::from(hit), Ordering::Relaxed);
                let given = vec![(lease, Vec::new())];
                client.release(given, Instant::now() + DEADLINE).await;
            }
            _ => {
                tile.save(&client, Instant::now() + DEADLINE).await;
            }
        }
        let took = began.elapsed();
        assert!(
            took < 3 * DEADLINE + Duration::from_secs(3),
            "a request took {took:?}"
        );
        // An unreachable node answers at once: without a pause this would be a busy loop.
        sleep(Duration::from_millis(1)).await;
    }
}

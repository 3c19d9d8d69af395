//! A node that dies and comes back: misses while it is away, hits afterwards, by themselves.

use std::time::Duration;

use tessera_client::{FetchOutcome, Presence, StoreOutcome};
use tokio::time::{Instant, sleep};

use crate::node_process::NodeProcess;
use crate::tile::{PATIENCE, Tile, held, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_is_a_miss_and_hits_return_after_its_restart() {
    let mut node = NodeProcess::start();
    let client = node.client();
    let tile = Tile::new(1, 1 << 20);
    assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    assert_eq!(tile.load(&client, None, soon()).await, FetchOutcome::Loaded);

    node.kill();
    let deadline = Instant::now() + Duration::from_millis(500);
    let outcome = tile.load(&client, None, deadline).await;
    let missed = matches!(outcome, FetchOutcome::Unreachable | FetchOutcome::Deadline);
    assert!(missed, "{outcome:?}");
    let deadline = Instant::now() + Duration::from_millis(500);
    assert_eq!(tile.acquire(&client, deadline).await, Presence::Unreachable);

    node.restart();
    let until = soon();
    while !matches!(tile.save(&client, soon()).await, StoreOutcome::Stored) {
        assert!(
            Instant::now() < until,
            "the client never came back to the node"
        );
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(tile.load(&client, None, soon()).await, FetchOutcome::Loaded);
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_an_earlier_start_of_the_node_loads_nothing() {
    let mut node = NodeProcess::start();
    let client = node.client();
    let tile = Tile::new(1, 64 << 10);
    assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    let lease = held(tile.acquire(&client, soon()).await);

    node.restart();
    let until = soon();
    while tile.save(&client, soon()).await != StoreOutcome::Stored {
        assert!(
            Instant::now() < until,
            "the client never came back to the node"
        );
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        tile.load(&client, Some(lease), soon()).await,
        FetchOutcome::LeaseOver
    );
    assert_eq!(client.release(vec![(lease, Vec::new())], soon()).await, 0);
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_starts_before_its_node_finds_it_later() {
    let mut node = NodeProcess::start();
    node.kill();
    let client = node.client();
    let tile = Tile::new(1, 64 << 10);
    let started = Instant::now();
    let outcome = tile
        .load(&client, None, started + Duration::from_millis(300))
        .await;
    let missed = matches!(outcome, FetchOutcome::Unreachable | FetchOutcome::Deadline);
    assert!(missed, "{outcome:?}");

    node.restart();
    while tile.save(&client, soon()).await != StoreOutcome::Stored {
        assert!(
            started.elapsed() < PATIENCE,
            "the client never found the node"
        );
        sleep(Duration::from_millis(10)).await;
    }
    client.shutdown().await;
}

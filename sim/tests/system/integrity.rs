//! A node whose memory lies: the load is a miss, is counted, and the object makes room for a good
//! one.

use tessera_client::{FetchOutcome, Presence, StoreOutcome};
use tessera_proto::ObjectMismatch;

use crate::node_process::{NodeProcess, stat, until_stat};
use crate::tile::{Tile, held, soon};

#[tokio::test(flavor = "multi_thread")]
async fn one_flipped_bit_in_the_arena_is_a_miss_and_the_next_writer_replaces_it() {
    let node = NodeProcess::start();
    let client = node.client();
    let (tile, other) = (Tile::new(1, 1 << 20), Tile::new(2, 1 << 20));
    assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    assert_eq!(other.save(&client, soon()).await, StoreOutcome::Stored);
    let lease = held(tile.acquire(&client, soon()).await);

    assert!(
        node.flip_bit(&tile.bytes[5_000..5_032]) > 0,
        "the object lies in the node's memory"
    );

    let outcome = tile.load(&client, Some(lease), soon()).await;
    let damaged = matches!(
        outcome,
        FetchOutcome::Corrupt {
            mismatch: ObjectMismatch::Checksum { .. },
            ..
        }
    );
    assert!(damaged, "{outcome:?}");
    assert_eq!(client.metrics().integrity_failures(), 1);
    until_stat(&client, "integrity_failures", |count| count == 1).await;
    assert_eq!(tile.acquire(&client, soon()).await, Presence::Missing);

    assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    assert_eq!(tile.load(&client, None, soon()).await, FetchOutcome::Loaded);
    assert_eq!(
        other.load(&client, None, soon()).await,
        FetchOutcome::Loaded
    );
    assert_eq!(stat(&client, "integrity_failures").await, 1);
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_is_removed_but_not_the_one_that_replaced_it() {
    let node = NodeProcess::start();
    let client = node.client();
    let tile = Tile::new(1, 64 << 10);
    assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    let stale = tile.header.write;
    assert_eq!(
        client.remove(tile.id(), Some(stale), soon()).await,
        Ok(true)
    );
    let mut newer = tile.clone();
    newer.header.write.0 += 1;
    assert_eq!(newer.save(&client, soon()).await, StoreOutcome::Stored);
    assert_eq!(
        client.remove(tile.id(), Some(stale), soon()).await,
        Ok(false)
    );
    assert_eq!(
        newer.load(&client, None, soon()).await,
        FetchOutcome::Loaded
    );
    client.shutdown().await;
}

//! What happens to a disk as a whole under a running node: its folder is removed, or it takes no
//! more writes. The node lives on with its memory, and says of a removal that it cannot keep.

use std::fs;
use std::path::Path;

use tessera_client::{Cluster, FetchOutcome, NodeError, NodeIndex, StoreOutcome};

use crate::node_process::{NodeProcess, stat};
use crate::tile::{Tile, soon};

const OBJECT: usize = 500_000;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// How many of these are loaded. A load compares every byte; all others are misses.
async fn loaded(client: &Cluster, tiles: &[Tile]) -> usize {
    let mut loaded = 0;
    for tile in tiles {
        match tile.load(client, None, soon()).await {
            FetchOutcome::Loaded => loaded += 1,
            FetchOutcome::Missing => {}
            other => panic!("{other:?}"),
        }
    }
    loaded
}

fn tiles(numbers: std::ops::Range<u64>) -> Vec<Tile> {
    numbers.map(|number| Tile::new(number, OBJECT)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn node_whose_data_folder_is_removed_serves_on_and_the_next_one_begins_anew() {
    let folder = folder();
    let data = folder.path().join("data");
    // Memory for eight of them: the others are on disk only.
    let mut node = NodeProcess::start_small(&data, 8, 64);
    let client = node.client();
    let before = tiles(0..40);
    for tile in &before {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    }
    fs::remove_dir_all(&data).expect("a folder of ours");
    let after = tiles(100..120);
    for tile in &after {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    }
    // The system keeps the file for whoever has it open.
    assert_eq!(loaded(&client, &before).await, before.len());
    assert_eq!(loaded(&client, &after).await, after.len());
    assert!(stat(&client, "disk_hits").await > 0);
    assert_eq!(stat(&client, "disk_fenced").await, 0);

    node.restart();
    let client = node.client();
    assert_eq!(loaded(&client, &before).await, 0);
    assert_eq!(before[0].save(&client, soon()).await, StoreOutcome::Stored);
    assert_eq!(loaded(&client, &before[..1]).await, 1);
    client.shutdown().await;
    assert!(data.is_dir(), "made again");
}

/// A node whose disk takes no write beyond a limit that its system sets, with objects on that disk.
async fn limited(data: &Path, before: &[Tile], limit: u64) -> NodeProcess {
    let node = NodeProcess::start_small(data, 16, 64);
    let client = node.client();
    for tile in before {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    }
    node.limit_writes(limit);
    client.shutdown().await;
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn node_whose_disk_fails_lives_on_and_says_of_a_removal_that_it_will_not_last() {
    let folder = folder();
    let before = tiles(0..8);
    let mut node = limited(folder.path(), &before, 0).await;
    let client = node.client();
    let after = tiles(100..104);
    for tile in &after {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    }
    assert_eq!(stat(&client, "disk_fenced").await, 1);
    assert_eq!(loaded(&client, &after).await, after.len());
    for tile in [&before[0], &after[0]] {
        let removed = client.remove(tile.id(), None, soon()).await;
        assert_eq!(removed, Err(NodeError::Unrecorded));
        assert_eq!(loaded(&client, std::slice::from_ref(tile)).await, 0);
    }
    let message = NodeError::Unrecorded.to_string();
    assert!(message.contains("tessera clean"), "{message}");
    let dropped = client.drop_namespace(NodeIndex(0), after[1].header.namespace, soon());
    assert_eq!(dropped.await, Err(NodeError::Unrecorded));

    // It may come back, as was said.
    node.restart();
    let client = node.client();
    assert_eq!(loaded(&client, &before[..1]).await, 1);
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn write_that_is_cut_short_fences_the_disk_and_loses_nothing_acknowledged() {
    let folder = folder();
    let before = tiles(0..8);
    // They fill the first segment. Of the next object 96 blocks are written with what is before it.
    let mut node = limited(folder.path(), &before, (5 << 20) + 96 * 4_096).await;
    let client = node.client();
    let mut after = Vec::new();
    for tile in tiles(100..120) {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
        after.push(tile);
        if stat(&client, "disk_fenced").await > 0 {
            break;
        }
    }
    assert_eq!(stat(&client, "disk_fenced").await, 1);
    let last = after.pop().expect("the disk was fenced by one");

    node.restart();
    let client = node.client();
    assert_eq!(loaded(&client, &before).await, before.len());
    assert_eq!(loaded(&client, &after).await, after.len());
    // That one was acknowledged from memory only: its disk was gone.
    assert_eq!(loaded(&client, std::slice::from_ref(&last)).await, 0);
    assert_eq!(stat(&client, "disk_fenced").await, 0);
    client.shutdown().await;
}

//! Identity: what differs in anything that the bytes depend on is another object.

use tessera_client::{FetchOutcome, Presence, StoreOutcome};
use tessera_proto::ObjectMismatch;

use crate::node_process::NodeProcess;
use crate::tile::{Tile, namespace, soon};

const LENGTH: usize = 64 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn two_models_with_the_same_prompts_never_share_an_object() {
    let node = NodeProcess::start();
    let client = node.client();
    let hashes: Vec<[u8; 32]> = (0..32).map(|block| [block; 32]).collect();
    let tile = |model: &str, seed, hash: &[u8]| Tile::of(&namespace(model), hash, seed, LENGTH);
    for hash in &hashes {
        let first = tile("first", 1, hash);
        assert_eq!(first.save(&client, soon()).await, StoreOutcome::Stored);
    }
    for hash in &hashes {
        let second = tile("second", 2, hash);
        assert_eq!(second.acquire(&client, soon()).await, Presence::Missing);
        assert_eq!(
            second.load(&client, None, soon()).await,
            FetchOutcome::Missing
        );
        assert_eq!(second.save(&client, soon()).await, StoreOutcome::Stored);
    }
    for hash in &hashes {
        for (model, seed) in [("first", 1), ("second", 2)] {
            let loaded = tile(model, seed, hash).load(&client, None, soon()).await;
            assert_eq!(loaded, FetchOutcome::Loaded, "{model}");
        }
    }
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_keys_with_one_id_are_told_apart_and_the_poison_is_removed() {
    let node = NodeProcess::start();
    let client = node.client();
    let wanted = Tile::new(1, LENGTH);
    let mut impostor = Tile::new(2, LENGTH);
    impostor.header.key.0[..16].copy_from_slice(&wanted.header.key.0[..16]);
    assert_eq!(impostor.save(&client, soon()).await, StoreOutcome::Stored);
    assert_eq!(impostor.id(), wanted.id());
    let outcome = wanted.load(&client, None, soon()).await;
    let FetchOutcome::Corrupt { mismatch, write } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (mismatch, write),
        (ObjectMismatch::Key, impostor.header.write)
    );
    assert_eq!(client.metrics().integrity_failures(), 1);
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_another_layout_or_length_is_never_loaded() {
    let node = NodeProcess::start();
    let client = node.client();
    let mut tile = Tile::new(1, LENGTH);
    assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    tile.header.layout += 1;
    let outcome = tile.load(&client, None, soon()).await;
    let layout = matches!(
        outcome,
        FetchOutcome::Corrupt {
            mismatch: ObjectMismatch::Layout { .. },
            ..
        }
    );
    assert!(layout, "{outcome:?}");
    let longer = Tile::new(3, LENGTH);
    assert_eq!(longer.save(&client, soon()).await, StoreOutcome::Stored);
    let shorter = Tile::new(3, LENGTH / 2);
    assert_eq!(
        shorter.load(&client, None, soon()).await,
        FetchOutcome::Length
    );
    client.shutdown().await;
}

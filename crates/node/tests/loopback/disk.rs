//! A node with data folders: what it keeps beyond its memory, and across its end.

use std::path::Path;

use tessera_node::{
    Admission, DataConfig, Node, NodeConfig, RunningNode, StartError, TenantLimits, WritePolicy,
    verify,
};
use tessera_proto::message::{
    Get, GetAnswer, GetStatus, Presence, PutStatus, Remove, RemoveAnswer, RemoveItem,
};
use tessera_proto::{Kind, ObjectHeader};

use crate::support::{Client, MIB, config, lease_of, object, start, stat, stop};

const OBJECT: usize = 1 << 20;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn with_disk(folder: &Path) -> NodeConfig {
    NodeConfig {
        data: Some(DataConfig {
            folders: vec![folder.to_owned()],
            bytes: Some(256 * MIB),
            write: WritePolicy::Through,
            tenants: TenantLimits::default(),
            scrub_bytes_s: 0,
        }),
        ..config()
    }
}

async fn put_all(node: &RunningNode, seeds: impl Iterator<Item = u64>) {
    let mut client = Client::connect(node.address()).await;
    for seed in seeds {
        let (header, bytes) = object(seed, OBJECT);
        assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    }
}

async fn expect_found(client: &mut Client, seed: u64) {
    let (header, bytes) = object(seed, OBJECT);
    let (answer, got) = client.get_object(&header).await;
    assert_eq!(answer, GetAnswer::Found(header), "object {seed}");
    assert!(got == bytes, "object {seed} has other bytes");
}

async fn remove(client: &mut Client, headers: &[ObjectHeader]) -> Vec<bool> {
    let item = |header: &ObjectHeader| RemoveItem {
        id: header.id(),
        write: None,
    };
    let remove = Remove {
        items: headers.iter().map(item).collect(),
    };
    let reply = client
        .call(Kind::Remove, |body| remove.encode(body), &[])
        .await;
    let answer = RemoveAnswer::decode(&reply.body).expect("an answer to REMOVE");
    answer.removed
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_memory_is_kept_and_outlives_the_node() {
    let folder = folder();
    let node = start(with_disk(folder.path())).await;
    put_all(&node, 0..150).await;
    assert!(stat(&node, "evictions") > 0, "memory holds them all");
    let mut client = Client::connect(node.address()).await;
    for seed in 0..150 {
        expect_found(&mut client, seed).await;
    }
    assert!(stat(&node, "disk_hits") > 0);
    drop(client);
    stop(node).await;

    let node = start(with_disk(folder.path())).await;
    assert_eq!(stat(&node, "disk_recovered"), 150);
    assert_eq!(stat(&node, "objects"), 0);
    let mut client = Client::connect(node.address()).await;
    for seed in 0..150 {
        expect_found(&mut client, seed).await;
    }
    // What was read is in memory now: the newest are not read from disk again.
    let before = stat(&node, "disk_hits");
    expect_found(&mut client, 149).await;
    assert_eq!(stat(&node, "disk_hits"), before);
    let (header, bytes) = object(7, OBJECT);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Existed);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_who_ask_for_one_object_share_one_read_of_the_disk() {
    let folder = folder();
    let node = start(with_disk(folder.path())).await;
    put_all(&node, 0..1).await;
    stop(node).await;
    let node = start(with_disk(folder.path())).await;
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(Client::connect(node.address()).await);
    }
    let readers: Vec<_> = clients
        .into_iter()
        .map(|mut client| tokio::spawn(async move { expect_found(&mut client, 0).await }))
        .collect();
    for reader in readers {
        reader.await.expect("found");
    }
    assert_eq!(stat(&node, "disk_read_bytes"), OBJECT as u64);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_object_stays_away_from_both_tiers_and_every_later_node() {
    let folder = folder();
    let node = start(with_disk(folder.path())).await;
    put_all(&node, 0..4).await;
    stop(node).await;
    let node = start(with_disk(folder.path())).await;
    let mut client = Client::connect(node.address()).await;
    expect_found(&mut client, 1).await;
    let headers = [0, 1, 9].map(|seed| object(seed, OBJECT).0);
    // One is on disk only, one in both tiers, one nowhere.
    assert_eq!(remove(&mut client, &headers).await, [true, true, false]);
    for _ in 0..2 {
        for header in &headers {
            let (answer, _) = client.get_object(header).await;
            assert_eq!(answer, GetAnswer::Absent(GetStatus::Missing));
        }
    }
    drop(client);
    stop(node).await;
    let node = start(with_disk(folder.path())).await;
    assert_eq!(stat(&node, "disk_recovered"), 2);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_holds_what_is_on_disk_until_it_was_read() {
    let folder = folder();
    let node = start(with_disk(folder.path())).await;
    put_all(&node, 0..1).await;
    stop(node).await;
    let node = start(with_disk(folder.path())).await;
    let mut client = Client::connect(node.address()).await;
    let (kept, bytes) = object(0, OBJECT);
    let acquired = client.acquire(vec![kept.id()], 600_000).await;
    assert_eq!(acquired.items[0].presence, Presence::Held);
    let lease = lease_of(&acquired);
    assert_eq!(stat(&node, "disk_leased_bytes"), OBJECT as u64);
    // Twice the disk passes by.
    put_all(&node, 1..512).await;
    assert!(stat(&node, "disk_evictions") > 200);
    let get = Get {
        id: kept.id(),
        lease: Some(lease),
        length_bytes: kept.length_bytes,
    };
    let (answer, got) = client.get(get).await;
    assert_eq!(answer, GetAnswer::Found(kept));
    assert!(got == bytes);
    drop(client);
    crate::support::until_stat(&node, "disk_leased_bytes", 0).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_told_to_stop_writes_what_it_acknowledged_from_memory() {
    let folder = folder();
    let mut back = with_disk(folder.path());
    if let Some(data) = &mut back.data {
        data.write = WritePolicy::Back {
            dirty_bytes_max: 32 * MIB,
            admission: Admission::All,
        };
    }
    let node = start(back).await;
    put_all(&node, 0..30).await;
    stop(node).await;
    let node = start(with_disk(folder.path())).await;
    assert_eq!(stat(&node, "disk_recovered"), 30);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_are_scrubbed_while_the_node_serves_and_the_scrub_ends_with_it() {
    let folder = folder();
    let node = start(with_disk(folder.path())).await;
    put_all(&node, 0..40).await;
    stop(node).await;
    let mut scrubbed = with_disk(folder.path());
    if let Some(data) = &mut scrubbed.data {
        data.scrub_bytes_s = 1 << 40;
    }
    let node = start(scrubbed).await;
    crate::support::until_stat(&node, "disk_scrubs", 1).await;
    // All but the open segment.
    assert!(stat(&node, "disk_scrubbed_bytes") >= 24 * MIB);
    assert_eq!(stat(&node, "disk_damaged"), 0);
    stop(node).await;
    let report = verify(folder.path()).expect("free again").expect("used");
    assert_eq!((report.objects, report.damaged, report.torn), (40, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn folder_in_use_or_of_another_size_is_refused_with_the_way_out() {
    let folder = folder();
    let node = start(with_disk(folder.path())).await;
    let refused = Node::start(with_disk(folder.path())).await;
    let refused = refused.expect_err("the folder is in use");
    assert!(matches!(refused, StartError::Data(_)), "{refused:?}");
    assert!(
        refused.to_string().contains("in use by another node"),
        "{refused}"
    );
    stop(node).await;
    let mut other = with_disk(folder.path());
    let mut sizeless = with_disk(&folder.path().join("new"));
    for (config, bytes) in [(&mut other, Some(512 * MIB)), (&mut sizeless, None)] {
        if let Some(data) = &mut config.data {
            data.bytes = bytes;
        }
    }
    for (config, message) in [(other, "give the same sizes"), (sizeless, "--disk")] {
        let refused = Node::start(config).await.expect_err(message);
        assert!(refused.to_string().contains(message), "{refused}");
    }
    stop(start(with_disk(folder.path())).await).await;
}

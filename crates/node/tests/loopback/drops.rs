//! DROP over the wire: what it answers, what it leaves, and that it outlives the node.

use std::path::Path;

use tessera_node::{DataConfig, NodeConfig, TenantLimits, WritePolicy};
use tessera_proto::message::{
    self, DropAnswer, Features, GetAnswer, GetStatus, Hello, HelloAnswer,
};
use tessera_proto::message::{Presence, PutStatus};
use tessera_proto::{Incarnation, Kind, NamespaceDigest, ObjectHeader, PROTOCOL_VERSION};

use crate::support::{Client, MIB, config, object, start, stat, stop};

const OBJECT: usize = 200_000;

fn of(namespace: u8, seed: u64) -> (ObjectHeader, Vec<u8>) {
    let (header, bytes) = object(seed, OBJECT);
    let namespace = NamespaceDigest([namespace; 32]);
    (
        ObjectHeader {
            namespace,
            ..header
        },
        bytes,
    )
}

async fn drop_namespace(client: &mut Client, namespace: u8) -> DropAnswer {
    let drop = message::Drop {
        namespace: NamespaceDigest([namespace; 32]),
    };
    let reply = client.call(Kind::Drop, |body| drop.encode(body), &[]).await;
    assert_eq!(reply.header.kind, Kind::DropAnswer, "{reply:?}");
    DropAnswer::decode(&reply.body).expect("an answer to DROP")
}

async fn is_found(client: &mut Client, header: &ObjectHeader) -> bool {
    match client.get_object(header).await.0 {
        GetAnswer::Found(found) => found == *header,
        GetAnswer::Absent(status) => {
            assert_eq!(status, GetStatus::Missing);
            false
        }
    }
}

fn with_disk(folder: &Path) -> NodeConfig {
    NodeConfig {
        data: Some(DataConfig {
            folders: vec![folder.to_owned()],
            bytes: Some(64 * MIB),
            write: WritePolicy::Through,
            tenants: TenantLimits::default(),
            scrub_bytes_s: 0,
        }),
        ..config()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_namespace_is_missing_for_everybody_and_another_is_not() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    for seed in 0..20 {
        let (header, bytes) = of(u8::try_from(seed % 2).expect("a bit"), seed);
        assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    }
    let mut other = Client::connect(node.address()).await;
    let ids: Vec<_> = (0..20).map(|seed| of(0, seed).0.id()).collect();
    let leased = other.acquire(ids.clone(), 10_000).await;
    assert!(
        leased
            .items
            .iter()
            .all(|item| item.presence == Presence::Held)
    );
    let dropped = drop_namespace(&mut client, 1).await;
    let expected = DropAnswer {
        ram_objects: 10,
        ram_bytes: 10 * OBJECT as u64,
        ..DropAnswer::default()
    };
    assert_eq!(dropped, expected);
    for seed in 0..20 {
        let (header, _) = of(u8::try_from(seed % 2).expect("a bit"), seed);
        assert_eq!(is_found(&mut other, &header).await, seed % 2 == 0);
    }
    let again = other.acquire(ids, 10_000).await;
    let held = again
        .items
        .iter()
        .filter(|item| item.presence == Presence::Held);
    assert_eq!(held.count(), 10);
    // What is stored in it anew is found.
    let (header, bytes) = of(1, 1);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    assert!(is_found(&mut other, &header).await);
    assert_eq!(stat(&node, "requests_drop"), 1);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_namespace_does_not_come_back_with_the_next_start_of_the_node() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let node = start(with_disk(folder.path())).await;
    let mut client = Client::connect(node.address()).await;
    for seed in 0..20 {
        let (header, bytes) = of(u8::try_from(seed % 2).expect("a bit"), seed);
        assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    }
    let dropped = drop_namespace(&mut client, 1).await;
    assert_eq!((dropped.ram_objects, dropped.disk_objects), (10, 10));
    drop(client);
    stop(node).await;
    let node = start(with_disk(folder.path())).await;
    assert_eq!(stat(&node, "disk_recovered"), 10);
    let mut client = Client::connect(node.address()).await;
    for seed in 0..20 {
        let (header, _) = of(u8::try_from(seed % 2).expect("a bit"), seed);
        assert_eq!(is_found(&mut client, &header).await, seed % 2 == 0);
    }
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_says_that_it_takes_drop_to_a_client_who_knows_of_it() {
    let node = start(config()).await;
    for (offered, agreed) in [(0, 0), (1, 1), (2, 2), (4, 4), (15, 7)] {
        let mut client = Client::silent(node.address()).await;
        let hello = Hello {
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            features: Features(offered),
            incarnation: Incarnation(1),
            name: "a test".to_owned(),
        };
        let reply = client
            .call(Kind::Hello, |body| hello.encode(body), &[])
            .await;
        let answer = HelloAnswer::decode(&reply.body).expect("an answer to HELLO");
        assert_eq!(answer.features, Features(agreed));
    }
    stop(node).await;
}

//! A question of what is here, from whoever would save it: no lease, and nothing counts as refused.

use tessera_node::{DataConfig, NodeConfig, RunningNode, TenantLimits, WritePolicy};
use tessera_proto::ObjectId;
use tessera_proto::message::{AcquireItem, Presence, PutStatus, Remove, RemoveItem};
use tessera_proto::{Kind, ObjectHeader};

use crate::support::{Client, MIB, config, object, start, stat, stop};

const LENGTH: usize = 10_000;

/// What the node says of two objects, with one between them that it never had.
async fn probe(client: &mut Client, headers: &[ObjectHeader; 2]) -> [Presence; 3] {
    let ids = vec![headers[0].id(), ObjectId([9; 16]), headers[1].id()];
    let answer = client.acquire_within(ids, 60_000, 0).await;
    assert_eq!((answer.lease, answer.lease_ms), (None, 0));
    let presence = |item: &AcquireItem| {
        assert_eq!(item.length_bytes, 0);
        item.presence
    };
    let items: Vec<_> = answer.items.iter().map(presence).collect();
    items.try_into().expect("an item for each id")
}

async fn put(client: &mut Client) -> [ObjectHeader; 2] {
    let objects = [object(1, LENGTH), object(2, LENGTH)];
    for (header, bytes) in &objects {
        assert_eq!(client.put(*header, bytes).await, PutStatus::Stored);
    }
    objects.map(|(header, _)| header)
}

fn assert_nothing_is_leased_or_refused(node: &RunningNode) {
    for number in [
        "leases",
        "leased_bytes",
        "disk_leases",
        "disk_leased_bytes",
        "leases_refused",
    ] {
        assert_eq!(stat(node, number), 0, "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l15_a_question_leases_nothing_and_counts_nothing_as_refused() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let headers = put(&mut client).await;
    let found = probe(&mut client, &headers).await;
    assert_eq!(
        found,
        [Presence::Refused, Presence::Missing, Presence::Refused]
    );
    assert_nothing_is_leased_or_refused(&node);
    assert_eq!(stat(&node, "requests_acquire"), 1);
    let remove = Remove {
        items: vec![RemoveItem {
            id: headers[0].id(),
            write: Some(headers[0].write),
        }],
    };
    client
        .call(Kind::Remove, |body| remove.encode(body), &[])
        .await;
    let found = probe(&mut client, &headers).await;
    assert_eq!(
        found,
        [Presence::Missing, Presence::Missing, Presence::Refused]
    );
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn l15_a_question_finds_what_is_on_disk_only() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let on_disk = || NodeConfig {
        data: Some(DataConfig {
            folders: vec![folder.path().to_owned()],
            bytes: Some(256 * MIB),
            write: WritePolicy::Through,
            tenants: TenantLimits::default(),
            scrub_bytes_s: 0,
        }),
        ..config()
    };
    let node = start(on_disk()).await;
    let mut client = Client::connect(node.address()).await;
    let headers = put(&mut client).await;
    drop(client);
    stop(node).await;
    let node = start(on_disk()).await;
    assert_eq!(stat(&node, "objects"), 0, "memory is empty");
    let mut client = Client::connect(node.address()).await;
    let found = probe(&mut client, &headers).await;
    assert_eq!(
        found,
        [Presence::Refused, Presence::Missing, Presence::Refused]
    );
    assert_nothing_is_leased_or_refused(&node);
    assert_eq!(stat(&node, "objects"), 0, "nothing is read for it");
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_that_are_not_wanted_count_as_received() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    put(&mut client).await;
    assert_eq!(stat(&node, "received_bytes"), 2 * LENGTH as u64);
    let (header, bytes) = object(1, LENGTH);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Existed);
    assert_eq!(stat(&node, "received_bytes"), 3 * LENGTH as u64);
    stop(node).await;
}

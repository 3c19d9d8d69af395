//! What clients that read slowly can hold: a batch each, within one budget, no object that waits,
//! and a few answers.

use std::time::Duration;

use tessera_node::NodeConfig;
use tessera_proto::limits::BATCH_ITEMS_MAX;
use tessera_proto::message::{Acquire, Get, GetAnswer, GetStatus, PutStatus, Refusal};
use tessera_proto::{FrameHeader, Kind, LeaseId, ObjectHeader, ObjectId};
use tessera_transport::Payload;
use tokio::time::Instant;

use crate::support::{Client, MIB, config, lease_of, object, roomy, start, stat, stop, until_stat};

fn get(header: &ObjectHeader, lease: Option<LeaseId>) -> Get {
    Get {
        id: header.id(),
        lease,
        length_bytes: header.length_bytes,
    }
}

async fn ask(client: &mut Client, get: Get) {
    client
        .request(Kind::Get, |body| get.encode(body), &[])
        .await;
}

/// Both ask for everything that the node holds, and read none of it.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_do_not_read_leave_room_to_publish() {
    let node = start(config()).await;
    let mut writer = Client::connect(node.address()).await;
    let mut headers = Vec::new();
    for seed in 0..60 {
        let (header, bytes) = object(seed, 1 << 20);
        assert_eq!(writer.put(header, &bytes).await, PutStatus::Stored);
        headers.push(header);
    }
    let mut readers = Vec::new();
    for _ in 0..2 {
        let mut reader = Client::connect(node.address()).await;
        for header in &headers {
            ask(&mut reader, get(header, None)).await;
        }
        readers.push(reader);
    }
    until_stat(&node, "requests_get", 120).await;
    assert!(stat(&node, "pins") <= 4, "{} pins", stat(&node, "pins"));
    for seed in 100..200 {
        let (header, bytes) = object(seed, 1 << 20);
        let status = writer.put(header, &bytes).await;
        assert_eq!(status, PutStatus::Stored, "object {seed}");
    }
    assert_eq!(stat(&node, "put_no_space"), 0);
    drop(readers);
    stop(node).await;
}

/// The first answer fills the sockets, so the others wait while everything that nobody leased
/// leaves. A request that was received is not one whose object is held: that is so once it is sent.
/// The others are waited for as long as that takes, on a busy machine longer than clients wait.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_evicted_while_its_answer_waits_is_missing_and_a_leased_one_is_not() {
    let mut config = roomy();
    config.limits.frame_timeout = Duration::from_secs(600);
    let node = start(config).await;
    let mut reader = Client::connect(node.address()).await;
    reader.deadline_ms = 600_000;
    let [(large, large_bytes), (kept, kept_bytes), (left, bytes)] =
        [(1, 16 << 20), (2, 5_000), (3, 5_000)].map(|(seed, length)| object(seed, length));
    for (header, bytes) in [(large, &large_bytes), (kept, &kept_bytes), (left, &bytes)] {
        assert_eq!(reader.put(header, bytes).await, PutStatus::Stored);
    }
    let lease = lease_of(&reader.acquire(vec![kept.id()], 600_000).await);
    for get in [get(&large, None), get(&kept, Some(lease)), get(&left, None)] {
        ask(&mut reader, get).await;
    }
    until_stat(&node, "requests_get", 3).await;
    until_stat(&node, "get_found", 1).await;
    let mut writer = Client::connect(node.address()).await;
    for seed in 10..30 {
        let (header, bytes) = object(seed, 16 << 20);
        assert_eq!(writer.put(header, &bytes).await, PutStatus::Stored);
    }
    assert!(reader.reply().await.payload == large_bytes);
    assert!(reader.reply().await.payload == kept_bytes);
    let last = GetAnswer::decode(&reader.reply().await.body);
    assert_eq!(last, Ok(GetAnswer::Absent(GetStatus::Missing)));
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_limit_of_bytes_that_are_sent_a_get_waits_and_is_busy_at_its_deadline() {
    let node = start(roomy()).await;
    let mut slow = Client::connect(node.address()).await;
    let mut other = Client::connect(node.address()).await;
    let (large, large_bytes) = object(1, 16 << 20);
    let (small, small_bytes) = object(2, 5_000);
    slow.put(large, &large_bytes).await;
    slow.put(small, &small_bytes).await;
    ask(&mut slow, get(&large, None)).await;
    until_stat(&node, "sending_bytes", 16 * MIB).await;
    other.deadline_ms = 50;
    ask(&mut other, get(&small, None)).await;
    assert_eq!(other.reply().await.refusal().reason, Refusal::Busy);
    assert_eq!(stat(&node, "refused_busy_sending"), 1);
    other.deadline_ms = 10_000;
    ask(&mut other, get(&small, None)).await;
    until_stat(&node, "requests_get", 3).await;
    assert!(slow.reply().await.payload == large_bytes);
    let reply = other.reply().await;
    assert_eq!(GetAnswer::decode(&reply.body), Ok(GetAnswer::Found(small)));
    assert!(reply.payload == small_bytes);
    assert_eq!(stat(&node, "refused_busy_sending"), 1);
    until_stat(&node, "sending_bytes", 0).await;
    stop(node).await;
}

/// The first two in line read nothing, and have a frame's time each.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_readers_that_do_not_read_is_answered_within_the_time_of_one_frame() {
    let mut config = roomy();
    config.limits.frame_timeout = Duration::from_secs(1);
    let node = start(config).await;
    let [mut first, mut second, mut third] = [
        Client::connect(node.address()).await,
        Client::connect(node.address()).await,
        Client::connect(node.address()).await,
    ];
    let (large, bytes) = object(1, 16 << 20);
    first.put(large, &bytes).await;
    third.deadline_ms = 600_000;
    for (index, client) in [&mut first, &mut second, &mut third]
        .into_iter()
        .enumerate()
    {
        ask(client, get(&large, None)).await;
        until_stat(&node, "requests_get", index as u64 + 1).await;
    }
    assert_eq!(third.reply().await.refusal().reason, Refusal::Busy);
    assert_eq!(stat(&node, "sending_bytes"), 16 * MIB, "the second's turn");
    stop(node).await;
}

/// The sockets hold some thirty answers and half as many requests; 256 could be in flight. The
/// client sends until nothing is taken any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_large_answers_is_not_read_beyond_a_few_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}/run/node.sock", folder.path().display());
    let config = NodeConfig::new(address.parse().expect("an address"), 64 * MIB);
    let node = start(config).await;
    let mut client = Client::connect(node.address()).await;
    let mut body = Vec::new();
    Acquire {
        lease_ms: 1_000,
        bytes_max: 1,
        ids: vec![ObjectId([1; 16]); BATCH_ITEMS_MAX as usize],
    }
    .encode(&mut body);
    let header = FrameHeader {
        kind: Kind::Acquire,
        request: 7,
        deadline_ms: 0,
        body_bytes: u32::try_from(body.len()).expect("a body"),
        payload_bytes: 0,
    };
    let mut sent = 0;
    loop {
        let patience = Instant::now() + Duration::from_secs(2);
        let taken = client.sender.send(&header, &body, Payload::None, patience);
        if taken.await.is_err() {
            break;
        }
        sent += 1;
        assert!(sent < 100, "the node reads on");
    }
    assert!(stat(&node, "requests_acquire") > 0);
    // Once it reads, all that was taken is answered.
    for _ in 0..sent {
        assert_eq!(client.reply().await.header.kind, Kind::AcquireAnswer);
    }
    drop(client);
    until_stat(&node, "connections", 0).await;
    stop(node).await;
}

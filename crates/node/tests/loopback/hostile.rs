//! What no client can do: stop the listener, take memory by declaring a length, hold a connection
//! by sending slowly, or disturb another client. Each attempt ends with a counted reason.

use std::time::Duration;

use tessera_node::RunningNode;
use tessera_proto::message::{Acquire, Get, Ping, PutStatus, Refusal, Refused, StatAnswer};
use tessera_proto::{FrameHeader, Kind, ObjectId, PROTOCOL_VERSION, checksum};

use crate::support::{
    Client, bare, config, frame_header, object, put_frame, raw, start, stat, stop, until_closed,
    until_stat, write,
};

/// The node serves another client as if nothing had happened, and holds no memory for the first.
async fn assert_unharmed(node: &RunningNode) {
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(99, 10_000);
    client.put(header, &bytes).await;
    let (_, received) = client.get_object(&header).await;
    assert!(received == bytes);
    drop(client);
    until_stat(node, "connections", 0).await;
    assert_eq!(stat(node, "unpublished_bytes"), 0);
    assert_eq!(stat(node, "sending_bytes"), 0);
    assert_eq!(stat(node, "pins"), 0);
}

/// A fixed sequence that looks random, so that a failure comes back.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| step()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_close_the_connection_with_a_counted_reason() {
    let node = start(config()).await;
    for seed in 0..50 {
        let mut stream = bare(node.address()).await;
        write(
            &mut stream,
            &noise(seed, 64 + usize::try_from(seed).expect("small") * 10),
        )
        .await;
        until_closed(&mut stream).await;
    }
    until_stat(&node, "closed_malformed", 50).await;
    for seed in 0..50 {
        let mut stream = raw(node.address()).await;
        write(&mut stream, &noise(seed, 200)).await;
        until_closed(&mut stream).await;
    }
    until_stat(&node, "closed_malformed", 100).await;
    assert_unharmed(&node).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bodies_of_every_kind_never_stop_the_node() {
    let node = start(config()).await;
    for kind in Kind::ALL.iter().copied() {
        for seed in 0..20 {
            let mut stream = raw(node.address()).await;
            let body = noise(seed, usize::try_from(seed).expect("small") * 9);
            write(&mut stream, &frame_header(kind, body.len(), 0).encode()).await;
            write(&mut stream, &body).await;
            drop(stream);
        }
    }
    assert_unharmed(&node).await;
    stop(node).await;
}

/// The header is valid but for the length, so it is the length that is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_declared_length_of_16_gib_is_refused_before_anything_is_allocated() {
    let node = start(config()).await;
    let (object, _) = object(1, 100);
    let mut header = put_frame(object, &[])[..64].to_vec();
    header[24..32].copy_from_slice(&(16_u64 << 30).to_le_bytes());
    let check = checksum(&header[..56]);
    header[56..].copy_from_slice(&check.to_le_bytes());
    let mut stream = raw(node.address()).await;
    write(&mut stream, &header).await;
    let last = until_closed(&mut stream).await;
    assert_eq!(refusal(&last).0, Refusal::Malformed);
    assert!(
        refusal(&last).1.contains("payload length"),
        "{:?}",
        refusal(&last)
    );
    until_stat(&node, "closed_malformed", 1).await;

    let mut header = frame_header(Kind::Acquire, 0, 0).encode().to_vec();
    header[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    let check = checksum(&header[..56]);
    header[56..].copy_from_slice(&check.to_le_bytes());
    let mut stream = raw(node.address()).await;
    write(&mut stream, &header).await;
    until_closed(&mut stream).await;
    until_stat(&node, "closed_malformed", 2).await;
    assert_unharmed(&node).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_lies_about_its_length_takes_no_memory() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (mut header, bytes) = object(1, 100);
    header.length_bytes = 1 << 30;
    let status = client.put(header, &bytes).await;
    assert_eq!(status, PutStatus::Mismatch);
    drop(client);
    assert_unharmed(&node).await;
    stop(node).await;
}

/// The deadline is absolute: each byte arrives in time, the frame does not.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_trickle_in_do_not_hold_a_connection_open() {
    let mut config = config();
    config.limits.hello_timeout = Duration::from_millis(600);
    config.limits.frame_timeout = Duration::from_millis(600);
    let node = start(config).await;
    let hello = frame_header(Kind::Hello, 34, 0).encode();
    trickle(bare(node.address()).await, &hello).await;
    until_stat(&node, "closed_deadline", 1).await;
    trickle(
        raw(node.address()).await,
        &frame_header(Kind::Ping, 8, 0).encode(),
    )
    .await;
    until_stat(&node, "closed_deadline", 2).await;

    let (object, bytes) = object(1, 1_000_000);
    let mut stream = raw(node.address()).await;
    let frame = put_frame(object, &bytes);
    write(&mut stream, &frame[..500_000]).await;
    trickle(stream, &frame[500_000..]).await;
    until_stat(&node, "closed_deadline", 3).await;
    assert_unharmed(&node).await;
    stop(node).await;
}

/// Sends a byte every 20 ms until the node closes the connection.
async fn trickle(mut stream: tokio::net::TcpStream, bytes: &[u8]) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut scratch = [0; 256];
    for byte in bytes.iter().take(1_000) {
        if stream.write_all(&[*byte]).await.is_err() {
            return;
        }
        let pace = Duration::from_millis(20);
        let read = tokio::time::timeout(pace, stream.read(&mut scratch)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            return;
        }
    }
    panic!("the node let {} bytes trickle in", bytes.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_is_closed() {
    let mut config = config();
    config.limits.hello_timeout = Duration::from_millis(50);
    let node = start(config).await;
    let mut client = Client::silent(node.address()).await;
    client.expect_closed().await;
    until_stat(&node, "closed_deadline", 1).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greeted_connection_may_idle() {
    let mut config = config();
    config.limits.hello_timeout = Duration::from_millis(500);
    config.limits.frame_timeout = Duration::from_millis(100);
    let node = start(config).await;
    let mut idle = Client::connect(node.address()).await;
    let mut busy = Client::silent(node.address()).await;
    busy.expect_closed().await;
    let reply = idle
        .call(Kind::Ping, |body| Ping { nonce: 1 }.encode(body), &[])
        .await;
    assert_eq!(reply.header.kind, Kind::PingAnswer);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_before_hello_and_hello_comes_once() {
    let node = start(config()).await;
    let mut client = Client::silent(node.address()).await;
    client
        .request(Kind::Ping, |body| Ping { nonce: 1 }.encode(body), &[])
        .await;
    assert_eq!(client.reply().await.refusal().reason, Refusal::Order);
    client.expect_closed().await;
    let mut client = Client::connect(node.address()).await;
    client.hello(1, 1).await;
    assert_eq!(client.reply().await.refusal().reason, Refusal::Order);
    client.expect_closed().await;
    until_stat(&node, "closed_order", 2).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_refused_at_once_with_both_versions() {
    let node = start(config()).await;
    let mut client = Client::silent(node.address()).await;
    client
        .hello(PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 3)
        .await;
    let refusal = client.reply().await.refusal();
    assert_eq!(refusal.reason, Refusal::Version);
    assert!(refusal.message.contains("2 to 4"), "{}", refusal.message);
    client.expect_closed().await;
    let mut stream = bare(node.address()).await;
    let mut header = frame_header(Kind::Hello, 34, 0).encode();
    header[4] = 9;
    write(&mut stream, &header).await;
    assert_eq!(
        self::refusal(&until_closed(&mut stream).await).0,
        Refusal::Version
    );
    until_stat(&node, "closed_version", 2).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_connects_leave_nothing_behind() {
    let node = start(config()).await;
    for round in 0..1_000 {
        let stream = bare(node.address()).await;
        if round % 2 == 0 {
            drop(raw(node.address()).await);
        }
        drop(stream);
    }
    until_stat(&node, "connections_accepted", 1_500).await;
    assert_unharmed(&node).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_too_many_is_told_so_and_the_others_go_on() {
    let mut config = config();
    config.limits.connections = 2;
    let node = start(config).await;
    let mut first = Client::connect(node.address()).await;
    let second = Client::connect(node.address()).await;
    let mut third = Client::silent(node.address()).await;
    assert_eq!(third.reply().await.refusal().reason, Refusal::Full);
    third.expect_closed().await;
    assert_eq!(stat(&node, "connections_refused_full"), 1);
    let reply = first
        .call(Kind::Ping, |body| Ping { nonce: 1 }.encode(body), &[])
        .await;
    assert_eq!(reply.header.kind, Kind::PingAnswer);
    drop(second);
    until_stat(&node, "connections", 1).await;
    Client::connect(node.address()).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_closes_who_asked_for_nothing_and_nobody_else() {
    let mut config = config();
    config.limits.connections = 2;
    config.limits.silent_timeout = Duration::ZERO;
    let node = start(config).await;
    let mut silent = Client::connect(node.address()).await;
    let mut asking = Client::connect(node.address()).await;
    asking.call(Kind::Stat, |_| {}, &[]).await;
    let mut third = Client::connect(node.address()).await;
    assert_eq!(silent.reply().await.refusal().reason, Refusal::Full);
    silent.expect_closed().await;
    until_stat(&node, "closed_silent", 1).await;
    for client in [&mut asking, &mut third] {
        client.call(Kind::Stat, |_| {}, &[]).await;
    }
    until_stat(&node, "connections", 2).await;
    // Both have asked now.
    let mut fourth = Client::silent(node.address()).await;
    assert_eq!(fourth.reply().await.refusal().reason, Refusal::Full);
    assert_eq!(stat(&node, "connections_refused_full"), 1);
    stop(node).await;
}

/// The client sends without reading: the node stops reading it instead of queueing without end, and
/// ends it when an answer is not taken in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_its_answers_is_bounded_and_ended() {
    let mut config = config();
    config.limits.frame_timeout = Duration::from_secs(1);
    config.limits.in_flight = 8;
    let node = start(config).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 8 << 20);
    client.put(header, &bytes).await;
    let get = Get {
        id: header.id(),
        lease: None,
        length_bytes: header.length_bytes,
    };
    for _ in 0..200 {
        client
            .request(Kind::Get, |body| get.encode(body), &[])
            .await;
    }
    until_stat(&node, "closed_deadline", 1).await;
    assert!(stat(&node, "refused_busy_in_flight") > 0);
    assert!(
        stat(&node, "get_found") <= 24,
        "{} objects were pinned",
        stat(&node, "get_found")
    );
    assert_unharmed(&node).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_batch_is_answered_and_a_larger_one_is_refused() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let most = tessera_proto::limits::BATCH_ITEMS_MAX as usize;
    let answer = client.acquire(vec![ObjectId([1; 16]); most], 1_000).await;
    assert_eq!(answer.items.len(), most);
    let acquire = Acquire {
        lease_ms: 1_000,
        bytes_max: 1,
        ids: vec![ObjectId([1; 16]); most + 1],
    };
    client
        .request(Kind::Acquire, |body| acquire.encode(body), &[])
        .await;
    assert_eq!(client.reply().await.refusal().reason, Refusal::Malformed);
    client.expect_closed().await;
    let mut client = Client::connect(node.address()).await;
    let reply = client.call(Kind::Stat, |_| {}, &[]).await;
    StatAnswer::decode(&reply.body).expect("an answer to STAT");
    stop(node).await;
}

/// The reason and the message of the refusal at the front of `bytes`.
fn refusal(bytes: &[u8]) -> (Refusal, String) {
    let header = bytes.first_chunk().expect("a header");
    let header = FrameHeader::decode(header).expect("a valid header");
    assert_eq!(header.kind, Kind::Refused);
    let body = &bytes[64..64 + header.body_bytes as usize];
    let refused = Refused::decode(body).expect("a refusal");
    (refused.reason, refused.message)
}

//! How connections, leases and nodes end, and what begins after them.

use std::time::Duration;

use tessera_node::{Node, NodeConfig, StartError, StopReason};
use tessera_proto::Kind;
use tessera_proto::message::{Get, GetAnswer, GetStatus, Ping, Presence, PutStatus, Refusal};
use tokio::time::timeout;

use crate::support::{
    Client, MIB, PATIENCE, config, lease_of, object, put_frame, raw, start, stat, stop,
    until_closed, until_stat, write,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_with_its_connection_and_only_with_its_own() {
    let node = start(config()).await;
    let mut first = Client::connect(node.address()).await;
    let mut second = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 5_000);
    first.put(header, &bytes).await;
    let (other, bytes) = object(2, 7_000);
    first.put(other, &bytes).await;
    lease_of(&first.acquire(vec![header.id()], 600_000).await);
    lease_of(&second.acquire(vec![other.id()], 600_000).await);
    assert_eq!(stat(&node, "leased_bytes"), 12_000);
    drop(first);
    until_stat(&node, "leased_bytes", 7_000).await;
    assert_eq!(stat(&node, "leases"), 1);
    drop(second);
    until_stat(&node, "leases", 0).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_at_its_deadline() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 5_000);
    client.put(header, &bytes).await;
    let answer = client.acquire(vec![header.id()], 30).await;
    assert_eq!(answer.items[0].presence, Presence::Held);
    until_stat(&node, "leases", 0).await;
    assert_eq!(stat(&node, "leased_bytes"), 0);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_object_outlives_pressure_and_an_unleased_one_does_not_block_it() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (kept, kept_bytes) = object(1, 4 << 20);
    client.put(kept, &kept_bytes).await;
    let lease = lease_of(&client.acquire(vec![kept.id()], 600_000).await);
    for seed in 2..40 {
        let (header, bytes) = object(seed, 4 << 20);
        assert_eq!(
            client.put(header, &bytes).await,
            PutStatus::Stored,
            "object {seed}"
        );
    }
    assert!(stat(&node, "evictions") > 0);
    let get = Get {
        id: kept.id(),
        lease: Some(lease),
        length_bytes: kept.length_bytes,
    };
    let (answer, bytes) = client.get(get).await;
    assert_eq!(answer, GetAnswer::Found(kept));
    assert!(bytes == kept_bytes);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_an_object_is_never_visible_when_its_writer_is_lost() {
    let node = start(config()).await;
    let (header, bytes) = object(1, 1 << 20);
    let frame = put_frame(header, &bytes);
    let mut writer = raw(node.address()).await;
    write(&mut writer, &frame[..frame.len() - 1]).await;
    until_stat(&node, "unpublished_bytes", MIB).await;
    drop(writer);
    until_stat(&node, "closed_broken", 1).await;
    let mut client = Client::connect(node.address()).await;
    let (answer, _) = client.get_object(&header).await;
    assert_eq!(answer, GetAnswer::Absent(GetStatus::Missing));
    assert_eq!(stat(&node, "unpublished_bytes"), 0);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    stop(node).await;
}

/// More answers than the sockets hold are on their way when the order to stop comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_the_answers_on_their_way_and_refuses_what_comes_later() {
    let mut node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 4 << 20);
    client.put(header, &bytes).await;
    let get = Get {
        id: header.id(),
        lease: None,
        length_bytes: header.length_bytes,
    };
    for _ in 0..10 {
        client
            .request(Kind::Get, |body| get.encode(body), &[])
            .await;
    }
    until_stat(&node, "requests_get", 10).await;
    node.shutdown();
    for _ in 0..10 {
        let reply = client.reply().await;
        assert_eq!(reply.header.kind, Kind::GetAnswer);
        assert!(reply.payload == bytes);
    }
    assert_eq!(client.reply().await.refusal().reason, Refusal::Closing);
    client.expect_closed().await;
    let reason = timeout(PATIENCE, node.wait()).await.expect("the node ends");
    assert_eq!(reason, StopReason::Ordered);
    assert_eq!(stat(&node, "connections"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_cannot_delay_a_shutdown_beyond_the_drain_timeout() {
    let mut config = config();
    config.limits.drain_timeout = Duration::from_millis(100);
    config.limits.frame_timeout = Duration::from_secs(600);
    let mut node = start(config).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 8 << 20);
    client.put(header, &bytes).await;
    let get = Get {
        id: header.id(),
        lease: None,
        length_bytes: header.length_bytes,
    };
    for _ in 0..4 {
        client
            .request(Kind::Get, |body| get.encode(body), &[])
            .await;
    }
    until_stat(&node, "requests_get", 4).await;
    node.shutdown();
    timeout(PATIENCE, node.wait()).await.expect("the node ends");
    assert_eq!(stat(&node, "pins"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_node_ends_and_a_used_one_does_not() {
    let mut config = config();
    config.idle_exit = Some(Duration::from_millis(500));
    let mut node = start(config).await;
    let mut client = Client::connect(node.address()).await;
    let early = timeout(Duration::from_secs(1), node.wait()).await;
    assert!(early.is_err(), "the node left its client");
    let reply = client
        .call(Kind::Ping, |body| Ping { nonce: 1 }.encode(body), &[])
        .await;
    assert_eq!(reply.header.kind, Kind::PingAnswer);
    // It still takes new ones as well.
    drop(Client::connect(node.address()).await);
    drop(client);
    let reason = timeout(PATIENCE, node.wait())
        .await
        .expect("the idle node ends");
    assert_eq!(reason, StopReason::Idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_never_share_a_socket_and_a_new_one_starts_cold_on_the_old_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}/run/node.sock", folder.path().display());
    let config = NodeConfig::new(address.parse().expect("an address"), 64 * MIB);
    let node = start(config.clone()).await;
    let refused = Node::start(config.clone())
        .await
        .expect_err("a second node");
    assert!(
        matches!(refused, StartError::AlreadyRunning { .. }),
        "{refused}"
    );

    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 5_000);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    stop(node).await;
    client.expect_closed().await;
    assert!(!folder.path().join("run/node.sock").exists());

    let node = start(config).await;
    let mut client = Client::connect(node.address()).await;
    let (answer, _) = client.get_object(&header).await;
    assert_eq!(answer, GetAnswer::Absent(GetStatus::Missing));
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_did_not_start_leaves_the_address_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}/run/node.sock", folder.path().display());
    let config = NodeConfig::new(address.parse().expect("an address"), 64 * MIB);
    let mut wrong = config.clone();
    wrong.limits.unpublished_bytes = wrong.ram_bytes;
    let refused = Node::start(wrong)
        .await
        .expect_err("limits that contradict");
    assert!(matches!(refused, StartError::Limits(_)), "{refused}");
    let huge = NodeConfig::new(config.listen.clone(), 1 << 60);
    let refused = Node::start(huge)
        .await
        .expect_err("more memory than there is");
    assert!(matches!(refused, StartError::Store(_)), "{refused}");
    stop(start(config).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_refused_with_its_address() {
    let node = start(config()).await;
    let taken = NodeConfig::new(node.address().clone(), 64 * MIB);
    let refused = Node::start(taken).await.expect_err("a taken port");
    assert!(
        refused.to_string().contains(&node.address().to_string()),
        "{refused}"
    );
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cut_off_by_a_shutdown_sees_a_closed_connection_between_frames() {
    let node = start(config()).await;
    let mut stream = raw(node.address()).await;
    stop(node).await;
    let bytes = until_closed(&mut stream).await;
    assert!(!bytes.is_empty(), "the node said why");
}

//! What becomes of a node whose socket, locks or folder somebody removes.

use std::path::Path;
use std::time::Duration;

use tessera_node::{NodeConfig, RunningNode, StopReason};
use tessera_proto::message::{GetAnswer, PutStatus};
use tessera_transport::Link;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Client, MIB, PATIENCE, object, start, stop};

fn config(folder: &Path) -> NodeConfig {
    let address = format!("unix:{}/run/node.sock", folder.display());
    NodeConfig::new(address.parse().expect("an address"), 16 * MIB)
}

async fn ends_as_lost(mut node: RunningNode) {
    let reason = timeout(PATIENCE, node.wait()).await.expect("the node ends");
    assert_eq!(reason, StopReason::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_was_removed_is_made_again_and_the_node_is_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = start(config(folder.path())).await;
    let mut before = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 5_000);
    assert_eq!(before.put(header, &bytes).await, PutStatus::Stored);
    std::fs::remove_file(folder.path().join("run/node.sock")).expect("the socket");
    let end = Instant::now() + PATIENCE;
    while Link::connect(node.address(), end).await.is_err() {
        assert!(Instant::now() < end, "nobody finds the node");
        sleep(Duration::from_millis(5)).await;
    }
    let mut after = Client::connect(node.address()).await;
    for client in [&mut before, &mut after] {
        let (answer, _) = client.get_object(&header).await;
        assert_eq!(answer, GetAnswer::Found(header));
    }
    stop(node).await;
    assert!(!folder.path().join("run/node.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_folder_was_removed_ends_and_so_do_its_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = start(config(folder.path())).await;
    let mut client = Client::connect(node.address()).await;
    std::fs::remove_dir_all(folder.path().join("run")).expect("the folder");
    ends_as_lost(node).await;
    client.expect_closed().await;
    stop(start(config(folder.path())).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_place_to_another_ends_and_leaves_the_other_its_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = start(config(folder.path())).await;
    std::fs::remove_file(folder.path().join("run/node.sock.lock")).expect("the lock");
    let second = start(config(folder.path())).await;
    ends_as_lost(first).await;
    Client::connect(second.address()).await;
    stop(second).await;
    assert!(!folder.path().join("run/node.sock").exists());
}

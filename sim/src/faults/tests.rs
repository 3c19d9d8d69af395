//! Each fault on the frame that it was ordered for, against a real node.

use std::sync::mpsc::{Receiver, channel};

use tessera_client::{FetchOutcome, StoreOutcome};
use tessera_node::{Node, NodeConfig, RunningNode};
use tessera_proto::{Expectation, KeyDigest, NamespaceDigest, ObjectHeader, TenantTag, WriteId};
use tessera_transport::{Lent, Region, Segments};
use tokio::time::timeout;

use super::*;

const LENGTH: usize = 4096;
const LIMIT: Duration = Duration::from_secs(20);

/// A node, a proxy before it, and a client of the proxy.
struct Scene {
    faults: Arc<Faults>,
    events: Receiver<Fault>,
    client: Cluster,
    _node: RunningNode,
}

async fn scene() -> Scene {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let config = NodeConfig::new(listen, 64 << 20);
    let node = Node::start(config).await.expect("a node");
    let (sender, events) = channel();
    let upstream = node.address().to_string();
    // Its own runtime may neither be made nor dropped on a thread of this one.
    let started = thread::spawn(move || {
        let started = Faults::start(&upstream, move |fault| {
            let _ = sender.send(fault);
        });
        started.expect("a proxy")
    });
    let (faults, address) = started.join().expect("a proxy");
    let address = address.to_string().parse().expect("an address");
    let nodes = ClusterConfig::new(vec![NodeSpec::new(address)]);
    let client = Cluster::start(nodes, &tokio::runtime::Handle::current());
    Scene {
        faults,
        events,
        client,
        _node: node,
    }
}

impl Scene {
    fn header(&self, number: u8) -> ObjectHeader {
        ObjectHeader {
            namespace: NamespaceDigest([1; 32]),
            key: KeyDigest([number; 32]),
            layout: 3,
            length_bytes: LENGTH as u64,
            checksum: 0,
            write: WriteId(4),
            tenant: TenantTag::NONE,
        }
    }

    async fn store(&self, number: u8) {
        let segments = Segments::whole(&Region::allocate(LENGTH).expect("memory"));
        let mut header = self.header(number);
        header.checksum = segments.checksum();
        let stored = self.client.store(header, segments, self.deadline()).await;
        assert_eq!(stored.0, StoreOutcome::Stored);
    }

    async fn fetch(&self, number: u8) -> (FetchOutcome, Vec<u8>) {
        let ObjectHeader {
            namespace,
            key,
            layout,
            length_bytes,
            ..
        } = self.header(number);
        let expectation = Expectation {
            namespace,
            key,
            layout,
            length_bytes,
        };
        let region = Region::allocate(LENGTH).expect("memory");
        let lent = Lent::new(Segments::whole(&region)).expect("one segment");
        let fetch = self.client.fetch(expectation, None, lent, self.deadline());
        let (outcome, lent) = fetch.await;
        let mut bytes = vec![0; LENGTH];
        lent.copy_to(&mut bytes).expect("as long");
        (outcome, bytes)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + LIMIT
    }

    fn happened(&self) -> Fault {
        self.events.recv_timeout(LIMIT).expect("the fault happens")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_passes_every_check_and_is_another() {
    let scene = scene().await;
    scene.faults.order(Fault::Damage);
    scene.store(1).await;
    scene.store(2).await;
    assert_eq!(scene.happened(), Fault::Damage);
    let (outcome, bytes) = scene.fetch(1).await;
    assert_eq!(outcome, FetchOutcome::Loaded);
    assert_ne!(bytes, vec![0; LENGTH]);
    assert_eq!(
        scene.fetch(2).await,
        (FetchOutcome::Loaded, vec![0; LENGTH])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_gone_for_the_request_that_comes_for_it() {
    let scene = scene().await;
    scene.store(1).await;
    scene.store(2).await;
    scene.faults.order(Fault::Gone);
    assert_eq!(scene.fetch(1).await.0, FetchOutcome::Missing);
    assert_eq!(scene.happened(), Fault::Gone);
    assert_eq!(scene.fetch(2).await.0, FetchOutcome::Loaded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_loses_its_request_and_the_next_one_is_served() {
    let scene = scene().await;
    scene.store(1).await;
    scene.faults.order(Fault::Cut);
    assert_eq!(scene.fetch(1).await.0, FetchOutcome::Unreachable);
    assert_eq!(scene.happened(), Fault::Cut);
    // Until the client has noticed, requests may still go into the lost connection.
    let served = async {
        while scene.fetch(1).await.0 != FetchOutcome::Loaded {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, served).await.expect("it connects again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_request_is_passed_by_and_answered_when_it_is_released() {
    let scene = scene().await;
    scene.store(1).await;
    scene.faults.order(Fault::Stall);
    let stalled = scene.fetch(1);
    tokio::pin!(stalled);
    let others = async {
        while scene.events.try_recv() != Ok(Fault::Stall) {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.fetch(1).await.0, FetchOutcome::Loaded);
    };
    tokio::select! {
        biased;
        _ = &mut stalled => panic!("it was not stalled"),
        passed = timeout(LIMIT, others) => passed.expect("the others pass it by"),
    }
    assert_eq!(scene.faults.release(), 1);
    assert_eq!(stalled.await.0, FetchOutcome::Loaded);
    assert_eq!(scene.faults.release(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_object_is_stored_when_it_is_released() {
    let scene = scene().await;
    scene.faults.order(Fault::Keep);
    let kept = scene.store(1);
    tokio::pin!(kept);
    let others = async {
        while scene.events.try_recv() != Ok(Fault::Keep) {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.fetch(1).await.0, FetchOutcome::Missing);
    };
    tokio::select! {
        biased;
        () = &mut kept => panic!("it was not kept"),
        () = others => {}
    }
    assert_eq!(scene.faults.release(), 1);
    kept.await;
    assert_eq!(scene.fetch(1).await.0, FetchOutcome::Loaded);
}

#[test]
fn faults_are_called_by_their_names() {
    for (_, fault) in WORDS {
        assert_eq!(fault.to_string().parse(), Ok(fault));
    }
    assert!("explode".parse::<Fault>().unwrap_err().contains("stall"));
}

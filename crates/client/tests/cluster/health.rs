//! Nodes that are down, silent, paused, restarted or busy: a miss in bounded time, and back by
//! themselves.

use std::time::Duration;

use tessera_client::{CircuitState, FetchOutcome, Lease, NodeError, NodeIndex};
use tessera_proto::message::{Refusal, Refused};
use tessera_proto::{Incarnation, Kind, LeaseId};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::fake::{Fake, Object, Peer, cluster, far, must, soon, until};

/// Long before any deadline of `far`.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn serve_one(peer: &mut Peer, object: &Object) {
    let (id, _) = peer.get().await;
    peer.found(id, object).await;
}

#[tokio::test]
async fn a_node_that_is_down_is_a_miss_at_once_and_comes_back_by_itself() {
    let mut fake = Fake::start().await;
    let address = fake.address();
    drop(fake);
    let cluster = cluster(std::slice::from_ref(&address));
    let object = Object::new(1, 100);
    let started = Instant::now();
    for _ in 0..10 {
        let (outcome, _) = must(object.fetch(&cluster, far())).await.unwrap();
        assert_eq!(outcome, FetchOutcome::Unreachable);
    }
    assert!(started.elapsed() < AT_ONCE);
    fake = Fake::listening(TcpListener::bind(&address).await.unwrap());
    let mut peer = fake.accept_again(&cluster).await;
    let fetch = object.fetch(&cluster, far());
    serve_one(&mut peer, &object).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
}

/// The kernel of a stopped process still accepts connections.
#[tokio::test]
async fn a_node_that_accepts_and_never_speaks_is_a_miss_after_the_connect_timeout() {
    let fake = Fake::start().await;
    let cluster = cluster(&[fake.address()]);
    let held = fake.accept_silent().await;
    let object = Object::new(1, 100);
    let (outcome, _) = must(object.fetch(&cluster, far())).await.unwrap();
    assert_eq!(outcome, FetchOutcome::Unreachable);
    let started = Instant::now();
    let (outcome, _) = must(object.fetch(&cluster, far())).await.unwrap();
    assert_eq!(outcome, FetchOutcome::Unreachable);
    assert!(started.elapsed() < AT_ONCE);
    drop(held);
}

#[tokio::test]
async fn a_deadline_shorter_than_the_first_connection_is_kept() {
    let fake = Fake::start().await;
    let cluster = cluster(&[fake.address()]);
    let _held = fake.accept_silent().await;
    let deadline = Instant::now() + Duration::from_millis(20);
    let (outcome, _) = must(Object::new(1, 100).fetch(&cluster, deadline))
        .await
        .unwrap();
    assert_eq!(outcome, FetchOutcome::Deadline);
}

#[tokio::test]
async fn a_paused_node_opens_the_circuit_and_closes_it_by_itself() {
    let fake = Fake::start().await;
    let (cluster, mut paused) = fake.connected().await;
    let object = Object::new(1, 100);
    let first = object.fetch(&cluster, far());
    serve_one(&mut paused, &object).await;
    assert_eq!(must(first).await.unwrap().0, FetchOutcome::Loaded);
    for _ in 0..3 {
        assert_eq!(
            must(object.fetch(&cluster, soon())).await.unwrap().0,
            FetchOutcome::Deadline
        );
    }
    let started = Instant::now();
    for _ in 0..20 {
        let (outcome, _) = must(object.fetch(&cluster, far())).await.unwrap();
        assert_eq!(outcome, FetchOutcome::Unreachable, "the circuit is open");
    }
    assert!(started.elapsed() < AT_ONCE);
    assert_eq!(cluster.metrics().nodes[0].circuits_opened, 1);
    assert_ne!(cluster.metrics().nodes[0].circuit, CircuitState::Closed);
    let mut awake = fake.accept_again(&cluster).await;
    let fetch = object.fetch(&cluster, far());
    serve_one(&mut awake, &object).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
}

#[tokio::test]
async fn requests_that_find_a_node_silent_together_open_its_circuit_once() {
    let fake = Fake::start().await;
    let (cluster, _paused) = fake.connected().await;
    let object = Object::new(1, 100);
    let deadline = soon();
    let fetches: Vec<_> = (0..9).map(|_| object.fetch(&cluster, deadline)).collect();
    for fetch in fetches {
        let (outcome, _) = must(fetch).await.unwrap();
        assert_eq!(outcome, FetchOutcome::Deadline);
    }
    assert_eq!(cluster.metrics().nodes[0].circuits_opened, 1);
}

#[tokio::test]
async fn a_slow_node_that_sends_to_others_is_not_dead() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100);
    for _ in 0..5 {
        let fetch = object.fetch(&cluster, soon());
        let (id, _) = peer.get().await;
        peer.found(id + 1000, &object).await;
        assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Deadline);
    }
    let node = &cluster.metrics().nodes[0];
    assert_eq!((node.circuits_opened, node.deadlines), (0, 5));
}

#[tokio::test]
async fn an_expired_deadline_says_nothing_about_the_node() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100);
    let fetch = object.fetch(&cluster, far());
    serve_one(&mut peer, &object).await;
    must(fetch).await.unwrap();
    for _ in 0..10 {
        let (outcome, _) = must(object.fetch(&cluster, Instant::now())).await.unwrap();
        assert_eq!(outcome, FetchOutcome::Deadline);
    }
    assert_eq!(cluster.metrics().nodes[0].circuits_opened, 0);
}

#[tokio::test]
async fn a_busy_node_is_not_dead() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100);
    for _ in 0..20 {
        let fetch = object.fetch(&cluster, far());
        let (id, _) = peer.get().await;
        let refused = Refused {
            reason: Refusal::Busy,
            message: "later".to_owned(),
        };
        peer.answer(id, Kind::Refused, |body| refused.encode(body))
            .await;
        assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Busy);
    }
    let node = &cluster.metrics().nodes[0];
    assert_eq!(
        (node.circuits_opened, node.circuit, node.busy),
        (0, CircuitState::Closed, 20)
    );
}

#[tokio::test]
async fn a_lease_of_an_earlier_start_of_the_node_is_over() {
    let mut fake = Fake::start().await;
    let (cluster, peer) = fake.connected().await;
    let lease = Lease {
        node: NodeIndex(0),
        incarnation: Incarnation(fake.incarnation),
        id: LeaseId::new(5).unwrap(),
    };
    fake.incarnation = 2;
    drop(peer);
    let mut restarted = fake.accept().await;
    until(|| cluster.metrics().nodes[0].connections_made == 2).await;
    let object = Object::new(1, 100);
    let (outcome, _) =
        must(cluster.fetch(object.expectation(), Some(lease), object.memory(), far())).await;
    assert_eq!(outcome, FetchOutcome::LeaseOver);
    assert_eq!(
        must(cluster.release(vec![(lease, Vec::new())], far())).await,
        0
    );
    // The first frame that the restarted node sees is the fetch without a lease.
    let fetch = object.fetch(&cluster, far());
    let (id, get) = restarted.get().await;
    assert_eq!(get.lease, None);
    restarted.found(id, &object).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
}

#[tokio::test]
async fn more_requests_than_agreed_wait_their_turn_and_are_busy_at_their_deadline() {
    let mut fake = Fake::start().await;
    fake.in_flight_max = 2;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100);
    let (one, two) = (object.fetch(&cluster, far()), object.fetch(&cluster, far()));
    let (first, _) = peer.get().await;
    let (second, _) = peer.get().await;
    for _ in 0..5 {
        assert_eq!(
            must(object.fetch(&cluster, soon())).await.unwrap().0,
            FetchOutcome::Busy
        );
    }
    let three = object.fetch(&cluster, far());
    peer.found(first, &object).await;
    let (third, _) = peer.get().await;
    peer.found(third, &object).await;
    peer.found(second, &object).await;
    for fetch in [one, two, three] {
        assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
    }
    assert_eq!(cluster.metrics().nodes[0].circuits_opened, 0);
}

#[tokio::test]
async fn a_refusal_of_the_connection_is_told_and_tried_again() {
    let fake = Fake::start().await;
    let cluster = cluster(&[fake.address()]);
    let mut peer = fake.accept_silent().await;
    peer.request().await;
    let refused = Refused {
        reason: Refusal::Full,
        message: "full".to_owned(),
    };
    peer.answer(0, Kind::Refused, |body| refused.encode(body))
        .await;
    peer.ended().await;
    let _peer = fake.accept_again(&cluster).await;
    assert_eq!(cluster.metrics().nodes[0].connects_failed, 1);
}

#[tokio::test]
async fn a_node_that_does_not_exist_in_the_list_is_an_error_of_the_caller() {
    let cluster = cluster(&[]);
    let unknown = must(cluster.ping(NodeIndex(3), far())).await;
    assert_eq!(unknown, Err(NodeError::Unknown(3)));
}

//! Lookups: one request a node, answers in the order of the ids, leases that nobody uses go back.

use tessera_client::{NodeIndex, ObjectId, Presence};
use tessera_proto::message::{
    Acquire, AcquireAnswer, AcquireItem, Presence as Found, Release, ReleaseAnswer,
};
use tessera_proto::{Kind, LeaseId};

use crate::fake::{Fake, Peer, cluster, far, must, soon, until};

fn ids(count: u8) -> Vec<ObjectId> {
    (0..count)
        .map(|n| ObjectId([n.wrapping_mul(37); 16]))
        .collect()
}

/// Answers an ACQUIRE: every id is held, with its first byte as its length.
async fn hold(peer: &mut Peer, lease: u64) -> Vec<ObjectId> {
    let request = peer.request().await;
    assert_eq!(request.header.kind, Kind::Acquire);
    let asked = Acquire::decode(&request.body).unwrap();
    assert_eq!(asked.lease_ms, 5000);
    let held = |id: &ObjectId| AcquireItem {
        presence: Found::Held,
        length_bytes: u64::from(id.0[0]) + 1,
    };
    let items = asked.ids.iter().map(held).collect();
    let answer = AcquireAnswer {
        lease: LeaseId::new(lease),
        lease_ms: 4000,
        items,
    };
    peer.answer(request.header.request, Kind::AcquireAnswer, |body| {
        answer.encode(body);
    })
    .await;
    asked.ids
}

#[tokio::test]
async fn a_lookup_asks_each_node_once_and_keeps_the_order_of_the_ids() {
    let (first, mut second) = (Fake::start().await, Fake::start().await);
    second.incarnation = 2;
    let cluster = cluster(&[first.address(), second.address()]);
    let (mut one, mut two) = (first.accept().await, second.accept().await);
    let asked = ids(100);
    let lookup = tokio::spawn({
        let (cluster, asked) = (cluster.clone(), asked.clone());
        async move { cluster.acquire(asked, 5000, far()).await }
    });
    let (at_one, at_two) = (hold(&mut one, 11).await, hold(&mut two, 22).await);
    assert_eq!(at_one.len() + at_two.len(), 100);
    let outcome = must(lookup).await.unwrap();
    assert_eq!(outcome.lease_ms, 4000);
    for (id, item) in asked.iter().zip(&outcome.items) {
        let Presence::Held {
            lease,
            length_bytes,
        } = item
        else {
            panic!("{item:?}")
        };
        assert_eq!(*length_bytes, u64::from(id.0[0]) + 1);
        let node = usize::from(at_two.contains(id));
        assert_eq!(lease.node, NodeIndex(node));
        assert_eq!(lease.id.get(), [11, 22][node]);
        assert_eq!(lease.incarnation.0, [1, 2][node]);
        assert_eq!(cluster.owner(id), Some(NodeIndex(node)));
    }
}

#[tokio::test]
async fn the_ids_of_a_node_that_is_down_are_unreachable_and_the_others_are_held() {
    let (up, down) = (Fake::start().await, Fake::start().await);
    let cluster = cluster(&[up.address(), down.address()]);
    drop(down);
    let mut peer = up.accept().await;
    let asked = ids(60);
    let lookup = tokio::spawn({
        let (cluster, asked) = (cluster.clone(), asked.clone());
        async move { cluster.acquire(asked, 5000, far()).await }
    });
    hold(&mut peer, 1).await;
    let outcome = must(lookup).await.unwrap();
    for (id, item) in asked.iter().zip(&outcome.items) {
        let held = matches!(item, Presence::Held { .. });
        assert_eq!(held, cluster.owner(id) == Some(NodeIndex(0)));
        assert!(held || *item == Presence::Unreachable);
    }
}

#[tokio::test]
async fn a_lease_that_comes_too_late_is_given_back() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let lookup = cluster.acquire(ids(3), 5000, soon());
    assert_eq!(must(lookup).await.items, [Presence::Unreachable; 3]);
    hold(&mut peer, 77).await;
    let request = peer.request().await;
    assert_eq!(request.header.kind, Kind::Release);
    let release = Release::decode(&request.body).unwrap();
    assert_eq!((release.lease.get(), release.ids.len()), (77, 0));
    let answer = ReleaseAnswer { released: 3 };
    peer.answer(request.header.request, Kind::ReleaseAnswer, |body| {
        answer.encode(body);
    })
    .await;
}

#[tokio::test]
async fn a_lookup_that_is_dropped_between_two_answers_gives_the_first_lease_back() {
    for first_to_answer in [0, 1] {
        let fakes = [Fake::start().await, Fake::start().await];
        let cluster = cluster(&[fakes[0].address(), fakes[1].address()]);
        let mut peers = [fakes[0].accept().await, fakes[1].accept().await];
        let lookup = tokio::spawn({
            let cluster = cluster.clone();
            async move { cluster.acquire(ids(60), 5000, far()).await }
        });
        let peer = &mut peers[first_to_answer];
        hold(peer, 11).await;
        must(until(|| {
            cluster.metrics().nodes[first_to_answer].acquire_held > 0
        }))
        .await;
        lookup.abort();
        let request = must(peer.request()).await;
        assert_eq!(request.header.kind, Kind::Release);
        assert_eq!(Release::decode(&request.body).unwrap().lease.get(), 11);
    }
}

#[tokio::test]
async fn an_answer_with_too_few_items_promises_nothing_about_the_rest() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let lookup = tokio::spawn(async move { cluster.acquire(ids(3), 5000, far()).await });
    let request = peer.request().await;
    let items = vec![AcquireItem {
        presence: Found::Missing,
        length_bytes: 0,
    }];
    let answer = AcquireAnswer {
        lease: None,
        lease_ms: 0,
        items,
    };
    peer.answer(request.header.request, Kind::AcquireAnswer, |body| {
        answer.encode(body);
    })
    .await;
    let items = must(lookup).await.unwrap().items;
    assert_eq!(
        items,
        [
            Presence::Missing,
            Presence::Unreachable,
            Presence::Unreachable
        ]
    );
}

#[tokio::test]
async fn no_nodes_is_a_cluster_without_hits() {
    let cluster = cluster(&[]);
    let outcome = must(cluster.acquire(ids(2), 5000, far())).await;
    assert_eq!(outcome.items, [Presence::Unreachable; 2]);
    assert_eq!(outcome.lease_ms, 0);
}

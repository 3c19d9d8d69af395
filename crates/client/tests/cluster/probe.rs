//! Probes of what is to be saved: one request a node, no lease, and no word is no presence.

use tessera_client::{NodeIndex, ObjectId};
use tessera_proto::message::{Acquire, AcquireAnswer, AcquireItem, Presence, Release};
use tessera_proto::{Kind, LeaseId};

use crate::fake::{Fake, Peer, cluster, far, must, soon};

fn ids(count: u8) -> Vec<ObjectId> {
    (0..count)
        .map(|n| ObjectId([n.wrapping_mul(37); 16]))
        .collect()
}

/// Answers a probe: what has an even first byte is there, said with `there`.
async fn answer(peer: &mut Peer, there: Presence, lease: Option<LeaseId>) -> Vec<ObjectId> {
    let request = peer.request().await;
    assert_eq!(request.header.kind, Kind::Acquire);
    let asked = Acquire::decode(&request.body).unwrap();
    assert_eq!((asked.lease_ms, asked.bytes_max), (0, 0), "no lease");
    let item = |id: &ObjectId| AcquireItem {
        presence: if is_there(id) {
            there
        } else {
            Presence::Missing
        },
        length_bytes: 0,
    };
    let answer = AcquireAnswer {
        lease,
        lease_ms: 0,
        items: asked.ids.iter().map(item).collect(),
    };
    peer.answer(request.header.request, Kind::AcquireAnswer, |body| {
        answer.encode(body);
    })
    .await;
    asked.ids
}

fn is_there(id: &ObjectId) -> bool {
    id.0[0].is_multiple_of(2)
}

#[tokio::test]
async fn l15_a_probe_asks_each_node_once_and_keeps_the_order_of_the_ids() {
    let (first, second) = (Fake::start().await, Fake::start().await);
    let cluster = cluster(&[first.address(), second.address()]);
    let (mut one, mut two) = (first.accept().await, second.accept().await);
    let asked = ids(100);
    let probe = tokio::spawn({
        let (cluster, asked) = (cluster.clone(), asked.clone());
        async move { cluster.probe(asked, far()).await }
    });
    let at_one = answer(&mut one, Presence::Refused, None).await.len();
    let at_two = answer(&mut two, Presence::Refused, None).await.len();
    assert_eq!(at_one + at_two, 100);
    let expected: Vec<_> = asked.iter().map(is_there).collect();
    assert_eq!(must(probe).await.unwrap(), expected);
    let nodes = cluster.metrics().nodes;
    let present = nodes.iter().map(|node| node.probe_present).sum::<u64>();
    let absent = nodes.iter().map(|node| node.probe_absent).sum::<u64>();
    assert_eq!((present, absent), (50, 50));
    for node in nodes {
        let lookups = [
            node.acquire_held,
            node.acquire_missing,
            node.acquire_unknown,
        ];
        assert_eq!(lookups, [0; 3], "a probe is no lookup");
    }
}

#[tokio::test]
async fn l15_a_lease_that_a_probe_did_not_ask_for_is_given_back() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let probe = tokio::spawn(async move { cluster.probe(ids(3), far()).await });
    answer(&mut peer, Presence::Held, LeaseId::new(77)).await;
    assert_eq!(must(probe).await.unwrap(), [true, false, true]);
    let request = peer.request().await;
    assert_eq!(request.header.kind, Kind::Release);
    assert_eq!(Release::decode(&request.body).unwrap().lease.get(), 77);
}

#[tokio::test]
async fn l15_what_no_node_answers_is_absent_to_a_probe() {
    let (up, down) = (Fake::start().await, Fake::start().await);
    let cluster = cluster(&[up.address(), down.address()]);
    drop(down);
    let mut peer = up.accept().await;
    let asked = ids(60);
    let probe = tokio::spawn({
        let (cluster, asked) = (cluster.clone(), asked.clone());
        async move { cluster.probe(asked, far()).await }
    });
    answer(&mut peer, Presence::Refused, None).await;
    let is_up = |id: &ObjectId| cluster.owner(id) == Some(NodeIndex(0));
    let expected: Vec<_> = asked.iter().map(|id| is_up(id) && is_there(id)).collect();
    assert!(asked.iter().any(|id| is_there(id) && !is_up(id)));
    assert_eq!(must(probe).await.unwrap(), expected);
    let present = asked.iter().find(|id| is_up(id) && is_there(id));
    let silent = cluster.probe(vec![*present.unwrap()], soon());
    assert_eq!(must(silent).await, [false]);
    let unknown = cluster
        .metrics()
        .nodes
        .iter()
        .map(|node| node.probe_unknown)
        .sum::<u64>();
    let elsewhere = asked.iter().filter(|id| !is_up(id)).count() as u64;
    assert_eq!(unknown, elsewhere + 1);
}

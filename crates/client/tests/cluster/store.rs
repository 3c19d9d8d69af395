//! Saves: whole payloads from scattered memory, and sources that come back when nothing reads them.

use std::num::NonZeroU32;
use std::time::Duration;

use tessera_client::{
    Cluster, DropAnswer, FetchOutcome, NodeError, NodeIndex, Segments, StoreOutcome,
};
use tessera_proto::message::{self, Features, Put, PutAnswer, PutStatus, Refusal, Refused};
use tessera_proto::{Kind, NamespaceDigest};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fake::{Fake, Object, far, must};

fn store(
    object: &Object,
    cluster: &Cluster,
    deadline: Instant,
) -> JoinHandle<(StoreOutcome, Segments)> {
    let (cluster, header, source) = (cluster.clone(), object.header, object.source());
    tokio::spawn(async move { cluster.store(header, source, deadline).await })
}

#[tokio::test]
async fn an_object_leaves_whole_from_scattered_memory() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 9 << 20);
    let storing = store(&object, &cluster, far());
    let request = peer.request().await;
    assert_eq!(request.header.kind, Kind::Put);
    assert_eq!(Put::decode(&request.body).unwrap().header, object.header);
    assert!(peer.payload(&request.header).await == object.bytes);
    let answer = PutAnswer {
        status: PutStatus::Stored,
    };
    peer.answer(request.header.request, Kind::PutAnswer, |body| {
        answer.encode(body);
    })
    .await;
    let (outcome, source) = must(storing).await.unwrap();
    assert_eq!(
        (outcome, source.length_bytes()),
        (StoreOutcome::Stored, 9 << 20)
    );
    assert_eq!(cluster.metrics().nodes[0].store_stored_bytes, 9 << 20);
}

#[tokio::test]
async fn every_status_of_the_node_is_an_outcome() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 1000);
    for (status, expected) in [
        (PutStatus::Existed, StoreOutcome::Existed),
        (PutStatus::NoSpace, StoreOutcome::NoSpace),
        (PutStatus::TooLarge, StoreOutcome::TooLarge),
        (PutStatus::Corrupt, StoreOutcome::Corrupt),
        (PutStatus::Mismatch, StoreOutcome::Length),
    ] {
        let storing = store(&object, &cluster, far());
        let request = peer.request().await;
        peer.payload(&request.header).await;
        let answer = PutAnswer { status };
        peer.answer(request.header.request, Kind::PutAnswer, |body| {
            answer.encode(body);
        })
        .await;
        assert_eq!(must(storing).await.unwrap().0, expected);
    }
}

#[tokio::test]
async fn an_answer_before_the_payload_has_left_waits_for_the_writer() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 16 << 20);
    let mut storing = store(&object, &cluster, far());
    let request = peer.request().await;
    let answer = PutAnswer {
        status: PutStatus::NoSpace,
    };
    peer.answer(request.header.request, Kind::PutAnswer, |body| {
        answer.encode(body);
    })
    .await;
    // A second request is behind the payload; its early refusal proves that the reader saw both.
    let mut out = Vec::new();
    Refused {
        reason: Refusal::Busy,
        message: String::new(),
    }
    .encode(&mut out);
    peer.answer(999, Kind::Refused, |body| body.append(&mut out))
        .await;
    crate::fake::until(|| cluster.metrics().nodes[0].unknown_answers == 1).await;
    tokio::select! {
        biased;
        done = &mut storing => panic!("the writer still reads the source: {done:?}"),
        () = tokio::task::yield_now() => {}
    }
    peer.payload(&request.header).await;
    assert_eq!(must(storing).await.unwrap().0, StoreOutcome::NoSpace);
}

#[tokio::test]
async fn a_node_that_does_not_read_ends_a_store_at_its_deadline() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 16 << 20);
    // Time enough for a busy machine to begin.
    let storing = store(&object, &cluster, Instant::now() + Duration::from_secs(2));
    peer.request().await;
    let (outcome, source) = must(storing).await.unwrap();
    assert_eq!(
        (outcome, source.length_bytes()),
        (StoreOutcome::Deadline, 16 << 20)
    );
    let mut again = fake.accept_again(&cluster).await;
    let small = Object::new(2, 100);
    let storing = store(&small, &cluster, far());
    let request = again.request().await;
    again.payload(&request.header).await;
    let answer = PutAnswer {
        status: PutStatus::Stored,
    };
    again
        .answer(request.header.request, Kind::PutAnswer, |body| {
            answer.encode(body);
        })
        .await;
    assert_eq!(must(storing).await.unwrap().0, StoreOutcome::Stored);
}

#[tokio::test]
async fn a_fetch_beside_a_store_that_ends_in_the_middle_is_retried_over_another_connection() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let (large, small) = (Object::new(1, 16 << 20), Object::new(2, 100));
    let fetch = small.fetch(&cluster, far());
    peer.get().await;
    let storing = store(&large, &cluster, Instant::now() + Duration::from_secs(2));
    peer.request().await;
    assert_eq!(must(storing).await.unwrap().0, StoreOutcome::Deadline);
    let mut again = fake.accept_again(&cluster).await;
    let (id, _) = again.get().await;
    again.found(id, &small).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
    assert_eq!(cluster.metrics().nodes[0].retried, 1);
}

#[tokio::test]
async fn a_source_of_another_length_than_its_header_is_refused_before_anything_is_sent() {
    let fake = Fake::start().await;
    let (cluster, _peer) = fake.connected().await;
    let source = Object::new(1, 99).source();
    let header = Object::new(1, 100).header;
    assert_eq!(
        must(cluster.store(header, source, far())).await.0,
        StoreOutcome::Length
    );
}

#[tokio::test]
async fn a_drop_is_sent_to_a_node_that_takes_it_and_to_no_other() {
    let namespace = NamespaceDigest([9; 32]);
    let old = Fake::start().await;
    let (cluster, _peer) = old.connected().await;
    let refused = must(cluster.drop_namespace(NodeIndex(0), namespace, far())).await;
    assert_eq!(refused, Err(NodeError::Unknowing));

    let mut node = Fake::start().await;
    node.features = Features::DROP;
    let (cluster, mut peer) = node.connected().await;
    let asked = cluster.clone();
    let dropping =
        tokio::spawn(async move { asked.drop_namespace(NodeIndex(0), namespace, far()).await });
    let request = peer.request().await;
    assert_eq!(request.header.kind, Kind::Drop);
    let sent = message::Drop::decode(&request.body).unwrap();
    assert_eq!(sent.namespace, namespace);
    let answer = DropAnswer {
        ram_objects: 1,
        ram_bytes: 2,
        disk_objects: 3,
        disk_bytes: 4,
    };
    peer.answer(request.header.request, Kind::DropAnswer, |body| {
        answer.encode(body);
    })
    .await;
    assert_eq!(must(dropping).await.unwrap(), Ok(answer));
}

#[tokio::test]
async fn a_price_is_told_before_the_next_object_once_and_only_to_a_node_that_listens() {
    let stored = PutAnswer {
        status: PutStatus::Stored,
    };
    let mut node = Fake::start().await;
    for (features, prices, told) in [
        (Features::DROP, [512, 512, 1_024], [false; 3]),
        (Features::PRICE, [512, 512, 1_024], [true, false, true]),
    ] {
        node.features = features;
        let (cluster, mut peer) = node.connected().await;
        for (price, told) in prices.into_iter().zip(told) {
            cluster.price(NonZeroU32::new(price).unwrap());
            let object = Object::new(1, 1000);
            let storing = store(&object, &cluster, far());
            let mut request = peer.request().await;
            assert_eq!(request.header.kind == Kind::Price, told);
            if told {
                let sent = message::Price::decode(&request.body).unwrap();
                assert_eq!(sent.namespace, object.header.namespace);
                assert_eq!(sent.ns_per_kib.get(), price);
                peer.answer(request.header.request, Kind::PriceAnswer, |_| {})
                    .await;
                request = peer.request().await;
            }
            assert_eq!(request.header.kind, Kind::Put);
            peer.payload(&request.header).await;
            peer.answer(request.header.request, Kind::PutAnswer, |body| {
                stored.encode(body);
            })
            .await;
            assert_eq!(must(storing).await.unwrap().0, StoreOutcome::Stored);
        }
    }
}

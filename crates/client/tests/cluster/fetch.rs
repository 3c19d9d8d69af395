//! Loads: what arrives is verified, what does not fit is refused, and every answer finds its
//! caller.

use tessera_client::FetchOutcome;
use tessera_proto::message::{GetAnswer, GetStatus, PutAnswer, PutStatus, Remove, RemoveAnswer};
use tessera_proto::{Kind, ObjectMismatch};
use tokio::io::AsyncWriteExt;

use crate::fake::{Fake, Object, bytes_of, far, frame, must};

#[tokio::test]
async fn an_object_lands_in_scattered_memory_and_is_verified_there() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 3 << 20);
    let fetch = object.fetch(&cluster, far());
    let (id, get) = peer.get().await;
    assert_eq!((get.id, get.length_bytes), (object.header.id(), 3 << 20));
    peer.found(id, &object).await;
    let (outcome, lent) = must(fetch).await.unwrap();
    assert_eq!(outcome, FetchOutcome::Loaded);
    assert!(bytes_of(&lent) == object.bytes);
    let node = &cluster.metrics().nodes[0];
    assert_eq!(
        (node.fetch_loaded, node.fetch_loaded_bytes, node.in_flight),
        (1, 3 << 20, 0)
    );
}

#[tokio::test]
async fn answers_in_any_order_reach_their_own_memory() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let objects: Vec<Object> = (1..=8)
        .map(|n| Object::new(n, 50_000 + usize::from(n)))
        .collect();
    let fetches: Vec<_> = objects
        .iter()
        .map(|object| object.fetch(&cluster, far()))
        .collect();
    let mut asked = Vec::new();
    for _ in &objects {
        asked.push(peer.get().await);
    }
    for (id, get) in asked.iter().rev() {
        let object = objects
            .iter()
            .find(|object| object.header.id() == get.id)
            .unwrap();
        peer.found(*id, object).await;
    }
    for (fetch, object) in fetches.into_iter().zip(&objects) {
        let (outcome, lent) = must(fetch).await.unwrap();
        assert_eq!(outcome, FetchOutcome::Loaded);
        assert!(bytes_of(&lent) == object.bytes);
    }
}

#[tokio::test]
async fn an_answer_that_comes_byte_by_byte_is_loaded() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 500);
    let fetch = object.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    for byte in object.answer(id) {
        peer.stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let (outcome, lent) = must(fetch).await.unwrap();
    assert_eq!(
        (outcome, bytes_of(&lent)),
        (FetchOutcome::Loaded, object.bytes)
    );
}

#[tokio::test]
async fn an_absent_object_is_a_miss_with_its_reason() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100);
    for (status, expected) in [
        (GetStatus::Missing, FetchOutcome::Missing),
        (GetStatus::LeaseOver, FetchOutcome::LeaseOver),
    ] {
        let fetch = object.fetch(&cluster, far());
        let (id, _) = peer.get().await;
        let body = |body: &mut Vec<u8>| GetAnswer::Absent(status).encode(body);
        peer.answer(id, Kind::GetAnswer, body).await;
        let (outcome, lent) = must(fetch).await.unwrap();
        assert_eq!((outcome, bytes_of(&lent)), (expected, vec![0; 100]));
    }
}

#[tokio::test]
async fn one_flipped_bit_is_a_miss_that_is_counted_and_removed() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100_000);
    let mut damaged = object.clone();
    damaged.bytes[77_777] ^= 16;
    let fetch = object.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    peer.found(id, &damaged).await;
    let (outcome, _lent) = must(fetch).await.unwrap();
    assert!(matches!(
        outcome,
        FetchOutcome::Corrupt { mismatch: ObjectMismatch::Checksum { .. }, write }
            if write == object.header.write
    ));
    assert_eq!(cluster.metrics().integrity_failures(), 1);
    let request = peer.request().await;
    assert_eq!(request.header.kind, Kind::Remove);
    let removed = Remove::decode(&request.body).unwrap().items;
    assert_eq!(removed.len(), 1);
    assert_eq!(removed[0].id, object.header.id());
    assert_eq!(removed[0].write, Some(object.header.write));
    let answer = RemoveAnswer {
        removed: vec![true],
    };
    peer.answer(request.header.request, Kind::RemoveAnswer, |body| {
        answer.encode(body);
    })
    .await;
}

#[tokio::test]
async fn another_object_under_the_same_id_never_touches_the_memory() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 1000);
    let mut key = object.clone();
    key.header.key.0[31] ^= 1;
    let mut namespace = object.clone();
    namespace.header.namespace.0[0] ^= 1;
    let mut layout = object.clone();
    layout.header.layout ^= 1;
    for other in [key, namespace, layout] {
        let fetch = object.fetch(&cluster, far());
        let (id, _) = peer.get().await;
        peer.found(id, &other).await;
        let (outcome, lent) = must(fetch).await.unwrap();
        assert!(
            matches!(outcome, FetchOutcome::Corrupt { .. }),
            "{outcome:?}"
        );
        assert_eq!(bytes_of(&lent), vec![0; 1000]);
        assert_eq!(peer.request().await.header.kind, Kind::Remove);
    }
}

#[tokio::test]
async fn a_payload_of_another_length_is_refused_and_the_connection_goes_on() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 70_000);
    for length in [0, 69_999, 70_001, 300_000] {
        let fetch = object.fetch(&cluster, far());
        let (id, _) = peer.get().await;
        let body = |body: &mut Vec<u8>| GetAnswer::Found(object.header).encode(body);
        peer.send(&frame(id, Kind::GetAnswer, body, &vec![9; length]))
            .await;
        let (outcome, lent) = must(fetch).await.unwrap();
        assert_eq!(outcome, FetchOutcome::Length, "{length}");
        assert!(bytes_of(&lent).iter().all(|byte| *byte == 0), "{length}");
        assert_eq!(peer.request().await.header.kind, Kind::Remove);
    }
    let fetch = object.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    peer.found(id, &object).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_is_counted_and_dropped() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 10_000);
    let fetch = object.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    peer.found(id + 1000, &object).await;
    peer.found(id, &object).await;
    peer.found(id, &object).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
    let fetch = object.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    peer.found(id, &object).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
    assert_eq!(cluster.metrics().nodes[0].unknown_answers, 2);
}

#[tokio::test]
async fn an_answer_of_the_wrong_kind_ends_the_connection_and_is_a_miss() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100);
    let fetch = object.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    let answer = PutAnswer {
        status: PutStatus::Stored,
    };
    peer.answer(id, Kind::PutAnswer, |body| answer.encode(body))
        .await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Unreachable);
    peer.ended().await;
}

#[tokio::test]
async fn memory_of_another_length_than_the_object_is_refused_before_anything_is_sent() {
    let fake = Fake::start().await;
    let (cluster, _peer) = fake.connected().await;
    let object = Object::new(1, 100);
    let lent = Object::new(1, 99).memory();
    let (outcome, lent) = must(cluster.fetch(object.expectation(), None, lent, far())).await;
    assert_eq!((outcome, lent.length_bytes()), (FetchOutcome::Length, 99));
}

//! Lent memory comes back exactly when nothing can write it any more: after deadlines, lost
//! connections and dropped futures, at every point of an answer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tessera_client::{Cluster, Expectation, FetchOutcome, Lent, Recall, Region, Segments, Until};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fake::{Fake, Object, Peer, bytes_of, far, must, soon, until};

#[tokio::test]
async fn a_deadline_before_the_answer_gives_the_memory_back_and_drops_the_late_answer() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 100_000);
    let fetch = object.fetch(&cluster, soon());
    let (late, _) = peer.get().await;
    let (outcome, lent) = must(fetch).await.unwrap();
    assert_eq!(outcome, FetchOutcome::Deadline);
    peer.found(late, &object).await;
    let fetch = object.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    peer.found(id, &object).await;
    assert_eq!(
        must(fetch).await.unwrap().0,
        FetchOutcome::Loaded,
        "the same connection"
    );
    assert!(
        bytes_of(&lent).iter().all(|byte| *byte == 0),
        "the late answer was written"
    );
    assert_eq!(cluster.metrics().nodes[0].late_answers, 1);
    assert_eq!(cluster.metrics().nodes[0].in_flight, 0);
}

#[tokio::test]
async fn a_deadline_inside_a_payload_ends_the_connection_before_the_memory_comes_back() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 200_000);
    let fetch = object.fetch(&cluster, soon());
    let (id, _) = peer.get().await;
    let answer = object.answer(id);
    peer.send(&answer[..100_000]).await;
    let (outcome, mut lent) = must(fetch).await.unwrap();
    assert_eq!(outcome, FetchOutcome::Deadline);
    lent.copy_from(&vec![0; 200_000]).unwrap();
    let mut again = fake.accept_again(&cluster).await;
    // The old connection is gone; what it still carries goes nowhere.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut peer.stream, &answer[100_000..]).await;
    let fetch = object.fetch(&cluster, far());
    let (id, _) = again.get().await;
    again.found(id, &object).await;
    assert_eq!(
        must(fetch).await.unwrap().0,
        FetchOutcome::Loaded,
        "comes back by itself"
    );
    assert!(
        bytes_of(&lent).iter().all(|byte| *byte == 0),
        "written after it came back"
    );
}

#[tokio::test]
async fn a_recall_before_the_answer_gives_the_memory_back_and_keeps_the_connection() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let (object, other) = (Object::new(1, 100_000), Object::new(2, 90_000));
    let recall = Recall::default();
    let fetch = object.fetch(&cluster, Until::new(far(), &recall));
    let (late, _) = peer.get().await;
    let beside = other.fetch(&cluster, far());
    let (id, _) = peer.get().await;
    recall.call();
    let (outcome, lent) = must(fetch).await.unwrap();
    assert_eq!(outcome, FetchOutcome::Recalled);
    peer.found(late, &object).await;
    peer.found(id, &other).await;
    assert_eq!(must(beside).await.unwrap().0, FetchOutcome::Loaded);
    assert!(
        bytes_of(&lent).iter().all(|byte| *byte == 0),
        "the late answer was written"
    );
    let after = object.fetch(&cluster, Until::new(far(), &recall));
    assert_eq!(must(after).await.unwrap().0, FetchOutcome::Recalled);
    assert_eq!(cluster.metrics().nodes[0].in_flight, 0);
}

#[tokio::test]
async fn a_recall_inside_a_payload_ends_the_connection_before_the_memory_comes_back() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 200_000);
    let recall = Recall::default();
    let (region, fetch) = watched(&object, &cluster, Until::new(far(), &recall));
    let (id, _) = peer.get().await;
    let answer = object.answer(id);
    peer.send(&answer[..100_000]).await;
    until(|| first_byte(&region) == Some(object.bytes[0])).await;
    recall.call();
    let (outcome, mut lent) = must(fetch).await.unwrap();
    assert_eq!(outcome, FetchOutcome::Recalled);
    lent.copy_from(&vec![0; 200_000]).unwrap();
    let _ = tokio::io::AsyncWriteExt::write_all(&mut peer.stream, &answer[100_000..]).await;
    let mut again = fake.accept_again(&cluster).await;
    let fetch = object.fetch(&cluster, far());
    let (id, _) = again.get().await;
    again.found(id, &object).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
    assert!(
        bytes_of(&lent).iter().all(|byte| *byte == 0),
        "written after it came back"
    );
}

#[tokio::test]
async fn neighbours_of_a_recalled_payload_are_retried_once_over_another_connection() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let [object, loaded, lost] = [1, 2, 3].map(|number| Object::new(number, 90_000));
    let retried = || cluster.metrics().nodes[0].retried;
    let recalled = async |peer: &mut Peer, neighbours: usize| {
        let recall = Recall::default();
        let (region, fetch) = watched(&object, &cluster, Until::new(far(), &recall));
        let mut own = 0;
        for _ in 0..=neighbours {
            let (id, get) = peer.get().await;
            if get.id == object.header.id() {
                own = id;
            }
        }
        peer.send(&object.answer(own)[..50_000]).await;
        until(|| first_byte(&region) == Some(object.bytes[0])).await;
        recall.call();
        assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Recalled);
    };
    let neighbours = [loaded.fetch(&cluster, far()), lost.fetch(&cluster, far())];
    recalled(&mut peer, 2).await;
    let mut peer = fake.accept_again(&cluster).await;
    for _ in 0..2 {
        let (id, get) = peer.get().await;
        if get.id == loaded.header.id() {
            peer.found(id, &loaded).await;
        }
    }
    let [first, second] = neighbours;
    let (outcome, lent) = must(first).await.unwrap();
    assert_eq!((outcome, retried()), (FetchOutcome::Loaded, 2));
    assert_eq!(bytes_of(&lent), loaded.bytes);
    recalled(&mut peer, 0).await;
    let _third = fake.accept_again(&cluster).await;
    assert_eq!(must(second).await.unwrap().0, FetchOutcome::Unreachable);
    assert_eq!(retried(), 2, "no request is sent three times");
}

#[tokio::test]
async fn an_answer_that_stops_at_any_byte_ends_at_the_deadline() {
    let object = Object::new(1, 100_000);
    for sent in [1, 63, 64, 100, 192, 193, 194, 50_000] {
        let fake = Fake::start().await;
        let (cluster, mut peer) = fake.connected().await;
        let started = Instant::now();
        let fetch = object.fetch(&cluster, soon());
        let (id, _) = peer.get().await;
        peer.send(&object.answer(id)[..sent]).await;
        let (outcome, _lent) = must(fetch).await.unwrap();
        assert_eq!(outcome, FetchOutcome::Deadline, "{sent} bytes");
        assert!(started.elapsed() < Duration::from_secs(3), "{sent} bytes");
    }
}

#[tokio::test]
async fn a_lost_connection_completes_all_eight_in_flight_with_their_memory() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let objects: Vec<Object> = (1..=8).map(|n| Object::new(n, 90_000)).collect();
    let fetches: Vec<_> = objects
        .iter()
        .map(|object| object.fetch(&cluster, far()))
        .collect();
    let mut ids = Vec::new();
    for _ in &objects {
        ids.push(peer.get().await);
    }
    // One is in the middle of its payload.
    let begun = objects
        .iter()
        .find(|object| object.header.id() == ids[3].1.id)
        .unwrap();
    peer.send(&begun.answer(ids[3].0)[..50_000]).await;
    drop(peer);
    for fetch in fetches {
        let (outcome, lent) = must(fetch).await.unwrap();
        assert_eq!(
            (outcome, lent.length_bytes()),
            (FetchOutcome::Unreachable, 90_000)
        );
    }
    let mut again = fake.accept_again(&cluster).await;
    let fetch = objects[0].fetch(&cluster, far());
    let (id, _) = again.get().await;
    again.found(id, &objects[0]).await;
    assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Loaded);
}

/// A fetch into a region that can be watched without keeping it alive.
fn watched(
    object: &Object,
    cluster: &Cluster,
    until: impl Into<Until>,
) -> (Weak<Region>, JoinHandle<(FetchOutcome, Lent)>) {
    let until = until.into();
    let region = Region::allocate(object.bytes.len()).unwrap();
    let weak = Arc::downgrade(&region);
    let lent = Lent::new(Segments::whole(&region)).unwrap();
    let (cluster, expectation): (Cluster, Expectation) = (cluster.clone(), object.expectation());
    let fetch = tokio::spawn(async move { cluster.fetch(expectation, None, lent, until).await });
    (weak, fetch)
}

fn first_byte(region: &Weak<Region>) -> Option<u8> {
    let mut segments = Segments::default();
    segments.push(&region.upgrade()?, 0, 1).unwrap();
    let mut byte = [0];
    segments.copy_to(&mut byte).unwrap();
    Some(byte[0])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_fetch_frees_its_memory_only_after_the_last_write() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 1 << 20);
    let (region, fetch) = watched(&object, &cluster, far());
    let (id, _) = peer.get().await;
    let answer = object.answer(id);
    peer.send(&answer[..answer.len() / 2]).await;
    until(|| first_byte(&region) == Some(object.bytes[0])).await;
    fetch.abort();
    assert!(must(fetch).await.unwrap_err().is_cancelled());
    // More of the payload arrives: it needs the memory, which nobody waits for any more.
    let most = answer.len() - 10;
    peer.send(&answer[answer.len() / 2..most]).await;
    let other = Object::new(2, 100).fetch(&cluster, far());
    let (second, _) = peer.get().await;
    assert!(
        region.upgrade().is_some(),
        "freed while the reader may write it"
    );
    let again = || Lent::new(Segments::whole(&region.upgrade().unwrap()));
    assert!(again().is_err(), "lent twice");
    peer.send(&answer[most..]).await;
    peer.found(second, &Object::new(2, 100)).await;
    assert_eq!(must(other).await.unwrap().0, FetchOutcome::Loaded);
    assert!(region.upgrade().is_none(), "kept after the last write");
}

#[tokio::test]
async fn a_fetch_dropped_before_its_answer_frees_its_memory_at_once() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let object = Object::new(1, 1000);
    let (region, fetch) = watched(&object, &cluster, far());
    let (id, _) = peer.get().await;
    fetch.abort();
    assert!(must(fetch).await.unwrap_err().is_cancelled());
    assert!(region.upgrade().is_none());
    peer.found(id, &object).await;
    until(|| cluster.metrics().nodes[0].late_answers == 1).await;
}

#[tokio::test]
async fn shutdown_gives_all_memory_back() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    let objects: Vec<Object> = (1..=4).map(|n| Object::new(n, 50_000)).collect();
    let fetches: Vec<_> = objects
        .iter()
        .map(|object| object.fetch(&cluster, far()))
        .collect();
    let (id, get) = peer.get().await;
    let begun = objects
        .iter()
        .find(|object| object.header.id() == get.id)
        .unwrap();
    peer.send(&begun.answer(id)[..20_000]).await;
    for _ in 1..4 {
        peer.get().await;
    }
    must(cluster.shutdown()).await;
    for fetch in fetches {
        assert_eq!(must(fetch).await.unwrap().0, FetchOutcome::Unreachable);
    }
    let (outcome, _lent) = must(objects[0].fetch(&cluster, far())).await.unwrap();
    assert_eq!(
        outcome,
        FetchOutcome::Unreachable,
        "an operation after shutdown"
    );
}

#[tokio::test]
async fn the_last_handle_ends_the_connections() {
    let fake = Fake::start().await;
    let (cluster, mut peer) = fake.connected().await;
    drop(cluster);
    peer.ended().await;
}

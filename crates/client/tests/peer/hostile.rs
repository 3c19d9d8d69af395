//! Whatever comes to the listener or on a connection costs that connection, and nothing else.

use std::time::Duration;

use tessera_client::peer::{Mode, Side};
use tessera_lifecycle::RequestKey;
use tessera_proto::message::{
    PartStatus, PeerPull, PeerPullAnswer, PeerPush, PeerPushAnswer, Refusal,
};
use tessera_proto::{FrameHeader, Kind, checksum};

use crate::raw::{Pusher, Raw, hello, name};
use crate::worker::{Transfer, Worker, options, part, quiet, results, until};

/// Bytes that look like nothing.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(99);
        state.to_le_bytes()[7]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// A good engine is served as ever, and no memory was touched.
async fn assert_unharmed(worker: &Worker) {
    let other = Worker::new("hybrid", 0).await;
    worker.fill_differently(1);
    let before = worker.all();
    other.meets(worker);
    let transfer = Transfer::new(
        1,
        Mode::Read,
        vec![part((0, 0), 0, &[(0, 3, 4), (2, 5, 6)])],
    );
    transfer.begin(&[worker], &[&other]);
    assert!(results(&other, 1).await.failed.is_empty());
    assert_eq!(other.block(2, 6), worker.block(2, 5));
    assert_eq!(results(worker, 1).await.sent, [RequestKey(1)]);
    assert_eq!(worker.all(), before);
    quiet(&[worker, &other]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_and_frames_out_of_place_never_end_the_listener() {
    let worker = Worker::new("hybrid", 0).await;
    for seed in 0..40 {
        let mut raw = Raw::dial(&worker).await;
        raw.write(&noise(seed, 64 + 10 * usize::try_from(seed).unwrap()))
            .await;
        raw.end().await;
    }
    for kind in Kind::ALL.iter().copied() {
        for length in [0, 1, 40, 300] {
            let mut raw = Raw::dial(&worker).await;
            raw.send(kind, &noise(length, usize::try_from(length).unwrap()), &[])
                .await;
            assert_eq!(raw.refusal().await.reason, Refusal::Malformed, "{kind:?}");
        }
    }
    assert_unharmed(&worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_too_long_is_refused_and_one_too_many_waits_for_nobody() {
    let mut options = options("hybrid", 0);
    options.bounds.hello_timeout = Duration::from_secs(600);
    options.bounds.connections = 3;
    let worker = Worker::start(&options, None).await;
    let mut raw = Raw::dial(&worker).await;
    let header = FrameHeader {
        kind: Kind::PeerHello,
        request: 0,
        deadline_ms: 0,
        body_bytes: 1 << 20,
        payload_bytes: 0,
    };
    raw.write(&header.encode()).await;
    assert_eq!(raw.refusal().await.reason, Refusal::Malformed);
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(Raw::dial(&worker).await);
    }
    until("three too many", || {
        worker.driver.metrics().refused_full == 3
    })
    .await;
    drop(silent);
    assert_unharmed(&worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_too_late_is_refused() {
    let mut options = options("hybrid", 0);
    options.bounds.hello_timeout = Duration::from_millis(200);
    let worker = Worker::start(&options, None).await;
    for _ in 0..3 {
        Raw::dial(&worker).await.end().await;
    }
    until("three too late", || {
        worker.driver.metrics().refused_late == 3
    })
    .await;
    assert_unharmed(&worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_belong_nowhere_end_their_connection() {
    let worker = Worker::new("hybrid", 0).await;
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut body = Vec::new();
        encode(&mut body);
        body
    };
    let answer = PeerPullAnswer {
        part: name(1),
        status: PartStatus::Done,
        piece: 0,
        checksum: 0,
    };
    let pushed = PeerPushAnswer {
        part: name(1),
        status: PartStatus::Done,
    };
    let push = PeerPush {
        part: name(1),
        piece: 1,
        last: true,
        checksum: 0,
    };
    let mut again = Vec::new();
    hello(&worker).encode(&mut again);
    let cases = [
        (Kind::PeerControl, noise(1, 90)),
        (Kind::PeerControl, Vec::new()),
        (Kind::PeerPull, noise(2, 9)),
        (Kind::PeerPullAnswer, encoded(&|out| answer.encode(out))),
        (Kind::PeerPushAnswer, encoded(&|out| pushed.encode(out))),
        (Kind::PeerPush, encoded(&|out| push.encode(out))),
        (Kind::PeerHello, again),
        (Kind::Get, Vec::new()),
        (Kind::Refused, Vec::new()),
    ];
    for (number, (kind, body)) in (1..).zip(cases) {
        let (mut raw, _) = Raw::connected(&worker).await;
        raw.send(kind, &body, &[]).await;
        raw.end().await;
        until("a count", || {
            worker.driver.metrics().closed_malformed == number
        })
        .await;
    }
    assert_unharmed(&worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_reads_and_writes_nothing_that_it_has_not_claimed() {
    let worker = Worker::new("hybrid", 0).await;
    worker.fill_differently(5);
    // Both lent to somebody, and not to this peer.
    let other = Worker::new("hybrid", 0).await;
    for (number, mode) in [(7, Mode::Read), (8, Mode::Write)] {
        let mut transfer = Transfer::new(number, mode, vec![part((0, 0), 0, &[(0, 3, 3)])]);
        transfer.lease_ms = 300;
        transfer.timeout_ms = 300;
        let side = match mode {
            Mode::Read => Side::Source,
            Mode::Write => Side::Destination,
        };
        transfer.order(side, &worker, &[&other]);
    }
    let before = worker.all();
    let (mut raw, _) = Raw::connected(&worker).await;
    for transfer in [7, 8, 9] {
        let mut body = Vec::new();
        let part = name(transfer);
        PeerPull { part }.encode(&mut body);
        raw.send(Kind::PeerPull, &body, &[]).await;
        let (kind, body, payload) = raw.frame().await.expect("an answer");
        let answer = PeerPullAnswer::decode(&body).unwrap();
        assert_eq!(
            (kind, answer.status),
            (Kind::PeerPullAnswer, PartStatus::Refused)
        );
        assert!(payload.is_empty());
        let bytes = noise(3, 192);
        let mut body = Vec::new();
        let push = PeerPush {
            part,
            piece: 0,
            last: true,
            checksum: checksum(&bytes),
        };
        push.encode(&mut body);
        raw.send(Kind::PeerPush, &body, &bytes).await;
        let (_, body, _) = raw.frame().await.expect("an answer");
        let answer = PeerPushAnswer::decode(&body).unwrap();
        assert_eq!(answer.status, PartStatus::Refused);
    }
    assert_eq!(worker.all(), before);
    let metrics = worker.driver.metrics();
    assert_eq!((metrics.bytes_sent, metrics.bytes_received), (0, 0));
    results(&worker, 2).await;
    quiet(&[&worker]).await;
    assert_unharmed(&worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_asks_without_end_and_reads_nothing_loses_its_connection() {
    let mut options = options("hybrid", 0);
    options.bounds.parts = 16;
    let worker = Worker::start(&options, None).await;
    let (mut raw, _) = Raw::connected(&worker).await;
    let mut body = Vec::new();
    PeerPull { part: name(1) }.encode(&mut body);
    let header = FrameHeader {
        kind: Kind::PeerPull,
        request: 0,
        deadline_ms: 0,
        body_bytes: u32::try_from(body.len()).unwrap(),
        payload_bytes: 0,
    };
    let frame = [&header.encode()[..], &body].concat();
    let many = frame.repeat(1_000);
    let mut sent = 0;
    until("an end", || worker.driver.metrics().connections == 1).await;
    while worker.driver.metrics().closed_malformed == 0 {
        raw.write(&many).await;
        sent += 1;
        assert!(sent < 10_000, "it is answered for ever");
    }
    raw.end().await;
    assert_unharmed(&worker).await;
}

/// A peer that says that all has landed has no claim any more, whatever it goes on to send.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_writes_nothing_after_its_claim_has_ended() {
    let worker = Worker::new("full", 0).await;
    worker.fill_differently(5);
    let before = worker.all();
    let bytes = noise(3, Pusher::PIECE_BYTES);
    let mut pusher = Pusher::claim(&worker).await;
    pusher.push(0, &bytes).await;
    pusher.done().await;
    pusher.push(1, &bytes).await;
    let answer = loop {
        let (kind, body, _) = pusher.raw.frame().await.expect("an answer");
        if kind == Kind::PeerPushAnswer {
            break PeerPushAnswer::decode(&body).unwrap();
        }
    };
    assert_eq!(answer.status, PartStatus::Refused);
    let after = worker.all();
    assert_eq!(
        before[0][3 * 128..],
        after[0][3 * 128..],
        "written without a claim"
    );
    assert_ne!(before, after, "the first piece was claimed");
}

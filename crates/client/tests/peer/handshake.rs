//! What two engines compare before either names an address, and what is said of a difference.

use tessera_client::Incarnation;
use tessera_client::peer::{Mode, PeerDriver, PeerOptions, PeerStartError};
use tessera_lifecycle::{RequestKey, Shape};
use tessera_proto::message::{PeerHello, Refusal};
use tessera_proto::{Kind, Topology};
use tessera_transport::Address;

use crate::raw::{NO_FEATURES, Raw, hello};
use crate::worker::{Transfer, Worker, options, part, quiet, results, until};

/// One way in which a HELLO differs: what the refusal names, its two values, and the change.
type Difference = (&'static str, &'static str, &'static str, fn(&mut PeerHello));

const DIFFERENCES: [Difference; 17] = [
    ("features", "1", "0", |hello| {
        hello.features = NO_FEATURES;
    }),
    ("model", "\"m\"", "\"n\"", |hello| {
        hello.setup.model = "n".into();
    }),
    ("revision", "\"1\"", "\"\"", |hello| {
        hello.setup.revision.clear();
    }),
    ("weights", "\"c001\"", "\"c002\"", |hello| {
        hello.setup.weights = "c002".into();
    }),
    ("tenant", "\"a\"", "\"b\"", |hello| {
        hello.setup.tenant = "b".into();
    }),
    ("dtype", "\"bfloat16\"", "\"fp8\"", |hello| {
        hello.setup.dtype = "fp8".into();
    }),
    ("speculative", "\"\"", "\"eagle\"", |hello| {
        hello.setup.speculative = "eagle".into();
    }),
    ("cache layout", "0000\"", "0001\"", |hello| {
        hello.setup.layout[31] = 1;
    }),
    ("tensor", "1 here", "2 there", |hello| {
        hello.setup.topology.tp = 2;
    }),
    ("pipeline", "1", "3", |hello| {
        hello.setup.topology.pp = 3;
    }),
    ("decode context", "1", "4", |hello| {
        hello.setup.topology.dcp = 4;
    }),
    ("bytes of a piece", "500", "501", |hello| {
        hello.setup.piece_bytes = 501;
    }),
    ("cache groups", "3", "2", |hello| {
        hello.setup.groups.truncate(2);
    }),
    (
        "kind of cache group 1",
        "window of 6 tokens",
        "full",
        |hello| {
            hello.setup.groups[1].kind = "full".into();
        },
    ),
    ("tokens of a block of cache group 2", "8", "16", |hello| {
        hello.setup.groups[2].block_tokens = 16;
    }),
    ("bytes of a block of cache group 0", "192", "193", |hello| {
        hello.setup.groups[0].block_bytes = 193;
    }),
    (
        "layout fingerprint of cache group 1",
        "here",
        "5 there",
        |hello| {
            hello.setup.groups[1].fingerprint = 5;
        },
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_difference_is_refused_with_both_values() {
    let worker = Worker::new("hybrid", 0).await;
    for (number, (what, own, other, change)) in (1..).zip(DIFFERENCES) {
        let mut raw = Raw::dial(&worker).await;
        let mut hello = hello(&worker);
        change(&mut hello);
        raw.hello(&hello).await;
        let refused = raw.refusal().await;
        assert_eq!(refused.reason, Refusal::Mismatch, "{what}");
        for word in [what, own, other] {
            assert!(
                refused.message.contains(word),
                "{word}: {}",
                refused.message
            );
        }
        until("a count", || {
            worker.driver.metrics().refused_mismatch == number
        })
        .await;
    }
    let (_raw, _) = Raw::connected(&worker).await;
}

/// A worker of `tp` ranks that meets `peer_tp`, whose groups have so many heads in the whole model.
async fn of_ranks((tp, peer_tp): (u32, u32), heads: [Option<u32>; 3]) -> Worker {
    let mut options = options("hybrid", 0);
    let topology = Topology {
        tp,
        // Sharded tokens, where four ranks come.
        dcp: if peer_tp == 4 { 2 } else { 1 },
        ..Topology::SINGLE
    };
    let groups = options.shape.groups().to_vec();
    options.shape = Shape::new(groups, Some(8), 4, topology).unwrap();
    options.peer_tp = peer_tp;
    options.heads = heads.to_vec();
    Worker::start(&options, None).await
}

/// One way in which an engine of another size cannot be given blocks: sizes of the worker and of
/// its peers, heads of its groups, what the refusal says, and the change to a HELLO of one rank.
type Unequal = (
    (u32, u32),
    [Option<u32>; 3],
    &'static [&'static str],
    fn(&mut PeerHello),
);

const HEADS: [Option<u32>; 3] = [Some(4); 3];
const SIZES: (u32, u32) = (2, 1);

/// A worker has two heads of each layer.
const UNEQUAL: [Unequal; 9] = [
    (
        SIZES,
        HEADS,
        &[
            "tensor",
            "2 here, which expects 1",
            "1 there, which expects 1",
        ],
        |hello| hello.setup.peer_tp = 1,
    ),
    (
        SIZES,
        HEADS,
        &["tensor", "expects 1", "4 there, which expects 2"],
        |hello| hello.setup.topology.tp = 4,
    ),
    (
        SIZES,
        HEADS,
        &["heads of cache group 0", "4 here", "2 there"],
        |hello| hello.setup.groups[0].heads = 2,
    ),
    (
        SIZES,
        HEADS,
        &["layout of a head of cache group 1", "here", "5 there"],
        |hello| hello.setup.groups[1].head_fingerprint = 5,
    ),
    (
        SIZES,
        HEADS,
        &["tokens of a block of cache group 2", "8 here", "16 there"],
        |hello| hello.setup.groups[2].block_tokens = 16,
    ),
    (
        SIZES,
        [Some(4), Some(4), None],
        &["cache group 2 (state)", "2 here, 1 there", "no heads"],
        |hello| hello.setup.groups[2].heads = 0,
    ),
    // What it says of itself does not fit its memory.
    (
        SIZES,
        [Some(4), Some(6), Some(4)],
        &["cache group 1", "2 here, 1 there", "no heads"],
        |hello| hello.setup.groups[1].heads = 0,
    ),
    (
        (2, 3),
        HEADS,
        &[
            "cache group 0 (full)",
            "2 here, 3 there",
            "4 heads do not divide",
        ],
        |hello| hello.setup.topology.tp = 3,
    ),
    (
        (2, 4),
        HEADS,
        &[
            "decode context parallel size",
            "2 here, 2 there",
            "2 and 4 ranks",
        ],
        |hello| (hello.setup.topology.tp, hello.setup.topology.dcp) = (4, 2),
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_unequal_size_are_refused_with_both_values_where_blocks_cannot_be_cut() {
    for (sizes, heads, words, change) in UNEQUAL {
        let worker = of_ranks(sizes, heads).await;
        let mut raw = Raw::dial(&worker).await;
        let mut hello = hello(&worker);
        (hello.setup.topology.tp, hello.setup.peer_tp) = (1, 2);
        for group in &mut hello.setup.groups {
            group.heads = 4;
            // These are of a rank, and differ.
            (group.block_bytes, group.fingerprint) = (9, 9);
        }
        change(&mut hello);
        raw.hello(&hello).await;
        let refused = raw.refusal().await;
        assert_eq!(refused.reason, Refusal::Mismatch, "{words:?}");
        for word in words {
            let message = &refused.message;
            assert!(message.contains(word), "{word}: {message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_another_size_is_let_in_where_blocks_can_be_cut() {
    let worker = of_ranks(SIZES, HEADS).await;
    let mut raw = Raw::dial(&worker).await;
    let mut hello = hello(&worker);
    (hello.setup.topology.tp, hello.setup.peer_tp) = (1, 2);
    for group in &mut hello.setup.groups {
        (group.heads, group.block_bytes, group.fingerprint) = (4, 9, 9);
    }
    raw.hello(&hello).await;
    let (kind, ..) = raw.frame().await.expect("an answer");
    assert_eq!(kind, Kind::PeerHelloAnswer);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_start_is_refused_before_anything_is_compared() {
    let worker = Worker::new("full", 0).await;
    let mut raw = Raw::dial(&worker).await;
    let mut hello = hello(&worker);
    hello.to = Incarnation(7);
    hello.setup.model = "another".into();
    raw.hello(&hello).await;
    let refused = raw.refusal().await;
    assert_eq!(refused.reason, Refusal::Stranger);
    let own = format!("{:032x}", worker.driver.incarnation().0);
    assert!(refused.message.contains(&own), "{}", refused.message);
    until("a count", || worker.driver.metrics().refused_stranger == 1).await;
}

/// Both sides compare: an engine that lets everybody in is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_mismatch_fails_the_transfer_and_moves_nothing() {
    let changes: [fn(&mut PeerOptions); 3] = [
        |of| of.dtype = "fp8".into(),
        |of| of.speculative = "eagle".into(),
        |of| {
            let topology = Topology {
                tp: 2,
                ..Topology::SINGLE
            };
            of.shape = Shape::new(of.shape.groups().to_vec(), Some(8), 4, topology).unwrap();
            of.peer_tp = 2;
        },
    ];
    for (mode, change) in [Mode::Read, Mode::Write]
        .into_iter()
        .flat_map(|mode| changes.map(|change| (mode, change)))
    {
        let source = Worker::new("hybrid", 0).await;
        let mut other = options("hybrid", 0);
        change(&mut other);
        let destination = Worker::start(&other, None).await;
        destination.meets(&source);
        let mut transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &[(0, 1, 2)])]);
        transfer.lease_ms = 300;
        transfer.timeout_ms = 300;
        transfer.begin(&[&source], &[&destination]);
        assert_eq!(results(&destination, 1).await.failed, [RequestKey(1)]);
        results(&source, 1).await;
        let metrics = source.driver.metrics();
        assert_eq!((metrics.connected, metrics.bytes_sent), (0, 0));
        assert!(metrics.refused_mismatch > 0);
        quiet(&[&source, &destination]).await;
    }
}

/// A folder's name may be longer than what a HELLO has room for.
#[tokio::test(flavor = "multi_thread")]
async fn long_texts_are_compared_to_their_last_byte() {
    let long = "\u{e9}".repeat(400);
    for (end, equal) in [("a", true), ("b", false)] {
        let start = |model: String| async {
            let mut options = options("full", 0);
            options.model = model;
            Worker::start(&options, None).await
        };
        let source = start(format!("{long}a")).await;
        let destination = start(format!("{long}{end}")).await;
        destination.meets(&source);
        let mut transfer = Transfer::new(1, Mode::Read, vec![part((0, 0), 0, &[(0, 1, 2)])]);
        if !equal {
            (transfer.lease_ms, transfer.timeout_ms) = (300, 300);
        }
        transfer.begin(&[&source], &[&destination]);
        let invalid = results(&destination, 1).await.invalid_blocks;
        assert_eq!(invalid.is_empty(), equal, "{end}");
        results(&source, 1).await;
        quiet(&[&source, &destination]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_of_a_process_takes_the_place_of_the_first() {
    let worker = Worker::new("full", 0).await;
    let (mut first, one) = Raw::connected(&worker).await;
    let (mut second, two) = Raw::connected(&worker).await;
    assert!(two > one);
    first.end().await;
    until("one connection", || {
        worker.driver.metrics().connections == 1
    })
    .await;
    // Numbers of connections that nobody comes to are refused, and change none.
    let mut third = Raw::dial(&worker).await;
    let mut hello = hello(&worker);
    hello.connection_min = u64::MAX;
    third.hello(&hello).await;
    assert_eq!(third.refusal().await.reason, Refusal::Malformed);
    second.send(Kind::PeerControl, &[], &[]).await;
    second.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_that_dial_each_other_at_once_end_with_one_connection() {
    for _ in 0..8 {
        let (left, right) = (Worker::new("full", 0).await, Worker::new("full", 0).await);
        left.meets(&right);
        right.meets(&left);
        left.fill_differently(1);
        let there = Transfer::new(1, Mode::Read, vec![part((0, 0), 0, &[(0, 1, 2)])]);
        let back = Transfer::new(2, Mode::Write, vec![part((0, 0), 0, &[(0, 3, 4)])]);
        let (others_left, others_right) = ([&right], [&left]);
        tokio::join!(
            async {
                there.begin(&others_right, &others_left);
            },
            async {
                back.begin(&others_right, &others_left);
            }
        );
        results(&left, 2).await;
        results(&right, 2).await;
        quiet(&[&left, &right]).await;
        until("one connection", || {
            let count = |worker: &Worker| worker.driver.metrics().connections;
            (count(&left), count(&right)) == (1, 1)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_port_needs_to_be_allowed() {
    let worker = Worker::new("full", 0).await;
    let mut options = options("full", 0);
    options.listen = Address::Tcp("0.0.0.0:0".into());
    let refused = PeerDriver::start(&options, worker.layout.clone()).await;
    assert!(matches!(refused, Err(PeerStartError::NotLoopback { .. })));
    options.insecure = true;
    let driver = PeerDriver::start(&options, worker.layout.clone()).await;
    driver.unwrap().shutdown().await;
    options.listen = worker.driver.address().clone();
    let refused = PeerDriver::start(&options, worker.layout.clone()).await;
    assert!(matches!(refused, Err(PeerStartError::Listen { .. })));
}

//! Frames between engines: golden bytes, properties of their codec, and its limits.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tessera_proto::limits::{
    BODY_BYTES_MAX, LEASE_MS_MAX, PEER_BLOCKS_MAX, PEER_ENTRIES_MAX, PEER_PARTS_MAX,
};
use tessera_proto::peer::{
    Attempt, BlockRef, ConnectionId, Frame, Generation, LentPart, Message, PartAttempt, PartId,
    Proof, Refusal, TransferId,
};
use tessera_proto::{DecodeError, Incarnation, PROTOCOL_VERSION};

use crate::golden::{PeerWire, read};
use crate::wire::variant;

const TRANSFER: TransferId = TransferId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut body = Vec::new();
    frame.encode(&mut body);
    body
}

fn frame(message: Message) -> Frame {
    Frame {
        from: Incarnation(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        to: Incarnation(0xf0e1_d2c3_b4a5_9687_7869_5a4b_3c2d_1e0f),
        connection: ConnectionId(0x0102_0304_0506_0708),
        sequence: if message.is_sequenced() { 3 } else { 0 },
        acknowledged: 2,
        message,
    }
}

const fn part(index: u16) -> PartId {
    PartId {
        source: 1,
        destination: 0x0203,
        index,
    }
}

const fn at(index: u16) -> PartAttempt {
    PartAttempt {
        part: part(index),
        attempt: Attempt(4),
    }
}

const fn block(block: u32) -> BlockRef {
    BlockRef {
        group: 5,
        block,
        generation: Generation(0x1122_3344_5566_7788),
    }
}

fn lent() -> Vec<LentPart> {
    let blocks = vec![block(7), block(BlockRef::NULL)];
    let (first, second) = (at(9), at(10));
    let lent = |at, blocks| LentPart { at, blocks };
    vec![lent(first, blocks), lent(second, Vec::new())]
}

/// A message of every sort, by its name in the golden file.
fn messages() -> Vec<(&'static str, Message)> {
    [claims(), answers(), last_words(), others()].concat()
}

type Named = (&'static str, Message);

fn claims() -> Vec<Named> {
    let transfer = TRANSFER;
    let offer = Message::Offer {
        transfer,
        lease_ms: 15_000,
        parts: lent(),
    };
    let parts = lent();
    let claim = Message::Claim { transfer, parts };
    vec![("offer", offer), ("claim", claim)]
}

fn answers() -> Vec<Named> {
    let transfer = TRANSFER;
    let refuse = |reason| Message::Refuse {
        transfer,
        parts: vec![at(9)],
        reason,
    };
    let parts = vec![at(9), at(10)];
    vec![
        ("grant", Message::Grant { transfer, parts }),
        ("refuse_unknown", refuse(Refusal::Unknown)),
        ("refuse_stale", refuse(Refusal::Stale)),
        ("refuse_used", refuse(Refusal::Used)),
        ("refuse_revoked", refuse(Refusal::Revoked)),
    ]
}

fn last_words() -> Vec<Named> {
    let (transfer, at) = (TRANSFER, at(9));
    let part_err = |proof| Message::PartErr {
        transfer,
        at,
        proof,
    };
    vec![
        ("data_done", Message::DataDone { transfer, at }),
        ("part_err_in_doubt", part_err(None)),
        ("part_err_never_posted", part_err(Some(Proof::NeverPosted))),
        ("part_err_clean", part_err(Some(Proof::Clean))),
        ("part_err_fenced", part_err(Some(Proof::Fenced))),
    ]
}

fn others() -> Vec<Named> {
    let transfer = TRANSFER;
    let parts = || vec![part(9), part(10)];
    let proofs = [Proof::Clean, Proof::Fenced, Proof::NeverPosted];
    let released = (9..).map(at).zip(proofs).collect();
    let release = Message::Release {
        transfer,
        parts: released,
    };
    let abort_ack = Message::AbortAck {
        transfer,
        at: at(9),
        proof: Proof::Clean,
    };
    let release_ack = Message::ReleaseAck {
        transfer,
        parts: vec![part(9)],
    };
    let fence_req = Message::FenceReq {
        transfer,
        parts: parts(),
    };
    let open = vec![(transfer, part(9)), (TransferId(1), part(0))];
    let unknown = open[..1].to_vec();
    let none = Message::OpenSet { open: Vec::new() };
    let digest = 0xcbf2_9ce4_8422_2325;
    let parts = parts();
    vec![
        ("abort", Message::Abort { transfer, parts }),
        ("abort_ack", abort_ack),
        ("release", release),
        ("release_ack", release_ack),
        ("fence_req", fence_req),
        (
            "fence_done",
            Message::FenceDone {
                transfer,
                at: at(9),
            },
        ),
        ("open_set", Message::OpenSet { open }),
        ("open_set_empty", none),
        ("never_posted", Message::NeverPosted { unknown }),
        ("ping", Message::Ping { digest }),
        ("pong", Message::Pong),
    ]
}

#[test]
fn every_golden_frame_between_engines_is_encoded_and_decoded_to_the_byte() {
    let golden: PeerWire = read("peer-v1.json");
    assert_eq!(golden.version, PROTOCOL_VERSION);
    let messages = messages();
    assert_eq!(golden.frames.len(), messages.len());
    for ((name, message), row) in messages.into_iter().zip(&golden.frames) {
        assert_eq!(name, row.name);
        let frame = frame(message);
        assert_eq!(encoded(&frame), row.body.0, "{name}");
        assert_eq!(Frame::decode(&row.body.0), Ok(frame), "{name}");
    }
}

#[test]
fn what_engines_may_not_say_is_refused_for_this_reason() {
    let golden: PeerWire = read("peer-v1.json");
    for row in &golden.refused {
        let error = Frame::decode(&row.body.0).map(drop);
        let said = error.as_ref().map_err(variant);
        assert_eq!(said, Err(row.error.as_str()), "{}", row.name);
    }
}

fn parts() -> impl Strategy<Value = PartId> {
    any::<(u16, u16, u16)>().prop_map(|(source, destination, index)| PartId {
        source,
        destination,
        index,
    })
}

fn attempts() -> impl Strategy<Value = PartAttempt> {
    (parts(), any::<u32>()).prop_map(|(part, attempt)| PartAttempt {
        part,
        attempt: Attempt(attempt),
    })
}

fn lent_parts() -> impl Strategy<Value = Vec<LentPart>> {
    let block = any::<(u16, u32, u64)>().prop_map(|(group, block, life)| BlockRef {
        group,
        block,
        generation: Generation(life),
    });
    let lent = (attempts(), vec(block, 0..4)).prop_map(|(at, blocks)| LentPart { at, blocks });
    vec(lent, 0..4)
}

fn proofs() -> impl Strategy<Value = Proof> {
    select(vec![Proof::NeverPosted, Proof::Clean, Proof::Fenced])
}

fn lists() -> impl Strategy<Value = Message> {
    let refusals = [
        Refusal::Unknown,
        Refusal::Stale,
        Refusal::Used,
        Refusal::Revoked,
    ];
    let id = || any::<u128>().prop_map(TransferId);
    let entries = || vec((id(), parts()), 0..4);
    let released = vec((attempts(), proofs()), 0..4);
    prop_oneof![
        (id(), 0..=u64::from(LEASE_MS_MAX), lent_parts()).prop_map(
            |(transfer, lease_ms, parts)| Message::Offer {
                transfer,
                lease_ms,
                parts
            }
        ),
        (id(), lent_parts()).prop_map(|(transfer, parts)| Message::Claim { transfer, parts }),
        (id(), vec(attempts(), 0..4))
            .prop_map(|(transfer, parts)| Message::Grant { transfer, parts }),
        (id(), vec(attempts(), 0..4), select(refusals.to_vec())).prop_map(
            |(transfer, parts, reason)| Message::Refuse {
                transfer,
                parts,
                reason
            }
        ),
        (id(), released).prop_map(|(transfer, parts)| Message::Release { transfer, parts }),
        (id(), vec(parts(), 0..4))
            .prop_map(|(transfer, parts)| Message::ReleaseAck { transfer, parts }),
        (id(), vec(parts(), 0..4)).prop_map(|(transfer, parts)| Message::Abort { transfer, parts }),
        (id(), vec(parts(), 0..4))
            .prop_map(|(transfer, parts)| Message::FenceReq { transfer, parts }),
        entries().prop_map(|open| Message::OpenSet { open }),
        entries().prop_map(|unknown| Message::NeverPosted { unknown }),
    ]
}

fn words() -> impl Strategy<Value = Message> {
    let id = || any::<u128>().prop_map(TransferId);
    prop_oneof![
        (id(), attempts()).prop_map(|(transfer, at)| Message::DataDone { transfer, at }),
        (id(), attempts()).prop_map(|(transfer, at)| Message::FenceDone { transfer, at }),
        (id(), attempts(), option::of(proofs())).prop_map(|(transfer, at, proof)| {
            Message::PartErr {
                transfer,
                at,
                proof,
            }
        }),
        (id(), attempts(), proofs()).prop_map(|(transfer, at, proof)| Message::AbortAck {
            transfer,
            at,
            proof
        }),
        any::<u64>().prop_map(|digest| Message::Ping { digest }),
        Just(Message::Pong),
    ]
}

fn frames() -> impl Strategy<Value = Frame> {
    let head = any::<(u128, u128, u64, u64)>();
    let message = prop_oneof![lists(), words()];
    (head, 1..u64::MAX, message).prop_map(
        |((from, to, connection, acknowledged), place, message)| Frame {
            from: Incarnation(from),
            to: Incarnation(to),
            connection: ConnectionId(connection),
            sequence: if message.is_sequenced() { place } else { 0 },
            acknowledged,
            message,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_frame_between_engines_decodes_to_itself(frame in frames()) {
        prop_assert_eq!(Frame::decode(&encoded(&frame)), Ok(frame));
    }

    #[test]
    fn a_damaged_frame_is_refused_or_means_its_bytes(
        frame in frames(),
        damage in vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = encoded(&frame);
        for (at, value) in damage {
            let at = at.index(body.len());
            body[at] = value;
        }
        if let Ok(frame) = Frame::decode(&body) {
            prop_assert_eq!(encoded(&frame), body);
        }
    }

    #[test]
    fn a_frame_cut_anywhere_is_truncated(frame in frames(), at: Index) {
        let body = encoded(&frame);
        let cut = Frame::decode(&body[..at.index(body.len())]);
        prop_assert!(matches!(cut, Err(DecodeError::Truncated { .. })), "{:?}", cut);
    }

    #[test]
    fn bytes_after_a_frame_are_counted(frame in frames(), extra in vec(any::<u8>(), 1..9)) {
        let mut body = encoded(&frame);
        body.extend_from_slice(&extra);
        let longer = Frame::decode(&body);
        prop_assert_eq!(longer, Err(DecodeError::Trailing { extra: extra.len() }));
    }
}

/// Asserts that `make(limit)` is accepted and fits a body, and that one more is refused.
fn bounded(limit: u32, make: impl Fn(usize) -> Message) {
    let body = encoded(&frame(make(limit as usize)));
    assert!(Frame::decode(&body).is_ok());
    assert!(
        body.len() <= BODY_BYTES_MAX as usize,
        "{} bytes",
        body.len()
    );
    let over = Frame::decode(&encoded(&frame(make(limit as usize + 1))));
    assert!(
        matches!(over, Err(DecodeError::OverLimit { .. })),
        "{over:?}"
    );
}

#[test]
fn lists_between_engines_are_bounded() {
    let transfer = TRANSFER;
    let attempts = |count| vec![at(9); count];
    let parts = |count| vec![part(9); count];
    let entries = |count| vec![(transfer, part(9)); count];
    let released = |count| vec![(at(9), Proof::Clean); count];
    bounded(PEER_PARTS_MAX, |count| Message::Grant {
        transfer,
        parts: attempts(count),
    });
    bounded(PEER_PARTS_MAX, |count| Message::Release {
        transfer,
        parts: released(count),
    });
    bounded(PEER_PARTS_MAX, |count| Message::ReleaseAck {
        transfer,
        parts: parts(count),
    });
    bounded(PEER_PARTS_MAX, |count| Message::Abort {
        transfer,
        parts: parts(count),
    });
    bounded(PEER_PARTS_MAX, |count| Message::FenceReq {
        transfer,
        parts: parts(count),
    });
    bounded(PEER_ENTRIES_MAX, |count| Message::OpenSet {
        open: entries(count),
    });
    bounded(PEER_ENTRIES_MAX, |count| Message::NeverPosted {
        unknown: entries(count),
    });
}

#[test]
fn parts_and_blocks_at_both_limits_fit_one_message() {
    let spread = |parts: usize, blocks: usize| {
        let lent = |of: usize| LentPart {
            at: at(9),
            blocks: vec![block(7); if of == 0 { blocks } else { 0 }],
        };
        let parts = (0..parts).map(lent).collect();
        Message::Claim {
            transfer: TRANSFER,
            parts,
        }
    };
    let blocks = PEER_BLOCKS_MAX as usize;
    bounded(PEER_PARTS_MAX, |count| spread(count, blocks));
    bounded(PEER_BLOCKS_MAX, |count| {
        spread(PEER_PARTS_MAX as usize, count)
    });
}

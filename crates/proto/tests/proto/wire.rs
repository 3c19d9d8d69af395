//! The golden file of wire version 1: every message as bytes, and bytes that must be refused.

use std::num::NonZeroU32;

use tessera_proto::message::{
    Acquire, AcquireAnswer, AcquireItem, DropAnswer, Features, Get, GetAnswer, GetStatus, Hello,
    HelloAnswer, PEER_QUIESCENCE, PartName, PartStatus, PeerGroup, PeerHello, PeerHelloAnswer,
    PeerPull, PeerPullAnswer, PeerPush, PeerPushAnswer, PeerSetup, PeerTicket, PeerTicketAnswer,
    Ping, Presence, Put, PutAnswer, PutStatus, Refusal, Refused, Release, ReleaseAnswer, Remove,
    RemoveAnswer, RemoveItem, Stat, StatAnswer, StatEntry,
};
use tessera_proto::peer::{Attempt, PartAttempt, PartId, TransferId};
use tessera_proto::{
    DecodeError, FrameHeader, Incarnation, KeyDigest, Kind, LeaseId, NamespaceDigest, ObjectHeader,
    ObjectId, PROTOCOL_VERSION, TenantTag, Topology, WriteId, checksum, message,
};

use crate::golden::{Identity, KeyRow, Wire, read};
use crate::messages::Message;

const PAYLOAD: &[u8] = b"a tile";

fn key(name: &str) -> KeyRow {
    let golden: Identity = read("identity.json");
    golden
        .keys
        .into_iter()
        .find(|row| row.name == name)
        .expect("a golden key")
}

fn id(name: &str) -> ObjectId {
    ObjectId(key(name).id.array())
}

fn object() -> ObjectHeader {
    let golden: Identity = read("identity.json");
    let plain = golden.namespaces.iter().find(|row| row.name == "plain");
    ObjectHeader {
        namespace: NamespaceDigest(plain.expect("a golden namespace").digest.array()),
        key: KeyDigest(key("tp_rank_1").digest.array()),
        layout: 0x1122_3344_5566_7788,
        length_bytes: PAYLOAD.len() as u64,
        checksum: checksum(PAYLOAD),
        write: WriteId(0x0bad_c0de_0bad_c0de),
        tenant: TenantTag::NONE,
    }
}

fn lease() -> Option<LeaseId> {
    LeaseId::new(0xfedc_ba98_7654_3210)
}

/// The messages of the golden file, in its order, with the kind where it is not the type's name.
fn messages() -> Vec<(&'static str, Message)> {
    [
        session(),
        objects(),
        namespaces(),
        leases(),
        peers(),
        parts(),
    ]
    .concat()
}

fn session() -> Vec<(&'static str, Message)> {
    let incarnation = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
    let hello = Hello {
        version_min: 1,
        version_max: 3,
        features: Features(5),
        incarnation: Incarnation(incarnation),
        name: "engine é".to_owned(),
    };
    let nameless = Hello {
        version_min: 1,
        version_max: 1,
        features: Features(0),
        incarnation: Incarnation(1),
        name: String::new(),
    };
    let answer = HelloAnswer {
        version: 1,
        features: Features(1),
        incarnation: Incarnation(incarnation ^ (1 << 127)),
        object_bytes_max: 1 << 30,
        in_flight_max: 1_024,
    };
    let counter = |name: &str, value| StatEntry {
        name: name.to_owned(),
        value,
    };
    let stat = vec![counter("objects", 3), counter("leased_bytes", 1 << 40)];
    let ping = Ping {
        nonce: 0x0123_4567_89ab_cdef,
    };
    let refused = |name: &'static str, reason| {
        let word = name.strip_prefix("refused_").expect("named so");
        (
            name,
            Refused {
                reason,
                message: format!("{word}: why"),
            }
            .into(),
        )
    };
    vec![
        ("hello", hello.into()),
        ("hello_nameless", nameless.into()),
        ("hello_answer", answer.into()),
        ("stat", Stat.into()),
        ("stat_answer", StatAnswer { entries: stat }.into()),
        ("ping", ping.into()),
        ("ping_answer", ping.into()),
        refused("refused_malformed", Refusal::Malformed),
        refused("refused_version", Refusal::Version),
        refused("refused_order", Refusal::Order),
        refused("refused_busy", Refusal::Busy),
        refused("refused_full", Refusal::Full),
        refused("refused_closing", Refusal::Closing),
        refused("refused_deadline", Refusal::Deadline),
        refused("refused_mismatch", Refusal::Mismatch),
        refused("refused_stranger", Refusal::Stranger),
        refused("refused_unrecorded", Refusal::Unrecorded),
    ]
}

fn peers() -> Vec<(&'static str, Message)> {
    let group = |kind: &str, block_bytes| PeerGroup {
        kind: kind.to_owned(),
        block_tokens: 16,
        block_bytes,
        fingerprint: 0x1122_3344_5566_7788,
        heads: 8,
        head_fingerprint: 0x99aa_bbcc_ddee_ff00,
    };
    let setup = PeerSetup {
        model: "org/model".to_owned(),
        revision: String::new(),
        weights: "c0ffee".to_owned(),
        tenant: "team-a".to_owned(),
        dtype: "bfloat16".to_owned(),
        speculative: "eagle 3".to_owned(),
        layout: [0x5a; 32],
        topology: Topology {
            tp: 2,
            ..Topology::SINGLE
        },
        peer_tp: 4,
        piece_bytes: 4 << 20,
        groups: vec![
            group("full", 1 << 20),
            group("window of 512 tokens", 1 << 16),
        ],
    };
    let (from, to) = (Incarnation(0x11 << 120), Incarnation(0x22));
    let features = PEER_QUIESCENCE;
    let hello = PeerHello {
        features,
        from,
        to,
        rank: 1,
        connection_min: 2,
        setup: setup.clone(),
    };
    let answer = PeerHelloAnswer {
        features,
        from: to,
        rank: 0,
        connection: 3,
        setup,
    };
    vec![
        ("peer_hello", hello.into()),
        ("peer_hello_answer", answer.into()),
    ]
}

fn parts() -> Vec<(&'static str, Message)> {
    let part = PartName {
        transfer: TransferId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        at: PartAttempt {
            part: PartId {
                source: 1,
                destination: 0,
                index: 7,
            },
            attempt: Attempt(2),
        },
    };
    let (piece, checksum) = (4, checksum(PAYLOAD));
    let pulled = |status, checksum| PeerPullAnswer {
        part,
        status,
        piece,
        checksum,
    };
    let push = PeerPush {
        part,
        piece,
        last: true,
        checksum,
    };
    let pushed = |status| PeerPushAnswer { part, status };
    vec![
        ("peer_pull", PeerPull { part }.into()),
        (
            "peer_pull_answer",
            pulled(PartStatus::Done, checksum).into(),
        ),
        (
            "peer_pull_answer_refused",
            pulled(PartStatus::Refused, 0).into(),
        ),
        ("peer_push", push.into()),
        (
            "peer_ticket",
            PeerTicket {
                ticket: "02ab".into(),
            }
            .into(),
        ),
        (
            "peer_ticket_answer",
            PeerTicketAnswer {
                transfer: part.transfer,
            }
            .into(),
        ),
        ("peer_push_answer", pushed(PartStatus::Done).into()),
        (
            "peer_push_answer_corrupt",
            pushed(PartStatus::Corrupt).into(),
        ),
        ("peer_push_answer_device", pushed(PartStatus::Device).into()),
    ]
}

fn objects() -> Vec<(&'static str, Message)> {
    let put = |status| PutAnswer { status }.into();
    let get = |lease| {
        Get {
            id: id("tp_rank_1"),
            lease,
            length_bytes: 6,
        }
        .into()
    };
    let absent = |status| GetAnswer::Absent(status).into();
    let remove = Remove {
        items: vec![
            RemoveItem {
                id: id("replicated"),
                write: None,
            },
            RemoveItem {
                id: id("tp_rank_1"),
                write: Some(object().write),
            },
        ],
    };
    let tenants = ObjectHeader {
        tenant: TenantTag::of("team-a"),
        ..object()
    };
    vec![
        ("put", Put { header: object() }.into()),
        ("put_of_a_tenant", Put { header: tenants }.into()),
        ("put_answer_stored", put(PutStatus::Stored)),
        ("put_answer_existed", put(PutStatus::Existed)),
        ("put_answer_no_space", put(PutStatus::NoSpace)),
        ("put_answer_too_large", put(PutStatus::TooLarge)),
        ("put_answer_corrupt", put(PutStatus::Corrupt)),
        ("put_answer_mismatch", put(PutStatus::Mismatch)),
        ("get", get(lease())),
        ("get_without_lease", get(None)),
        ("get_answer_found", GetAnswer::Found(object()).into()),
        ("get_answer_missing", absent(GetStatus::Missing)),
        ("get_answer_length", absent(GetStatus::Length)),
        ("get_answer_lease_over", absent(GetStatus::LeaseOver)),
        ("remove", remove.into()),
        (
            "remove_answer",
            RemoveAnswer {
                removed: vec![true, false],
            }
            .into(),
        ),
    ]
}

fn namespaces() -> Vec<(&'static str, Message)> {
    vec![
        (
            "price",
            message::Price {
                namespace: object().namespace,
                ns_per_kib: NonZeroU32::new(400).expect("not 0"),
            }
            .into(),
        ),
        ("price_answer", message::PriceAnswer.into()),
        (
            "drop",
            message::Drop {
                namespace: object().namespace,
            }
            .into(),
        ),
        (
            "drop_answer",
            DropAnswer {
                ram_objects: 2,
                ram_bytes: 0x3000,
                disk_objects: 4,
                disk_bytes: 0x0005_0000_0000,
            }
            .into(),
        ),
    ]
}

fn leases() -> Vec<(&'static str, Message)> {
    let ids = vec![
        id("replicated"),
        id("tp_rank_1"),
        ObjectId(std::array::from_fn(counting)),
    ];
    let item = |presence, length_bytes| AcquireItem {
        presence,
        length_bytes,
    };
    let missing = item(Presence::Missing, 0);
    let items = vec![item(Presence::Held, 6), missing, item(Presence::Refused, 0)];
    let lease_id = lease().expect("not zero");
    vec![
        (
            "acquire",
            Acquire {
                lease_ms: 30_000,
                bytes_max: 1 << 34,
                ids,
            }
            .into(),
        ),
        (
            "acquire_nothing",
            Acquire {
                lease_ms: 0,
                bytes_max: 0,
                ids: Vec::new(),
            }
            .into(),
        ),
        (
            "acquire_answer",
            AcquireAnswer {
                lease: lease(),
                lease_ms: 30_000,
                items,
            }
            .into(),
        ),
        (
            "acquire_answer_nothing_held",
            AcquireAnswer {
                lease: None,
                lease_ms: 0,
                items: vec![missing],
            }
            .into(),
        ),
        (
            "release",
            Release {
                lease: lease_id,
                ids: vec![id("tp_rank_1")],
            }
            .into(),
        ),
        (
            "release_all",
            Release {
                lease: lease_id,
                ids: Vec::new(),
            }
            .into(),
        ),
        ("release_answer", ReleaseAnswer { released: 1 }.into()),
    ]
}

fn counting(at: usize) -> u8 {
    u8::try_from(at).expect("sixteen bytes")
}

fn kind(name: &str) -> Kind {
    let named = |kind: &&Kind| format!("{kind:?}") == name;
    *Kind::ALL
        .iter()
        .find(named)
        .expect("a kind of this version")
}

pub(crate) fn variant(error: &DecodeError) -> &'static str {
    match error {
        DecodeError::Truncated { .. } => "Truncated",
        DecodeError::Trailing { .. } => "Trailing",
        DecodeError::OverLimit { .. } => "OverLimit",
        DecodeError::Invalid { .. } => "Invalid",
        DecodeError::Magic { .. } => "Magic",
        DecodeError::Version { .. } => "Version",
        DecodeError::Check { .. } => "Check",
    }
}

#[test]
fn every_golden_message_is_encoded_and_decoded_to_the_byte() {
    let golden: Wire = read("wire-v1.json");
    let messages = messages();
    assert_eq!(golden.frames.len(), messages.len());
    for (name, message) in messages {
        let row = golden
            .frames
            .iter()
            .find(|row| row.name == name)
            .expect(name);
        assert_eq!(message.name(), row.message, "{name}");
        assert_eq!(message.encode(), row.body.0, "{name}");
        assert_eq!(
            Message::decode(&row.message, &row.body.0),
            Ok(message),
            "{name}"
        );
    }
}

#[test]
fn every_golden_header_is_encoded_and_decoded_to_the_byte() {
    let golden: Wire = read("wire-v1.json");
    assert_eq!(golden.version, PROTOCOL_VERSION);
    for row in &golden.frames {
        let header = FrameHeader {
            kind: kind(&row.kind),
            request: row.request,
            deadline_ms: row.deadline_ms,
            body_bytes: u32::try_from(row.body.0.len()).expect("short"),
            payload_bytes: row.payload.0.len() as u64,
        };
        assert_eq!(header.encode().as_slice(), row.header.0, "{}", row.name);
        assert_eq!(
            FrameHeader::decode(&row.header.array()),
            Ok(header),
            "{}",
            row.name
        );
        assert_eq!(
            header.kind.has_payload(),
            !row.payload.0.is_empty() || absent(&row.name)
        );
    }
}

/// Whether the row answers a request for bytes without them.
fn absent(name: &str) -> bool {
    name.starts_with("get_answer_") && name != "get_answer_found"
        || name == "peer_pull_answer_refused"
}

#[test]
fn every_kind_and_message_type_has_a_golden_frame() {
    let golden: Wire = read("wire-v1.json");
    // What control frames carry has a golden file of its own.
    let kinds = Kind::ALL.iter().filter(|kind| **kind != Kind::PeerControl);
    for kind in kinds {
        let name = format!("{kind:?}");
        assert!(
            golden.frames.iter().any(|row| row.kind == name),
            "{name} has none"
        );
    }
    for name in Message::NAMES {
        assert!(
            golden.frames.iter().any(|row| row.message == *name),
            "{name} has none"
        );
    }
}

#[test]
fn what_version_1_refuses_it_refuses_for_this_reason() {
    let golden: Wire = read("wire-v1.json");
    for row in &golden.refused {
        let error = match row.message.as_str() {
            "FrameHeader" => FrameHeader::decode(&row.bytes.array()).map(drop),
            message => Message::decode(message, &row.bytes.0).map(drop),
        };
        assert_eq!(
            error.as_ref().map_err(variant),
            Err(row.error.as_str()),
            "{}",
            row.name
        );
    }
}

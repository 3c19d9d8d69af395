//! Every limit is enforced where it is declared: at the limit accepted, one over it refused.

use tessera_proto::limits::{
    BATCH_ITEMS_MAX, BODY_BYTES_MAX, DEADLINE_MS_MAX, LEASE_MS_MAX, OBJECT_BYTES_MAX,
    STAT_ENTRIES_MAX, STAT_NAME_BYTES_MAX, TEXT_BYTES_MAX,
};
use tessera_proto::message::{
    Acquire, AcquireAnswer, AcquireItem, Presence, Put, Refusal, Refused, Release, Remove,
    RemoveAnswer, RemoveItem, StatAnswer, StatEntry,
};
use tessera_proto::{
    DecodeError, FrameHeader, KeyDigest, Kind, LeaseId, NamespaceDigest, ObjectHeader, ObjectId,
    TenantTag, WriteId,
};

use crate::messages::Message;

/// What a decoder says of `message`, and the length of its body.
fn decoded(message: impl Into<Message>) -> (Result<(), DecodeError>, usize) {
    let message = message.into();
    let body = message.encode();
    (Message::decode(message.name(), &body).map(drop), body.len())
}

/// Asserts that `make(limit)` is accepted and fits a body, and that one more is refused.
fn bounded<M: Into<Message>>(limit: u32, make: impl Fn(u32) -> M) {
    let (at_limit, length) = decoded(make(limit));
    assert_eq!(at_limit, Ok(()));
    assert!(
        length <= BODY_BYTES_MAX as usize,
        "{length} bytes do not fit a body"
    );
    match decoded(make(limit + 1)).0 {
        Err(DecodeError::OverLimit {
            got, limit: said, ..
        }) => {
            assert_eq!((got, said), (u64::from(limit) + 1, u64::from(limit)));
        }
        other => panic!("one over the limit gave {other:?}"),
    }
}

fn ids(count: u32) -> Vec<ObjectId> {
    vec![ObjectId([7; 16]); count as usize]
}

fn lease() -> LeaseId {
    LeaseId::new(1).expect("not zero")
}

#[test]
fn batches_are_bounded() {
    bounded(BATCH_ITEMS_MAX, |count| Acquire {
        lease_ms: 1,
        bytes_max: 1,
        ids: ids(count),
    });
    bounded(BATCH_ITEMS_MAX, |count| Release {
        lease: lease(),
        ids: ids(count),
    });
    bounded(BATCH_ITEMS_MAX, |count| Remove {
        items: vec![
            RemoveItem {
                id: ObjectId([7; 16]),
                write: None
            };
            count as usize
        ],
    });
    bounded(BATCH_ITEMS_MAX, |count| RemoveAnswer {
        removed: vec![true; count as usize],
    });
    let item = AcquireItem {
        presence: Presence::Missing,
        length_bytes: 0,
    };
    bounded(BATCH_ITEMS_MAX, |count| AcquireAnswer {
        lease: None,
        lease_ms: 0,
        items: vec![item; count as usize],
    });
}

#[test]
fn leases_are_bounded() {
    bounded(LEASE_MS_MAX, |lease_ms| Acquire {
        lease_ms,
        bytes_max: 1,
        ids: ids(1),
    });
    bounded(LEASE_MS_MAX, |lease_ms| AcquireAnswer {
        lease: None,
        lease_ms,
        items: Vec::new(),
    });
}

#[test]
fn counters_are_bounded() {
    let name = "n".repeat(STAT_NAME_BYTES_MAX as usize);
    bounded(STAT_ENTRIES_MAX, |count| StatAnswer {
        entries: vec![
            StatEntry {
                name: name.clone(),
                value: 1
            };
            count as usize
        ],
    });
}

#[test]
fn objects_are_bounded() {
    let header = |length_bytes| ObjectHeader {
        namespace: NamespaceDigest([1; 32]),
        key: KeyDigest([2; 32]),
        layout: 3,
        length_bytes,
        checksum: 4,
        write: WriteId(5),
        tenant: TenantTag::NONE,
    };
    let limit = u32::try_from(OBJECT_BYTES_MAX).expect("objects are at most 1 GiB");
    bounded(limit, |length_bytes| Put {
        header: header(u64::from(length_bytes)),
    });
    assert!(
        decoded(Put { header: header(0) }).0.is_err(),
        "an object has at least one byte"
    );
}

#[test]
fn frames_are_bounded() {
    let fits = FrameHeader {
        kind: Kind::Put,
        request: 1,
        deadline_ms: DEADLINE_MS_MAX,
        body_bytes: BODY_BYTES_MAX,
        payload_bytes: OBJECT_BYTES_MAX,
    };
    assert_eq!(FrameHeader::decode(&fits.encode()), Ok(fits));
    for over in [
        FrameHeader {
            deadline_ms: DEADLINE_MS_MAX + 1,
            ..fits
        },
        FrameHeader {
            body_bytes: BODY_BYTES_MAX + 1,
            ..fits
        },
        FrameHeader {
            payload_bytes: OBJECT_BYTES_MAX + 1,
            ..fits
        },
        FrameHeader {
            payload_bytes: 1,
            kind: Kind::Get,
            ..fits
        },
        FrameHeader {
            payload_bytes: u64::MAX,
            ..fits
        },
    ] {
        let refused = FrameHeader::decode(&over.encode());
        assert!(
            matches!(refused, Err(DecodeError::OverLimit { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn long_text_is_cut_between_characters_and_still_decodes() {
    let limit = TEXT_BYTES_MAX as usize;
    let message = format!("{}é and more", "x".repeat(limit - 1));
    let refused = Refused {
        reason: Refusal::Busy,
        message,
    };
    let mut body = Vec::new();
    refused.encode(&mut body);
    let decoded = Refused::decode(&body).expect("a text within the limit");
    assert_eq!(decoded.message, "x".repeat(limit - 1));
}

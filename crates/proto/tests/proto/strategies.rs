//! Values of every type, as property tests draw them.

use std::num::NonZeroU32;

use proptest::array::uniform32;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tessera_proto::limits::{BODY_BYTES_MAX, DEADLINE_MS_MAX, LEASE_MS_MAX, OBJECT_BYTES_MAX};
use tessera_proto::message::{
    Acquire, AcquireAnswer, AcquireItem, DropAnswer, Features, Get, GetAnswer, GetStatus, Hello,
    HelloAnswer, PartName, PartStatus, PeerGroup, PeerHello, PeerHelloAnswer, PeerPull,
    PeerPullAnswer, PeerPush, PeerPushAnswer, PeerSetup, PeerTicket, PeerTicketAnswer, Ping,
    Presence, Put, PutAnswer, PutStatus, Refusal, Refused, Release, ReleaseAnswer, Remove,
    RemoveAnswer, RemoveItem, Stat, StatAnswer, StatEntry,
};
use tessera_proto::peer::{Attempt, PartAttempt, PartId, TransferId};
use tessera_proto::{
    BlockHash, Component, Coordinate, Coordinates, FrameHeader, Incarnation, KeyDigest, Kind,
    LeaseId, Namespace, NamespaceDigest, ObjectHeader, ObjectId, ObjectKey, TenantTag, Topology,
    WriteId, message,
};

use crate::messages::Message;

/// Two namespaces that are often equal, or differ by where one field ends and the next begins.
pub(crate) fn alike_namespaces() -> impl Strategy<Value = (Namespace, Namespace)> {
    let few = || "[ab]{0,2}";
    let namespace = || {
        let texts = (few(), few(), few(), few());
        let numbers = (
            vec(0..2_u8, 0..2),
            0..2_u32,
            0..2_u8,
            0..2_u32,
            0..2_u32,
            0..2_u32,
        );
        (texts, numbers).prop_map(|((tenant, model, revision, dtype), numbers)| {
            let (weights, connector_layout, fingerprint, chunk_tokens, tp, pcp) = numbers;
            Namespace {
                tenant,
                model,
                revision,
                weights,
                connector_layout,
                dtype,
                layout_fingerprint: [fingerprint; 32],
                chunk_tokens,
                topology: Topology {
                    tp,
                    pcp,
                    ..Topology::SINGLE
                },
            }
        })
    };
    (namespace(), namespace())
}

/// A coordinate of a small topology.
fn coordinate() -> impl Strategy<Value = Coordinate> {
    let shard = (1..4_u32).prop_flat_map(|size| (Just(size), 0..size));
    option::of(shard).prop_map(|shard| match shard {
        None => Coordinate::Replicated,
        Some((size, rank)) => Coordinate::Shard { size, rank },
    })
}

/// A key.
pub(crate) fn object_key() -> impl Strategy<Value = ObjectKey> {
    let coordinates = (coordinate(), coordinate(), coordinate(), coordinate());
    (vec(0..2_u8, 1..4), 0..2_u32, coordinates).prop_map(|(hash, group, (tp, pp, dcp, pcp))| {
        ObjectKey {
            block_hash: BlockHash::new(&hash).expect("a short hash"),
            group,
            coordinates: Coordinates { tp, pp, dcp, pcp },
            component: Component::Layers,
        }
    })
}

/// Two keys that are equal, or differ in one place.
pub(crate) fn alike_keys() -> impl Strategy<Value = (ObjectKey, ObjectKey)> {
    (object_key(), object_key(), 0..4_u8).prop_map(|(left, other, from_other)| {
        let mut right = left.clone();
        match from_other {
            0 => right.block_hash = other.block_hash,
            1 => right.group = other.group,
            2 => right.coordinates = other.coordinates,
            _ => right = other,
        }
        (left, right)
    })
}

/// An object id.
pub(crate) fn id() -> impl Strategy<Value = ObjectId> {
    any::<[u8; 16]>().prop_map(ObjectId)
}

/// A lease id.
fn lease() -> impl Strategy<Value = LeaseId> {
    (1..=u64::MAX).prop_map(|number| LeaseId::new(number).expect("not zero"))
}

/// An object header within the limits.
fn object_header() -> impl Strategy<Value = ObjectHeader> {
    let digests = (uniform32(any::<u8>()), uniform32(any::<u8>()));
    (
        digests,
        any::<u64>(),
        1..=OBJECT_BYTES_MAX,
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
    )
        .prop_map(
            |((namespace, key), layout, length_bytes, checksum, write, tenant)| ObjectHeader {
                namespace: NamespaceDigest(namespace),
                key: KeyDigest(key),
                layout,
                length_bytes,
                checksum,
                write: WriteId(write),
                tenant: TenantTag(tenant),
            },
        )
}

/// A frame header within the limits.
pub(crate) fn frame_header() -> impl Strategy<Value = FrameHeader> {
    let lengths = (0..=BODY_BYTES_MAX, 0..=OBJECT_BYTES_MAX);
    (
        proptest::sample::select(Kind::ALL),
        any::<u64>(),
        0..=DEADLINE_MS_MAX,
        lengths,
    )
        .prop_map(
            |(kind, request, deadline_ms, (body_bytes, payload_bytes))| FrameHeader {
                kind,
                request,
                deadline_ms,
                body_bytes,
                payload_bytes: if kind.has_payload() { payload_bytes } else { 0 },
            },
        )
}

/// A message of any type, within the limits.
pub(crate) fn message() -> impl Strategy<Value = Message> {
    prop_oneof![session(), objects(), leases(), stat(), peers()]
}

fn session() -> impl Strategy<Value = Message> {
    let hello = (any::<(u16, u16, u64, u128)>(), ".{0,20}").prop_map(
        |((version_min, version_max, features, incarnation), name)| Hello {
            version_min,
            version_max,
            features: Features(features),
            incarnation: Incarnation(incarnation),
            name,
        },
    );
    let answer = any::<(u16, u64, u128, u64, u32)>().prop_map(
        |(version, features, incarnation, object_bytes_max, in_flight_max)| HelloAnswer {
            version,
            features: Features(features),
            incarnation: Incarnation(incarnation),
            object_bytes_max,
            in_flight_max,
        },
    );
    let refusal = proptest::sample::select(vec![
        Refusal::Malformed,
        Refusal::Version,
        Refusal::Order,
        Refusal::Busy,
        Refusal::Full,
        Refusal::Closing,
        Refusal::Deadline,
        Refusal::Unrecorded,
        Refusal::Mismatch,
        Refusal::Stranger,
    ]);
    prop_oneof![
        hello.prop_map_into(),
        answer.prop_map_into(),
        any::<u64>().prop_map(|nonce| Ping { nonce }.into()),
        (refusal, ".{0,20}").prop_map(|(reason, message)| Refused { reason, message }.into()),
    ]
}

fn setup() -> impl Strategy<Value = PeerSetup> + Clone {
    let group = (".{0,20}", any::<([u64; 4], u32)>()).prop_map(
        |(kind, ([block_tokens, block_bytes, fingerprint, head_fingerprint], heads))| PeerGroup {
            kind,
            block_tokens,
            block_bytes,
            fingerprint,
            heads,
            head_fingerprint,
        },
    );
    let texts = (
        ".{0,20}", ".{0,20}", ".{0,20}", ".{0,20}", ".{0,20}", ".{0,20}",
    );
    let numbers = any::<([u8; 32], [u32; 5], u64)>();
    (texts, numbers, vec(group, 0..9)).prop_map(
        |(
            (model, revision, weights, tenant, dtype, speculative),
            (layout, [tp, pp, dcp, pcp, peer_tp], piece_bytes),
            groups,
        )| {
            PeerSetup {
                model,
                revision,
                weights,
                tenant,
                dtype,
                speculative,
                layout,
                topology: Topology { tp, pp, dcp, pcp },
                peer_tp,
                piece_bytes,
                groups,
            }
        },
    )
}

fn peers() -> impl Strategy<Value = Message> {
    let hello = (any::<(u64, u128, u128, u16, u64)>(), setup()).prop_map(
        |((features, from, to, rank, connection_min), setup)| PeerHello {
            features: Features(features),
            from: Incarnation(from),
            to: Incarnation(to),
            rank,
            connection_min,
            setup,
        },
    );
    let answer = (any::<(u64, u128, u16, u64)>(), setup()).prop_map(
        |((features, from, rank, connection), setup)| PeerHelloAnswer {
            features: Features(features),
            from: Incarnation(from),
            rank,
            connection,
            setup,
        },
    );
    let status = proptest::sample::select(vec![
        PartStatus::Done,
        PartStatus::Refused,
        PartStatus::Corrupt,
        PartStatus::Device,
    ]);
    let pulled = (part(), status.clone(), any::<u32>(), any::<u64>());
    let pushed = (part(), any::<u32>(), any::<bool>(), any::<u64>());
    prop_oneof![
        hello.prop_map_into(),
        answer.prop_map_into(),
        part().prop_map(|part| PeerPull { part }.into()),
        pulled.prop_map(|(part, status, piece, checksum)| PeerPullAnswer {
            part,
            status,
            piece,
            checksum
        }
        .into()),
        pushed.prop_map(|(part, piece, last, checksum)| PeerPush {
            part,
            piece,
            last,
            checksum
        }
        .into()),
        (part(), status).prop_map(|(part, status)| PeerPushAnswer { part, status }.into()),
        "[0-9a-f]{0,200}".prop_map(|ticket| PeerTicket { ticket }.into()),
        any::<u128>().prop_map(|transfer| PeerTicketAnswer {
            transfer: TransferId(transfer)
        }
        .into()),
    ]
}

/// A part under one claim.
fn part() -> impl Strategy<Value = PartName> {
    any::<(u128, u16, u16, u16, u32)>().prop_map(
        |(transfer, source, destination, index, attempt)| PartName {
            transfer: TransferId(transfer),
            at: PartAttempt {
                part: PartId {
                    source,
                    destination,
                    index,
                },
                attempt: Attempt(attempt),
            },
        },
    )
}

fn objects() -> impl Strategy<Value = Message> {
    let put_status = proptest::sample::select(vec![
        PutStatus::Stored,
        PutStatus::Existed,
        PutStatus::NoSpace,
        PutStatus::TooLarge,
        PutStatus::Corrupt,
        PutStatus::Mismatch,
    ]);
    let absent = vec![GetStatus::Missing, GetStatus::Length, GetStatus::LeaseOver];
    let absent = proptest::sample::select(absent).prop_map(GetAnswer::Absent);
    let get = (id(), option::of(lease()), any::<u64>());
    let item = (id(), option::of(any::<u64>().prop_map(WriteId)));
    prop_oneof![
        object_header().prop_map(|header| Put { header }.into()),
        put_status.prop_map(|status| PutAnswer { status }.into()),
        get.prop_map(|(id, lease, length_bytes)| Get {
            id,
            lease,
            length_bytes
        }
        .into()),
        object_header().prop_map(|header| GetAnswer::Found(header).into()),
        absent.prop_map_into(),
        vec(item.prop_map(|(id, write)| RemoveItem { id, write }), 0..9)
            .prop_map(|items| Remove { items }.into()),
        vec(any::<bool>(), 0..9).prop_map(|removed| RemoveAnswer { removed }.into()),
        (any::<[u8; 32]>(), 1..=u32::MAX).prop_map(|(digest, ns)| message::Price {
            namespace: NamespaceDigest(digest),
            ns_per_kib: NonZeroU32::new(ns).expect("not 0"),
        }
        .into()),
        Just(message::PriceAnswer.into()),
        any::<[u8; 32]>().prop_map(|digest| message::Drop {
            namespace: NamespaceDigest(digest)
        }
        .into()),
        any::<[u64; 4]>().prop_map(|[ram_objects, ram_bytes, disk_objects, disk_bytes]| {
            DropAnswer {
                ram_objects,
                ram_bytes,
                disk_objects,
                disk_bytes,
            }
            .into()
        }),
    ]
}

fn leases() -> impl Strategy<Value = Message> {
    let acquire =
        (0..=LEASE_MS_MAX, any::<u64>(), vec(id(), 0..9)).prop_map(|(lease_ms, bytes_max, ids)| {
            Acquire {
                lease_ms,
                bytes_max,
                ids,
            }
        });
    let presence =
        proptest::sample::select(vec![Presence::Missing, Presence::Held, Presence::Refused]);
    let item = (presence, any::<u64>()).prop_map(|(presence, length_bytes)| AcquireItem {
        presence,
        length_bytes,
    });
    let answer = (option::of(lease()), 0..=LEASE_MS_MAX, vec(item, 0..9))
        .prop_map(|(lease, lease_ms, items)| AcquireAnswer {
            lease,
            lease_ms,
            items,
        })
        .prop_filter("held only under a lease", |answer| {
            let held = |item: &AcquireItem| item.presence == Presence::Held;
            answer.lease.is_some() || !answer.items.iter().any(held)
        });
    prop_oneof![
        acquire.prop_map_into(),
        answer.prop_map_into(),
        (lease(), vec(id(), 0..9)).prop_map(|(lease, ids)| Release { lease, ids }.into()),
        any::<u32>().prop_map(|released| ReleaseAnswer { released }.into()),
    ]
}

fn stat() -> impl Strategy<Value = Message> {
    let entry = (".{0,20}", any::<u64>()).prop_map(|(name, value)| StatEntry { name, value });
    prop_oneof![
        Just(Stat.into()),
        vec(entry, 0..9).prop_map(|entries| StatAnswer { entries }.into()),
    ]
}

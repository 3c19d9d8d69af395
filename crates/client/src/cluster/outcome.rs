//! How operations end. Every outcome but the good ones is a miss to the engine; the variants say
//! whose doing it was, for counters and for the lifecycle's choice to try again.

use tessera_proto::message::Refusal;
use tessera_proto::{Incarnation, LeaseId, ObjectMismatch, WriteId};

use crate::routing::NodeIndex;

/// A promise of one process start of one node. Worthless after that process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The node that gave it.
    pub node: NodeIndex,
    /// The node's process start.
    pub incarnation: Incarnation,
    /// The lease there.
    pub id: LeaseId,
}

/// What a lookup found of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Held by the lease until it is released or ends.
    Held {
        /// The lease that holds it.
        lease: Lease,
        /// Bytes of the object.
        length_bytes: u64,
    },
    /// Not there.
    Missing,
    /// There, but over the bytes that a lease may hold.
    Refused,
    /// Its node did not answer in time, or is known to be down.
    Unreachable,
}

/// What a lookup found, in the order of the ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireOutcome {
    /// One for each id.
    pub items: Vec<Presence>,
    /// The shortest time that a lease of this lookup lasts, milliseconds; zero when nothing is
    /// held.
    pub lease_ms: u32,
}

/// How a fetch ended. Only after `Loaded` the destination holds the object; after any other outcome
/// its bytes are undefined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchOutcome {
    /// Every byte arrived and was verified where it landed.
    Loaded,
    /// The object is not there.
    Missing,
    /// The lease is over, or belongs to an earlier start of the node, and the object is gone.
    LeaseOver,
    /// The object or its payload has another length than the destination.
    Length,
    /// The object is not what was asked for, or its bytes are damaged. It is being removed.
    Corrupt {
        /// What differs.
        mismatch: ObjectMismatch,
        /// The write that made it.
        write: WriteId,
    },
    /// The node, or our bound of requests in flight, had no room for the request.
    Busy,
    /// The deadline passed.
    Deadline,
    /// The caller called its memory back.
    Recalled,
    /// No connection, or it was lost.
    Unreachable,
}

/// How a store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The object is whole and visible.
    Stored,
    /// It was there already, or another writer is storing it.
    Existed,
    /// The node had no room for it now.
    NoSpace,
    /// It is larger than the node takes.
    TooLarge,
    /// The bytes changed on the way, or while they were sent.
    Corrupt,
    /// The header declares another length than the source has.
    Length,
    /// The node, or our bound of requests in flight, had no room for the request.
    Busy,
    /// The deadline passed.
    Deadline,
    /// No connection, or it was lost. Whether the node has the object is unknown.
    Unreachable,
}

/// Why a request about one node has no answer. For people, and for the command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// No such place in the list of nodes.
    #[error("there is no node number {0}: the list is shorter")]
    Unknown(usize),
    /// No connection, or it was lost.
    #[error("the node is not reachable: check its address and whether it runs")]
    Unreachable,
    /// The deadline passed.
    #[error("the node did not answer in time: it is paused, overloaded or cut off")]
    Deadline,
    /// The node had no room for the request.
    #[error("the node is busy: try again")]
    Busy,
    /// The node could not record a removal for good, since a disk of it failed.
    #[error(
        "a disk of the node failed and cannot be made empty: what was removed is gone now, and may \
         be found again by the node's next start. Replace the disk, or run `tessera clean` on its \
         folder, before that start"
    )]
    Unrecorded,
    /// The node refused the request.
    #[error("the node refused the request: {0:?}")]
    Refused(Refusal),
    /// The node is of a build that does not know the request. Nothing was sent.
    #[error("the node is older than this request: update it")]
    Unknowing,
    /// The answer cannot be read.
    #[error("the node's answer cannot be read: {0}")]
    Answer(#[from] tessera_proto::DecodeError),
}

//! What two processes say to each other about a transfer.
//!
//! Called by the machine of transfers on either side. Everything but [`Message::Ping`] and
//! [`Message::Pong`] is sequenced: delivered in order and once within a connection. The bytes are
//! drawn in `docs/wire.md`.

use crate::message::Incarnation;
use crate::peer::ids::{BlockRef, ConnectionId, PartAttempt, PartId, TransferId};

/// Why nothing can touch a part's memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proof {
    /// Nothing was ever posted for it.
    NeverPosted,
    /// All that was posted has ended, each operation well (F1).
    Clean,
    /// The connection was closed and everything on it has ended (F2, F3).
    Fenced,
}

/// Why a claim is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// No such transfer or part: never offered, released, or revoked.
    Unknown,
    /// The blocks have another life than the ticket says.
    Stale,
    /// Another process has claimed it: a ticket admits once.
    Used,
    /// The lease of the offer is over, or its request is gone.
    Revoked,
}

/// A part with the blocks of the side that lends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LentPart {
    /// The part and the claim.
    pub at: PartAttempt,
    /// The lender's blocks.
    pub blocks: Vec<BlockRef>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// WRITE: the destination lends these blocks.
    Offer {
        /// The transfer.
        transfer: TransferId,
        /// How long they can be claimed, at most [`LEASE_MS_MAX`](crate::limits::LEASE_MS_MAX).
        lease_ms: u64,
        /// The parts.
        parts: Vec<LentPart>,
    },
    /// The sender wants to touch these blocks; nothing is posted before the grant.
    Claim {
        /// The transfer.
        transfer: TransferId,
        /// The parts.
        parts: Vec<LentPart>,
    },
    /// These claims are granted, on this connection.
    Grant {
        /// The transfer.
        transfer: TransferId,
        /// The parts.
        parts: Vec<PartAttempt>,
    },
    /// These claims are not.
    Refuse {
        /// The transfer.
        transfer: TransferId,
        /// The parts.
        parts: Vec<PartAttempt>,
        /// Why.
        reason: Refusal,
    },
    /// WRITE: all bytes of the part have landed.
    DataDone {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        at: PartAttempt,
    },
    /// WRITE: the part has failed.
    PartErr {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        at: PartAttempt,
        /// Whether what was posted has provably landed; `None` if bytes may still come.
        proof: Option<Proof>,
    },
    /// The lender wants these parts back.
    Abort {
        /// The transfer.
        transfer: TransferId,
        /// The parts.
        parts: Vec<PartId>,
    },
    /// The part is at rest on the side that was asked.
    AbortAck {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        at: PartAttempt,
        /// Why.
        proof: Proof,
    },
    /// READ: these parts are at rest, and the transfer is over.
    Release {
        /// The transfer.
        transfer: TransferId,
        /// The parts, each with its proof.
        parts: Vec<(PartAttempt, Proof)>,
    },
    /// The lender has taken note of the last word on these parts.
    ReleaseAck {
        /// The transfer.
        transfer: TransferId,
        /// The parts.
        parts: Vec<PartId>,
    },
    /// The lender asks for a fence of the other side.
    FenceReq {
        /// The transfer.
        transfer: TransferId,
        /// The parts.
        parts: Vec<PartId>,
    },
    /// The part is behind a fence of the side that was asked.
    FenceDone {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        at: PartAttempt,
    },
    /// What the sender holds open with the receiver.
    OpenSet {
        /// Transfers and parts, in order.
        open: Vec<(TransferId, PartId)>,
    },
    /// The sender knows nothing of these: it never posted anything for them that is not over.
    NeverPosted {
        /// Transfers and parts.
        unknown: Vec<(TransferId, PartId)>,
    },
    /// Heartbeat: a digest of what the sender holds open with the receiver.
    Ping {
        /// See `OpenSet`; equal sets have equal digests.
        digest: u64,
    },
    /// The answer to a heartbeat, for its acknowledgement alone.
    Pong,
}

impl Message {
    /// Whether it has a place in the sequence.
    #[must_use]
    pub const fn is_sequenced(&self) -> bool {
        !matches!(self, Self::Ping { .. } | Self::Pong)
    }

    /// Whether it outlives its connection. The others are made again from the tables, or have lost
    /// their meaning.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        matches!(
            self,
            Self::DataDone { .. }
                | Self::PartErr { .. }
                | Self::AbortAck { .. }
                | Self::Release { .. }
                | Self::ReleaseAck { .. }
                | Self::FenceDone { .. }
        )
    }
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The process start that sent it.
    pub from: Incarnation,
    /// The process start that it is for.
    pub to: Incarnation,
    /// The connection that it is for.
    pub connection: ConnectionId,
    /// Its place on this connection, from 1; 0 exactly if its message has none.
    pub sequence: u64,
    /// All up to this have come from the receiver.
    pub acknowledged: u64,
    /// What it says.
    pub message: Message,
}

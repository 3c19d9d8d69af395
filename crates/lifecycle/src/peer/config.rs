//! What a [`PeerRoot`](super::PeerRoot) is started with, how a transfer can fail, and what is
//! counted.

use tessera_proto::{Incarnation, Instant};
use thiserror::Error;

use crate::shape::LayoutClass;

/// Settings of the machine, fixed at start.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// This process start.
    pub incarnation: Incarnation,
    /// This worker's rank.
    pub rank: u16,
    /// How failures can be named to the engine.
    pub class: LayoutClass,
    /// How long each stage may take.
    pub times: PeerTimes,
    /// Bounds of the tables.
    pub limits: PeerLimits,
}

/// How long is waited before the next, dearer proof is sought. None of them ends a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTimes {
    /// Between two heartbeats of a connection with something open.
    pub ping_ms: u64,
    /// From a failure to the first fence or call: what is under way may still drain.
    pub drain_ms: u64,
    /// From an ABORT to the next step.
    pub abort_ms: u64,
    /// From a FENCE_REQ to our own fence.
    pub fence_ms: u64,
    /// From the order of a fence, of ours or of a device, to the stop of the worker.
    pub stop_ms: u64,
}

impl Default for PeerTimes {
    fn default() -> Self {
        Self {
            ping_ms: 1_000,
            drain_ms: 2_000,
            abort_ms: 2_000,
            fence_ms: 5_000,
            stop_ms: 120_000,
        }
    }
}

/// How long a claim waits for the order that it is of: decode may learn of a prompt before
/// prefill's own workers do, by as much as a step takes.
pub const EARLY_CLAIM_MS: u64 = 3_000;

/// Bounds of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Transfers that are open or whose release is not acknowledged; further ones fail at once.
    pub transfers: usize,
    /// Processes that are known at once.
    pub peers: usize,
    /// Offers, and as many claims, of others that no order of ours has met yet; further ones are
    /// declined.
    pub offers: usize,
    /// Tickets that are remembered after their transfer, so that none is used twice.
    pub tickets: usize,
    /// Times that a part is claimed again after a fence that another transfer needed.
    pub retries: u8,
    /// Bytes in quarantine above which no new transfer begins and fences do not wait.
    pub quarantine_bytes: u64,
    /// Bytes in quarantine above which the worker stops.
    pub quarantine_stop_bytes: u64,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            transfers: 65_536,
            peers: 1_024,
            offers: 4_096,
            tickets: 65_536,
            retries: 2,
            quarantine_bytes: 4 << 30,
            quarantine_stop_bytes: 16 << 30,
        }
    }
}

/// Why a transfer failed. Of several reasons the first is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum PeerFailure {
    /// An operation of the transport failed.
    #[error("transport failed")]
    Transport,
    /// The bytes are not those that were sent.
    #[error("bytes are damaged")]
    Corrupt,
    /// The device that owns the memory failed.
    #[error("device failed")]
    Device,
    /// Not over in time.
    #[error("deadline passed")]
    Deadline,
    /// Nobody claimed what was offered before its lease ended.
    #[error("offer was not claimed")]
    Unclaimed,
    /// The other side refused the claim.
    #[error("claim was refused")]
    Refused,
    /// The other side gave the transfer up.
    #[error("peer gave up")]
    PeerAborted,
    /// No connection to the other side could be made.
    #[error("peer is unreachable")]
    Unreachable,
    /// The other side is not what the transfer needs.
    #[error("handshake was refused")]
    Handshake,
    /// The process on the other side is dead.
    #[error("peer is dead")]
    PeerDead,
    /// The connection was closed to fence another transfer, and there is no retry left.
    #[error("connection was fenced")]
    Fenced,
    /// The request is gone.
    #[error("transfer was cancelled")]
    Cancelled,
    /// The ticket was used before.
    #[error("ticket was used before")]
    TicketUsed,
    /// An external source has failed this request before: it computes.
    #[error("a source has failed this request before")]
    SourceFailed,
    /// The order contradicts itself or this worker's rank, or is larger than a message can say.
    #[error("order is malformed")]
    Malformed,
    /// Too much memory waits for a proof, or too many transfers are open.
    #[error("no room for another transfer")]
    NoRoom,
}

/// Why the worker stops: nothing else can end in bounded time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum PeerStop {
    /// A fence of a connection did not end.
    #[error("a connection could not be fenced in time; restart the worker")]
    Fence,
    /// The fence of a device did not end.
    #[error("the device did not prove its writes in time; restart the worker")]
    Device,
    /// Too many bytes wait for a proof.
    #[error("too much memory waits for a proof; restart the worker")]
    Quarantine,
}

/// What happened so far. Counts only; a snapshot is a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounters {
    /// Transfers that were ordered.
    pub transfers: u64,
    /// Transfers that ended well.
    pub transfers_succeeded: u64,
    /// Transfers that failed.
    pub transfers_failed: u64,
    /// Orders that came again.
    pub repeated_orders: u64,
    /// Parts that were claimed again after the fence of another transfer.
    pub retries: u64,
    /// Fences of our own side of a connection (F2).
    pub fences_close: u64,
    /// Fences that took a peer's access away (F3).
    pub fences_revoke: u64,
    /// Those of them after the confirmed death of the peer (F4).
    pub fences_dead: u64,
    /// Completions of parts that were over or never known.
    pub late_completions: u64,
    /// Proofs for what was proven before.
    pub duplicate_proofs: u64,
    /// Claims that were refused.
    pub refused_claims: u64,
    /// Messages that name ranks, parts or transfers which are not the sender's.
    pub foreign_messages: u64,
    /// Frames of an earlier process start, or for one.
    pub stale_incarnations: u64,
    /// Frames of an earlier connection.
    pub stale_connections: u64,
    /// Frames that came twice.
    pub duplicate_frames: u64,
    /// Frames that came before an earlier one, and are sent again.
    pub early_frames: u64,
    /// Claims that came before the order that they are of.
    pub early_claims: u64,
    /// Offers that were declined because too many wait.
    pub declined_offers: u64,
}

/// Bytes by state, and the age of the oldest claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerGauges {
    /// Offered and not claimed.
    pub offered_bytes: u64,
    /// Claimed by a peer, or moved by us.
    pub claimed_bytes: u64,
    /// Of failed transfers, and not proven to be at rest.
    pub quarantined_bytes: u64,
    /// When the oldest open transfer began.
    pub oldest: Option<Instant>,
}

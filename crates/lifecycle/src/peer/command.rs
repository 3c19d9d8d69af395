//! What a [`PeerRoot`](super::PeerRoot) asks of its driver, and what the driver reports.
//!
//! Closed lists: the driver executes every command and answers as each says.

use tessera_proto::Incarnation;
use tessera_proto::peer::{BlockRef, ConnectionId, Frame, PartAttempt, PartId, TransferId};
use thiserror::Error;

use crate::ids::RequestKey;
use crate::peer::config::{PeerFailure, PeerStop};
use crate::peer::ids::FenceId;
use crate::peer::order::Mode;

/// Which fence of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FenceKind {
    /// Close our side of every connection with the peer, and join or flush what moves on it (F2).
    Close,
    /// The same, and take the peer's access to our memory away (F3).
    Revoke,
}

/// Move one part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The transfer.
    pub transfer: TransferId,
    /// The part and the claim under which it moves.
    pub at: PartAttempt,
    /// The lender.
    pub peer: Incarnation,
    /// The connection on which the claim was granted; on no other.
    pub connection: ConnectionId,
    /// Pull or push.
    pub mode: Mode,
    /// Our blocks.
    pub local: Vec<BlockRef>,
    /// The lender's blocks.
    pub remote: Vec<BlockRef>,
    /// Length of the payload, bytes.
    pub length_bytes: u64,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerCommand {
    /// Connect and shake hands; answer with [`PeerEvent::Connected`] or
    /// [`PeerEvent::ConnectFailed`]. The driver bounds the rate of its tries.
    Connect(Incarnation),
    /// Send a message; no answer.
    Send(Frame),
    /// Move bytes; answer with [`PeerEvent::PartDrained`].
    Move(Move),
    /// Fence the connections with a peer; answer with [`PeerEvent::Fenced`], and accept no new
    /// connection with it until then.
    Fence {
        /// The peer.
        peer: Incarnation,
        /// Names the answer.
        fence: FenceId,
        /// Which fence.
        kind: FenceKind,
    },
    /// Prove that what was written for the transfer shows to later work of the device; answer with
    /// [`PeerEvent::DeviceFenced`], and go on trying until then.
    FenceDevice(TransferId),
    /// Stop the worker for good (F5). Nothing follows.
    Stop(PeerStop),
}

/// How the operations of a part have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Drain {
    /// Each ended well.
    Clean,
    /// The same, and the lender has said that it saw the end itself: it waits for no word (WRITE).
    Noted,
    /// Some ended with an error: the part is at rest only behind a fence.
    Dirty,
}

/// What the driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerEvent {
    /// A handshake has succeeded.
    Connected {
        /// The peer.
        peer: Incarnation,
        /// Its rank.
        rank: u16,
        /// The connection.
        connection: ConnectionId,
    },
    /// A connection is gone. Nothing of what moves on it is known to have ended.
    Disconnected {
        /// The peer.
        peer: Incarnation,
        /// The connection.
        connection: ConnectionId,
    },
    /// No connection was made, and the driver has given up for now.
    ConnectFailed {
        /// The peer.
        peer: Incarnation,
        /// Why: unreachable, or refused in the handshake.
        failure: PeerFailure,
    },
    /// The process is dead beyond doubt, or another one has taken its place.
    PeerDead(Incarnation),
    /// The source's bytes of a part are in its memory (WRITE, layer by layer).
    Ready {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        part: PartId,
    },
    /// Something of a part has failed; other operations of it may still run.
    PartFailed {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        at: PartAttempt,
        /// Why.
        failure: PeerFailure,
    },
    /// Every operation that was posted for a part has ended.
    PartDrained {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        at: PartAttempt,
        /// How.
        drain: Drain,
    },
    /// Every byte of a part that a peer writes here is in its blocks and is what was sent, and the
    /// peer will write no more of it: for the lender of a WRITE, in the place of its last word.
    Landed {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        at: PartAttempt,
    },
    /// A fence of a connection is complete.
    Fenced {
        /// The peer.
        peer: Incarnation,
        /// Which.
        fence: FenceId,
    },
    /// The device has proven what was written for the transfer.
    DeviceFenced(TransferId),
    /// The device has failed and proven nothing; the fence is still owed.
    DeviceFailed(TransferId),
}

/// What is over and was not collected before. Nothing can touch the memory of these requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerResults {
    /// Requests whose memory was read: it can be freed.
    pub sent: Vec<RequestKey>,
    /// Requests whose memory was written, well or not.
    pub received: Vec<RequestKey>,
    /// Those of them that failed as a whole.
    pub failed: Vec<RequestKey>,
    /// Blocks without valid content of the others, in layouts that can name them.
    pub invalid_blocks: Vec<u32>,
}

/// A transfer that the step waits for has failed: the step must not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("transfer of request {} failed within its step: {failure}", request.0)]
pub struct StepFailure {
    /// The transfer; name it to [`PeerRoot::step_failed`](super::PeerRoot::step_failed).
    pub transfer: TransferId,
    /// Its request.
    pub request: RequestKey,
    /// Why.
    pub failure: PeerFailure,
}

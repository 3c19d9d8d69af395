//! What is asked of a queue pair, and what it answers.
//!
//! Made by whoever moves bytes, moved into the pair, given back by [`QueuePair`](super::QueuePair).
//! The invariant: a request owns its local memory, and so does whoever has the request.

use std::sync::Arc;

use rdma_mummy_sys::{ibv_sge, ibv_wc_status};

use super::memory::{Registered, Remote};
use crate::lent::Lent;
use crate::segments::{Segments, Span};

/// One read or write.
#[derive(Debug)]
pub struct Request {
    /// By which the caller knows it again.
    pub id: u64,
    /// The registration in which all of its local ranges lie.
    pub within: Arc<Registered>,
    /// What it does.
    pub work: Work,
}

/// What a request does.
#[derive(Debug)]
pub enum Work {
    /// Reads the peer's memory into ours.
    Read {
        /// The peer's memory.
        from: Remote,
        /// Where the bytes land.
        into: Lent,
    },
    /// Writes our memory into the peer's.
    Write {
        /// The bytes.
        from: Segments,
        /// The peer's memory.
        to: Remote,
        /// A number that the peer is told when all bytes of this and earlier requests have landed.
        tell: Option<u32>,
    },
}

impl Work {
    pub(super) fn spans(&self) -> &[Span] {
        match self {
            Self::Read { into, .. } => into.spans(),
            Self::Write { from, .. } => from.spans(),
        }
    }

    pub(super) const fn remote(&self) -> Remote {
        match self {
            Self::Read { from, .. } => *from,
            Self::Write { to, .. } => *to,
        }
    }
}

/// Why requests were not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue holds as many as it can.
    #[error("{want} requests do not fit, the queue has room for {room}: wait for completions")]
    Full {
        /// How many were to be posted.
        want: usize,
        /// How many could be.
        room: usize,
    },
    /// Something failed on this pair, or it was closed: nothing more is posted on it.
    #[error("the queue pair has ended: connect a new one")]
    Ended,
    /// Local memory that the device does not know: a mistake of the caller.
    #[error("request {id} has memory outside of the registration that it names")]
    NotRegistered {
        /// The request.
        id: u64,
    },
    /// Memory of different lengths on the two sides: a mistake of the caller.
    #[error("request {id} moves {local} bytes, and names {remote} of the peer")]
    Length {
        /// The request.
        id: u64,
        /// Bytes here.
        local: u64,
        /// Bytes there.
        remote: u64,
    },
    /// More ranges or bytes than one request can have.
    #[error("request {id} has {ranges} ranges and {bytes} bytes, the most are {most} and 2^30")]
    TooLarge {
        /// The request.
        id: u64,
        /// Its ranges.
        ranges: usize,
        /// Its bytes.
        bytes: u64,
        /// Ranges that one may have.
        most: usize,
    },
    /// The device refused, and did not say what it took. All of the batch counts as posted, and the
    /// pair has ended; a reset gives it back.
    #[error("the device refused a batch with error {code}: reset the queue pair")]
    InDoubt {
        /// The system's number.
        code: i32,
    },
}

/// The most bytes of one request; devices take 2^30 or more.
const MOST_BYTES: u64 = 1 << 30;

impl Request {
    /// The entries of the request, if it can be posted.
    pub(super) fn entries(&self, most: usize) -> Result<Vec<ibv_sge>, PostError> {
        let id = self.id;
        let spans = self.work.spans();
        let local: u64 = spans.iter().map(|span| span.length as u64).sum();
        let remote = self.work.remote().length;
        if local != remote {
            return Err(PostError::Length { id, local, remote });
        }
        if spans.len() > most || local > MOST_BYTES {
            return Err(PostError::TooLarge {
                id,
                ranges: spans.len(),
                bytes: local,
                most,
            });
        }
        let entries = spans.iter().map(|span| self.within.entry(*span));
        let entries: Option<Vec<ibv_sge>> = entries.collect();
        entries.ok_or(PostError::NotRegistered { id })
    }
}

/// What a pair reports.
#[derive(Debug)]
pub enum Event {
    /// A request is over; its memory is back.
    Ended(Ended),
    /// The peer has written, and tells its number.
    Told(u32),
}

/// A request that is over: the device touches its local memory no more.
///
/// Of a read that failed, any bytes may have landed. Of a write that failed, bytes may still land
/// at the peer, until the peer has taken the access away.
#[derive(Debug)]
pub struct Ended {
    /// The request.
    pub request: Request,
    /// How it went.
    pub outcome: Result<(), Failure>,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It was behind another one that failed, or the pair was closed.
    #[error("flushed: an earlier request failed, or the queue pair was closed")]
    Flushed,
    /// The queue pair was reset, whatever had become of the request.
    #[error("the queue pair was reset")]
    Reset,
    /// The peer's device refuses the key, the address or what was to be done there.
    #[error("the peer does not grant access: the offer has ended, or was never made")]
    RemoteAccess,
    /// No answer: the peer is dead, its pair has ended, or the link is down.
    #[error("the peer did not answer in all retries: it has ended, or the link is down")]
    NoAnswer,
    /// Anything else.
    #[error("the device reports status {0} of ibv_wc_status")]
    Device(u32),
}

impl Failure {
    /// What the status of a completion says.
    pub(super) fn read(status: u32) -> Result<(), Self> {
        Err(match status {
            ibv_wc_status::IBV_WC_SUCCESS => return Ok(()),
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => Self::RemoteAccess,
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => {
                Self::NoAnswer
            }
            other => Self::Device(other),
        })
    }
}

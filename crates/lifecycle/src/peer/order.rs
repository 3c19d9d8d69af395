//! What a scheduler orders of the machine: one transfer on one rank.
//!
//! Called by whoever turns an engine's plan into transfers. The invariant: mode and side alone say
//! who lends memory and who moves bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_proto::Incarnation;
use tessera_proto::limits::{PEER_BLOCKS_MAX, PEER_PARTS_MAX};
use tessera_proto::peer::{BlockRef, PartId, TransferId};

use crate::ids::RequestKey;

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// The destination pulls; the source lends.
    Read,
    /// The source pushes; the destination lends.
    Write,
}

/// Which end of the transfer this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Its memory is read: prefill.
    Source,
    /// Its memory is written: decode.
    Destination,
}

impl Side {
    /// Whether this side lends its memory, so that the other one claims it.
    #[must_use]
    pub const fn lends(self, mode: Mode) -> bool {
        matches!(
            (mode, self),
            (Mode::Read, Self::Source) | (Mode::Write, Self::Destination)
        )
    }
}

/// One part of an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartOrder {
    /// The part; its rank on this side is this worker's.
    pub part: PartId,
    /// The process on the other side; `None` for a lender who has written a ticket and learns it
    /// from the claim.
    pub peer: Option<Incarnation>,
    /// Our blocks.
    pub local: Vec<BlockRef>,
    /// The lender's blocks, from the ticket; empty where we lend, or where its offer names them. A
    /// null block stands for one that a READ leaves out.
    pub remote: Vec<BlockRef>,
    /// Length of the payload, bytes.
    pub length_bytes: u64,
    /// Whether the source holds its bytes; see [`PeerEvent::Ready`](super::PeerEvent::Ready).
    pub ready: bool,
}

/// One transfer. Ordering it again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransferOrder {
    /// The transfer that the ticket names.
    pub transfer: TransferId,
    /// The request on this side.
    pub request: RequestKey,
    /// Who moves.
    pub mode: Mode,
    /// Which end this is.
    pub side: Side,
    /// Whether the step itself waits for it: then nobody is parked, and a failure must be raised.
    pub synchronous: bool,
    /// What moves. Without parts it is over at once.
    pub parts: Vec<PartOrder>,
    /// The transfer has failed when it is older than this. For a lender of a READ the time begins
    /// with the first claim.
    pub timeout_ms: u64,
    /// For lenders: how long parts can be claimed.
    pub lease_ms: u64,
}

impl TransferOrder {
    /// Whether one message can name all parts between this worker and another, with the blocks of
    /// either side.
    pub(crate) fn fits_messages(&self) -> bool {
        let mut between: BTreeMap<u16, (usize, usize)> = BTreeMap::new();
        for of in &self.parts {
            let other = match self.side {
                Side::Source => of.part.destination,
                Side::Destination => of.part.source,
            };
            let (parts, blocks) = between.entry(other).or_default();
            *parts += 1;
            *blocks += of.local.len().max(of.remote.len());
        }
        let (parts_max, blocks_max) = (PEER_PARTS_MAX as usize, PEER_BLOCKS_MAX as usize);
        let mut between = between.values();
        between.all(|(parts, blocks)| *parts <= parts_max && *blocks <= blocks_max)
    }
}

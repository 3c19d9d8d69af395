//! One end of a direct transfer as it travels in a step's plan, and each worker's part of it.
//!
//! Made by [`HandoverRoot`](super::HandoverRoot), carried out by the worker's driver. The
//! invariant: both ends list the same blocks in the same order, those of the lender's ticket, so
//! that a worker needs nothing of the other end but its own rank's process.

use serde::{Deserialize, Serialize};
use tessera_proto::Incarnation;
use tessera_proto::peer::{BlockRef, Generation, PartId, TransferId};

use crate::ids::RequestKey;
use crate::peer::{Mode, PartOrder, Side, TransferOrder};

/// Which end of the transfer this engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum End {
    /// Prefill: its blocks are lent.
    Gives,
    /// Decode: its blocks are filled.
    Takes,
}

/// One block of the ticket, and ours for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HandoverBlock {
    /// The cache group.
    pub group: u16,
    /// Our block, or [`BlockRef::NULL`].
    pub local: u32,
    /// The lender's block, or [`BlockRef::NULL`] where it is not asked for, or where we lend.
    pub remote: u32,
}

/// One transfer, for every rank.
///
/// Without blocks there is nothing to be written: where we give, it is over at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HandoverOrder {
    /// The engine's name of the request that waits; `None` if nobody does.
    pub request: Option<String>,
    /// The transfer that the ticket names.
    pub transfer: u128,
    /// Which end this is.
    pub end: End,
    /// Who moves the bytes.
    pub mode: Mode,
    /// The lender's workers in rank order, each a process start and where it listens; empty there.
    pub workers: Vec<(u128, String)>,
    /// All blocks of the ticket, in its order.
    pub blocks: Vec<HandoverBlock>,
    /// The life of the lender's blocks.
    pub generation: u64,
    /// The transfer has failed when it is older than this.
    pub timeout_ms: u64,
    /// How long an offer can be claimed.
    pub lease_ms: u64,
}

impl HandoverOrder {
    /// The lender's worker of a rank; `None` where we lend.
    #[must_use]
    pub fn worker(&self, rank: u16) -> Option<(Incarnation, &str)> {
        let (incarnation, address) = self.workers.get(usize::from(rank))?;
        Some((Incarnation(*incarnation), address))
    }

    /// Which side this end is.
    #[must_use]
    pub const fn side(&self) -> Side {
        match self.end {
            End::Gives => Side::Source,
            End::Takes => Side::Destination,
        }
    }

    /// The part of `rank`, whose peer has the same rank, under the worker's own name of it.
    /// `block_bytes` gives the bytes of a group's block.
    #[must_use]
    pub fn on(
        &self,
        rank: u16,
        request: RequestKey,
        block_bytes: impl Fn(u16) -> u64,
    ) -> TransferOrder {
        self.between(rank, &[rank], request, |_, group| Some(block_bytes(group)))
    }

    /// The parts of `rank` with each of `others` at the other end, under the worker's own name.
    /// `block_bytes` gives the bytes of a group's block that pass between it and another rank,
    /// `None` where its blocks are no part of that.
    #[must_use]
    pub fn between(
        &self,
        rank: u16,
        others: &[u16],
        request: RequestKey,
        block_bytes: impl Fn(u16, u16) -> Option<u64>,
    ) -> TransferOrder {
        let side = self.side();
        let nothing = side == Side::Source && self.blocks.is_empty();
        let others = others.iter().filter(|_| !nothing);
        let part = |other: &u16| self.part(rank, *other, |group| block_bytes(*other, group));
        TransferOrder {
            transfer: TransferId(self.transfer),
            request,
            mode: self.mode,
            side,
            synchronous: false,
            parts: others.map(part).collect(),
            timeout_ms: self.timeout_ms,
            lease_ms: self.lease_ms,
        }
    }

    /// The part between `rank` and another, with the blocks of which `bytes` pass.
    fn part(&self, rank: u16, other: u16, bytes: impl Fn(u16) -> Option<u64>) -> PartOrder {
        let generation = Generation(self.generation);
        let of = |group, block| BlockRef {
            group,
            block,
            generation,
        };
        let blocks = self.blocks.iter().filter(|it| bytes(it.group).is_some());
        let local: Vec<_> = blocks.clone().map(|it| of(it.group, it.local)).collect();
        let remote: Vec<_> = blocks.map(|it| of(it.group, it.remote)).collect();
        let side = self.side();
        let (lent, remote) = match side.lends(self.mode) {
            true => (local.clone(), Vec::new()),
            false => (remote.clone(), remote),
        };
        let moving = lent.iter().filter(|block| !block.is_null());
        let (source, destination) = match side {
            Side::Source => (rank, other),
            Side::Destination => (other, rank),
        };
        PartOrder {
            part: PartId {
                source,
                destination,
                index: 0,
            },
            peer: self.worker(other).map(|(incarnation, _)| incarnation),
            length_bytes: moving.filter_map(|block| bytes(block.group)).sum(),
            local,
            remote,
            ready: true,
        }
    }
}

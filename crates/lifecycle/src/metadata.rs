//! The plan of one step as it travels from the scheduler to every worker.
//!
//! Encoded with postcard after a version byte. A worker derives its own objects from the plan with
//! the functions of [`plan`](crate::plan); the plan holds what only the scheduler knows: tables,
//! hashes and leases. Decoding never panics and never allocates more than the input's length calls
//! for.

use serde::{Deserialize, Serialize};
use tessera_proto::{BlockHash, Incarnation, LeaseId};
use thiserror::Error;

use crate::handover::HandoverOrder;
use crate::ids::LoadId;
use crate::plan::Span;
use crate::scheduler::{Held, NodeIndex};

const FORMAT: u8 = 4;

/// The hash that names a chunk, as bytes: valid by construction or checked when it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunkHash(Vec<u8>);

impl ChunkHash {
    /// Keeps an engine's hash, or `None` if it is empty or too long.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        BlockHash::new(bytes).map(|_| Self(bytes.to_vec()))
    }

    /// The hash as a part of keys. `None` if the plan was damaged on the way.
    #[must_use]
    pub fn block_hash(&self) -> Option<BlockHash> {
        BlockHash::new(&self.0)
    }
}

/// A lease as it travels: the parts of a [`Held`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseOrder {
    /// Index of the node in the client's list.
    pub node: u32,
    /// The node's process start.
    pub incarnation: u128,
    /// The number of the lease.
    pub lease: u64,
}

/// One load: every rank executes its own part of it and reports it once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoadOrder {
    /// The engine's name of the request.
    pub request: String,
    /// Which load this is.
    pub load: LoadId,
    /// Tokens present before the load.
    pub computed: u64,
    /// Tokens present after it.
    pub limit: u64,
    /// The boundary whose objects are loaded.
    pub boundary: u64,
    /// The block table of each group, from the start of the request.
    pub tables: Vec<Vec<u32>>,
    /// The hashes of the chunks from the one that holds token `computed` to `boundary`.
    pub hashes: Vec<ChunkHash>,
    /// The leases that hold the objects.
    pub leases: Vec<LeaseOrder>,
    /// For each needed piece and each of its shards, in that order: an index into `leases`.
    pub lease_of: Vec<u16>,
    /// The load fails this long after the worker has learned of it.
    pub timeout_ms: u64,
}

impl LoadOrder {
    /// What the load covers.
    #[must_use]
    pub const fn span(&self) -> Span {
        Span {
            computed: self.computed,
            limit: self.limit,
            boundary: self.boundary,
        }
    }

    /// The lease of the `index`-th needed object over all shards.
    #[must_use]
    pub fn lease(&self, index: usize) -> Option<Held> {
        let lease = self.leases.get(usize::from(*self.lease_of.get(index)?))?;
        Some(Held {
            node: NodeIndex(lease.node),
            incarnation: Incarnation(lease.incarnation),
            lease: LeaseId::new(lease.lease)?,
        })
    }
}

/// One piece to save at the end of the step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SaveOrder {
    /// The group.
    pub group: u32,
    /// The hash that names the chunk.
    pub hash: ChunkHash,
    /// The blocks that hold the object, in payload order; none is null.
    pub blocks: Vec<u32>,
}

/// All that the workers need to know of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepPlan {
    /// The scheduler process that made it.
    pub incarnation: u128,
    /// Its number, from 1; a plan seen before is not executed again.
    pub step: u64,
    /// Loads that start.
    pub loads: Vec<LoadOrder>,
    /// Loads whose request is gone: nothing more is fetched for them.
    pub cancels: Vec<LoadId>,
    /// Loads whose request has lost its blocks: they end before the memory is used again, and are
    /// not reported.
    pub preempted: Vec<LoadId>,
    /// Objects to save when the step ends.
    pub saves: Vec<SaveOrder>,
    /// Direct transfers that begin.
    pub handovers: Vec<HandoverOrder>,
    /// Direct transfers whose request is gone.
    pub handovers_cancelled: Vec<u128>,
}

/// Why bytes are not a plan. Scheduler and worker run different versions, or the bytes are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Another format.
    #[error("step metadata has format {got}, this worker reads {FORMAT}: install one version")]
    Format {
        /// What came.
        got: u8,
    },
    /// Not a plan.
    #[error("step metadata of {length_bytes} bytes is damaged")]
    Damaged {
        /// Bytes that came.
        length_bytes: usize,
    },
}

impl StepPlan {
    /// Whether a worker has nothing to do for this step.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.loads.is_empty()
            && self.cancels.is_empty()
            && self.preempted.is_empty()
            && self.saves.is_empty()
            && self.handovers.is_empty()
            && self.handovers_cancelled.is_empty()
    }

    /// The plan as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.push(FORMAT);
        postcard::to_extend(self, out).expect("writing a plan to memory cannot fail")
    }

    /// The plan in `bytes`.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        let length_bytes = bytes.len();
        let damaged = PlanError::Damaged { length_bytes };
        let (format, body) = bytes.split_first().ok_or(damaged)?;
        if *format != FORMAT {
            return Err(PlanError::Format { got: *format });
        }
        let (plan, rest) = postcard::take_from_bytes(body).map_err(|_| damaged)?;
        match rest {
            [] => Ok(plan),
            _ => Err(damaged),
        }
    }
}

#[cfg(test)]
mod tests;

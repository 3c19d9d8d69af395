//! The shape of an engine's cache: groups, blocks, chunks and ranks.
//!
//! Called at start to validate what the engine said of itself, and by [`plan`](crate::plan) for
//! every object. A [`Shape`] is checked once, in [`Shape::new`]; all arithmetic after that relies
//! on it: block sizes divide the chunk, hash units divide the chunk, nothing is zero.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tessera_proto::{Topology, limits};
use thiserror::Error;

/// Most cache groups of one engine.
pub(crate) const GROUPS_MAX: usize = 64;

/// What a cache group keeps of the tokens before a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GroupKind {
    /// Every token.
    Full,
    /// The last tokens only.
    Window {
        /// The window, counting the token that is computed.
        tokens: u64,
    },
    /// One running state.
    State,
}

/// One axis of the engine's parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Tensor parallel.
    Tp,
    /// Pipeline parallel.
    Pp,
    /// Decode context parallel.
    Dcp,
    /// Prefill context parallel.
    Pcp,
}

/// A set of axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Axes {
    /// Tensor parallel.
    pub tp: bool,
    /// Pipeline parallel.
    pub pp: bool,
    /// Decode context parallel.
    pub dcp: bool,
    /// Prefill context parallel.
    pub pcp: bool,
}

/// One cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// What it keeps.
    pub kind: GroupKind,
    /// Tokens of one block of its table.
    pub block_tokens: u64,
    /// The axes on which all ranks hold equal content, such as TP for latent attention.
    #[serde(default)]
    pub replicated: Axes,
}

/// One worker's place, zero-based along each axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// Tensor parallel.
    pub tp: u32,
    /// Pipeline parallel.
    pub pp: u32,
    /// Decode context parallel.
    pub dcp: u32,
    /// Prefill context parallel.
    pub pcp: u32,
}

/// How failures of a layout can be named to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutClass {
    /// A single full-attention group: block ids are unambiguous.
    Block,
    /// More than one group, or any group that is not full attention: only requests are.
    Request,
}

/// The cache of one engine, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    groups: Vec<GroupSpec>,
    chunk_tokens: u64,
    hash_tokens: u64,
    topology: Topology,
}

/// What is wrong with a shape, and what to set instead. Raised at start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// No group, or too many.
    #[error("the engine has {0} cache groups; 1 to 64 are supported")]
    Groups(usize),
    /// A size is zero.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// A chunk that is not made of whole blocks.
    #[error(
        "chunk_tokens = {chunk} is not a multiple of the {block}-token blocks of group {group}; \
         use a multiple of {lcm}"
    )]
    Blocks {
        /// The chunk that was asked for.
        chunk: u64,
        /// The group.
        group: usize,
        /// Its block size.
        block: u64,
        /// The smallest chunk that fits every group.
        lcm: u64,
    },
    /// A chunk that does not end with a hash.
    #[error("chunk_tokens = {chunk} is not a multiple of the {hash}-token units that are hashed")]
    Hash {
        /// The chunk.
        chunk: u64,
        /// Tokens for each hash.
        hash: u64,
    },
    /// A chunk that is too long.
    #[error("chunk_tokens = {0} is over the limit of {max}", max = limits::CHUNK_TOKENS_MAX)]
    Chunk(u64),
    /// An axis that is too long, or DCP that does not divide TP.
    #[error("the topology {0:?} is not supported: sizes 1 to 4096, and DCP must divide TP")]
    Topology(Topology),
}

impl Shape {
    /// Checks and keeps the shape. `chunk_tokens` of `None` takes the smallest that fits.
    ///
    /// # Errors
    /// See [`ShapeError`].
    pub fn new(
        groups: Vec<GroupSpec>,
        chunk_tokens: Option<u64>,
        hash_tokens: u64,
        topology: Topology,
    ) -> Result<Self, ShapeError> {
        if groups.is_empty() || groups.len() > GROUPS_MAX {
            return Err(ShapeError::Groups(groups.len()));
        }
        check_topology(topology)?;
        if hash_tokens == 0 {
            return Err(ShapeError::Zero("hash_tokens"));
        }
        let mut smallest = hash_tokens;
        for group in &groups {
            if group.block_tokens == 0 {
                return Err(ShapeError::Zero("block_tokens"));
            }
            if matches!(group.kind, GroupKind::Window { tokens: 0 }) {
                return Err(ShapeError::Zero("the window of a group"));
            }
            smallest = lcm(smallest, group.block_tokens);
            if smallest > u64::from(limits::CHUNK_TOKENS_MAX) {
                return Err(ShapeError::Chunk(smallest));
            }
        }
        let chunk = chunk_tokens.unwrap_or(smallest);
        if chunk == 0 {
            return Err(ShapeError::Zero("chunk_tokens"));
        }
        if chunk > u64::from(limits::CHUNK_TOKENS_MAX) {
            return Err(ShapeError::Chunk(chunk));
        }
        for (group, spec) in groups.iter().enumerate() {
            if !chunk.is_multiple_of(spec.block_tokens) {
                let (block, lcm) = (spec.block_tokens, smallest);
                return Err(ShapeError::Blocks {
                    chunk,
                    group,
                    block,
                    lcm,
                });
            }
        }
        if !chunk.is_multiple_of(hash_tokens) {
            let hash = hash_tokens;
            return Err(ShapeError::Hash { chunk, hash });
        }
        Ok(Self {
            groups,
            chunk_tokens: chunk,
            hash_tokens,
            topology,
        })
    }

    /// The groups, in the engine's order.
    #[must_use]
    pub fn groups(&self) -> &[GroupSpec] {
        &self.groups
    }

    /// Tokens of one chunk.
    #[must_use]
    pub const fn chunk_tokens(&self) -> u64 {
        self.chunk_tokens
    }

    /// Hashes that the engine makes for one chunk; the last of them names it.
    #[must_use]
    pub const fn hashes_per_chunk(&self) -> u64 {
        self.chunk_tokens / self.hash_tokens
    }

    /// The sizes of the engine's parallelism.
    #[must_use]
    pub const fn topology(&self) -> Topology {
        self.topology
    }

    /// How failures of this layout are named to the engine.
    #[must_use]
    pub fn class(&self) -> LayoutClass {
        match self.groups.as_slice() {
            [only] if only.kind == GroupKind::Full => LayoutClass::Block,
            _ => LayoutClass::Request,
        }
    }

    /// The blocks of `group` that the object of `chunk` holds, as indexes into the block table:
    /// all of the chunk for full attention, what a boundary at its end can still see for a window,
    /// the last one for a state.
    #[must_use]
    pub fn object_blocks(&self, group: usize, chunk: u64) -> Range<u64> {
        let spec = self.groups[group];
        let (start, end) = (chunk * self.chunk_tokens, (chunk + 1) * self.chunk_tokens);
        let first = match spec.kind {
            GroupKind::Full => start,
            GroupKind::Window { tokens } => start.max((end + 1).saturating_sub(tokens)),
            GroupKind::State => end - 1,
        };
        // A window of one token sees no token before the one that is computed; its objects keep
        // the last block all the same, so that no object is empty.
        first.min(end - 1) / spec.block_tokens..end / spec.block_tokens
    }

    /// Every worker of the engine, in the engine's rank order (PP, PCP, TP from outside in).
    #[must_use]
    pub fn ranks(&self) -> Vec<Rank> {
        let Topology {
            tp: tps,
            pp: pps,
            dcp: dcps,
            pcp: pcps,
        } = self.topology;
        let mut ranks = Vec::new();
        for pp in 0..pps {
            for pcp in 0..pcps {
                ranks.extend((0..tps).map(|tp| Rank {
                    tp,
                    pp,
                    dcp: tp % dcps,
                    pcp,
                }));
            }
        }
        ranks
    }
}

fn check_topology(topology: Topology) -> Result<(), ShapeError> {
    let Topology { tp, pp, dcp, pcp } = topology;
    let sizes = [tp, pp, dcp, pcp];
    let fits = sizes
        .iter()
        .all(|size| (1..=limits::RANKS_MAX).contains(size));
    let product: u64 = [tp, pp, pcp].iter().map(|size| u64::from(*size)).product();
    if !fits || tp % dcp != 0 || product > u64::from(limits::RANKS_MAX) {
        return Err(ShapeError::Topology(topology));
    }
    Ok(())
}

const fn lcm(left: u64, right: u64) -> u64 {
    let (mut high, mut low) = (left, right);
    while low != 0 {
        (high, low) = (low, high % low);
    }
    (left / high).saturating_mul(right)
}

#[cfg(test)]
mod tests;

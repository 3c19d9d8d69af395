//! Which objects a boundary needs, and where their bytes go: the one function behind probe, load
//! and save.
//!
//! Called by [`SchedulerRoot`](crate::SchedulerRoot) for lookups and saves and by
//! [`WorkerRoot`](crate::WorkerRoot) for loads. The invariant: over all workers, the objects that
//! are probed for a boundary are the objects that are loaded there, and they are objects that the
//! workers save. A *boundary* is a token count, a multiple of the chunk, up to which a request can
//! continue from the cache.

use tessera_proto::{BlockHash, Component, Coordinate, Coordinates, KeyDigest, NamespaceDigest};
use tessera_proto::{ObjectKey, Topology};

use crate::shape::{Axes, GroupKind, Rank, Shape};

/// One chunk of one group, before it is divided over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// The group, an index into [`Shape::groups`].
    pub group: usize,
    /// The chunk, counted from the start of the request.
    pub chunk: u64,
}

/// Where the bytes of one block of an object go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// Into this block of the engine.
    Block(u32),
    /// Nowhere: the engine has it already, or will never look at it.
    Discard,
}

/// A block that must be filled has no memory: the table is short or null there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unallocated;

/// What one load covers: tokens `[computed, limit)` by the objects of `boundary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Tokens that the engine has already.
    pub computed: u64,
    /// Tokens that it will take as computed afterwards, at most `boundary`.
    pub limit: u64,
    /// The boundary whose objects are loaded.
    pub boundary: u64,
}

/// The pieces that must be present to continue at `boundary` when `computed` tokens are there
/// already: group by group, chunks ascending. `boundary` is a multiple of the chunk.
#[must_use]
pub fn needed(shape: &Shape, computed: u64, boundary: u64) -> Vec<Piece> {
    let chunk_tokens = shape.chunk_tokens();
    let end = boundary / chunk_tokens;
    let mut pieces = Vec::new();
    if boundary <= computed {
        return pieces;
    }
    for (group, spec) in shape.groups().iter().enumerate() {
        let first = match spec.kind {
            GroupKind::Full => computed,
            GroupKind::Window { tokens } => computed.max((boundary + 1).saturating_sub(tokens)),
            GroupKind::State => boundary - 1,
        };
        // A one-token window starts at the boundary itself and needs nothing.
        if first < boundary {
            let chunks = first / chunk_tokens..end;
            pieces.extend(chunks.map(|chunk| Piece { group, chunk }));
        }
    }
    pieces
}

/// Every piece that some boundary after `computed` and up to `limit` needs: what a lookup asks for.
#[must_use]
pub fn candidates(shape: &Shape, computed: u64, limit: u64) -> Vec<Piece> {
    let chunk_tokens = shape.chunk_tokens();
    let mut pieces = Vec::new();
    for (group, spec) in shape.groups().iter().enumerate() {
        if spec.kind == (GroupKind::Window { tokens: 1 }) {
            continue;
        }
        let chunks = computed / chunk_tokens..limit / chunk_tokens;
        pieces.extend(chunks.map(|chunk| Piece { group, chunk }));
    }
    pieces
}

/// The longest boundary after `computed` and up to `limit` of which every needed piece is held.
#[must_use]
pub fn longest(
    shape: &Shape,
    computed: u64,
    limit: u64,
    held: impl Fn(Piece) -> bool,
) -> Option<u64> {
    let chunk_tokens = shape.chunk_tokens();
    let (first, mut end) = (computed / chunk_tokens, limit / chunk_tokens);
    // The full groups bound every boundary: find their common prefix once.
    for (group, spec) in shape.groups().iter().enumerate() {
        if spec.kind == GroupKind::Full {
            let missing = (first..end).find(|chunk| {
                let chunk = *chunk;
                !held(Piece { group, chunk })
            });
            end = missing.unwrap_or(end);
        }
    }
    let others_held = |boundary: &u64| {
        needed(shape, computed, *boundary)
            .into_iter()
            .filter(|piece| shape.groups()[piece.group].kind != GroupKind::Full)
            .all(&held)
    };
    (first + 1..=end)
        .rev()
        .map(|chunks| chunks * chunk_tokens)
        .find(others_held)
}

/// The coordinates of a rank's shard of `group`.
#[must_use]
pub fn coordinates(shape: &Shape, group: usize, rank: Rank) -> Coordinates {
    let Topology { tp, pp, dcp, pcp } = shape.topology();
    let Axes {
        tp: same_tp,
        pp: same_pp,
        dcp: same_dcp,
        pcp: same_pcp,
    } = shape.groups()[group].replicated;
    let at = |same: bool, size: u32, rank: u32| match same {
        true => Coordinate::Replicated,
        false => Coordinate::Shard { size, rank },
    };
    Coordinates {
        tp: at(same_tp, tp, rank.tp),
        pp: at(same_pp, pp, rank.pp),
        dcp: at(same_dcp, dcp, rank.dcp),
        pcp: at(same_pcp, pcp, rank.pcp),
    }
}

/// The distinct shards of each group over all ranks, and who saves them. Made once at start.
#[derive(Clone, Debug)]
pub struct Shards {
    groups: Vec<Vec<(Coordinates, Rank)>>,
}

impl Shards {
    /// The shards of every group. The first rank that holds a shard is the one that saves it.
    #[must_use]
    pub fn new(shape: &Shape) -> Self {
        let ranks = shape.ranks();
        let shards_of = |group: usize| {
            let mut shards: Vec<(Coordinates, Rank)> = Vec::new();
            let mut seen = std::collections::HashSet::new();
            for rank in &ranks {
                let at = coordinates(shape, group, *rank);
                if seen.insert(at) {
                    shards.push((at, *rank));
                }
            }
            shards
        };
        let groups = (0..shape.groups().len()).map(shards_of).collect();
        Self { groups }
    }

    /// How many objects a piece of `group` is divided into.
    #[must_use]
    pub fn count(&self, group: usize) -> usize {
        self.groups[group].len()
    }

    /// The shards of `group`, in their fixed order.
    pub fn of(&self, group: usize) -> impl Iterator<Item = Coordinates> + '_ {
        self.groups[group].iter().map(|(at, _)| *at)
    }

    /// Which shard of `group` is `rank`'s, and whether `rank` is the one that saves it. `None` for
    /// a rank outside the topology.
    #[must_use]
    pub fn position(&self, shape: &Shape, group: usize, rank: Rank) -> Option<(usize, bool)> {
        let own = coordinates(shape, group, rank);
        let index = self.groups[group].iter().position(|(at, _)| *at == own)?;
        Some((index, self.groups[group][index].1 == rank))
    }
}

/// The name of one object: the same for probe, load and save.
#[must_use]
pub fn key(
    namespace: &NamespaceDigest,
    group: usize,
    at: Coordinates,
    chunk_hash: &BlockHash,
) -> KeyDigest {
    ObjectKey {
        block_hash: chunk_hash.clone(),
        group: u32::try_from(group).unwrap_or(u32::MAX),
        coordinates: at,
        component: Component::Layers,
    }
    .digest(namespace)
}

/// Where the blocks of a piece's object go, in the order of its payload.
///
/// # Errors
/// [`Unallocated`] if a block that must be filled is null or not in `table`.
pub fn destinations(
    shape: &Shape,
    piece: Piece,
    span: Span,
    table: &[u32],
) -> Result<Vec<Destination>, Unallocated> {
    let spec = shape.groups()[piece.group];
    let size = spec.block_tokens;
    let lowest = match spec.kind {
        GroupKind::Full => 0,
        GroupKind::Window { tokens } => (span.limit + 1).saturating_sub(tokens),
        GroupKind::State => span.limit.saturating_sub(1),
    };
    let destination = |index: u64| {
        let (start, end) = (index * size, (index + 1) * size);
        // A state block is overwritten as a whole, even if an older state stands in it.
        let present = spec.kind != GroupKind::State && end <= span.computed;
        if present || end <= lowest || start >= span.limit {
            return Ok(Destination::Discard);
        }
        let at = usize::try_from(index).ok().and_then(|at| table.get(at));
        match at {
            Some(id) if *id != 0 => Ok(Destination::Block(*id)),
            _ => Err(Unallocated),
        }
    };
    shape
        .object_blocks(piece.group, piece.chunk)
        .map(destination)
        .collect()
}

/// The blocks to save for a piece, or `None` if one of them is null, missing or already given up.
#[must_use]
pub fn sources(shape: &Shape, piece: Piece, computed: u64, table: &[u32]) -> Option<Vec<u32>> {
    let spec = shape.groups()[piece.group];
    let blocks = shape.object_blocks(piece.group, piece.chunk);
    if let GroupKind::Window { tokens } = spec.kind {
        // The engine frees whole blocks before the window of the next token while it schedules.
        let given_up = (computed + 1).saturating_sub(tokens) / spec.block_tokens;
        if blocks.start < given_up {
            return None;
        }
    }
    let id = |index: u64| {
        let at = usize::try_from(index).ok()?;
        table.get(at).copied().filter(|id| *id != 0)
    };
    blocks.map(id).collect()
}

#[cfg(test)]
mod tests;

//! What a rank of one engine has of what a rank of another lacks, when their tensor parallel sizes
//! differ: which heads of the whole model, and which bytes of a block they are.
//!
//! Called at start by direct transfers and by their handshake. Pure arithmetic over heads and runs.
//! The invariants: over all sources, each head of a destination comes from exactly one; both sides
//! list the bytes of a cut in one order, by layer, block, head and run, wherever heads lie.

use std::ops::Range;
use std::sync::Arc;

use super::{BlockRun, Group, LayerMemory, Layout, LayoutError, check_runs, describe, fingerprint};

/// The blocks of a layer head by head.
#[derive(Debug, Clone)]
pub struct Heads {
    /// What the bytes of one head mean, as a layer's format does for all of them: equal whatever
    /// the number of heads on a rank, and wherever they lie.
    pub format: String,
    /// The pieces of each head of this rank, in payload order.
    pub runs: Vec<Vec<BlockRun>>,
}

/// A place along the tensor parallel axis of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The place, from 0.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
}

impl Seat {
    /// Which heads of a model that has `heads` lie on this rank. Of fewer heads than ranks each
    /// lies on several. `None` where neither number divides the other.
    #[must_use]
    pub fn heads(self, heads: u32) -> Option<Range<u32>> {
        let Self { rank, ranks } = self;
        if rank >= ranks {
            return None;
        }
        match copies(heads, ranks)? {
            1 => {
                let each = heads / ranks;
                Some(rank * each..(rank + 1) * each)
            }
            copies => Some(rank / copies..rank / copies + 1),
        }
    }
}

/// On how many ranks each head lies.
const fn copies(heads: u32, ranks: u32) -> Option<u32> {
    match (heads, ranks) {
        (0, _) | (_, 0) => None,
        _ if heads.is_multiple_of(ranks) => Some(1),
        _ if ranks.is_multiple_of(heads) => Some(ranks / heads),
        _ => None,
    }
}

/// Which heads of a model that has `heads` go from one rank to another, counted over the whole
/// model. Empty if none do; `None` if they do not divide among the ranks of either side.
#[must_use]
pub fn passed(heads: u32, from: Seat, to: Seat) -> Option<Range<u32>> {
    let (has, lacks) = (from.heads(heads)?, to.heads(heads)?);
    let copies = copies(heads, from.ranks)?;
    // Of those that have the same heads each gives to some.
    let gives = from.rank % copies == to.rank % copies;
    let both = has.start.max(lacks.start)..has.end.min(lacks.end);
    Some(if gives && !both.is_empty() {
        both
    } else {
        0..0
    })
}

/// The layer with its heads checked. Where all ranks hold the same, a block is one head.
pub(super) fn with_heads(
    mut layer: LayerMemory,
    replicated: bool,
) -> Result<LayerMemory, LayoutError> {
    if replicated {
        layer.heads = Some(Heads {
            format: layer.format.clone(),
            runs: vec![layer.runs.clone()],
        });
        return Ok(layer);
    }
    let Some(heads) = &layer.heads else {
        return Ok(layer);
    };
    for runs in &heads.runs {
        check_runs(&layer, runs)?;
    }
    let bytes = heads.runs.iter().map(|runs| content_bytes(runs));
    let (whole, head) = (bytes.clone().sum::<u64>(), bytes.clone().next());
    if whole != layer.content_bytes() || bytes.clone().any(|bytes| Some(bytes) != head) {
        let shape = describe(&layer);
        let layer = layer.name;
        return Err(LayoutError::Heads { layer, shape });
    }
    Ok(layer)
}

fn content_bytes(runs: &[BlockRun]) -> u64 {
    runs.iter().map(|run| run.length_bytes).sum()
}

impl Layout {
    /// How many heads each layer of `group` has on this rank; `None` if its blocks cannot be cut.
    pub(crate) fn heads(&self, group: usize) -> Option<u32> {
        let mut counts = self.groups[group].layers.iter().map(|layer| {
            let heads = layer.heads.as_ref()?;
            u32::try_from(heads.runs.len()).ok()
        });
        let first = counts.next()??;
        counts.all(|count| count == Some(first)).then_some(first)
    }

    /// Names of the layers of `group`, format and size of one head of each, as one number: equal on
    /// every rank of every engine of a model, however many there are.
    #[must_use]
    pub fn head_fingerprint(&self, group: usize) -> u64 {
        let first = |layer: &LayerMemory| {
            let heads = layer.heads.as_ref()?;
            let runs = heads.runs.first()?;
            let bytes = content_bytes(runs);
            let region = Arc::clone(&runs.first()?.region);
            Some(LayerMemory {
                format: heads.format.clone(),
                // In how many pieces a head lies is a matter of each rank.
                runs: vec![BlockRun {
                    region,
                    offset_bytes: 0,
                    block_stride_bytes: bytes,
                    length_bytes: bytes,
                }],
                heads: None,
                ..layer.clone()
            })
        };
        let layers: Option<Vec<_>> = self.groups[group].layers.iter().map(first).collect();
        layers.map_or(0, |layers| fingerprint(&layers, 1))
    }

    /// The heads of each group that `wanted` names, counted on this rank: the same blocks, with
    /// fewer bytes. A group of which none is wanted, or that cannot be cut, has none.
    pub(crate) fn cut(&self, wanted: impl Fn(usize) -> Range<u32>) -> Self {
        let groups = self.groups.iter().enumerate();
        let groups = groups.map(|(index, group)| group.cut(&wanted(index)));
        Self {
            groups: groups.collect(),
            devices: self.devices.clone(),
        }
    }
}

impl Group {
    fn cut(&self, wanted: &Range<u32>) -> Self {
        let layers = self.layers.iter().filter_map(|layer| {
            let heads = layer.heads.as_ref()?;
            let some = (0..).zip(&heads.runs);
            let some = some.filter(|(head, _)| wanted.contains(head));
            let runs = joined(some.flat_map(|(_, runs)| runs));
            let cut = LayerMemory {
                runs,
                heads: None,
                ..layer.clone()
            };
            (!cut.runs.is_empty()).then_some(cut)
        });
        let layers: Vec<_> = layers.collect();
        let block_bytes = layers.iter().map(LayerMemory::content_bytes).sum();
        Self {
            fingerprint: fingerprint(&layers, 1),
            layers,
            block_bytes,
            object_bytes: block_bytes,
        }
    }
}

/// Runs of which one begins where the one before it ends are one.
fn joined<'a>(runs: impl Iterator<Item = &'a BlockRun>) -> Vec<BlockRun> {
    let mut joined: Vec<BlockRun> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if follows(last, run) => last.length_bytes += run.length_bytes,
            _ => joined.push(run.clone()),
        }
    }
    joined
}

fn follows(last: &BlockRun, run: &BlockRun) -> bool {
    Arc::ptr_eq(&last.region, &run.region)
        && last.block_stride_bytes == run.block_stride_bytes
        && last.offset_bytes + last.length_bytes == run.offset_bytes
}

#[cfg(test)]
mod tests;

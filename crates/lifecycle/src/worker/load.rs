//! One load on one rank: its parts, its fences, its one outcome.
//!
//! Called by [`WorkerRoot`](super::WorkerRoot). The invariant: a load is over only when no part is
//! in flight and the fence behind the last write is complete; the clock can fail it, not end it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tessera_proto::{Instant, KeyDigest, NamespaceDigest};

use crate::metadata::LoadOrder;
use crate::plan::{self, Destination, Piece, Shards};
use crate::scheduler::Held;
use crate::shape::{LayoutClass, Rank, Shape};
use crate::worker::config::LoadFailure;

/// One object of a load.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) number: u32,
    pub(crate) group: usize,
    pub(crate) key: KeyDigest,
    pub(crate) lease: Option<Held>,
    pub(crate) destinations: Vec<Destination>,
}

impl Part {
    fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.destinations
            .iter()
            .filter_map(|destination| match destination {
                Destination::Block(id) => Some(*id),
                Destination::Discard => None,
            })
    }
}

/// Where a load stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Earlier work on its memory may still run.
    FencingBefore,
    /// Parts move.
    Moving,
    /// All parts are over; the last writes may not be visible yet.
    FencingAfter,
}

/// One load on this rank.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Load {
    pub(crate) request: String,
    /// Whether its outcome is still of use to anybody.
    pub(crate) reported: bool,
    pub(crate) stage: Stage,
    pub(crate) ready: VecDeque<Part>,
    pub(crate) in_flight: BTreeMap<u32, Part>,
    /// Set once; the first failure is kept.
    pub(crate) failure: Option<LoadFailure>,
    pub(crate) deadline: Instant,
    /// Blocks without valid content, in block-level layouts.
    pub(crate) invalid: BTreeSet<u32>,
    /// All blocks that it writes, in block-level layouts.
    covered: BTreeSet<u32>,
    pub(crate) class: LayoutClass,
}

impl Load {
    /// The load that `order` describes, for one rank; failed from the start if it cannot be
    /// executed.
    pub(crate) fn new(
        order: &LoadOrder,
        shape: &Shape,
        shards: &Shards,
        rank: Rank,
        namespace: &NamespaceDigest,
        now: Instant,
    ) -> Self {
        let mut load = Self {
            request: order.request.clone(),
            reported: true,
            stage: Stage::FencingBefore,
            ready: VecDeque::new(),
            in_flight: BTreeMap::new(),
            failure: None,
            deadline: now.after_millis(order.timeout_ms),
            invalid: BTreeSet::new(),
            covered: BTreeSet::new(),
            class: shape.class(),
        };
        match parts(order, shape, shards, rank, namespace) {
            Ok(parts) => {
                if load.class == LayoutClass::Block {
                    load.covered = parts.iter().flat_map(Part::blocks).collect();
                }
                load.ready = parts;
            }
            Err(failure) => {
                load.failure = Some(failure);
                load.invalidate_all(order, shape);
            }
        }
        load
    }

    /// Without parts to go by, every block between the old and the new token count is in doubt.
    fn invalidate_all(&mut self, order: &LoadOrder, shape: &Shape) {
        if self.class != LayoutClass::Block {
            return;
        }
        let size = shape.groups()[0].block_tokens;
        let at = |index: u64| usize::try_from(index).unwrap_or(usize::MAX);
        let table = order.tables.first().map_or(&[][..], Vec::as_slice);
        let end = at(order.limit.div_ceil(size)).min(table.len());
        let blocks = table.get(at(order.computed / size)..end);
        let blocks = blocks.unwrap_or_default().iter().copied();
        self.invalid.extend(blocks.filter(|id| *id != 0));
    }

    /// Fails the load and fetches nothing more, except in block-level layouts after a failure of
    /// one part: there the other blocks are still worth having.
    pub(crate) fn fail(&mut self, failure: LoadFailure) {
        self.failure.get_or_insert(failure);
        self.drop_ready();
    }

    /// Without a fence, no block that the load writes is known to hold what was fetched.
    pub(crate) fn invalidate_covered(&mut self) {
        self.invalid.extend(&self.covered);
    }

    /// Takes the result of a part. False if it is not in flight.
    pub(crate) fn part_over(&mut self, number: u32, result: Result<(), LoadFailure>) -> bool {
        let Some(part) = self.in_flight.remove(&number) else {
            return false;
        };
        if let Err(failure) = result {
            self.failure.get_or_insert(failure);
            match self.class {
                LayoutClass::Request => self.drop_ready(),
                LayoutClass::Block => self.invalid.extend(part.blocks()),
            }
        }
        true
    }

    fn drop_ready(&mut self) {
        for part in std::mem::take(&mut self.ready) {
            if self.class == LayoutClass::Block {
                self.invalid.extend(part.blocks());
            }
        }
    }

    /// Why the load failed, if it did. Of a block-level load every block that lacks content is
    /// named, so that a deadline that came too late to drop any part has failed nothing.
    pub(crate) fn outcome(&self) -> Option<LoadFailure> {
        let named = self.class == LayoutClass::Request || !self.invalid.is_empty();
        self.failure
            .filter(|failure| named || *failure != LoadFailure::Deadline)
    }

    /// Whether no part can write any more.
    pub(crate) fn drained(&self) -> bool {
        self.ready.is_empty() && self.in_flight.is_empty()
    }
}

/// This rank's parts of a load.
fn parts(
    order: &LoadOrder,
    shape: &Shape,
    shards: &Shards,
    rank: Rank,
    namespace: &NamespaceDigest,
) -> Result<VecDeque<Part>, LoadFailure> {
    let chunk_tokens = shape.chunk_tokens();
    let span = order.span();
    let first = span.computed / chunk_tokens;
    let chunks = (span.boundary / chunk_tokens).saturating_sub(first);
    let sound = span.computed < span.limit
        && span.limit <= span.boundary
        && span.boundary.is_multiple_of(chunk_tokens)
        && u64::try_from(order.hashes.len()) == Ok(chunks)
        && order.tables.len() == shape.groups().len();
    if !sound {
        return Err(LoadFailure::Malformed);
    }
    let mut parts = VecDeque::new();
    let mut object = 0;
    for piece in plan::needed(shape, span.computed, span.boundary) {
        let Piece { group, chunk } = piece;
        let (shard, _) = shards
            .position(shape, group, rank)
            .ok_or(LoadFailure::Malformed)?;
        let lease = order.lease(object + shard);
        object += shards.count(group);
        let destinations = plan::destinations(shape, piece, span, &order.tables[group]);
        let destinations = destinations.map_err(|_| LoadFailure::Unallocated)?;
        let hash = usize::try_from(chunk - first).ok();
        let hash = hash.and_then(|at| order.hashes.get(at)?.block_hash());
        let hash = hash.ok_or(LoadFailure::Malformed)?;
        let at = plan::coordinates(shape, group, rank);
        parts.push_back(Part {
            number: u32::try_from(parts.len()).map_err(|_| LoadFailure::Malformed)?,
            group,
            key: plan::key(namespace, group, at, &hash),
            lease,
            destinations,
        });
    }
    Ok(parts)
}

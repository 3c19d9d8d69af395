//! Allocations and steps: loads that start, objects that are saved, loads that are called off.
//!
//! Called by the scheduler driver once for each allocation and once for each step. The invariants:
//! a load is ordered exactly once and only for what was promised; an object is ordered to be saved
//! only if this life of the request computed it, its hash is known, and all its blocks still stand.

use tessera_proto::Instant;
use thiserror::Error;

use crate::ids::LoadId;
use crate::metadata::{LeaseOrder, LoadOrder, SaveOrder, StepPlan};
use crate::plan;
use crate::plan::{Piece, Span};
use crate::scheduler::leases::Held;
use crate::scheduler::request::{Hit, Life, Load, Lookup};
use crate::scheduler::root::SchedulerRoot;
use crate::shape::{GroupKind, LayoutClass};

/// One request of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduledRequest {
    /// The engine's name of it.
    pub request: String,
    /// Whether `blocks` are whole tables (a new or resumed request) and not additions to them.
    pub whole_tables: bool,
    /// Tokens that were computed before this step, as the engine counts them.
    pub computed_tokens: u64,
    /// Tokens that this step computes.
    pub scheduled_tokens: u64,
    /// Block ids for each group; empty if nothing was added.
    pub blocks: Vec<Vec<u32>>,
    /// The engine's hashes from unit `hashes_from` on.
    pub hashes: Vec<Vec<u8>>,
    /// The index of the first of `hashes`.
    pub hashes_from: u64,
}

/// One step of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepInput {
    /// Requests that compute in it.
    pub scheduled: Vec<ScheduledRequest>,
    /// Requests that lost their blocks.
    pub preempted: Vec<String>,
    /// Requests that have finished since the last step.
    pub finished: Vec<String>,
}

/// The engine allocated for tokens that were not promised: it would compute on memory that nobody
/// fills, so it must stop.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "request {request} was given memory for {external_tokens} external tokens, but {promised} are \
     promised: this is a defect of the connector or of another one beside it"
)]
pub struct NotPromised {
    /// The request.
    pub request: String,
    /// What the engine expects.
    pub external_tokens: u64,
    /// What was promised.
    pub promised: u64,
}

impl SchedulerRoot {
    /// The engine has allocated blocks for a request, `external_tokens` of them to be loaded.
    /// `tables` are whole, one for each group. With 0 tokens an untaken promise is given back.
    ///
    /// # Errors
    /// [`NotPromised`]: the step must fail.
    pub fn allocated(
        &mut self,
        request: &str,
        tables: &[Vec<u32>],
        external_tokens: u64,
    ) -> Result<(), NotPromised> {
        let entry = self.entries.get_mut(request);
        let hit = entry.and_then(|entry| entry.lookup.take_hit());
        if external_tokens == 0 {
            hit.into_iter().for_each(|hit| self.release(hit.book));
            return Ok(());
        }
        let promised = hit.as_ref().map_or(0, |hit| hit.boundary - hit.computed);
        match hit {
            Some(hit) if external_tokens <= promised => {
                self.start_load(request, tables, hit, external_tokens);
                Ok(())
            }
            hit => {
                hit.into_iter().for_each(|hit| self.release(hit.book));
                Err(NotPromised {
                    request: request.to_owned(),
                    external_tokens,
                    promised,
                })
            }
        }
    }

    fn start_load(&mut self, request: &str, tables: &[Vec<u32>], hit: Hit, tokens: u64) {
        // A promise that the engine shortened to where it cannot be kept is ordered without
        // memory: the workers fail it, and the request computes.
        let fitted = self.fit(&hit, hit.computed + tokens);
        let (span, holders, tables) = match fitted {
            Some((span, holders)) => (span, holders, tables.to_vec()),
            None => {
                let span = Span {
                    computed: hit.computed,
                    limit: hit.boundary,
                    boundary: hit.boundary,
                };
                let holders = hit.holders.iter().map(|(_, held)| *held).collect();
                (span, holders, vec![Vec::new(); tables.len()])
            }
        };
        let blocks = self.written_blocks(span, &tables);
        let chunk_tokens = self.config.shape.chunk_tokens();
        let Some(entry) = self.entries.get_mut(request) else {
            self.release(hit.book);
            return;
        };
        let chunks = span.computed / chunk_tokens..span.boundary / chunk_tokens;
        let hashes = chunks.filter_map(|chunk| entry.hashes.get(chunk).cloned());
        let hashes: Vec<_> = hashes.collect();
        let id = entry.next_load();
        let load = Load {
            id,
            sent: false,
            book: hit.book,
            failed: false,
            reports: std::collections::BTreeMap::new(),
            blocks,
        };
        let before = entry.load.replace(load);
        entry.life = None;
        before.into_iter().for_each(|load| self.close(load));
        self.counters.loads += 1;
        self.counters.hit_tokens += tokens;
        let (leases, lease_of) = lease_table(&holders);
        self.orders.push(LoadOrder {
            request: request.to_owned(),
            load: id,
            computed: span.computed,
            limit: span.limit,
            boundary: span.boundary,
            tables,
            hashes,
            leases,
            lease_of,
            timeout_ms: self.config.load_timeout_ms,
        });
    }

    /// The span and holders for a promise taken up to `limit` tokens, checked again if that is
    /// shorter than what was promised.
    fn fit(&self, hit: &Hit, limit: u64) -> Option<(Span, Vec<Held>)> {
        let shape = &self.config.shape;
        let chunk_tokens = shape.chunk_tokens();
        let boundary = limit.next_multiple_of(chunk_tokens);
        let full = shape
            .groups()
            .iter()
            .all(|group| group.kind == GroupKind::Full);
        if boundary != limit && !full {
            return None;
        }
        let needed = plan::needed(shape, hit.computed, boundary);
        let wanted = hit
            .holders
            .iter()
            .filter(|(piece, _)| needed.binary_search(piece).is_ok());
        let holders: Vec<Held> = wanted.map(|(_, held)| *held).collect();
        let objects: usize = needed
            .iter()
            .map(|piece| self.shards.count(piece.group))
            .sum();
        let span = Span {
            computed: hit.computed,
            limit,
            boundary,
        };
        (holders.len() == objects).then_some((span, holders))
    }

    /// The blocks that a load writes, if their ids say which load that is.
    fn written_blocks(&self, span: Span, tables: &[Vec<u32>]) -> Vec<u32> {
        if self.config.shape.class() != LayoutClass::Block {
            return Vec::new();
        }
        let size = self.config.shape.groups()[0].block_tokens;
        let at = |index: u64| usize::try_from(index).unwrap_or(usize::MAX);
        let (first, end) = (at(span.computed / size), at(span.limit.div_ceil(size)));
        let table = tables.first().map_or(&[][..], Vec::as_slice);
        let written = table.get(first..end.min(table.len()));
        written.unwrap_or_default().to_vec()
    }

    /// Plans one step. Called once for each step of the engine, also for empty ones.
    pub fn step(&mut self, now: Instant, input: &StepInput) -> StepPlan {
        self.step += 1;
        self.handle_timeout(now);
        let losers = input.preempted.iter();
        let preempted = losers.filter_map(|name| self.preempt(name)).collect();
        let ended = std::mem::take(&mut self.ended);
        for request in input.finished.iter().filter(|name| !ended.contains(*name)) {
            self.finished(request);
        }
        self.ended.clear();
        self.mark_sent();
        let mut saves = Vec::new();
        if self.config.saves {
            for scheduled in &input.scheduled {
                self.scheduled(scheduled, &mut saves);
            }
        }
        StepPlan {
            incarnation: self.config.incarnation,
            step: self.step,
            loads: std::mem::take(&mut self.orders),
            cancels: std::mem::take(&mut self.cancels),
            preempted,
            saves,
            ..StepPlan::default()
        }
    }

    fn mark_sent(&mut self) {
        for order in &self.orders {
            let entry = self.entries.get_mut(&order.request);
            let current = entry.and_then(|entry| entry.load.as_mut());
            let draining = self.draining.iter_mut().map(|(_, load)| load);
            for load in current.into_iter().chain(draining) {
                load.sent |= load.id == order.load;
            }
        }
    }

    /// The request has lost its blocks. Gives the load that it had: nobody waits for it any more,
    /// and the workers end it before the memory is used again.
    fn preempt(&mut self, request: &str) -> Option<LoadId> {
        let entry = self.entries.get_mut(request)?;
        entry.life = None;
        let lookup = std::mem::take(&mut entry.lookup);
        let load = entry.load.take();
        if let Lookup::Hit(hit) = lookup {
            self.release(hit.book);
        }
        let load = load?;
        let id = load.id;
        self.counters.loads_cancelled += 1;
        self.close(load);
        Some(id)
    }

    fn scheduled(&mut self, scheduled: &ScheduledRequest, saves: &mut Vec<SaveOrder>) {
        let groups = self.config.shape.groups().len();
        let chunk_tokens = self.config.shape.chunk_tokens();
        let Some((entry, per_chunk)) = self.entry(&scheduled.request) else {
            return;
        };
        if !scheduled.hashes.is_empty() {
            let hashes: Vec<&[u8]> = scheduled.hashes.iter().map(Vec::as_slice).collect();
            entry
                .hashes
                .extend(per_chunk, scheduled.hashes_from, &hashes);
        }
        let computed = scheduled.computed_tokens;
        match &mut entry.life {
            Some(life) if !scheduled.whole_tables => {
                for (table, blocks) in life.tables.iter_mut().zip(&scheduled.blocks) {
                    table.extend_from_slice(blocks);
                }
            }
            life => {
                *life = Some(Life {
                    tables: scheduled.blocks.clone(),
                    next_chunk: vec![computed / chunk_tokens; groups],
                });
            }
        }
        self.save_chunks(scheduled, saves);
    }

    fn save_chunks(&mut self, scheduled: &ScheduledRequest, saves: &mut Vec<SaveOrder>) {
        let shape = &self.config.shape;
        let chunk_tokens = shape.chunk_tokens();
        let Some(entry) = self.entries.get_mut(&scheduled.request) else {
            return;
        };
        let Some(life) = &mut entry.life else {
            return;
        };
        let computed = scheduled.computed_tokens;
        let end = computed + scheduled.scheduled_tokens;
        let known = u64::try_from(entry.hashes.chunks().len()).unwrap_or(u64::MAX);
        let chunks = (end / chunk_tokens).min(known);
        for (group, next) in life.next_chunk.iter_mut().enumerate() {
            // What the engine takes back, as when another connector's load has failed under it, it
            // computes again, perhaps from other tokens.
            *next = (*next).min(computed / chunk_tokens);
            let table = life.tables.get(group).map_or(&[][..], Vec::as_slice);
            while *next < chunks {
                let piece = Piece {
                    group,
                    chunk: *next,
                };
                *next += 1;
                let at_end = (piece.chunk + 1) * chunk_tokens == end;
                let stands = shape.groups()[group].kind != GroupKind::State || at_end;
                let blocks = stands
                    .then(|| plan::sources(shape, piece, computed, table))
                    .flatten();
                let (Some(blocks), Some(hash)) = (blocks, entry.hashes.get(piece.chunk)) else {
                    self.counters.saves_skipped += 1;
                    continue;
                };
                self.counters.saves += 1;
                saves.push(SaveOrder {
                    group: u32::try_from(group).unwrap_or(u32::MAX),
                    hash: hash.clone(),
                    blocks,
                });
            }
        }
    }
}

/// The distinct leases of `holders`, and the index into them for each holder.
fn lease_table(holders: &[Held]) -> (Vec<LeaseOrder>, Vec<u16>) {
    let mut leases: Vec<Held> = Vec::new();
    let index = |held: &Held| {
        let known = leases.iter().position(|other| other == held);
        let at = known.unwrap_or_else(|| {
            leases.push(*held);
            leases.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    };
    let lease_of = holders.iter().map(index).collect();
    let order = |held: Held| LeaseOrder {
        node: held.node.0,
        incarnation: held.incarnation.0,
        lease: held.lease.get(),
    };
    (leases.into_iter().map(order).collect(), lease_of)
}

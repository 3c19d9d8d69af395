//! One step of the engine: what is computed, on which blocks, and what becomes of its output.
//!
//! Modelled after vLLM: a parked request waits until every rank has reported; bad blocks shorten
//! what it waits for; a failed request computes or ends, as the policy says; an abort of a parked
//! request holds its blocks until the receive is over.

use std::collections::BTreeSet;
use std::sync::Arc;

use tessera_client::options::IoMode;
use tessera_lifecycle::StepPlan;
use tessera_lifecycle::scheduler::{ScheduledRequest, StepInput};

use crate::apply::{due, name};
use crate::law::Law;
use crate::objects::{self, Content};
use crate::reached::Reached;
use crate::world::{self, CHUNK, EnginePhase, Policy, RANKS, Slot, Stand, State, World};

/// The second group, if there is one, is a state.
const STATE: usize = 1;

fn at(index: u64) -> usize {
    usize::try_from(index).expect("a small number")
}

impl State {
    /// Begins a step. It ends in [`advance`](Self::advance), when nothing holds it up.
    pub(crate) fn step(&mut self, world: &World, preempt: Option<usize>) {
        let mut input = StepInput::default();
        if let Some(slot) = preempt {
            world.saw(Reached::Preempted);
            self.drop_blocks(slot);
            self.slots[slot].stand = Stand::Waiting;
            input.preempted.push(name(slot));
        }
        let mut computing = Vec::new();
        for slot in 0..self.slots.len() {
            if self.slots[slot].stand == Stand::Running {
                let (scheduled, tokens) = self.schedule(world, slot);
                input.scheduled.push(scheduled);
                computing.push((slot, tokens));
            }
        }
        let ended = std::mem::take(&mut self.ended);
        input.finished = ended.into_iter().map(name).collect();
        let plan = Arc::make_mut(&mut self.root).step(self.now, &input);
        self.carry_out(world);
        let plan = StepPlan::decode(&plan.encode()).expect("a plan that was encoded just now");
        self.note_orders(&plan);
        if !plan.preempted.is_empty() {
            for rank in 0..RANKS {
                world::own(&mut self.ranks[rank].root).preempt(&plan.preempted);
                self.drain(world, rank);
            }
        }
        self.phase = EnginePhase::Preempting(Arc::new(plan), computing);
    }

    fn note_orders(&mut self, plan: &StepPlan) {
        for order in &plan.loads {
            let slot = (0..self.slots.len()).find(|slot| name(*slot) == order.request);
            let now = self.now;
            let slot = slot.map(|slot| &mut self.slots[slot]);
            // One that has lost its blocks in this very step waits for nothing.
            let waits = |slot: &&mut Slot| matches!(slot.stand, Stand::Parked { .. });
            let Some(slot) = slot.filter(waits) else {
                continue;
            };
            slot.load = Some(order.load);
            slot.due = Some(due(now));
            (slot.called_off, slot.parts_failed, slot.excused) = (false, 0, 0);
        }
        for slot in &mut self.slots {
            if matches!(slot.stand, Stand::Parked { aborted: true, .. }) {
                slot.called_off = true;
                slot.excused = u8::MAX;
            }
        }
    }

    /// Goes on with a step as far as nothing holds it up.
    pub(crate) fn advance(&mut self, world: &World) {
        if let EnginePhase::Preempting(plan, computing) = &self.phase {
            let loading = |load| self.ranks.iter().any(|rank| rank.root.is_loading(load));
            if plan.preempted.iter().any(|load| loading(*load)) {
                return;
            }
            let (plan, computing) = (Arc::clone(plan), computing.clone());
            self.phase = EnginePhase::Loading(computing);
            for rank in 0..RANKS {
                self.begin(world, rank, &plan);
            }
        }
        let EnginePhase::Loading(computing) = &self.phase else {
            return;
        };
        let loading = self.ranks.iter().any(|rank| rank.root.is_any_loading());
        if world.setup.io == IoMode::Serial && loading {
            return;
        }
        let computing = computing.clone();
        self.phase = EnginePhase::Idle;
        self.finish(world, &computing);
        self.carry_out(world);
    }

    fn begin(&mut self, world: &World, rank: usize, plan: &StepPlan) {
        let root = world::own(&mut self.ranks[rank].root);
        root.begin_step(self.now, plan);
        let mut copy = root.clone();
        let before = world::digest(&copy);
        copy.begin_step(self.now, plan);
        let same = world::digest(&copy) == before;
        self.must(same, Law::P7, || {
            format!("rank {rank} executes plan {} again", plan.step)
        });
        self.drain(world, rank);
    }

    /// Makes room for the next chunk of a running request.
    fn schedule(&mut self, world: &World, slot: usize) -> (ScheduledRequest, u64) {
        let prompt = world.setup.prompts[slot];
        let computed = self.slots[slot].computed;
        let tokens = CHUNK.min(prompt - computed);
        self.give_up(slot);
        self.allocate(world, slot, computed, computed + tokens);
        let known = self.root.known_hashes(&name(slot));
        let hashes = objects::hashes(slot, prompt);
        let from = at(known).min(hashes.len());
        let request = &mut self.slots[slot];
        let whole_tables = std::mem::take(&mut request.fresh);
        let told = request.tables.iter().zip(&mut request.told);
        let blocks = told.map(|(table, told)| {
            let from = if whole_tables { 0 } else { *told };
            *told = table.len();
            table[from..].to_vec()
        });
        let scheduled = ScheduledRequest {
            request: name(slot),
            whole_tables,
            computed_tokens: computed,
            scheduled_tokens: tokens,
            blocks: blocks.collect(),
            hashes: hashes[from..].iter().map(|hash| hash.to_vec()).collect(),
            hashes_from: known,
        };
        (scheduled, tokens)
    }

    /// The ranks compute, save and report; the engine takes their output.
    fn finish(&mut self, world: &World, computing: &[(usize, u64)]) {
        for &(slot, tokens) in computing {
            let request = &self.slots[slot];
            let (from, to) = (request.computed, request.computed + tokens);
            let all = 0..RANKS;
            let sound = all.into_iter().all(|rank| self.reads_right(slot, rank));
            self.must(sound, Law::P5, || {
                format!("{} computes on wrong content", name(slot))
            });
            self.compute(slot, from, to);
        }
        for rank in 0..RANKS {
            world::own(&mut self.ranks[rank].root).end_step();
            self.drain(world, rank);
        }
        self.collect(world);
        for &(slot, tokens) in computing {
            self.slots[slot].computed += tokens;
            if self.slots[slot].computed == world.setup.prompts[slot] {
                self.end(slot);
            }
        }
    }

    /// Gathers what the ranks report, and lets requests go on whose load is over.
    fn collect(&mut self, world: &World) {
        let mut invalid = BTreeSet::new();
        for rank in 0..RANKS {
            let root = world::own(&mut self.ranks[rank].root);
            let results = root.take_results();
            let own: BTreeSet<u32> = root.take_invalid_blocks().into_iter().collect();
            let empty = root_is_empty(&mut self.ranks[rank].root);
            self.must(empty, Law::P3, || {
                format!("rank {rank} gives its results twice")
            });
            for finished in &results.finished_recving {
                let failed = results.failed_recving.contains(finished);
                self.report(world, rank, finished, failed, &own);
            }
            let known = |name| results.finished_recving.contains(name);
            let all = results.failed_recving.iter().all(known);
            self.must(all, Law::P3, || {
                format!("{results:?} fails what is not over")
            });
            self.must(own.is_empty() || !world.setup.hybrid, Law::P3, || {
                format!("rank {rank} names blocks of a request-level layout")
            });
            invalid.extend(own);
        }
        self.distrust(&invalid);
        self.tell_output(world, &invalid);
        for slot in 0..self.slots.len() {
            self.unpark(world, slot);
        }
    }

    fn report(
        &mut self,
        world: &World,
        rank: usize,
        request: &str,
        fails: bool,
        invalid: &BTreeSet<u32>,
    ) {
        let slot = (0..self.slots.len()).find(|slot| name(*slot) == request);
        let bit = 1_u8 << rank;
        let first = slot.is_some_and(|slot| match &mut self.slots[slot].stand {
            Stand::Parked {
                reported, failed, ..
            } => {
                let first = *reported & bit == 0;
                *reported |= bit;
                *failed |= fails;
                first
            }
            _ => false,
        });
        self.must(first, Law::P3, || {
            format!("rank {rank} reports {request}, which does not wait for it")
        });
        let Some(slot) = slot.map(|slot| self.slots[slot].clone()) else {
            return;
        };
        let blocks = slot.tables.iter().flatten();
        let named = blocks.clone().any(|block| invalid.contains(block));
        let part = slot.parts_failed & bit != 0;
        let excused = slot.excused & bit != 0;
        let told = fails || named;
        self.must(told == part || told && excused, Law::P6, || {
            format!("rank {rank} of {request}: told {told}, part failed {part}, excused {excused}")
        });
        if told && slot.parts_failed == bit && !excused {
            world.saw(Reached::FailedOnOneRankOnly);
        }
    }

    /// Shortens what a parked request waits for to before the first bad block.
    fn distrust(&mut self, invalid: &BTreeSet<u32>) {
        for number in 0..self.slots.len() {
            let slot = &mut self.slots[number];
            let bad = slot.tables[0].iter().position(|id| invalid.contains(id));
            let Some(bad) = bad.map(|index| CHUNK * index as u64) else {
                continue;
            };
            slot.failed_before = true;
            let waits = match &mut slot.stand {
                Stand::Parked { limit, .. } => {
                    *limit = (*limit).min(bad);
                    true
                }
                _ => false,
            };
            self.must(waits, Law::P11, || {
                format!("{} has a bad block and does not wait", name(number))
            });
        }
    }

    /// Gives the engine's output to the scheduler's machine, and once more to a copy.
    fn tell_output(&mut self, world: &World, invalid: &BTreeSet<u32>) {
        let over = |slot: &usize| self.is_over(*slot);
        let over: Vec<usize> = (0..self.slots.len()).filter(over).collect();
        let failed =
            |slot: &&usize| matches!(self.slots[**slot].stand, Stand::Parked { failed: true, .. });
        let failed: Vec<String> = over.iter().filter(failed).map(|slot| name(*slot)).collect();
        let over: Vec<String> = over.into_iter().map(name).collect();
        let over: Vec<&str> = over.iter().map(String::as_str).collect();
        let failed: Vec<&str> = failed.iter().map(String::as_str).collect();
        let invalid: Vec<u32> = invalid.iter().copied().collect();
        let root = Arc::make_mut(&mut self.root);
        root.worker_output(&over, &failed, &invalid);
        self.carry_out(world);
        let mut copy = (*self.root).clone();
        let before = world::digest(&copy);
        copy.worker_output(&over, &failed, &invalid);
        let same = world::digest(&copy) == before;
        self.must(same, Law::P7, || {
            format!("{over:?}, {failed:?}, {invalid:?} change something when they come again")
        });
    }

    fn is_over(&self, slot: usize) -> bool {
        let all = (1 << RANKS) - 1;
        matches!(self.slots[slot].stand, Stand::Parked { reported, .. } if reported == all)
    }

    /// Every rank is done with a load: the request goes on with what is there.
    fn unpark(&mut self, world: &World, slot: usize) {
        let over = self.is_over(slot);
        let Stand::Parked {
            limit,
            failed,
            aborted,
            ..
        } = self.slots[slot].stand
        else {
            return;
        };
        if !over {
            return;
        }
        let request = &mut self.slots[slot];
        request.failed_before |= failed;
        let broken = request.failed_before;
        (request.load, request.due) = (None, None);
        world.saw(match broken {
            true => Reached::LoadFailed,
            false => Reached::LoadSucceeded,
        });
        if aborted {
            self.drop_blocks(slot);
            self.slots[slot].stand = Stand::Absent;
        } else if broken && world.setup.policy == Policy::Fail {
            self.end(slot);
        } else if failed || limit <= request.computed {
            world.saw(Reached::Recomputed);
            self.drop_blocks(slot);
            self.slots[slot].stand = Stand::Waiting;
        } else {
            request.computed = limit;
            request.stand = Stand::Running;
        }
    }
}

/// Whether a rank that was asked a moment ago has nothing more to say.
fn root_is_empty(root: &mut Arc<tessera_lifecycle::WorkerRoot>) -> bool {
    let root = world::own(root);
    root.take_results().finished_recving.is_empty() && root.take_invalid_blocks().is_empty()
}

impl State {
    /// Whether all that a forward of `slot` reads on `rank` is right.
    fn reads_right(&self, slot: usize, rank: usize) -> bool {
        let request = &self.slots[slot];
        let chunks = at(request.computed / CHUNK);
        let right = |group: usize, chunk: usize| {
            let block = request.tables[group][chunk];
            let text = slot;
            let right = Content::Right { text, group, chunk };
            block != 0 && self.ranks[rank].read(block) == right
        };
        let state = request.tables.len() > STATE && chunks > 0;
        (0..chunks).all(|chunk| right(0, chunk)) && (!state || right(STATE, chunks - 1))
    }

    /// Writes what a forward over tokens `from..to` leaves behind.
    fn compute(&mut self, slot: usize, from: u64, to: u64) {
        for rank in &mut self.ranks {
            for (group, table) in self.slots[slot].tables.iter().enumerate() {
                let first = if group == STATE { to - 1 } else { from };
                let (first, end) = (at(first / CHUNK), at(to.div_ceil(CHUNK)));
                for (chunk, block) in table.iter().enumerate().take(end).skip(first) {
                    let whole = group != STATE || to.is_multiple_of(CHUNK);
                    let text = slot;
                    let content = match whole {
                        true => Content::Right { text, group, chunk },
                        false => Content::Dirty,
                    };
                    if *block != 0 {
                        rank.write(*block, content);
                    }
                }
            }
        }
    }

    /// What the engine had cached by itself stands in the blocks.
    pub(crate) fn fill(&mut self, _world: &World, slot: usize, cached: u64) {
        if cached > 0 {
            self.compute(slot, 0, cached);
        }
    }

    /// Gives each group blocks up to token `end`, where the request has `computed` tokens.
    pub(crate) fn allocate(&mut self, _world: &World, slot: usize, computed: u64, end: u64) {
        for group in 0..self.slots[slot].tables.len() {
            let have = self.slots[slot].tables[group].len();
            for index in have..at(end.div_ceil(CHUNK)) {
                let read = computed > 0 && index == at((computed - 1) / CHUNK);
                let live = group != STATE || read || index == at((end - 1) / CHUNK);
                let block = match live {
                    true => self.free.pop_first().expect("enough blocks for all"),
                    false => 0,
                };
                if live {
                    let fresh = |rank: &mut crate::rank::RankState| {
                        rank.write(block, Content::Stale);
                    };
                    self.ranks.iter_mut().for_each(fresh);
                }
                self.slots[slot].tables[group].push(block);
            }
        }
    }

    /// Frees states that the next token does not look back to.
    fn give_up(&mut self, slot: usize) {
        let request = &mut self.slots[slot];
        let Some(table) = request.tables.get_mut(STATE) else {
            return;
        };
        let first = at(request.computed.saturating_sub(1) / CHUNK).min(table.len());
        let old = table[..first].iter_mut().map(std::mem::take);
        self.free.extend(old.filter(|block| *block != 0));
    }

    pub(crate) fn drop_blocks(&mut self, slot: usize) {
        let request = &mut self.slots[slot];
        (request.computed, request.fresh) = (0, true);
        request.told.fill(0);
        (request.load, request.due) = (None, None);
        let blocks = request.tables.iter_mut().flat_map(std::mem::take);
        self.free.extend(blocks.filter(|block| *block != 0));
    }
}

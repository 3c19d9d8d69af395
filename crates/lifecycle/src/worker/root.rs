//! The worker's machine: its state, its events and commands.
//!
//! Called by the client's worker driver, one mutation at a time (see the crate's documentation).
//! Invariants: each load is reported exactly once, after its last part has come back and the fence
//! behind it is complete, whatever failed before; a plan is executed once; a part is issued once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tessera_proto::Instant;

use crate::ids::{LoadId, SaveId};
use crate::metadata::{LoadOrder, SaveOrder, StepPlan};
use crate::plan::Shards;
use crate::shape::LayoutClass;
use crate::worker::command::{Fetch, Phase, TransferResults, WorkerCommand, WorkerEvent};
use crate::worker::config::{LoadFailure, WorkerConfig, WorkerCounters};
use crate::worker::load::{Load, Stage};

/// A load that is over and waits to be collected.
#[derive(Clone, Debug, Hash)]
pub(super) struct Settled {
    load: LoadId,
    request: String,
    failed: bool,
    invalid: BTreeSet<u32>,
}

/// The worker's machine.
#[derive(Clone, Debug)]
pub struct WorkerRoot {
    pub(super) config: WorkerConfig,
    pub(super) shards: Shards,
    pub(super) incarnation: u128,
    pub(super) last_step: u64,
    pub(super) loads: BTreeMap<LoadId, Load>,
    /// Loads with parts to issue, served in turn.
    pub(super) turns: VecDeque<LoadId>,
    pub(super) queued: usize,
    pub(super) in_flight: usize,
    pub(super) settled: Vec<Settled>,
    pub(super) invalid: BTreeSet<u32>,
    pub(super) to_save: Vec<SaveOrder>,
    pub(super) saves: BTreeSet<SaveId>,
    pub(super) next_save: u64,
    pub(super) commands: VecDeque<WorkerCommand>,
    pub(super) closed: bool,
    pub(super) counters: WorkerCounters,
}

impl WorkerRoot {
    /// An idle machine.
    #[must_use]
    pub fn new(config: WorkerConfig) -> Self {
        Self {
            shards: Shards::new(&config.shape),
            config,
            incarnation: 0,
            last_step: 0,
            loads: BTreeMap::new(),
            turns: VecDeque::new(),
            queued: 0,
            in_flight: 0,
            settled: Vec::new(),
            invalid: BTreeSet::new(),
            to_save: Vec::new(),
            saves: BTreeSet::new(),
            next_save: 0,
            commands: VecDeque::new(),
            closed: false,
            counters: WorkerCounters::default(),
        }
    }

    /// The next thing to do, or `None` when the machine waits.
    pub fn poll_command(&mut self) -> Option<WorkerCommand> {
        self.commands.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waiting = self.loads.values().filter(|load| load.failure.is_none());
        waiting.map(|load| load.deadline).min()
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> WorkerCounters {
        self.counters
    }

    /// Whether nothing is under way: no load, no save.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.loads.is_empty() && self.saves.is_empty()
    }

    /// Whether a load is under way.
    #[must_use]
    pub fn is_loading(&self, load: LoadId) -> bool {
        self.loads.contains_key(&load)
    }

    /// Whether any load is under way.
    #[must_use]
    pub fn is_any_loading(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Takes the scheduler's plan at the start of a step. A plan that was taken before changes
    /// nothing.
    pub fn begin_step(&mut self, now: Instant, plan: &StepPlan) {
        if plan.incarnation != self.incarnation {
            self.replace_scheduler(plan.incarnation);
        } else if plan.step <= self.last_step {
            self.counters.repeated_plans += 1;
            return;
        }
        self.last_step = plan.step;
        for order in &plan.loads {
            self.start(now, order);
        }
        for load in &plan.cancels {
            self.cancel(*load);
        }
        self.preempt(&plan.preempted);
        self.to_save.extend_from_slice(&plan.saves);
        self.probe(&plan.saves);
        self.pump();
    }

    /// The step's computation is over: hands out what is to be copied before the next begins.
    pub fn end_step(&mut self) {
        for order in std::mem::take(&mut self.to_save) {
            self.save(&order);
        }
    }

    /// Takes what the driver reports.
    pub fn handle_event(&mut self, event: WorkerEvent) {
        match event {
            WorkerEvent::Fenced { load, phase } => self.fenced(load, phase),
            WorkerEvent::FenceFailed { load, phase } => self.fence_failed(load, phase),
            WorkerEvent::Fetched { load, part, result } => self.fetched(load, part, result),
            WorkerEvent::Saved { save, outcome } => self.saved(save, outcome),
        }
        self.pump();
    }

    /// Fails loads whose deadline has come. Their memory stays claimed until their parts are over.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due = |load: &Load| load.failure.is_none() && load.deadline <= now;
        let due: Vec<LoadId> = self
            .loads
            .iter()
            .filter_map(|(id, load)| due(load).then_some(*id))
            .collect();
        for id in due {
            self.fail(id, LoadFailure::Deadline);
        }
        self.pump();
    }

    /// Calls off loads whose blocks are about to be used again, and reports them to nobody. The
    /// caller waits until [`is_loading`](Self::is_loading) is false for each.
    pub fn preempt(&mut self, loads: &[LoadId]) {
        for id in loads {
            if let Some(load) = self.loads.get_mut(id) {
                load.reported = false;
            }
            self.cancel(*id);
        }
        self.settled
            .retain(|settled| !loads.contains(&settled.load));
        self.pump();
    }

    /// Issues nothing more. What is under way ends, and is reported, as ever.
    pub fn close(&mut self) {
        self.closed = true;
        self.to_save.clear();
        let ids: Vec<LoadId> = self.loads.keys().copied().collect();
        for id in ids {
            let waiting = self
                .loads
                .get(&id)
                .is_some_and(|load| !load.ready.is_empty());
            if waiting {
                self.fail(id, LoadFailure::QueueClosed);
            }
        }
        self.pump();
    }

    /// The loads that are over and were not collected before.
    pub fn take_results(&mut self) -> TransferResults {
        let mut results = TransferResults::default();
        for settled in std::mem::take(&mut self.settled) {
            if settled.failed && settled.invalid.is_empty() {
                results.failed_recving.push(settled.request.clone());
            }
            results.finished_recving.push(settled.request);
            self.invalid.extend(settled.invalid);
        }
        results
    }

    /// Blocks without valid content, of loads that were collected. Not given twice.
    pub fn take_invalid_blocks(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.invalid).into_iter().collect()
    }

    /// Whoever made the plans is gone: its loads end unreported.
    fn replace_scheduler(&mut self, incarnation: u128) {
        self.incarnation = incarnation;
        self.settled.clear();
        self.to_save.clear();
        let ids: Vec<LoadId> = self.loads.keys().copied().collect();
        for id in ids {
            if let Some(load) = self.loads.get_mut(&id) {
                load.reported = false;
            }
            self.cancel(id);
        }
    }

    fn start(&mut self, now: Instant, order: &LoadOrder) {
        if self.loads.contains_key(&order.load) {
            self.counters.late_completions += 1;
            return;
        }
        let WorkerConfig {
            namespace,
            shape,
            rank,
            limits,
        } = &self.config;
        let mut load = Load::new(order, shape, &self.shards, *rank, namespace, now);
        if self.closed {
            load.fail(LoadFailure::QueueClosed);
        } else if self.queued + load.ready.len() > limits.queued {
            load.fail(LoadFailure::QueueFull);
        }
        self.queued += load.ready.len();
        self.counters.loads += 1;
        self.loads.insert(order.load, load);
        self.commands.push_back(WorkerCommand::Fence {
            load: order.load,
            phase: Phase::Before,
        });
    }

    fn fail(&mut self, id: LoadId, failure: LoadFailure) {
        if let Some(load) = self.loads.get_mut(&id) {
            self.queued -= load.ready.len();
            load.fail(failure);
            self.settle_if_drained(id);
        }
    }

    /// Fetches nothing more for a load. It has failed only if something was left to fetch.
    fn cancel(&mut self, id: LoadId) {
        let left = self
            .loads
            .get(&id)
            .is_some_and(|load| !load.ready.is_empty());
        if left {
            self.fail(id, LoadFailure::Cancelled);
        }
    }

    fn fenced(&mut self, id: LoadId, phase: Phase) {
        let stage = self.loads.get(&id).map(|load| load.stage);
        match (stage, phase) {
            (Some(Stage::FencingBefore), Phase::Before) => {
                if let Some(load) = self.loads.get_mut(&id) {
                    load.stage = Stage::Moving;
                }
                self.turns.push_back(id);
                self.settle_if_drained(id);
            }
            (Some(Stage::FencingAfter), Phase::After) => self.settle(id),
            _ => self.counters.late_completions += 1,
        }
    }

    /// A fence without proof: the load fails, and stands where it stood until the proof comes.
    fn fence_failed(&mut self, id: LoadId, phase: Phase) {
        let load = self.loads.get_mut(&id);
        let waits = |load: &&mut Load| {
            let stage = match phase {
                Phase::Before => Stage::FencingBefore,
                Phase::After => Stage::FencingAfter,
            };
            load.stage == stage
        };
        let Some(load) = load.filter(waits) else {
            self.counters.late_completions += 1;
            return;
        };
        self.queued -= load.ready.len();
        load.fail(LoadFailure::Device);
        load.invalidate_covered();
    }

    fn fetched(&mut self, id: LoadId, part: u32, result: Result<(), LoadFailure>) {
        let Some(load) = self.loads.get_mut(&id) else {
            self.counters.late_completions += 1;
            return;
        };
        let queued = load.ready.len();
        if !load.part_over(part, result) {
            self.counters.late_completions += 1;
            return;
        }
        self.queued -= queued - load.ready.len();
        self.in_flight -= 1;
        self.counters.objects_loaded += u64::from(result.is_ok());
        self.settle_if_drained(id);
    }

    /// Parts that one load may have in flight: half of all, so that no load stops the others.
    fn share(&self) -> usize {
        self.config.limits.in_flight.div_ceil(2)
    }

    /// Issues parts while there is room, one load after the other.
    fn pump(&mut self) {
        let share = self.share();
        let mut passed = 0;
        while self.in_flight < self.config.limits.in_flight && passed < self.turns.len() {
            let Some(id) = self.turns.pop_front() else {
                return;
            };
            let Some(load) = self.loads.get_mut(&id) else {
                continue;
            };
            if load.ready.is_empty() {
                continue;
            }
            self.turns.push_back(id);
            if load.in_flight.len() >= share {
                passed += 1;
                continue;
            }
            passed = 0;
            if let Some(part) = load.ready.pop_front() {
                self.queued -= 1;
                self.in_flight += 1;
                self.commands.push_back(WorkerCommand::Fetch(Fetch {
                    load: id,
                    part: part.number,
                    group: part.group,
                    key: part.key,
                    lease: part.lease,
                    destinations: part.destinations.clone(),
                    deadline: load.deadline,
                }));
                load.in_flight.insert(part.number, part);
            }
        }
    }

    fn settle_if_drained(&mut self, id: LoadId) {
        let Some(load) = self.loads.get_mut(&id) else {
            return;
        };
        if load.stage == Stage::Moving && load.drained() {
            load.stage = Stage::FencingAfter;
            self.turns.retain(|turn| *turn != id);
            self.commands.push_back(WorkerCommand::Fence {
                load: id,
                phase: Phase::After,
            });
        }
    }

    /// The last write is visible: the one outcome of the load.
    fn settle(&mut self, id: LoadId) {
        let Some(load) = self.loads.remove(&id) else {
            return;
        };
        let failure = load.outcome();
        match failure {
            None => self.counters.loads_succeeded += 1,
            Some(failure) => {
                let kind = LoadFailure::ALL.iter().position(|kind| *kind == failure);
                self.counters.loads_failed[kind.unwrap_or_default()] += 1;
            }
        }
        if load.reported {
            self.settled.push(Settled {
                load: id,
                request: load.request,
                failed: failure.is_some(),
                invalid: load.invalid,
            });
        }
    }

    /// Panics with a message if the machine is broken.
    pub fn check_invariants(&self) {
        let queued: usize = self.loads.values().map(|load| load.ready.len()).sum();
        let in_flight: usize = self.loads.values().map(|load| load.in_flight.len()).sum();
        assert_eq!(self.queued, queued, "queued parts are miscounted");
        assert_eq!(self.in_flight, in_flight, "parts in flight are miscounted");
        assert!(queued <= self.config.limits.queued);
        assert!(in_flight <= self.config.limits.in_flight);
        assert!(self.saves.len() <= self.config.limits.saves);
        for (id, load) in &self.loads {
            match load.stage {
                Stage::FencingBefore => assert!(load.in_flight.is_empty(), "{id:?} moves unfenced"),
                Stage::Moving => assert!(!load.drained(), "{id:?} is drained and not fenced"),
                Stage::FencingAfter => assert!(load.drained(), "{id:?} moves while it is fenced"),
            }
            let turn = self.turns.iter().filter(|turn| *turn == id).count();
            let waits = load.stage == Stage::Moving && !load.ready.is_empty();
            assert!(
                turn <= 1 && (!waits || turn == 1),
                "{id:?} has {turn} turns"
            );
            if load.class == LayoutClass::Request {
                assert!(
                    load.invalid.is_empty(),
                    "{id:?} names blocks of a request-level layout"
                );
            }
        }
        let idle = self.in_flight < self.config.limits.in_flight;
        let waits = self.loads.values().any(|load| {
            let room = load.in_flight.len() < self.share();
            load.stage == Stage::Moving && !load.ready.is_empty() && room
        });
        assert!(!(idle && waits), "a part waits although there is room");
    }
}

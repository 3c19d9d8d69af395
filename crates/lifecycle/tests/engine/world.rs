//! The whole: engine, scheduler's machine, ranks and store.

use std::collections::{BTreeMap, BTreeSet};

use tessera_lifecycle::plan::{Shards, coordinates};
use tessera_lifecycle::scheduler::{SchedulerCommand, SchedulerLimits};
use tessera_lifecycle::{
    Axes, GroupKind, GroupSpec, LookupId, SchedulerConfig, SchedulerRoot, Shape,
};
use tessera_proto::{Instant, NamespaceDigest, ObjectId, Topology};

use crate::random::Random;
use crate::ranks::Worker;
use crate::scheduling::{Request, Stage, StepOutput};
use crate::store::{Store, Tag};

pub(crate) const CHUNK: u64 = 8;
pub(crate) const PROMPTS: u8 = 3;

/// Who executes loads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    /// Others, beside the engine's steps.
    Beside,
    /// The model thread, inside the load hook.
    ModelThread,
}

/// What is simulated.
pub(crate) struct Setup {
    pub(crate) shape: Shape,
    pub(crate) io: Io,
}

impl Setup {
    pub(crate) fn full(io: Io, topology: Topology) -> Self {
        Self::new(&[GroupKind::Full], io, topology)
    }

    pub(crate) fn hybrid(io: Io, topology: Topology) -> Self {
        let window = GroupKind::Window { tokens: 11 };
        Self::new(&[GroupKind::Full, window, GroupKind::State], io, topology)
    }

    fn new(kinds: &[GroupKind], io: Io, topology: Topology) -> Self {
        let group = |(index, kind): (usize, &GroupKind)| GroupSpec {
            kind: *kind,
            block_tokens: if *kind == GroupKind::State { CHUNK } else { 4 },
            // The last group is equal on all tensor ranks.
            replicated: Axes {
                tp: index > 0 && index + 1 == kinds.len(),
                ..Axes::default()
            },
        };
        let groups = kinds.iter().enumerate().map(group).collect();
        let shape = Shape::new(groups, Some(CHUNK), 4, topology).unwrap();
        Self { shape, io }
    }
}

pub(crate) struct World {
    pub(crate) shape: Shape,
    pub(crate) shards: Shards,
    pub(crate) random: Random,
    pub(crate) now: Instant,
    pub(crate) scheduler: SchedulerRoot,
    pub(crate) workers: Vec<Worker>,
    pub(crate) store: Store,
    pub(crate) questions: Vec<(LookupId, Vec<ObjectId>)>,
    pub(crate) requests: BTreeMap<String, Request>,
    /// Requests that have ended while a receive was under way: their blocks are held.
    pub(crate) held: BTreeMap<String, Vec<Vec<u32>>>,
    pub(crate) free: Vec<u32>,
    pub(crate) names: u64,
    pub(crate) preempted: Vec<String>,
    pub(crate) finished: Vec<String>,
    /// Steps whose output the engine has not processed yet.
    pub(crate) outputs: Vec<StepOutput>,
    /// How many ranks have reported a request.
    pub(crate) received: BTreeMap<String, usize>,
    pub(crate) failed: BTreeSet<String>,
    pub(crate) quiet: bool,
}

impl World {
    pub(crate) fn new(setup: &Setup, seed: u64) -> Self {
        let shape = setup.shape.clone();
        let scheduler = SchedulerRoot::new(SchedulerConfig {
            namespace: NamespaceDigest([3; 32]),
            shape: shape.clone(),
            loads: true,
            saves: true,
            lookup_timeout_ms: 40,
            load_timeout_ms: 400,
            lease_ms: 60_000,
            incarnation: 77,
            limits: SchedulerLimits::default(),
        });
        let workers = shape
            .ranks()
            .into_iter()
            .map(|rank| Worker::new(setup, rank));
        Self {
            shards: Shards::new(&shape),
            workers: workers.collect(),
            shape,
            random: Random::new(seed),
            now: Instant(1),
            scheduler,
            store: Store::default(),
            questions: Vec::new(),
            requests: BTreeMap::new(),
            held: BTreeMap::new(),
            free: (1..400).rev().collect(),
            names: 0,
            preempted: Vec::new(),
            finished: Vec::new(),
            outputs: Vec::new(),
            received: BTreeMap::new(),
            failed: BTreeSet::new(),
            quiet: false,
        }
    }

    /// One step of the engine, and some progress of everything else.
    pub(crate) fn step(&mut self) {
        self.now = self.now.after_millis(10);
        self.arrive_and_leave();
        self.answer_questions();
        let input = self.schedule();
        let plan = self.scheduler.step(self.now, &input);
        self.settle_scheduler();
        let plan = tessera_lifecycle::StepPlan::decode(&plan.encode()).unwrap();
        let output = self.execute(&input, &plan);
        self.outputs.push(output);
        // Scheduling runs ahead of results by up to one step.
        let ahead = if self.random.chance(50) { 1 } else { 0 };
        while self.outputs.len() > ahead {
            let output = self.outputs.remove(0);
            self.process(output);
        }
        if !self.quiet && self.random.chance(3) {
            self.store.lose(&mut self.random);
        }
    }

    /// No more arrivals and no more chance: everything must come to its end.
    pub(crate) fn drain(&mut self) {
        self.quiet = true;
        for _ in 0..400 {
            self.step();
            if self.requests.is_empty() && self.held.is_empty() {
                break;
            }
        }
        for _ in 0..40 {
            self.step();
        }
        assert!(
            self.requests.is_empty(),
            "stuck: {:?}",
            self.requests.keys()
        );
        assert!(
            self.held.is_empty(),
            "blocks are held for ever: {:?}",
            self.held.keys()
        );
        assert_eq!(self.store.leased(), 0, "leases are left");
        for worker in &self.workers {
            assert!(worker.root.is_idle(), "a rank is not idle");
        }
        let counters = self.scheduler.counters();
        assert_eq!(
            counters.loads,
            counters.loads_succeeded + counters.loads_failed
        );
        self.free.sort_unstable();
        assert_eq!(
            self.free,
            (1..400).collect::<Vec<_>>(),
            "blocks are lost or freed twice"
        );
    }

    pub(crate) fn settle_scheduler(&mut self) {
        while let Some(command) = self.scheduler.poll_command() {
            match command {
                SchedulerCommand::Acquire { lookup, ids, .. } => self.questions.push((lookup, ids)),
                SchedulerCommand::Release { grants } => self.store.release(grants),
            }
        }
        self.scheduler.check_invariants();
    }

    fn answer_questions(&mut self) {
        while !self.questions.is_empty() && (self.quiet || self.random.chance(60)) {
            let at = self.random.index(self.questions.len());
            let (lookup, ids) = self.questions.swap_remove(at);
            let event = self.store.acquire(lookup, &ids);
            self.scheduler.handle_event(self.now, event);
            self.settle_scheduler();
        }
    }

    /// What block `index` of a group should hold on a rank.
    pub(crate) fn sound(&self, prompt: u8, group: usize, index: u64, worker: usize) -> Tag {
        let rank = self.shape.ranks()[worker];
        let position = self.shards.position(&self.shape, group, rank);
        let (shard, _) = position.expect("every rank is in the topology");
        debug_assert_eq!(
            self.shards.of(group).nth(shard),
            Some(coordinates(&self.shape, group, rank))
        );
        Tag::Sound {
            prompt,
            group,
            index,
            shard,
        }
    }

    fn arrive_and_leave(&mut self) {
        if !self.quiet && self.requests.len() < 6 && self.random.chance(40) {
            self.names += 1;
            // Names come back, as an engine's may.
            let name = format!("r{}", self.names % 9);
            let busy = self.requests.contains_key(&name) || self.held.contains_key(&name);
            if !busy && !self.finished.contains(&name) {
                let prompt = u8::try_from(self.random.below(u64::from(PROMPTS))).unwrap();
                let tokens = 1 + self.random.below(60);
                let request = Request::new(prompt, tokens, self.shape.groups().len());
                self.requests.insert(name, request);
            }
        }
        let names: Vec<String> = self.requests.keys().cloned().collect();
        for name in names {
            let request = &self.requests[&name];
            let done = request.stage == Stage::Running && request.computed > request.prompt_tokens;
            let leaves = match self.quiet {
                true => done,
                false => (done && self.random.chance(30)) || self.random.chance(2),
            };
            if leaves {
                self.end(&name);
            } else if !self.quiet && request.stage == Stage::Running && self.random.chance(4) {
                self.preempt(&name);
            }
        }
    }
}

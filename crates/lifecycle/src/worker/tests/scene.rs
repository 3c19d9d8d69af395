//! A machine, plans for it, and everything that it commands.

use tessera_proto::{Instant, KeyDigest, NamespaceDigest, Topology};

use crate::ids::{Attempt, LoadId, RequestKey};
use crate::metadata::{ChunkHash, LeaseOrder, LoadOrder, SaveOrder, StepPlan};
use crate::shape::{Axes, GroupKind, GroupSpec, Rank, Shape};
use crate::worker::{
    Fetch, LoadFailure, Phase, Save, WorkerCommand, WorkerConfig, WorkerEvent, WorkerLimits,
    WorkerRoot,
};

pub(super) const TIMEOUT_MS: u64 = 500;

pub(super) struct Scene {
    pub(super) root: WorkerRoot,
    pub(super) now: Instant,
    pub(super) fences: Vec<(LoadId, Phase)>,
    pub(super) fetches: Vec<Fetch>,
    pub(super) probes: Vec<Vec<KeyDigest>>,
    pub(super) saves: Vec<Save>,
    step: u64,
}

pub(super) fn hybrid() -> Vec<GroupKind> {
    vec![GroupKind::Full, GroupKind::State]
}

pub(super) fn full() -> Vec<GroupKind> {
    vec![GroupKind::Full]
}

pub(super) fn id(request: u64) -> LoadId {
    LoadId {
        request: RequestKey(request),
        attempt: Attempt(1),
    }
}

pub(super) fn hash(chunk: u8) -> ChunkHash {
    ChunkHash::new(&[chunk, 1]).unwrap()
}

impl Scene {
    pub(super) fn new(kinds: &[GroupKind]) -> Self {
        Self::with(kinds, Rank::default(), 1, WorkerLimits::default())
    }

    pub(super) fn with(kinds: &[GroupKind], rank: Rank, tp: u32, limits: WorkerLimits) -> Self {
        let group = |kind: &GroupKind| GroupSpec {
            kind: *kind,
            block_tokens: 4,
            replicated: Axes {
                tp: *kind == GroupKind::State,
                ..Axes::default()
            },
        };
        let topology = Topology {
            tp,
            ..Topology::SINGLE
        };
        let groups = kinds.iter().map(group).collect();
        Self {
            root: WorkerRoot::new(WorkerConfig {
                namespace: NamespaceDigest([1; 32]),
                shape: Shape::new(groups, Some(8), 4, topology).unwrap(),
                rank,
                limits,
            }),
            now: Instant(5),
            fences: Vec::new(),
            fetches: Vec::new(),
            probes: Vec::new(),
            saves: Vec::new(),
            step: 0,
        }
    }

    pub(super) fn drain(&mut self) {
        while let Some(command) = self.root.poll_command() {
            match command {
                WorkerCommand::Fence { load, phase } => self.fences.push((load, phase)),
                WorkerCommand::Fetch(fetch) => self.fetches.push(fetch),
                WorkerCommand::Probe(keys) => self.probes.push(keys),
                WorkerCommand::Save(save) => self.saves.push(save),
            }
        }
        self.root.check_invariants();
    }

    pub(super) fn plan(&mut self) -> StepPlan {
        self.step += 1;
        StepPlan {
            incarnation: 3,
            step: self.step,
            ..StepPlan::default()
        }
    }

    pub(super) fn begin(&mut self, plan: &StepPlan) {
        self.root.begin_step(self.now, plan);
        self.drain();
    }

    /// Begins a step that loads two chunks for a request, into blocks 1 to 4 of each group.
    pub(super) fn load(&mut self, request: u64) -> LoadId {
        let mut plan = self.plan();
        let groups = self.root.config.shape.groups().len();
        plan.loads.push(order(request, groups));
        self.begin(&plan);
        id(request)
    }

    pub(super) fn event(&mut self, event: WorkerEvent) {
        self.root.handle_event(event);
        self.drain();
    }

    /// Answers every fence that is asked for.
    pub(super) fn fence(&mut self) {
        for (load, phase) in std::mem::take(&mut self.fences) {
            self.event(WorkerEvent::Fenced { load, phase });
        }
    }

    /// Ends the oldest fetch.
    pub(super) fn fetched(&mut self, result: Result<(), LoadFailure>) {
        let fetch = self.fetches.remove(0);
        self.event(WorkerEvent::Fetched {
            load: fetch.load,
            part: fetch.part,
            result,
        });
    }

    /// What is collected: finished, failed, invalid blocks.
    pub(super) fn collect(&mut self) -> (Vec<String>, Vec<String>, Vec<u32>) {
        let results = self.root.take_results();
        let invalid = self.root.take_invalid_blocks();
        (results.finished_recving, results.failed_recving, invalid)
    }

    pub(super) fn assert_silent(&mut self) {
        assert_eq!(self.collect(), (vec![], vec![], vec![]));
    }

    pub(super) fn failed(&self, failure: LoadFailure) -> u64 {
        let at = LoadFailure::ALL.iter().position(|kind| *kind == failure);
        self.root.counters().loads_failed[at.unwrap()]
    }
}

pub(super) fn order(request: u64, groups: usize) -> LoadOrder {
    LoadOrder {
        request: format!("r{request}"),
        load: id(request),
        computed: 0,
        limit: 16,
        boundary: 16,
        tables: vec![vec![1, 2, 3, 4]; groups],
        hashes: vec![hash(0), hash(1)],
        leases: vec![LeaseOrder {
            node: 0,
            incarnation: 1,
            lease: 9,
        }],
        lease_of: vec![0; 16],
        timeout_ms: TIMEOUT_MS,
    }
}

pub(super) fn save(group: u32, blocks: &[u32]) -> SaveOrder {
    SaveOrder {
        group,
        hash: hash(7),
        blocks: blocks.to_vec(),
    }
}

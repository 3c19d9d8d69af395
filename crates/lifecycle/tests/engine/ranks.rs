//! The workers: memory, a machine, and I/O that takes its time and fails.

use std::collections::{BTreeMap, BTreeSet};

use tessera_lifecycle::plan::Destination;
use tessera_lifecycle::worker::{
    Fetch, LoadFailure, Phase, Save, SaveOutcome, TransferResults, WorkerCommand, WorkerConfig,
    WorkerEvent, WorkerLimits,
};
use tessera_lifecycle::{LoadId, Rank, StepPlan, WorkerRoot};
use tessera_proto::{Instant, NamespaceDigest};

use crate::random::Random;
use crate::store::{Store, Tag};
use crate::world::{Io, Setup};

pub(crate) struct Worker {
    pub(crate) root: WorkerRoot,
    pub(crate) memory: BTreeMap<(usize, u32), Tag>,
    io: Io,
    fetches: Vec<Fetch>,
    fences: Vec<(LoadId, Phase)>,
    /// Loads whose last write is fenced: nothing may write for them any more.
    fenced: BTreeSet<LoadId>,
    reported: BTreeMap<String, u32>,
}

impl Worker {
    pub(crate) fn new(setup: &Setup, rank: Rank) -> Self {
        let config = WorkerConfig {
            namespace: NamespaceDigest([3; 32]),
            shape: setup.shape.clone(),
            rank,
            limits: WorkerLimits {
                queued: 40,
                in_flight: 3,
                saves: 8,
            },
        };
        Self {
            root: WorkerRoot::new(config),
            memory: BTreeMap::new(),
            io: setup.io,
            fetches: Vec::new(),
            fences: Vec::new(),
            fenced: BTreeSet::new(),
            reported: BTreeMap::new(),
        }
    }

    /// The load hook. Saves are not handed out here.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        plan: &StepPlan,
        store: &Store,
        random: &mut Random,
    ) {
        self.root.begin_step(now, plan);
        if random.chance(20) {
            self.root.begin_step(now, plan);
        }
        self.collect_commands(&mut Vec::new());
        while self.io == Io::ModelThread && self.root.is_any_loading() {
            self.progress(now, store, random);
        }
    }

    /// The save hook: what is to be copied now.
    pub(crate) fn end(&mut self) -> Vec<Save> {
        let mut saves = Vec::new();
        self.root.end_step();
        self.collect_commands(&mut saves);
        saves
    }

    /// Some I/O and some fences come to their end, in any order.
    pub(crate) fn progress(&mut self, now: Instant, store: &Store, random: &mut Random) {
        self.root.handle_timeout(now);
        self.collect_commands(&mut Vec::new());
        if !self.fences.is_empty() && random.chance(70) {
            let (load, phase) = self.fences.swap_remove(random.index(self.fences.len()));
            if phase == Phase::After {
                assert!(
                    self.fetches.iter().all(|fetch| fetch.load != load),
                    "fenced in flight"
                );
                self.fenced.insert(load);
            }
            self.tell(WorkerEvent::Fenced { load, phase }, random);
        }
        if !self.fetches.is_empty() && random.chance(60) {
            let fetch = self.fetches.swap_remove(random.index(self.fetches.len()));
            let result = self.transfer(&fetch, store, random);
            let (load, part) = (fetch.load, fetch.part);
            self.tell(WorkerEvent::Fetched { load, part, result }, random);
        }
    }

    fn tell(&mut self, event: WorkerEvent, random: &mut Random) {
        self.root.handle_event(event);
        self.collect_commands(&mut Vec::new());
        if random.chance(10) {
            // The same news again: nothing but a counter may change.
            self.root.handle_event(event);
            self.collect_commands(&mut Vec::new());
        }
    }

    fn transfer(
        &mut self,
        fetch: &Fetch,
        store: &Store,
        random: &mut Random,
    ) -> Result<(), LoadFailure> {
        assert!(
            !self.fenced.contains(&fetch.load),
            "written after the fence"
        );
        let failure = match store.objects.get(&fetch.key.object_id()) {
            Some((_, tags)) if !random.chance(6) => {
                assert_eq!(tags.len(), fetch.destinations.len());
                for (tag, to) in tags.iter().zip(&fetch.destinations) {
                    if let Destination::Block(block) = to {
                        self.memory.insert((fetch.group, *block), *tag);
                    }
                }
                return Ok(());
            }
            Some(_) => LoadFailure::Corrupt,
            None => LoadFailure::Miss,
        };
        for to in &fetch.destinations {
            if let Destination::Block(block) = to
                && random.chance(50)
            {
                self.memory.insert((fetch.group, *block), Tag::Junk);
            }
        }
        Err(failure)
    }

    pub(crate) fn saved(&mut self, save: &Save, random: &mut Random) {
        let outcome = match random.below(4) {
            0 => SaveOutcome::Existed,
            1 => SaveOutcome::Refused,
            _ => SaveOutcome::Stored,
        };
        let save = save.save;
        self.tell(WorkerEvent::Saved { save, outcome }, random);
    }

    pub(crate) fn poll(&mut self) -> (TransferResults, Vec<u32>) {
        let results = self.root.take_results();
        for request in &results.finished_recving {
            *self.reported.entry(request.clone()).or_default() += 1;
        }
        for request in &results.failed_recving {
            assert!(
                results.finished_recving.contains(request),
                "failed and not finished"
            );
        }
        (results, self.root.take_invalid_blocks())
    }

    fn collect_commands(&mut self, saves: &mut Vec<Save>) {
        while let Some(command) = self.root.poll_command() {
            match command {
                WorkerCommand::Fence { load, phase } => self.fences.push((load, phase)),
                WorkerCommand::Fetch(fetch) => self.fetches.push(fetch),
                WorkerCommand::Probe(_) => {}
                WorkerCommand::Save(save) => saves.push(save),
            }
        }
        self.root.check_invariants();
    }
}

//! One worker process: its machine, its block memory, and what is under way for it.

use std::collections::HashMap;

use tessera_lifecycle::plan::{Destination, Shards};
use tessera_lifecycle::worker::{
    Fetch, LoadFailure, Phase, Save, SaveOutcome, WorkerCommand, WorkerConfig, WorkerEvent,
    WorkerLimits,
};
use tessera_lifecycle::{GroupKind, LoadId, Rank, Shape, WorkerRoot};
use tessera_proto::NamespaceDigest;

use crate::coverage::Coverage;
use crate::nodes::{Nodes, Payload};
use crate::random::Random;
use crate::request::Request;

/// What stands where nothing was written yet.
const POISON: u64 = 0xdead_dead_dead_dead;

/// A write that has landed and that the device does not show yet.
#[derive(Debug)]
pub(crate) struct Write {
    load: LoadId,
    pub(crate) block: u32,
    content: Vec<u64>,
}

/// One worker.
#[derive(Debug)]
pub(crate) struct RankModel {
    pub(crate) root: WorkerRoot,
    shape: Shape,
    /// Which shard of each group this rank holds.
    pub(crate) shards: Vec<usize>,
    memory: HashMap<u32, Vec<u64>>,
    fences: Vec<(LoadId, Phase)>,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) invisible: Vec<Write>,
    saves: Vec<(Save, Payload)>,
}

impl RankModel {
    pub(crate) fn new(
        shape: &Shape,
        rank: Rank,
        namespace: NamespaceDigest,
        queued: usize,
    ) -> Self {
        let limits = WorkerLimits {
            queued,
            in_flight: 3,
            saves: 8,
        };
        let all = Shards::new(shape);
        let groups = 0..shape.groups().len();
        let own = |group| {
            all.position(shape, group, rank)
                .expect("a rank of the topology")
                .0
        };
        Self {
            root: WorkerRoot::new(WorkerConfig {
                namespace,
                shape: shape.clone(),
                rank,
                limits,
            }),
            shape: shape.clone(),
            shards: groups.map(own).collect(),
            memory: HashMap::new(),
            fences: Vec::new(),
            fetches: Vec::new(),
            invisible: Vec::new(),
            saves: Vec::new(),
        }
    }

    /// Executes what the machine asks for. Saves are copied at once, as in the step.
    pub(crate) fn drain(&mut self) {
        while let Some(command) = self.root.poll_command() {
            match command {
                WorkerCommand::Fence { load, phase } => self.fences.push((load, phase)),
                WorkerCommand::Fetch(fetch) => self.fetches.push(fetch),
                WorkerCommand::Probe(_) => {}
                WorkerCommand::Save(save) => {
                    let blocks = save.blocks.iter().map(|block| self.memory[block].clone());
                    let copy = blocks.collect();
                    self.saves.push((save, copy));
                }
            }
        }
        self.root.check_invariants();
    }

    /// Every block that something may still write.
    pub(crate) fn written(&self) -> impl Iterator<Item = u32> + '_ {
        let fetched = self.fetches.iter().flat_map(|fetch| &fetch.destinations);
        let fetched = fetched.filter_map(|destination| match destination {
            Destination::Block(block) => Some(*block),
            Destination::Discard => None,
        });
        fetched.chain(self.invisible.iter().map(|write| write.block))
    }

    /// Whether something is under way.
    pub(crate) fn is_busy(&self) -> bool {
        !(self.fences.is_empty() && self.fetches.is_empty() && self.saves.is_empty())
    }

    /// Ends one thing that is under way for a load.
    pub(crate) fn progress_load(
        &mut self,
        random: &mut Random,
        nodes: &mut Nodes,
        faulty: bool,
        coverage: &mut Coverage,
    ) {
        let saves = std::mem::take(&mut self.saves);
        self.progress(random, nodes, faulty, coverage);
        self.saves = saves;
    }

    /// Ends one thing that is under way, whichever. Returns a save that the node has now.
    pub(crate) fn progress(
        &mut self,
        random: &mut Random,
        nodes: &mut Nodes,
        faulty: bool,
        coverage: &mut Coverage,
    ) -> Option<(Save, Payload)> {
        let (fences, fetches) = (self.fences.len(), self.fetches.len());
        let all = fences + fetches + self.saves.len();
        if all == 0 {
            return None;
        }
        let at = random.index(all);
        let mut stored = None;
        let event = if at < fences && faulty && random.chance(6) {
            coverage.fences_failed += 1;
            let (load, phase) = self.fences[at];
            WorkerEvent::FenceFailed { load, phase }
        } else if at < fences {
            let (load, phase) = self.fences.remove(at);
            if phase == Phase::After {
                self.show(|write| write.load == load);
            }
            WorkerEvent::Fenced { load, phase }
        } else if at < fences + fetches {
            let fetch = self.fetches.remove(at - fences);
            self.fetched(&fetch, random, nodes, faulty, coverage)
        } else {
            let (save, payload) = self.saves.remove(at - fences - fetches);
            let outcome = match faulty && random.chance(10) {
                true => SaveOutcome::Refused,
                false => nodes.store(save.key, payload.clone()),
            };
            coverage.stored += u64::from(outcome == SaveOutcome::Stored);
            let event = WorkerEvent::Saved {
                save: save.save,
                outcome,
            };
            stored = (outcome == SaveOutcome::Stored).then_some((save, payload));
            event
        };
        self.root.handle_event(event);
        if faulty && random.chance(5) {
            // The same completion again.
            self.root.handle_event(event);
        }
        if !self.invisible.is_empty() && random.chance(20) {
            let early = self.invisible[random.index(self.invisible.len())].block;
            self.show(|write| write.block == early);
            coverage.early_writes += 1;
        }
        self.drain();
        stored
    }

    fn fetched(
        &mut self,
        fetch: &Fetch,
        random: &mut Random,
        nodes: &Nodes,
        faulty: bool,
        coverage: &mut Coverage,
    ) -> WorkerEvent {
        let mut result = nodes.get(&fetch.key, fetch.lease);
        if faulty && random.chance(8) {
            result = Err(LoadFailure::ALL[random.index(LoadFailure::ALL.len())]);
        }
        for (at, destination) in fetch.destinations.iter().enumerate() {
            let Destination::Block(block) = *destination else {
                continue;
            };
            let content = match &result {
                Ok(payload) => payload[at].clone(),
                Err(_) if random.chance(50) => {
                    coverage.partial_writes += 1;
                    vec![random.below(u64::MAX); 4]
                }
                Err(_) => continue,
            };
            self.invisible.push(Write {
                load: fetch.load,
                block,
                content,
            });
        }
        let result = result.map(drop);
        WorkerEvent::Fetched {
            load: fetch.load,
            part: fetch.part,
            result,
        }
    }

    /// Makes writes visible.
    fn show(&mut self, which: impl Fn(&Write) -> bool) {
        let (shown, rest) = self.invisible.drain(..).partition(|write| which(write));
        self.invisible = rest;
        for Write { block, content, .. } in Vec::<Write>::from_iter::<Vec<_>>(shown) {
            self.memory.insert(block, content);
        }
    }

    /// New blocks hold nothing that anybody may rely on.
    pub(crate) fn poison(&mut self, block: u32) {
        self.memory.insert(block, Vec::new());
    }

    /// The content of `slot` of `block`.
    fn read(&self, block: u32, slot: u64) -> u64 {
        let slot = usize::try_from(slot).expect("a slot");
        let content = self
            .memory
            .get(&block)
            .and_then(|content| content.get(slot));
        content.copied().unwrap_or(POISON)
    }

    fn write(&mut self, block: u32, slot: u64, value: u64) {
        let slot = usize::try_from(slot).expect("a slot");
        let content = self.memory.entry(block).or_default();
        if content.len() <= slot {
            content.resize(slot + 1, POISON);
        }
        content[slot] = value;
    }

    /// The first token that the next one of `request` looks back to in `group` after `computed`.
    fn looks_back_to(&self, group: usize, computed: u64) -> u64 {
        match self.shape.groups()[group].kind {
            GroupKind::Full => 0,
            GroupKind::Window { tokens } => (computed + 1).saturating_sub(tokens),
            GroupKind::State => computed.saturating_sub(1),
        }
    }

    /// The first token that a forward of `request` would read wrong, with its group.
    pub(crate) fn first_wrong(&self, request: &Request) -> Option<(usize, u64)> {
        let groups = 0..self.shape.groups().len();
        groups.into_iter().find_map(|group| {
            let mut read = self.looks_back_to(group, request.computed)..request.computed;
            read.find(|at| {
                let (block, slot) = self.place(group, *at, &request.tables[group]);
                let right = request.text.content(group, self.shards[group], *at);
                block == 0 || self.read(block, slot) != right
            })
            .map(|at| (group, at))
        })
    }

    /// Writes what a forward over tokens `from..to` of `request` leaves behind.
    pub(crate) fn compute(&mut self, request: &Request, from: u64, to: u64) {
        for group in 0..self.shape.groups().len() {
            let first = match self.shape.groups()[group].kind {
                GroupKind::State => to.saturating_sub(1).max(from),
                _ => from,
            };
            for at in first..to {
                let (block, slot) = self.place(group, at, &request.tables[group]);
                if block != 0 {
                    let right = request.text.content(group, self.shards[group], at);
                    self.write(block, slot, right);
                }
            }
        }
    }

    /// The block and slot of one token; of a state, the slot that all tokens share.
    fn place(&self, group: usize, at: u64, table: &[u32]) -> (u32, u64) {
        let spec = self.shape.groups()[group];
        let index = usize::try_from(at / spec.block_tokens).expect("an index");
        let slot = match spec.kind {
            GroupKind::State => 0,
            _ => at % spec.block_tokens,
        };
        (table.get(index).copied().unwrap_or(0), slot)
    }
}

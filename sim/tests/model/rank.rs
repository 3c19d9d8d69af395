//! One worker: its machine, its block memory, and what is under way for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tessera_lifecycle::plan::Destination;
use tessera_lifecycle::worker::{
    Fetch, LoadFailure, Phase, Save, SaveOutcome, WorkerCommand, WorkerConfig, WorkerEvent,
    WorkerLimits,
};
use tessera_lifecycle::{Attempt, LoadId, Rank, SaveId, Shape, WorkerRoot};

use crate::law::Law;
use crate::objects::{Content, NAMESPACE};
use crate::reached::Reached;
use crate::world::{self, Stand, State, World};

/// A write that has landed and that the device does not show yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Landed {
    pub(crate) load: LoadId,
    pub(crate) block: u32,
    content: Content,
}

/// One worker.
#[derive(Clone, Debug, Hash)]
pub(crate) struct RankState {
    pub(crate) root: Arc<WorkerRoot>,
    /// What stands in each block of each group that this rank holds.
    pub(crate) memory: Vec<Content>,
    pub(crate) fences: Vec<(LoadId, Phase)>,
    /// Loads whose memory is known to be at rest.
    fenced: BTreeSet<LoadId>,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) landed: Vec<Landed>,
}

impl RankState {
    pub(crate) fn new(shape: &Shape, rank: Rank, blocks: usize, in_flight: usize) -> Self {
        let config = WorkerConfig {
            namespace: NAMESPACE,
            shape: shape.clone(),
            rank,
            limits: WorkerLimits {
                queued: 16,
                in_flight,
                saves: 16,
            },
        };
        Self {
            root: Arc::new(WorkerRoot::new(config)),
            memory: world::clean(blocks),
            fences: Vec::new(),
            fenced: BTreeSet::new(),
            fetches: Vec::new(),
            landed: Vec::new(),
        }
    }

    /// Every block that something may still write, and for which load.
    pub(crate) fn claims(&self) -> impl Iterator<Item = (LoadId, u32)> + '_ {
        let landed = self.landed.iter().map(|write| (write.load, write.block));
        let fetches = self.fetches.iter();
        let moving = fetches.flat_map(|fetch| blocks(fetch).map(|block| (fetch.load, block)));
        moving.chain(landed)
    }

    pub(crate) fn write(&mut self, block: u32, content: Content) {
        self.memory[usize::try_from(block).expect("a block")] = content;
    }

    pub(crate) fn read(&self, block: u32) -> Content {
        self.memory[usize::try_from(block).expect("a block")]
    }
}

/// The blocks that a fetch writes.
pub(crate) fn blocks(fetch: &Fetch) -> impl Iterator<Item = u32> + '_ {
    let written = fetch.destinations.iter();
    written.filter_map(|destination| match destination {
        Destination::Block(block) => Some(*block),
        Destination::Discard => None,
    })
}

impl State {
    /// Executes what the machine of `rank` asks for.
    pub(crate) fn drain(&mut self, world: &World, rank: usize) {
        loop {
            let command = world::own(&mut self.ranks[rank].root).poll_command();
            match command {
                None => break,
                Some(WorkerCommand::Fence { load, phase }) => {
                    if phase == Phase::Before && !world.setup.slow_fences {
                        self.ranks[rank].fenced.insert(load);
                        self.tell(rank, WorkerEvent::Fenced { load, phase });
                    } else {
                        self.ranks[rank].fences.push((load, phase));
                        self.ranks[rank].fences.sort_unstable();
                    }
                }
                Some(WorkerCommand::Fetch(fetch)) => self.issue(world, rank, fetch),
                // Whoever saves finds out by itself what is stored.
                Some(WorkerCommand::Probe(_)) => {}
                Some(WorkerCommand::Save(save)) => self.save(world, rank, &save),
            }
        }
        self.ranks[rank].root.check_invariants();
    }

    fn issue(&mut self, world: &World, rank: usize, fetch: Fetch) {
        let load = fetch.load;
        let fenced = self.ranks[rank].fenced.contains(&load);
        self.must(fenced, Law::P1, || {
            format!("rank {rank} fetches for {load:?} before its fence")
        });
        let slot = self.slots.iter().find(|slot| slot.load == Some(load));
        let waited = slot.is_some_and(|slot| !slot.called_off);
        self.must(waited, Law::P9, || {
            format!("rank {rank} fetches for {load:?}, which nobody waits for")
        });
        let object = world.objects.by_key(&fetch.key);
        let held = fetch
            .lease
            .is_some_and(|held| self.node.holds(held, object));
        self.must(held, Law::P9, || {
            format!(
                "rank {rank} fetches object {object} under {:?}",
                fetch.lease
            )
        });
        for block in blocks(&fetch) {
            self.ranks[rank].write(block, Content::Dirty);
        }
        let fetches = &mut self.ranks[rank].fetches;
        fetches.push(fetch);
        fetches.sort_unstable_by_key(|fetch| (fetch.load, fetch.part));
    }

    /// Copies and stores at once: a copy cannot change any more.
    fn save(&mut self, world: &World, rank: usize, save: &Save) {
        let object = world.objects.by_key(&save.key);
        let right = world.objects.all[object];
        let copied = save
            .blocks
            .iter()
            .map(|block| self.ranks[rank].read(*block));
        let sound = right.rank == rank && copied.clone().all(|content| content == right.content);
        let copied: Vec<_> = copied.collect();
        self.must(sound, Law::P2, || {
            format!("rank {rank} saves {copied:?} as {right:?}")
        });
        let bit = 1 << object;
        let outcome = match self.node.present & bit {
            0 => SaveOutcome::Stored,
            _ => SaveOutcome::Existed,
        };
        self.node.present |= bit;
        world.saw(Reached::Saved);
        let save = save.save;
        self.tell(rank, WorkerEvent::Saved { save, outcome });
    }

    /// Gives an event to the machine of `rank`, and tries it once more on a copy.
    fn tell(&mut self, rank: usize, event: WorkerEvent) {
        let root = world::own(&mut self.ranks[rank].root);
        root.handle_event(event);
        let mut copy = root.clone();
        let before = world::digest(&copy);
        copy.handle_event(event);
        for event in unknown(event) {
            copy.handle_event(event);
        }
        let same = world::digest(&copy) == before;
        self.must(same, Law::P7, || {
            format!("rank {rank} is changed when {event:?} comes again")
        });
    }

    pub(crate) fn fenced(&mut self, world: &World, rank: usize, load: LoadId, phase: Phase) {
        let of = &mut self.ranks[rank];
        of.fences.retain(|fence| *fence != (load, phase));
        match phase {
            Phase::Before => {
                of.fenced.insert(load);
            }
            Phase::After => {
                of.fenced.remove(&load);
                let all = std::mem::take(&mut of.landed);
                let (shown, rest): (Vec<_>, _) = all.into_iter().partition(|at| at.load == load);
                of.landed = rest;
                for Landed { block, content, .. } in shown {
                    of.write(block, content);
                }
            }
        }
        self.tell(rank, WorkerEvent::Fenced { load, phase });
        self.drain(world, rank);
    }

    /// A fence without proof: the load has failed on this rank, and its memory is not at rest.
    pub(crate) fn fence_failed(&mut self, world: &World, rank: usize, load: LoadId, phase: Phase) {
        world.saw(Reached::FenceFailed);
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.load == Some(load)) {
            slot.parts_failed |= 1 << rank;
        }
        self.tell(rank, WorkerEvent::FenceFailed { load, phase });
        self.drain(world, rank);
    }

    pub(crate) fn fetched(&mut self, world: &World, rank: usize, at: usize, ok: bool) {
        let fetch = self.ranks[rank].fetches.remove(at);
        let object = world.objects.by_key(&fetch.key);
        let (load, part) = (fetch.load, fetch.part);
        let gone = fetch.lease.is_some_and(|held| !self.node.knows(held));
        let missing = self.node.present & 1 << object == 0;
        let result = match (ok, gone, missing) {
            (true, ..) => Ok(()),
            (_, true, _) => Err(LoadFailure::LeaseOver),
            (_, _, true) => Err(LoadFailure::Miss),
            _ => Err(LoadFailure::Corrupt),
        };
        if !(ok || gone || missing) {
            self.left.faults = self.left.faults.saturating_sub(1);
        }
        if gone {
            world.saw(Reached::LeaseOver);
        }
        let slot = self.slots.iter().find(|slot| slot.load == Some(load));
        if let (Some(held), Some(Stand::Parked { .. })) = (fetch.lease, slot.map(|slot| slot.stand))
        {
            let held = self.node.holds(held, object);
            self.must(held, Law::P9, || {
                format!("the lease of {load:?} was given back while it loads")
            });
        }
        if !ok && let Some(slot) = self.slots.iter_mut().find(|slot| slot.load == Some(load)) {
            slot.parts_failed |= 1 << rank;
        }
        let content = match ok {
            true => world.objects.all[object].content,
            false => Content::Dirty,
        };
        for block in blocks(&fetch) {
            let landed = Landed {
                load,
                block,
                content,
            };
            self.ranks[rank].landed.push(landed);
        }
        self.ranks[rank]
            .landed
            .sort_unstable_by_key(|landed| (landed.load, landed.block));
        self.tell(rank, WorkerEvent::Fetched { load, part, result });
        self.drain(world, rank);
    }
}

/// Completions of things that never were, beside `event`.
fn unknown(event: WorkerEvent) -> Vec<WorkerEvent> {
    let save = WorkerEvent::Saved {
        save: SaveId(u64::MAX),
        outcome: SaveOutcome::Stored,
    };
    let mut events = vec![save];
    let load = match event {
        WorkerEvent::Fenced { load, .. }
        | WorkerEvent::FenceFailed { load, .. }
        | WorkerEvent::Fetched { load, .. } => load,
        WorkerEvent::Saved { .. } => return events,
    };
    let result = Err(LoadFailure::Abnormal);
    for attempt in [load.attempt.0 + 7, 0] {
        let attempt = Attempt(attempt);
        let load = LoadId { attempt, ..load };
        events.push(WorkerEvent::Fetched {
            load,
            part: 0,
            result,
        });
        for phase in [Phase::Before, Phase::After] {
            events.push(WorkerEvent::Fenced { load, phase });
            events.push(WorkerEvent::FenceFailed { load, phase });
        }
    }
    let part = u32::MAX;
    events.push(WorkerEvent::Fetched { load, part, result });
    events
}

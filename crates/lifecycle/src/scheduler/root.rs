//! The scheduler's machine: its state, its events and commands, and how a request ends.
//!
//! Called by the client's scheduler driver, one mutation at a time (see the crate's documentation).
//! Invariants: a lease is in exactly one book until its release is commanded; a load is in exactly
//! one place until every rank has reported it; what is promised is held.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use tessera_proto::{Instant, ObjectId};

use crate::ids::{LoadId, LookupId, RequestKey};
use crate::metadata::LoadOrder;
use crate::plan::{Piece, Shards};
use crate::scheduler::config::{SchedulerConfig, SchedulerCounters};
use crate::scheduler::leases::{LeaseBook, LeaseGrant};
use crate::scheduler::lookup::Found;
use crate::scheduler::request::{Entry, Load, Lookup};

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SchedulerCommand {
    /// Ask the nodes for these objects and hold them; answer with [`SchedulerEvent::Acquired`]
    /// exactly once, at the deadline at the latest.
    Acquire {
        /// The question.
        lookup: LookupId,
        /// The objects; the answer keeps their order.
        ids: Vec<ObjectId>,
        /// How long to hold them.
        lease_ms: u32,
        /// When the answer stops being of use.
        deadline: Instant,
    },
    /// Give leases back. Not answered.
    Release {
        /// What to give back.
        grants: Vec<LeaseGrant>,
    },
}

/// What the driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// The answer to [`SchedulerCommand::Acquire`].
    Acquired {
        /// The question.
        lookup: LookupId,
        /// One for each id, in order; what is missing at the end counts as not found.
        found: Vec<Found>,
        /// How long the shortest of its leases lasts from when the question was asked.
        lease_ms: u32,
    },
    /// One rank has finished its part of a load and cannot write for it any more.
    RankFinished {
        /// The load.
        load: LoadId,
        /// The rank, an index into [`Shape::ranks`](crate::Shape::ranks).
        rank: u32,
        /// Whether its part failed.
        failed: bool,
    },
}

/// A question that the nodes have not answered yet.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Question {
    pub(crate) request: String,
    pub(crate) asked: Instant,
    pub(crate) probes: Vec<(Piece, ObjectId)>,
}

/// The scheduler's machine.
#[derive(Clone, Debug)]
pub struct SchedulerRoot {
    pub(crate) config: SchedulerConfig,
    pub(crate) shards: Shards,
    pub(crate) ranks: u32,
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) questions: BTreeMap<LookupId, Question>,
    /// Loads whose request has ended before all ranks have reported, oldest first.
    pub(crate) draining: Vec<(String, Load)>,
    pub(crate) orders: Vec<LoadOrder>,
    pub(crate) cancels: Vec<LoadId>,
    /// Requests that were reported finished since the last step, whose list names them once more:
    /// by then the name may belong to a new request.
    pub(crate) ended: BTreeSet<String>,
    pub(crate) commands: VecDeque<SchedulerCommand>,
    pub(crate) counters: SchedulerCounters,
    pub(crate) step: u64,
    pub(crate) next_timeout: Instant,
    pub(super) next_key: u64,
    pub(super) next_lookup: u64,
}

impl SchedulerRoot {
    /// An idle machine.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        let shards = Shards::new(&config.shape);
        let ranks = u32::try_from(config.shape.ranks().len()).unwrap_or(u32::MAX);
        Self {
            config,
            shards,
            ranks,
            entries: BTreeMap::new(),
            questions: BTreeMap::new(),
            draining: Vec::new(),
            orders: Vec::new(),
            cancels: Vec::new(),
            ended: BTreeSet::new(),
            commands: VecDeque::new(),
            counters: SchedulerCounters::default(),
            step: 0,
            next_timeout: Instant::NEVER,
            next_key: 0,
            next_lookup: 0,
        }
    }

    /// The next thing to do, or `None` when the machine waits.
    pub fn poll_command(&mut self) -> Option<SchedulerCommand> {
        self.commands.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due. It may be called earlier, and later
    /// costs only memory and leases: no answer is given on a hit that is too old.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.next_timeout != Instant::NEVER).then_some(self.next_timeout)
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> SchedulerCounters {
        self.counters
    }

    /// Hashes of a request that are known, in the engine's units: later ones only need to be given.
    #[must_use]
    pub fn known_hashes(&self, request: &str) -> u64 {
        self.entries
            .get(request)
            .map_or(0, |entry| entry.hashes.units())
    }

    /// Takes what the driver reports.
    pub fn handle_event(&mut self, now: Instant, event: SchedulerEvent) {
        match event {
            SchedulerEvent::Acquired {
                lookup,
                found,
                lease_ms,
            } => self.acquired(now, lookup, &found, lease_ms),
            SchedulerEvent::RankFinished { load, rank, failed } => {
                self.rank_finished(load, rank, failed);
            }
        }
    }

    /// Gives back hits that the engine did not take in time.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.next_timeout {
            return;
        }
        let mut next = Instant::NEVER;
        let mut released = Vec::new();
        for entry in self.entries.values_mut() {
            if let Lookup::Hit(hit) = &mut entry.lookup {
                if hit.usable_until < now {
                    released.push(std::mem::take(&mut hit.book));
                    entry.lookup = Lookup::None;
                } else {
                    next = next.min(hit.usable_until.after_nanos(1));
                }
            }
        }
        self.next_timeout = next;
        for book in released {
            self.release(book);
        }
    }

    /// The engine has finished with a request, or it is gone. Returns whether the engine must keep
    /// its blocks for us: never, since saves are copies, and a load under way keeps a parked
    /// request by itself.
    pub fn finished(&mut self, request: &str) -> bool {
        self.ended.insert(request.to_owned());
        let Some(entry) = self.entries.remove(request) else {
            return false;
        };
        if let Lookup::Hit(hit) = entry.lookup {
            self.release(hit.book);
        }
        if let Some(load) = entry.load {
            self.counters.loads_cancelled += 1;
            self.cancels.push(load.id);
            self.draining.push((request.to_owned(), load));
        }
        false
    }

    /// Takes what the engine has gathered from all ranks: requests whose receive is over on every
    /// rank, those of them that failed on some rank, and blocks that hold no valid content.
    pub fn worker_output(&mut self, finished: &[&str], failed: &[&str], invalid_blocks: &[u32]) {
        if !invalid_blocks.is_empty() {
            self.blocks_failed(&invalid_blocks.iter().copied().collect());
        }
        for request in failed {
            self.mark_failed(request);
        }
        for request in finished {
            self.all_ranks_finished(request);
        }
    }

    pub(crate) fn new_key(&mut self) -> RequestKey {
        self.next_key += 1;
        RequestKey(self.next_key)
    }

    pub(crate) fn new_lookup(&mut self) -> LookupId {
        self.next_lookup += 1;
        LookupId(self.next_lookup)
    }

    pub(crate) fn release(&mut self, book: LeaseBook) {
        if !book.is_empty() {
            let grants = book.into_grants();
            self.commands
                .push_back(SchedulerCommand::Release { grants });
        }
    }

    /// A load has failed for blocks that are unambiguous: those of a block-level layout.
    fn blocks_failed(&mut self, invalid: &HashSet<u32>) {
        let hit =
            |load: &Load| load.sent && load.blocks.iter().any(|block| invalid.contains(block));
        for entry in self.entries.values_mut() {
            if let Some(load) = &mut entry.load
                && hit(load)
            {
                load.failed = true;
                entry.quarantined = true;
            }
        }
        for (_, load) in &mut self.draining {
            load.failed |= hit(load);
        }
    }

    fn mark_failed(&mut self, request: &str) {
        if let Some(at) = self.drains(request) {
            self.draining[at].1.failed = true;
        } else if let Some(entry) = self.entries.get_mut(request)
            && let Some(load) = entry.load.as_mut().filter(|load| load.sent)
        {
            load.failed = true;
            entry.quarantined = true;
        }
    }

    /// The load of an ended request that news of this name are about.
    fn drains(&self, request: &str) -> Option<usize> {
        let named = |(name, load): &(String, Load)| name == request && load.sent;
        self.draining.iter().position(named)
    }

    fn all_ranks_finished(&mut self, request: &str) {
        let load = match self.drains(request) {
            Some(at) => Some(self.draining.remove(at).1),
            None => match self.entries.get_mut(request) {
                Some(entry) => entry.load.take_if(|load| load.sent),
                None => None,
            },
        };
        match load {
            Some(load) => self.close(load),
            None => self.counters.late_completions += 1,
        }
    }

    fn rank_finished(&mut self, id: LoadId, rank: u32, failed: bool) {
        let ranks = self.ranks;
        let report = |load: &mut Load| {
            let first = load.sent && rank < ranks && !load.reports.contains_key(&rank);
            if first {
                load.reports.insert(rank, failed);
                load.failed |= failed;
            }
            first
        };
        let over = |load: &Load| load.reports.len() == usize::try_from(ranks).unwrap_or(usize::MAX);
        if let Some(at) = self.draining.iter().position(|(_, load)| load.id == id) {
            if !report(&mut self.draining[at].1) {
                self.counters.late_completions += 1;
            } else if over(&self.draining[at].1) {
                let (_, load) = self.draining.remove(at);
                self.close(load);
            }
            return;
        }
        let owner = self
            .entries
            .values_mut()
            .find(|entry| entry.key == id.request);
        let Some(entry) = owner else {
            self.counters.late_completions += 1;
            return;
        };
        let Some(load) = entry.load.as_mut().filter(|load| load.id == id) else {
            self.counters.late_completions += 1;
            return;
        };
        if !report(load) {
            self.counters.late_completions += 1;
            return;
        }
        entry.quarantined |= failed;
        if over(load) {
            let load = entry.load.take();
            load.into_iter().for_each(|load| self.close(load));
        }
    }

    pub(crate) fn close(&mut self, load: Load) {
        match load.failed {
            true => self.counters.loads_failed += 1,
            false => self.counters.loads_succeeded += 1,
        }
        self.release(load.book);
    }

    /// Panics with a message if the machine is broken.
    pub fn check_invariants(&self) {
        assert!(self.entries.len() <= self.config.limits.requests);
        let mut loads = HashSet::new();
        let mut keys = HashSet::new();
        for (name, entry) in &self.entries {
            assert!(keys.insert(entry.key), "{name} shares its key");
            if let Some(load) = &entry.load {
                assert!(loads.insert(load.id), "load {:?} is in two places", load.id);
                assert_eq!(load.id.request, entry.key, "{name} holds a foreign load");
                assert!(
                    !load.failed || entry.quarantined,
                    "{name} failed, not quarantined"
                );
            }
            if let Lookup::Hit(hit) = &entry.lookup {
                assert!(!entry.quarantined, "{name} is quarantined and has a hit");
                assert!(hit.boundary > hit.computed, "{name} has an empty hit");
                assert!(
                    hit.holders.len() <= hit.book.objects(),
                    "{name} promises unheld objects"
                );
                assert!(self.next_timeout <= hit.usable_until.after_nanos(1));
            }
            if let Lookup::Asked { id, .. } = &entry.lookup {
                assert!(self.questions.contains_key(id), "{name} waits for nobody");
            }
        }
        for (_, load) in &self.draining {
            assert!(loads.insert(load.id), "load {:?} is in two places", load.id);
        }
        for order in &self.orders {
            assert!(
                loads.contains(&order.load),
                "load {:?} is ordered and not awaited",
                order.load
            );
        }
    }
}

//! A machine, an engine's words for it, and a store that keeps the ledger of its leases.

use std::collections::{BTreeMap, BTreeSet};

use tessera_proto::{Incarnation, Instant, LeaseId, NamespaceDigest, ObjectId, Topology};

use crate::metadata::StepPlan;
use crate::scheduler::{
    Found, Held, LookupAnswer, LookupInput, NodeIndex, NotPromised, ScheduledRequest,
    SchedulerCommand, SchedulerConfig, SchedulerEvent, SchedulerLimits, SchedulerRoot, StepInput,
};
use crate::shape::{Axes, GroupKind, GroupSpec, Shape};
use crate::{LookupId, ids::LoadId};

pub(super) const CHUNK: u64 = 8;

/// A question that waits for its answer.
pub(super) struct Asked {
    pub(super) lookup: LookupId,
    pub(super) ids: Vec<ObjectId>,
}

pub(super) struct Scene {
    pub(super) root: SchedulerRoot,
    pub(super) now: Instant,
    pub(super) asked: Vec<Asked>,
    /// Objects that the store does not have; it has all others.
    pub(super) missing: BTreeSet<ObjectId>,
    /// What is leased: the lease and its objects.
    pub(super) ledger: BTreeMap<u64, BTreeSet<ObjectId>>,
    next_lease: u64,
}

pub(super) fn group(kind: GroupKind) -> GroupSpec {
    GroupSpec {
        kind,
        block_tokens: 4,
        replicated: Axes::default(),
    }
}

pub(super) fn config(kinds: &[GroupKind], tp: u32) -> SchedulerConfig {
    let topology = Topology {
        tp,
        ..Topology::SINGLE
    };
    let groups = kinds.iter().map(|kind| group(*kind)).collect();
    SchedulerConfig {
        namespace: NamespaceDigest([1; 32]),
        shape: Shape::new(groups, Some(CHUNK), 4, topology).unwrap(),
        loads: true,
        saves: true,
        lookup_timeout_ms: 100,
        load_timeout_ms: 5_000,
        lease_ms: 30_000,
        incarnation: 5,
        limits: SchedulerLimits::default(),
    }
}

/// The engine's hashes of `tokens` tokens of a prompt, two for each chunk.
pub(super) fn hashes(prompt: u8, tokens: u64) -> Vec<Vec<u8>> {
    (0..tokens / 4)
        .map(|unit| vec![prompt, u8::try_from(unit).unwrap(), 1])
        .collect()
}

impl Scene {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        Self {
            root: SchedulerRoot::new(config),
            now: Instant(1_000_000_000),
            asked: Vec::new(),
            missing: BTreeSet::new(),
            ledger: BTreeMap::new(),
            next_lease: 0,
        }
    }

    pub(super) fn full() -> Self {
        Self::new(config(&[GroupKind::Full], 1))
    }

    pub(super) fn hybrid() -> Self {
        let kinds = [
            GroupKind::Full,
            GroupKind::Window { tokens: 6 },
            GroupKind::State,
        ];
        Self::new(config(&kinds, 1))
    }

    /// Executes commands: releases at once, questions into the list.
    pub(super) fn drain(&mut self) {
        while let Some(command) = self.root.poll_command() {
            match command {
                SchedulerCommand::Acquire {
                    lookup,
                    ids,
                    lease_ms,
                    deadline,
                } => {
                    assert_eq!(lease_ms, 30_000);
                    assert!(self.now < deadline && deadline <= self.now.after_millis(100));
                    let distinct: BTreeSet<_> = ids.iter().collect();
                    assert_eq!(distinct.len(), ids.len(), "an object is asked for twice");
                    self.asked.push(Asked { lookup, ids });
                }
                SchedulerCommand::Release { grants } => {
                    assert!(!grants.is_empty(), "there is nothing to give back");
                    for grant in grants {
                        let lease = grant.held.lease.get();
                        let objects = self.ledger.get_mut(&lease).expect("a lease that was given");
                        for id in grant.ids {
                            assert!(objects.remove(&id), "released twice");
                        }
                        if objects.is_empty() {
                            self.ledger.remove(&lease);
                        }
                    }
                }
            }
        }
        self.root.check_invariants();
    }

    pub(super) fn later(&mut self, millis: u64) {
        self.now = self.now.after_millis(millis);
    }

    /// Answers the oldest question from what the store has.
    pub(super) fn answer(&mut self) {
        let asked = self.asked.remove(0);
        self.next_lease += 1;
        let held = Held {
            node: NodeIndex(0),
            incarnation: Incarnation(9),
            lease: LeaseId::new(self.next_lease).unwrap(),
        };
        let has = |id: &ObjectId| !self.missing.contains(id);
        let found = asked.ids.iter().map(|id| match has(id) {
            true => Found::Held(held),
            false => Found::Missing,
        });
        let event = SchedulerEvent::Acquired {
            lookup: asked.lookup,
            found: found.collect(),
            lease_ms: 30_000,
        };
        let leased: BTreeSet<ObjectId> = asked.ids.iter().filter(|id| has(id)).copied().collect();
        if !leased.is_empty() {
            self.ledger.insert(self.next_lease, leased);
        }
        self.root.handle_event(self.now, event);
        self.drain();
    }

    pub(super) fn lookup(&mut self, request: &str, tokens: u64, computed: u64) -> LookupAnswer {
        let hashes = hashes(request.as_bytes()[0], tokens);
        let block_hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        let input = LookupInput {
            request,
            num_tokens: tokens,
            computed_tokens: computed,
            block_hashes: &block_hashes,
            can_load: true,
        };
        let answer = self.root.lookup(self.now, input);
        self.drain();
        answer
    }

    /// A lookup with the nodes' answer: tokens that are promised.
    pub(super) fn promised(&mut self, request: &str, tokens: u64, computed: u64) -> Option<u64> {
        match self.lookup(request, tokens, computed).tokens {
            None => {
                self.answer();
                self.lookup(request, tokens, computed).tokens
            }
            decided => decided,
        }
    }

    pub(super) fn allocated(&mut self, request: &str, external: u64) -> Result<(), NotPromised> {
        let tables = tables(self.root.config.shape.groups().len(), 16);
        let result = self.root.allocated(request, &tables, external);
        self.drain();
        result
    }

    pub(super) fn step(&mut self, input: &StepInput) -> StepPlan {
        let plan = self.root.step(self.now, input);
        self.drain();
        plan
    }

    pub(super) fn schedule(&mut self, requests: &[ScheduledRequest]) -> StepPlan {
        self.step(&StepInput {
            scheduled: requests.to_vec(),
            ..StepInput::default()
        })
    }

    pub(super) fn output(&mut self, finished: &[&str], failed: &[&str], invalid: &[u32]) {
        self.root.worker_output(finished, failed, invalid);
        self.drain();
    }

    pub(super) fn finish(&mut self, request: &str) {
        assert!(
            !self.root.finished(request),
            "saves are copies: nothing is held back"
        );
        self.drain();
    }

    /// A load of everything that can be promised: its name.
    pub(super) fn load(&mut self, request: &str, tokens: u64) -> LoadId {
        let promised = self.promised(request, tokens, 0).unwrap();
        assert!(promised > 0, "nothing to load");
        self.allocated(request, promised).unwrap();
        let plan = self.step(&StepInput::default());
        assert_eq!(plan.loads.len(), 1);
        plan.loads[0].load
    }

    pub(super) fn leased(&self) -> usize {
        self.ledger.values().map(BTreeSet::len).sum()
    }
}

/// Whole tables of `blocks` blocks; every group counts from 1 anew, so that ids alias.
pub(super) fn tables(groups: usize, blocks: u32) -> Vec<Vec<u32>> {
    vec![(1..=blocks).collect(); groups]
}

/// A request that is new to the batch, with whole tables and all its hashes.
pub(super) fn new_request(request: &str, groups: usize, span: (u64, u64)) -> ScheduledRequest {
    let (computed_tokens, end) = span;
    ScheduledRequest {
        request: request.to_owned(),
        whole_tables: true,
        computed_tokens,
        scheduled_tokens: end - computed_tokens,
        blocks: tables(groups, u32::try_from(end.div_ceil(4)).unwrap()),
        hashes: hashes(request.as_bytes()[0], end),
        hashes_from: 0,
    }
}

/// A request of the batch that goes on without new blocks or hashes.
pub(super) fn next_step(request: &str, computed_tokens: u64, tokens: u64) -> ScheduledRequest {
    ScheduledRequest {
        request: request.to_owned(),
        computed_tokens,
        scheduled_tokens: tokens,
        ..ScheduledRequest::default()
    }
}

//! The cache nodes: objects by id, leases with a ledger.

use std::collections::{BTreeMap, BTreeSet};

use tessera_lifecycle::LookupId;
use tessera_lifecycle::scheduler::{Found, Held, LeaseGrant, NodeIndex, SchedulerEvent};
use tessera_proto::{Incarnation, KeyDigest, LeaseId, ObjectId};

use crate::random::Random;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tag {
    /// Bytes of no meaning.
    Junk,
    /// Block `index` of `group` of prompt `prompt`, computed from a sound prefix.
    Sound {
        prompt: u8,
        group: usize,
        index: u64,
        shard: usize,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<ObjectId, (KeyDigest, Vec<Tag>)>,
    leases: BTreeMap<u64, BTreeSet<ObjectId>>,
    next_lease: u64,
}

impl Store {
    pub(crate) fn leased(&self) -> usize {
        self.leases.values().map(BTreeSet::len).sum()
    }

    /// Objects go, as by eviction or a restart: leases do not hold against a restart.
    pub(crate) fn lose(&mut self, random: &mut Random) {
        let share = random.below(60);
        self.objects.retain(|_, _| !random.chance(share));
    }

    pub(crate) fn acquire(&mut self, lookup: LookupId, ids: &[ObjectId]) -> SchedulerEvent {
        self.next_lease += 1;
        let held = Held {
            node: NodeIndex(0),
            incarnation: Incarnation(1),
            lease: LeaseId::new(self.next_lease).unwrap(),
        };
        let has = |id: &ObjectId| self.objects.contains_key(id);
        let found = ids.iter().map(|id| match has(id) {
            true => Found::Held(held),
            false => Found::Missing,
        });
        let event = SchedulerEvent::Acquired {
            lookup,
            found: found.collect(),
            lease_ms: 60_000,
        };
        let leased: BTreeSet<ObjectId> = ids.iter().filter(|id| has(id)).copied().collect();
        if !leased.is_empty() {
            self.leases.insert(self.next_lease, leased);
        }
        event
    }

    pub(crate) fn release(&mut self, grants: Vec<LeaseGrant>) {
        for grant in grants {
            let lease = grant.held.lease.get();
            let leased = self.leases.get_mut(&lease).expect("a lease that was given");
            for id in grant.ids {
                assert!(leased.remove(&id), "an object is released twice");
            }
            if leased.is_empty() {
                self.leases.remove(&lease);
            }
        }
    }
}

//! The nodes as the client sees them: objects, leases, and what can happen to both.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tessera_lifecycle::scheduler::{Found, Held, LeaseGrant, NodeIndex};
use tessera_lifecycle::worker::{LoadFailure, SaveOutcome};
use tessera_proto::{Incarnation, Instant, KeyDigest, LeaseId, ObjectId};

use crate::random::Random;

/// The content of an object, block by block.
pub(crate) type Payload = Vec<Vec<u64>>;

#[derive(Debug)]
struct Lease {
    ids: BTreeSet<ObjectId>,
    until: Instant,
}

/// One node; more would only divide the objects.
#[derive(Debug)]
pub(crate) struct Nodes {
    incarnation: u128,
    objects: BTreeMap<ObjectId, (KeyDigest, Payload)>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: u64,
    /// Every id that a lease of this incarnation was granted for, until it was given back.
    granted: HashMap<(LeaseId, ObjectId), ()>,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        Self {
            incarnation: 1,
            objects: BTreeMap::new(),
            leases: BTreeMap::new(),
            next_lease: 0,
            granted: HashMap::new(),
        }
    }

    /// Leases what is there of `ids`.
    pub(crate) fn acquire(&mut self, ids: &[ObjectId], until: Instant) -> Vec<Found> {
        self.next_lease += 1;
        let lease = LeaseId::new(self.next_lease).expect("not zero");
        let held = Held {
            node: NodeIndex(0),
            incarnation: Incarnation(self.incarnation),
            lease,
        };
        let here: BTreeSet<_> = ids
            .iter()
            .copied()
            .filter(|id| self.objects.contains_key(id))
            .collect();
        let found = ids.iter().map(|id| match here.contains(id) {
            true => Found::Held(held),
            false => Found::Missing,
        });
        let found = found.collect();
        self.granted
            .extend(here.iter().map(|id| ((lease, *id), ())));
        if !here.is_empty() {
            self.leases.insert(lease, Lease { ids: here, until });
        }
        found
    }

    /// Takes leases back.
    ///
    /// # Panics
    /// If something is given back that was not held: a lease is released exactly once.
    pub(crate) fn release(&mut self, grants: &[LeaseGrant]) {
        for LeaseGrant { held, ids } in grants {
            if held.incarnation != Incarnation(self.incarnation) {
                continue;
            }
            for id in ids {
                let granted = self.granted.remove(&(held.lease, *id));
                assert!(
                    granted.is_some(),
                    "{id:?} was released twice under {held:?}"
                );
                if let Some(lease) = self.leases.get_mut(&held.lease) {
                    lease.ids.remove(id);
                }
            }
        }
        self.leases.retain(|_, lease| !lease.ids.is_empty());
    }

    /// Leases that nobody has given back.
    pub(crate) fn outstanding(&self) -> usize {
        self.granted.len()
    }

    pub(crate) fn get(&self, key: &KeyDigest, lease: Option<Held>) -> Result<Payload, LoadFailure> {
        let current = |held: Held| held.incarnation == Incarnation(self.incarnation);
        if !lease.is_none_or(current) {
            return Err(LoadFailure::LeaseOver);
        }
        match self.objects.get(&key.object_id()) {
            Some((stored, payload)) if stored == key => Ok(payload.clone()),
            Some(_) => Err(LoadFailure::Corrupt),
            None => Err(LoadFailure::Miss),
        }
    }

    pub(crate) fn store(&mut self, key: KeyDigest, payload: Payload) -> SaveOutcome {
        match self.objects.contains_key(&key.object_id()) {
            true => SaveOutcome::Existed,
            false => {
                self.objects.insert(key.object_id(), (key, payload));
                SaveOutcome::Stored
            }
        }
    }

    /// Evicts one object that is not leased, if there is one.
    pub(crate) fn evict(&mut self, random: &mut Random) {
        let leased = |id: &ObjectId| self.leases.values().any(|lease| lease.ids.contains(id));
        let free: Vec<_> = self
            .objects
            .keys()
            .copied()
            .filter(|id| !leased(id))
            .collect();
        if !free.is_empty() {
            self.objects.remove(&free[random.index(free.len())]);
        }
    }

    /// Ends the leases whose time is over: their objects may go.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.leases.retain(|_, lease| lease.until > now);
    }

    /// The node dies and comes back empty.
    pub(crate) fn restart(&mut self) {
        let incarnation = self.incarnation + 1;
        let next_lease = self.next_lease;
        *self = Self {
            incarnation,
            next_lease,
            ..Self::new()
        };
    }
}

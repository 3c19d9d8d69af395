//! Leases on objects of the disk tier: who holds which records until when.
//!
//! Called under the directory's lock. A lease here has the id of the RAM lease that was granted in
//! the same answer, or one of its own that nobody can guess. Invariant: every hold on a record is in
//! exactly one lease; a lease that is taken out is given back by whoever took it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use tessera_proto::{Instant, LeaseId, ObjectId};

use super::records::RecordId;
use crate::leases::OwnerId;

/// One lease.
#[derive(Debug)]
pub(crate) struct DiskLease {
    owner: OwnerId,
    deadline: Instant,
    /// It holds nothing in RAM.
    pub(crate) alone: bool,
    pub(crate) held: Vec<(ObjectId, RecordId)>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct DiskLeases {
    leases: HashMap<LeaseId, DiskLease>,
    ends: BTreeSet<(Instant, LeaseId)>,
    owners: HashMap<OwnerId, usize>,
    granted: u64,
    numbers: RandomState,
}

impl DiskLeases {
    /// Leases that an owner has here.
    pub(crate) fn of_owner(&self, owner: OwnerId) -> usize {
        self.owners.get(&owner).copied().unwrap_or(0)
    }

    /// Whether the lease holds until `now` at least.
    pub(crate) fn is_live(&self, lease: LeaseId, now: Instant) -> bool {
        let lease = self.leases.get(&lease);
        lease.is_some_and(|lease| lease.deadline > now)
    }

    /// Enters what was held, under `beside`, the RAM lease of the same answer, or a new id.
    pub(crate) fn enter(
        &mut self,
        beside: Option<LeaseId>,
        owner: OwnerId,
        deadline: Instant,
        held: Vec<(ObjectId, RecordId)>,
    ) -> LeaseId {
        let id = beside.unwrap_or_else(|| self.fresh_id());
        let alone = beside.is_none();
        self.ends.insert((deadline, id));
        *self.owners.entry(owner).or_default() += 1;
        self.leases.insert(
            id,
            DiskLease {
                owner,
                deadline,
                alone,
                held,
            },
        );
        id
    }

    /// Takes a whole lease out.
    pub(crate) fn end(&mut self, id: LeaseId) -> Option<DiskLease> {
        let lease = self.leases.remove(&id)?;
        self.ends.remove(&(lease.deadline, id));
        if let Some(count) = self.owners.get_mut(&lease.owner) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&lease.owner);
            }
        }
        Some(lease)
    }

    /// Takes some objects out of a lease.
    pub(crate) fn take(&mut self, id: LeaseId, ids: &[ObjectId]) -> Vec<RecordId> {
        let Some(lease) = self.leases.get_mut(&id) else {
            return Vec::new();
        };
        let wanted: HashSet<&ObjectId> = ids.iter().collect();
        let taken: Vec<_> = lease
            .held
            .extract_if(.., |(held, _)| wanted.contains(held))
            .map(|(_, record)| record)
            .collect();
        if lease.held.is_empty() {
            self.end(id);
        }
        taken
    }

    /// Takes out all leases of an owner.
    pub(crate) fn end_owner(&mut self, owner: OwnerId) -> Vec<DiskLease> {
        if !self.owners.contains_key(&owner) {
            return Vec::new();
        }
        let its = self.leases.iter().filter(|(_, lease)| lease.owner == owner);
        let ids: Vec<_> = its.map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.end(id)).collect()
    }

    /// Takes out all leases that are over.
    pub(crate) fn end_due(&mut self, now: Instant) -> Vec<DiskLease> {
        let mut due = Vec::new();
        while let Some((deadline, id)) = self.ends.first().copied()
            && deadline <= now
        {
            due.extend(self.end(id));
        }
        due
    }

    /// A number that was not used before: a keyed hash of a count.
    fn fresh_id(&mut self) -> LeaseId {
        loop {
            self.granted += 1;
            if let Some(id) = LeaseId::new(self.numbers.hash_one(self.granted))
                && !self.leases.contains_key(&id)
            {
                return id;
            }
        }
    }
}

//! Leases on objects of the disk tier: who holds which records until when.
//!
//! Called under the directory's lock. A lease here has the id of the RAM lease that was granted in
//! the same answer, or one of its own that nobody can guess. Invariant: every hold on a record is
//! in exactly one lease; a lease that is taken out is given back by whoever took it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use tessera_proto::message::{AcquireItem, Presence};
use tessera_proto::{Instant, LeaseId, ObjectId};

use super::records::RecordId;
use super::tier::DiskTier;
use crate::leases::OwnerId;

/// Of all disk bytes, what leases may hold: eviction then always finds something that may leave.
const LEASED_SHARE: u64 = 4;
/// Of these, what the leases of one owner may hold, as in RAM: others have the rest.
const OWNER_SHARE: u64 = 2;

/// One object under a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    id: ObjectId,
    pub(crate) record: RecordId,
    length_bytes: u64,
}

/// One lease.
#[derive(Debug)]
pub(crate) struct DiskLease {
    owner: OwnerId,
    deadline: Instant,
    /// It holds nothing in RAM.
    pub(crate) alone: bool,
    pub(crate) held: Vec<Held>,
}

/// What the leases of one owner come to.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    leases: usize,
    /// Payload bytes, each object once for each lease.
    bytes: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct DiskLeases {
    leases: HashMap<LeaseId, DiskLease>,
    ends: BTreeSet<(Instant, LeaseId)>,
    owners: HashMap<OwnerId, Share>,
    granted: u64,
    numbers: RandomState,
}

impl DiskLeases {
    /// Leases that hold something here.
    pub(crate) fn count(&self) -> usize {
        self.leases.len()
    }

    /// Leases that an owner has here.
    pub(crate) fn of_owner(&self, owner: OwnerId) -> usize {
        self.owners.get(&owner).map_or(0, |share| share.leases)
    }

    /// Payload bytes under the leases of an owner here.
    pub(crate) fn bytes_of_owner(&self, owner: OwnerId) -> u64 {
        self.owners.get(&owner).map_or(0, |share| share.bytes)
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
        held: Vec<Held>,
    ) -> LeaseId {
        let id = beside.unwrap_or_else(|| self.fresh_id());
        let alone = beside.is_none();
        self.ends.insert((deadline, id));
        let share = self.owners.entry(owner).or_default();
        share.leases += 1;
        share.bytes += bytes_of(&held);
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
        if let Some(share) = self.owners.get_mut(&lease.owner) {
            share.leases -= 1;
            share.bytes -= bytes_of(&lease.held);
            if share.leases == 0 {
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
        let is_wanted = |held: &mut Held| wanted.contains(&held.id);
        let taken: Vec<_> = lease.held.extract_if(.., is_wanted).collect();
        let is_over = lease.held.is_empty();
        if let Some(share) = self.owners.get_mut(&lease.owner) {
            share.bytes -= bytes_of(&taken);
        }
        if is_over {
            self.end(id);
        }
        taken.into_iter().map(|held| held.record).collect()
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

fn bytes_of(held: &[Held]) -> u64 {
    held.iter().map(|held| held.length_bytes).sum()
}

impl DiskTier {
    /// Leases on what is here of `ids`, for `owner` until `deadline` and up to `bytes_max`, in the
    /// lease `beside` if one is given. Returns the lease, if anything is held, and what was found.
    pub(crate) fn acquire(
        &self,
        (owner, beside, deadline): (OwnerId, Option<LeaseId>, Instant),
        ids: &[ObjectId],
        mut bytes_max: u64,
    ) -> (Option<LeaseId>, Vec<AcquireItem>) {
        let mut directory = self.shared.directory.lock();
        let full = directory.leases.of_owner(owner) >= self.shared.ram.owner_leases_max();
        let all_max = directory.capacity_bytes() / LEASED_SHARE;
        let own = directory.leases.bytes_of_owner(owner);
        bytes_max = bytes_max.min((all_max / OWNER_SHARE).saturating_sub(own));
        let mut held: HashMap<ObjectId, RecordId> = HashMap::new();
        let mut items = Vec::with_capacity(ids.len());
        for id in ids {
            let record = directory.find(id);
            // Also if another lease keeps it: else it could be kept for ever.
            let record = record.filter(|record| !directory.is_over(*record));
            let length_bytes = record.map_or(0, |record| {
                u64::from(directory.records.location(record).length_bytes)
            });
            let presence = match record {
                None => Presence::Missing,
                Some(_) if held.contains_key(id) => Presence::Held,
                Some(_) if full || length_bytes > bytes_max => Presence::Refused,
                Some(record) if directory.hold(record, all_max) => {
                    bytes_max -= length_bytes;
                    held.insert(*id, record);
                    Presence::Held
                }
                Some(_) => Presence::Refused,
            };
            let length_bytes = if presence == Presence::Held {
                length_bytes
            } else {
                0
            };
            items.push(AcquireItem {
                presence,
                length_bytes,
            });
        }
        if held.is_empty() {
            return (beside, items);
        }
        let held = held.into_iter().map(|(id, record)| Held {
            id,
            record,
            length_bytes: u64::from(directory.records.location(record).length_bytes),
        });
        let held = held.collect();
        let lease = directory.leases.enter(beside, owner, deadline, held);
        (Some(lease), items)
    }

    /// Whether a lease holds anything here until `now` at least.
    pub(crate) fn is_live(&self, lease: LeaseId, now: Instant) -> bool {
        self.shared.directory.lock().leases.is_live(lease, now)
    }

    /// Gives back what a lease holds here: of these ids, or of all.
    pub(crate) fn release(&self, lease: LeaseId, ids: Option<&[ObjectId]>) -> u64 {
        let mut directory = self.shared.directory.lock();
        let Some(ids) = ids else {
            let ended = directory.leases.end(lease);
            return directory.drop_leases(ended);
        };
        let taken = directory.leases.take(lease, ids);
        taken.iter().for_each(|record| directory.unhold(*record));
        taken.len() as u64
    }

    /// Ends the leases of an owner. Returns how many objects they held here.
    pub(crate) fn release_owner(&self, owner: OwnerId) -> u64 {
        let mut directory = self.shared.directory.lock();
        let ended = directory.leases.end_owner(owner);
        directory.drop_leases(ended)
    }

    /// Ends the leases that are over. Returns how many held nothing in RAM.
    pub(crate) fn expire(&self, now: Instant) -> u64 {
        let mut directory = self.shared.directory.lock();
        let due = directory.leases.end_due(now);
        let alone = due.iter().filter(|lease| lease.alone).count();
        directory.drop_leases(due);
        alone as u64
    }
}

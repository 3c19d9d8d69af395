//! Who holds which objects until when: the table of leases.
//!
//! Called by [`RamStore`](crate::RamStore), which takes and gives back the holds on the records;
//! this table only remembers them. Invariants: every hold of kind lease on a record is in exactly
//! one lease here, or on its way in or out in one thread's hands; a lease that left the table is
//! given back by whoever took it out, and by nobody else. The lock is held for a bounded number
//! of lookups.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use parking_lot::Mutex;
use tessera_proto::{Instant, LeaseId};

use crate::slots::SlotId;
use crate::stat::Count;

/// A lease whose table is filled to less than one in this many gives the rest back.
const SHRINK_BELOW: usize = 4;

/// Names the owner of leases: one connection. What it holds ends when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub u64);

/// What one lease holds.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) owner: OwnerId,
    pub(crate) deadline: Instant,
    /// By the hash of their ids.
    pub(crate) slots: HashTable<SlotId>,
    /// Bytes that the owner holds under all its leases.
    pub(crate) purse: Arc<Count>,
}

/// One owner.
#[derive(Debug, Default)]
struct Owner {
    purse: Arc<Count>,
    leases: HashSet<LeaseId>,
    acquiring: usize,
}

#[derive(Debug, Default)]
struct Table {
    leases: HashMap<LeaseId, Lease>,
    owners: HashMap<OwnerId, Owner>,
    ends: BTreeSet<(Instant, LeaseId)>,
    granted: u64,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Leases {
    table: Mutex<Table>,
    /// The earliest deadline, so that asking whether one has passed takes no lock.
    next_end: AtomicU64,
    numbers: RandomState,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self {
            table: Mutex::default(),
            next_end: AtomicU64::new(Instant::NEVER.0),
            numbers: RandomState::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.table.lock().leases.len()
    }

    /// Begins an acquire of `owner`: its purse. [`enter`](Self::enter) ends it.
    pub(crate) fn begin(&self, owner: OwnerId) -> Arc<Count> {
        let mut table = self.table.lock();
        let owner = table.owners.entry(owner).or_default();
        owner.acquiring += 1;
        Arc::clone(&owner.purse)
    }

    /// Ends an acquire: enters the lease, unless it holds nothing or its owner has `owner_max`
    /// already; it then comes back.
    pub(crate) fn enter(&self, lease: Lease, owner_max: usize) -> Result<LeaseId, Lease> {
        let mut table = self.table.lock();
        let number = lease.owner;
        let owner = table
            .owners
            .get_mut(&number)
            .expect("acquiring keeps it here");
        owner.acquiring -= 1;
        if lease.slots.is_empty() || owner.leases.len() >= owner_max {
            table.forget_if_idle(number);
            return Err(lease);
        }
        let id = table.fresh_id(&self.numbers);
        table.ends.insert((lease.deadline, id));
        if let Some(owner) = table.owners.get_mut(&number) {
            owner.leases.insert(id);
        }
        table.leases.insert(id, lease);
        self.note_next_end(&table);
        Ok(id)
    }

    pub(crate) fn is_live(&self, lease: LeaseId, now: Instant) -> bool {
        let table = self.table.lock();
        table
            .leases
            .get(&lease)
            .is_some_and(|lease| now < lease.deadline)
    }

    /// Takes a lease out.
    pub(crate) fn end(&self, id: LeaseId) -> Option<Lease> {
        let mut table = self.table.lock();
        let lease = table.end(id);
        self.note_next_end(&table);
        lease
    }

    /// Takes out what a lease holds of a few records, given by hash and a test. The purse comes
    /// with them; the lease ends with its last record, and a table that is mostly empty shrinks.
    pub(crate) fn take(
        &self,
        id: LeaseId,
        wanted: impl Iterator<Item = u64>,
        mut is_it: impl FnMut(usize, SlotId) -> bool,
        hash_of: impl Fn(&SlotId) -> u64,
    ) -> Option<(Vec<SlotId>, Arc<Count>)> {
        let mut table = self.table.lock();
        let lease = table.leases.get_mut(&id)?;
        let mut taken = Vec::new();
        for (at, hash) in wanted.enumerate() {
            if let Ok(entry) = lease.slots.find_entry(hash, |slot| is_it(at, *slot)) {
                taken.push(entry.remove().0);
            }
        }
        if lease.slots.len() < lease.slots.capacity() / SHRINK_BELOW {
            lease.slots.shrink_to_fit(hash_of);
        }
        let (purse, empty) = (Arc::clone(&lease.purse), lease.slots.is_empty());
        if empty {
            table.end(id);
            self.note_next_end(&table);
        }
        Some((taken, purse))
    }

    /// Takes out all leases of an owner.
    pub(crate) fn end_owner(&self, owner: OwnerId) -> Vec<Lease> {
        let mut table = self.table.lock();
        let ids = match table.owners.get(&owner) {
            Some(owner) => owner.leases.iter().copied().collect(),
            None => Vec::new(),
        };
        let leases = ids.into_iter().filter_map(|id| table.end(id)).collect();
        self.note_next_end(&table);
        leases
    }

    /// Takes out the leases whose deadline is not after `now`.
    pub(crate) fn end_due(&self, now: Instant) -> Vec<Lease> {
        if now.0 < self.next_end.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut table = self.table.lock();
        let mut due = Vec::new();
        while let Some((deadline, id)) = table.ends.first().copied()
            && deadline <= now
        {
            due.extend(table.end(id));
        }
        self.note_next_end(&table);
        due
    }

    fn note_next_end(&self, table: &Table) {
        let next = table.ends.first().map_or(Instant::NEVER, |(end, _)| *end);
        self.next_end.store(next.0, Ordering::Release);
    }
}

impl Table {
    fn end(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        self.ends.remove(&(lease.deadline, id));
        if let Some(owner) = self.owners.get_mut(&lease.owner) {
            owner.leases.remove(&id);
        }
        self.forget_if_idle(lease.owner);
        Some(lease)
    }

    fn forget_if_idle(&mut self, number: OwnerId) {
        if let Some(owner) = self.owners.get(&number)
            && owner.leases.is_empty()
            && owner.acquiring == 0
        {
            self.owners.remove(&number);
        }
    }

    /// A number that was not used before and that nobody can guess: a keyed hash of a count.
    fn fresh_id(&mut self, numbers: &RandomState) -> LeaseId {
        loop {
            self.granted += 1;
            if let Some(id) = LeaseId::new(numbers.hash_one(self.granted))
                && !self.leases.contains_key(&id)
            {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_proto::{KeyDigest, NamespaceDigest, ObjectHeader, ObjectId, TenantTag, WriteId};

    use super::*;
    use crate::config::StoreConfig;
    use crate::ram::{Published, RamStore};

    const T0: Instant = Instant(0);

    fn put(store: &RamStore, number: u64) -> ObjectId {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        let header = ObjectHeader {
            namespace: NamespaceDigest([7; 32]),
            key: KeyDigest(key),
            layout: 1,
            length_bytes: 100,
            checksum: 0,
            write: WriteId(1),
            tenant: TenantTag::NONE,
        };
        let extent = store.reserve(100, T0).expect("room");
        let published = store.publish(extent, header.id(), header, T0);
        assert_eq!(published, Published::Stored);
        header.id()
    }

    /// Records for which the leases of the store have room.
    fn room(store: &RamStore) -> usize {
        let table = store.core.leases.table.lock();
        let rooms = table.leases.values().map(|lease| lease.slots.capacity());
        rooms.sum()
    }

    #[test]
    fn lease_takes_memory_for_what_it_holds_and_not_for_what_was_asked() {
        let store = RamStore::new(StoreConfig::with_capacity(1 << 20)).expect("a small arena");
        let held: Vec<_> = (0..500).map(|number| put(&store, number)).collect();
        let mut ids = vec![ObjectId([9; 16]); 16_384];
        ids[77] = held[0];
        let acquired = store.acquire(OwnerId(1), &ids, 1_000, u64::MAX, T0);
        assert!(acquired.lease.is_some());
        assert!(room(&store) <= 8, "room for {} records", room(&store));
        store.release_owner(OwnerId(1));

        let acquired = store.acquire(OwnerId(1), &held, 1_000, u64::MAX, T0);
        let lease = acquired.lease.expect("all are held");
        assert_eq!(store.release(lease, Some(&held[1..])), 499);
        assert!(room(&store) <= 8, "room for {} records", room(&store));
        assert_eq!(store.release(lease, Some(&held)), 1);
        assert_eq!(store.stat().leases, 0);
    }
}

//! Finds objects by id: hash tables of record numbers, in shards.
//!
//! Called by every operation. A reader takes the read lock of one shard, and what he does with
//! the record under it (pin it, lease it) cannot race with its leaving the index, which takes the
//! write lock. Entries come and go only under the space lock; the order of locks is space, shard.
//! The hash is keyed by a random number of this process, so that no client can aim at one shard.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use parking_lot::RwLock;
use tessera_proto::ObjectId;

use crate::slots::{Slot, SlotId, Slots};

const SHARD_BITS: u32 = 6;

/// The index.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[RwLock<HashTable<SlotId>>]>,
    keys: RandomState,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..1 << SHARD_BITS).map(|_| RwLock::default()).collect(),
            keys: RandomState::new(),
        }
    }

    /// Its memory, bytes.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| shard.read().allocation_size()).sum()
    }

    /// The hash of an id: uniform, and known to nobody outside.
    pub(crate) fn hash(&self, id: &ObjectId) -> u64 {
        self.keys.hash_one(id.0)
    }

    /// Calls `visit` with the record of `id`, which stays in the index during the call.
    pub(crate) fn visit<R>(
        &self,
        slots: &Slots,
        id: &ObjectId,
        visit: impl FnOnce(SlotId, &Slot) -> R,
    ) -> Option<R> {
        self.visit_hashed(slots, id, self.hash(id), visit)
    }

    /// The same with the hash of `id` known.
    pub(crate) fn visit_hashed<R>(
        &self,
        slots: &Slots,
        id: &ObjectId,
        hash: u64,
        visit: impl FnOnce(SlotId, &Slot) -> R,
    ) -> Option<R> {
        let shard = self.shard(hash).read();
        let slot = *shard.find(hash, |slot| slots[*slot].id() == *id)?;
        Some(visit(slot, &slots[slot]))
    }

    /// Enters a record, unless its id is there already.
    pub(crate) fn enter(&self, slots: &Slots, slot: SlotId) -> bool {
        let id = slots[slot].id();
        let hash = self.hash(&id);
        let mut shard = self.shard(hash).write();
        if shard.find(hash, |other| slots[*other].id() == id).is_some() {
            return false;
        }
        shard.insert_unique(hash, slot, |other| self.hash(&slots[*other].id()));
        true
    }

    /// Takes a record out if `allow` agrees while no reader can reach it.
    pub(crate) fn leave(
        &self,
        slots: &Slots,
        slot: SlotId,
        allow: impl FnOnce(&Slot) -> bool,
    ) -> bool {
        let hash = self.hash(&slots[slot].id());
        let mut shard = self.shard(hash).write();
        let Ok(entry) = shard.find_entry(hash, |other| *other == slot) else {
            return false;
        };
        let allowed = allow(&slots[slot]);
        if allowed {
            entry.remove();
        }
        allowed
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    fn shard(&self, hash: u64) -> &RwLock<HashTable<SlotId>> {
        // The tables use the low bits for the place and the top seven as a tag.
        let at = (hash >> 48) & ((1 << SHARD_BITS) - 1);
        &self.shards[usize::try_from(at).expect("below the number of shards")]
    }
}

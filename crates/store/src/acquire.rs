//! Lookups in memory: what is there is leased, and used.
//!
//! Called by the node for every ACQUIRE. Invariants: each hold of a lease is within the bounds of
//! the lookup, of its owner and of the store; what the lookup leased has moved in the order of
//! eviction when it is answered, so that reads under the lease need not.

use hashbrown::HashTable;
use parking_lot::MutexGuard;
use tessera_proto::message::{AcquireItem, Presence};
use tessera_proto::{Instant, LeaseId, ObjectId};

use crate::leases::{Lease, OwnerId};
use crate::ram::RamStore;
use crate::slots::{Slot, SlotId};

/// Objects of a lookup that are moved for one hold of the space lock.
const USE_STEP: usize = 256;

/// What an acquire found, and the lease under which it holds that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The lease, if anything is held.
    pub lease: Option<LeaseId>,
    /// When it ends.
    pub deadline: Instant,
    /// One for each id, in order.
    pub items: Vec<AcquireItem>,
}

impl RamStore {
    /// Leases every object of `ids` that is here, in order, for `ttl_ns` and up to `max_bytes`.
    /// An object beyond a bound is `Refused`, a repeated id is held once.
    ///
    /// The owner must not be released before its last acquire has returned.
    #[must_use]
    pub fn acquire(
        &self,
        owner: OwnerId,
        ids: &[ObjectId],
        ttl_ns: u64,
        max_bytes: u64,
        now: Instant,
    ) -> Acquired {
        self.expire(now);
        let limits = &self.core.config.leases;
        let mut basket = Lease {
            owner,
            deadline: now.after_nanos(ttl_ns.min(limits.ttl_ns_max)),
            // Grown by what is found: whoever asks for much and finds little holds little.
            slots: HashTable::new(),
            purse: self.core.leases.begin(owner),
        };
        let (mut left, mut held) = (max_bytes, Vec::new());
        let mut items: Vec<_> = ids
            .iter()
            .map(|id| self.hold(id, (&mut basket, &mut held), &mut left))
            .collect();
        let deadline = basket.deadline;
        let lease = match self.core.leases.enter(basket, limits.owner_leases_max) {
            Ok(lease) => Some(lease),
            Err(basket) => {
                self.core.drop_leases(vec![basket]);
                held.clear();
                for item in items
                    .iter_mut()
                    .filter(|item| item.presence == Presence::Held)
                {
                    *item = refused();
                }
                None
            }
        };
        self.use_now(&held);
        let count = items
            .iter()
            .filter(|item| item.presence == Presence::Refused)
            .count();
        self.core.counters.leases_refused.add(count as u64);
        Acquired {
            lease,
            deadline,
            items,
        }
    }

    /// Takes one hold of kind lease for `basket`.
    fn hold(
        &self,
        id: &ObjectId,
        (basket, held): (&mut Lease, &mut Vec<SlotId>),
        left: &mut u64,
    ) -> AcquireItem {
        let core = &self.core;
        let hash = core.index.hash(id);
        let found = core
            .index
            .visit_hashed(&core.slots, id, hash, |slot, record| {
                // Also one that another lease keeps: else it could be kept for ever.
                if core.is_over(slot) {
                    return missing();
                }
                let length_bytes = u64::from(record.measure.get());
                if basket.slots.find(hash, |held| *held == slot).is_none() {
                    if length_bytes > *left || !self.lease_record(record, basket) {
                        return refused();
                    }
                    *left -= length_bytes;
                    let hash_of = |slot: &SlotId| core.index.hash(&core.slots[*slot].id());
                    basket.slots.insert_unique(hash, slot, hash_of);
                    held.push(slot);
                }
                AcquireItem {
                    presence: Presence::Held,
                    length_bytes,
                }
            });
        found.unwrap_or_else(missing)
    }

    /// Notes that a lookup used these objects, in their order.
    fn use_now(&self, held: &[SlotId]) {
        let core = &self.core;
        let mut space = core.space.lock();
        let round = space.begin_round();
        for (step, slots) in held.chunks(USE_STEP).enumerate() {
            if step > 0 {
                MutexGuard::bump(&mut space);
            }
            for slot in slots {
                space.use_now(&core.slots, *slot, round);
            }
        }
    }

    /// Adds a lease to a record within the bounds of its owner and of the store.
    fn lease_record(&self, record: &Slot, basket: &Lease) -> bool {
        let core = &self.core;
        // Objects may be as small as a unit and have many leases: what remembers them all stays
        // small beside the arena.
        let holds_max = u64::from(core.geometry.units());
        if !core.counters.lease_holds.add_within(1, holds_max) {
            return false;
        }
        let is_leased = self.lease_bytes(record, basket);
        if !is_leased {
            core.counters.lease_holds.sub(1);
        }
        is_leased
    }

    fn lease_bytes(&self, record: &Slot, basket: &Lease) -> bool {
        let limits = &self.core.config.leases;
        let leased_bytes = &self.core.counters.leased_bytes;
        let bytes = u64::from(record.measure.get());
        if !basket.purse.add_within(bytes, limits.owner_bytes_max) {
            return false;
        }
        loop {
            let state = record.state();
            let first = state.leases() == 0;
            let Some(leased) = state.leased() else { break };
            if first && !leased_bytes.add_within(bytes, limits.store_bytes_max) {
                break;
            }
            if record.exchange(state, leased) {
                return true;
            }
            if first {
                leased_bytes.sub(bytes);
            }
        }
        basket.purse.sub(bytes);
        false
    }
}

fn missing() -> AcquireItem {
    without(Presence::Missing)
}

fn refused() -> AcquireItem {
    without(Presence::Refused)
}

fn without(presence: Presence) -> AcquireItem {
    AcquireItem {
        presence,
        length_bytes: 0,
    }
}

//! The RAM tier.
//!
//! Called by the node for every operation on objects. It opens no file and no socket and reads no
//! clock: time is a parameter, and any call that is told the time also ends the leases that are
//! over by then.
//!
//! Invariants: an object is whole or absent; an object that is leased or pinned is not evicted;
//! what is removed is never found again; the bytes behind a pin do not change.

use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::MutexGuard;
use tessera_proto::{
    Instant, LeaseId, NamespaceDigest, ObjectHeader, ObjectId, TenantTag, WriteId,
};

use crate::config::{StoreConfig, StoreError, TenantLimits};
use crate::core::Core;
use crate::guard::{ReadPin, WriteExtent};
use crate::leases::OwnerId;
use crate::prices::Prices;
use crate::slots::{Slot, SlotId};
use crate::space::{Effort, Room};
use crate::stat::{StoreStat, TenantStat};
use crate::state::{Kind, Queue, State};

/// Ids of a release that are looked up for one hold of the lease table's lock.
const RELEASE_STEP: usize = 256;

/// Why there is no memory for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveRefusal {
    /// No room could be made: too much is leased, pinned or being written. Try again later.
    #[error("no room for the object now: too much is leased or being read")]
    NoSpace,
    /// The object is larger than this store takes. Do not try again.
    #[error("the object is larger than this store takes")]
    TooLarge,
    /// An object has one byte at least. Do not try again.
    #[error("an object has one byte at least")]
    Empty,
}

/// How a publication ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The object is whole and visible.
    Stored,
    /// It was there already, and stays as it was; the new bytes are dropped.
    Existed,
    /// The header speaks of another id or another length than the extent has, or the extent is
    /// of another store: nothing was published.
    Mismatch,
}

/// Objects in memory. Clones are one store.
#[derive(Clone, Debug)]
pub struct RamStore {
    pub(crate) core: Arc<Core>,
}

impl RamStore {
    /// Maps the arena and faults it in.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn new(config: StoreConfig) -> Result<Self, StoreError> {
        let core = Arc::new(Core::new(config)?);
        Ok(Self { core })
    }

    /// Memory for an object of `length_bytes` of a tenant without a name, evicting others as
    /// needed.
    ///
    /// # Errors
    /// See [`ReserveRefusal`].
    pub fn reserve(&self, length_bytes: u64, now: Instant) -> Result<WriteExtent, ReserveRefusal> {
        self.reserve_for(TenantTag::NONE, length_bytes, now)
    }

    /// Memory for an object of `length_bytes` of a tenant, evicting others as needed.
    ///
    /// # Errors
    /// See [`ReserveRefusal`].
    pub fn reserve_for(
        &self,
        tenant: TenantTag,
        length_bytes: u64,
        now: Instant,
    ) -> Result<WriteExtent, ReserveRefusal> {
        let core = &self.core;
        if length_bytes > core.config.max_object_bytes {
            core.counters.refused_too_large.add(1);
            return Err(ReserveRefusal::TooLarge);
        }
        let length = u32::try_from(length_bytes).map_err(|_| ReserveRefusal::TooLarge)?;
        if length == 0 {
            return Err(ReserveRefusal::Empty);
        }
        self.expire(now);
        let mut effort = Effort::default();
        loop {
            let mut space = core.space.lock();
            match space.make_room(&core.slots, &core.index, (tenant, length), &mut effort) {
                Room::Made(slot) => {
                    drop(space);
                    return Ok(WriteExtent::new(Arc::clone(core), slot));
                }
                Room::NotYet => MutexGuard::unlock_fair(space),
                Room::None => {
                    core.counters.refused_no_space.add(1);
                    return Err(ReserveRefusal::NoSpace);
                }
            }
        }
    }

    /// Notes what it costs to compute again what the objects of a namespace hold: of those that are
    /// published from now on, a dear one stays for longer than a cheap one of its tenant.
    /// The price is in nanoseconds for a KiB.
    pub fn price(&self, namespace: NamespaceDigest, ns_per_kib: NonZeroU32) {
        self.core.prices.note(namespace, ns_per_kib);
    }

    /// The prices of all namespaces.
    pub(crate) fn prices(&self) -> &Prices {
        &self.core.prices
    }

    /// Makes the object visible, whole. The caller has compared the checksum of the bytes with
    /// the header's: the store does not read them again.
    pub fn publish(
        &self,
        extent: WriteExtent,
        id: ObjectId,
        header: ObjectHeader,
        now: Instant,
    ) -> Published {
        self.expire(now);
        let state = (State::new(Kind::Stored), self.now_s());
        match self.enter(extent, id, header, state) {
            Ok(_) => Published::Stored,
            Err(published) => published,
        }
    }

    /// Publishes an object with a pin on it, so that it cannot leave before the caller is done. It
    /// was stored in second `stored_s`, here or on a disk.
    pub(crate) fn publish_pinned(
        &self,
        extent: WriteExtent,
        id: ObjectId,
        header: ObjectHeader,
        stored_s: u32,
    ) -> Result<ReadPin, Published> {
        let state = (State::stored_and_pinned(), stored_s);
        let slot = self.enter(extent, id, header, state)?;
        self.core.counters.pins.add(1);
        Ok(ReadPin::new(Arc::clone(&self.core), slot, header))
    }

    /// Makes an extent an object, stored in second `stored_s`. The error says why it is none.
    fn enter(
        &self,
        extent: WriteExtent,
        id: ObjectId,
        header: ObjectHeader,
        (state, stored_s): (State, u32),
    ) -> Result<SlotId, Published> {
        let core = &self.core;
        if header.id() != id || header.length_bytes != extent.len() as u64 {
            return Err(Published::Mismatch);
        }
        let slot = extent.into_slot(core).ok_or(Published::Mismatch)?;
        let state = state.with_class(core.prices.class(&header.namespace));
        core.slots[slot].set_id(&id);
        core.write_header(slot, &header, stored_s);
        let mut space = core.space.lock();
        if space.dropping.contains(&header.namespace) {
            space.give_back(&core.slots, slot);
            return Err(Published::Stored); // Until it was dropped, now.
        }
        self.bury(&mut space, &id);
        if space.publish(&core.slots, &core.index, slot, (header.tenant, state)) {
            return Ok(slot);
        }
        space.give_back(&core.slots, slot);
        drop(space);
        core.counters.existed.add(1);
        Err(Published::Existed)
    }

    /// Whether a reader would find the object. A promise only under a lease; here to spare a
    /// writer the transfer of what is there already.
    #[must_use]
    pub fn contains(&self, id: &ObjectId) -> bool {
        let is_gone = |slot, _: &Slot| self.core.is_gone(slot);
        self.core.index.visit(&self.core.slots, id, is_gone) == Some(false)
    }

    /// The object, kept as it is until the pin is dropped. `lease` names the promise on which the
    /// reader relies: one that has ended is counted, and the object is found or not as for anyone.
    #[must_use]
    pub fn pin(&self, id: &ObjectId, lease: Option<LeaseId>, now: Instant) -> Option<ReadPin> {
        self.expire(now);
        let promised = self.is_promised(lease, now);
        let found = self.find(id, promised);
        if found.is_none() {
            self.count_miss();
        }
        found
    }

    /// Whether a read relies on a lease that holds; one that has ended is counted.
    pub(crate) fn is_promised(&self, lease: Option<LeaseId>, now: Instant) -> bool {
        let core = &self.core;
        let Some(lease) = lease else { return false };
        let live = core.leases.is_live(lease, now);
        core.counters.late_reads.add(u64::from(!live));
        live
    }

    /// Counts a read that did not find its object anywhere.
    pub(crate) fn count_miss(&self) {
        self.core.counters.misses.add(1);
    }

    /// Most leases of one owner.
    pub(crate) fn owner_leases_max(&self) -> usize {
        self.core.config.leases.owner_leases_max
    }

    /// The object, if it is here; a miss is the caller's to count. What is read under a promise was
    /// used when that was made.
    pub(crate) fn find(&self, id: &ObjectId, promised: bool) -> Option<ReadPin> {
        let found = self.pin_as_it_is(id)?;
        if !promised {
            self.use_alone(found.slot());
        }
        self.core.counters.hits.add(1);
        Some(found)
    }

    /// The object, if it is still here, for a reader who was counted when it came into memory for
    /// him and who let it go until now.
    #[must_use]
    pub fn pin_again(&self, id: &ObjectId) -> Option<ReadPin> {
        self.pin_as_it_is(id)
    }

    /// Whether somebody asked for an object since it was stored, or before it left memory lately.
    pub(crate) fn was_seen(&self, pin: &ReadPin) -> bool {
        let state = self.core.slots[pin.slot()].state();
        state.queue() == Queue::Proven || state.is_touched()
    }

    /// The object, if it is to stay: not while its namespace is dropped. For who holds a lock that
    /// keeps drops and removals from beginning.
    pub(crate) fn pin_for_disk(&self, id: &ObjectId) -> Option<ReadPin> {
        let pin = self.pin_as_it_is(id)?;
        let stays = {
            let space = self.core.space.lock();
            let kind = self.core.slots[pin.slot()].kind();
            kind == Kind::Stored && !space.dropping.contains(&pin.header().namespace)
        };
        stays.then_some(pin)
    }

    fn pin_as_it_is(&self, id: &ObjectId) -> Option<ReadPin> {
        let core = &self.core;
        let pin = |slot: SlotId, record: &Slot| {
            let pinned = record.change(State::pinned);
            pinned.is_ok().then_some(slot)
        };
        let slot = core.index.visit(&core.slots, id, pin).flatten()?;
        if core.is_gone(slot) {
            self.bury(&mut core.space.lock(), id);
            core.drop_hold(slot, State::PIN);
            return None;
        }
        let Some(header) = core.read_header(slot) else {
            core.counters.damaged.add(1);
            self.remove_slot(slot);
            core.drop_hold(slot, State::PIN);
            return None;
        };
        core.counters.pins.add(1);
        core.readers.note(core.slots[slot].state().tenant());
        Some(ReadPin::new(Arc::clone(core), slot, header))
    }

    /// Gives back what a lease holds: of these ids, or of all, which ends it. Returns how many
    /// objects it held of them; zero for a lease that has ended.
    pub fn release(&self, lease: LeaseId, ids: Option<&[ObjectId]>) -> u64 {
        let core = &self.core;
        let Some(ids) = ids else {
            return core.drop_leases(core.leases.end(lease).into_iter().collect());
        };
        let mut released = 0;
        for ids in ids.chunks(RELEASE_STEP) {
            let hashes = ids.iter().map(|id| core.index.hash(id));
            let is_it = |at: usize, slot: SlotId| core.slots[slot].id() == ids[at];
            let hash_of = |slot: &SlotId| core.index.hash(&core.slots[*slot].id());
            let Some((slots, purse)) = core.leases.take(lease, hashes, is_it, hash_of) else {
                break;
            };
            released += slots.len() as u64;
            for slot in slots {
                core.drop_lease_hold(slot, &purse);
            }
        }
        released
    }

    /// Ends every lease of an owner. Returns how many objects they held.
    pub fn release_owner(&self, owner: OwnerId) -> u64 {
        self.core.drop_leases(self.core.leases.end_owner(owner))
    }

    /// Ends every lease whose deadline has come. Returns how many.
    pub fn expire(&self, now: Instant) -> u64 {
        self.core.ages.note(now);
        let due = self.core.leases.end_due(now);
        let ended = due.len() as u64;
        if ended > 0 {
            self.core.counters.leases_expired.add(ended);
            self.core.drop_leases(due);
        }
        ended
    }

    /// Removes an object for good, only this write of it if one is named: once this returns, no
    /// reader finds it, leased or not. Reads that began before go on undisturbed, and its memory
    /// is free when the last hold on it ends. True if it was there.
    pub fn remove(&self, id: &ObjectId, write: Option<WriteId>) -> bool {
        let core = &self.core;
        let mut space = core.space.lock();
        let Some(slot) = core.index.visit(&core.slots, id, |slot, _| slot) else {
            return false;
        };
        // A header that cannot be read is no write's: whoever asks, the object must go.
        let newer = write.is_some_and(|write| {
            core.read_header(slot)
                .is_some_and(|header| header.write != write)
        });
        let gone = core.is_gone(slot);
        if !newer {
            space.remove(&core.slots, &core.index, slot);
        }
        !newer && !gone
    }

    /// What the store holds and what happened to it.
    #[must_use]
    pub fn stat(&self) -> StoreStat {
        let core = &self.core;
        let (population, free_bytes) = {
            let space = core.space.lock();
            (space.population(), space.free_bytes())
        };
        let counters = &core.counters;
        StoreStat {
            objects: population.objects,
            bytes: population.bytes,
            capacity_bytes: core.geometry.bytes(core.geometry.units()),
            free_bytes,
            reserved_bytes: population.reserved_bytes,
            leased_bytes: counters.leased_bytes.get(),
            leases: core.leases.count() as u64,
            pins: counters.pins.get(),
            hits: counters.hits.get(),
            misses: counters.misses.get(),
            stored: population.stored,
            existed: counters.existed.get(),
            evictions: population.evicted,
            evicted_bytes: population.evicted_bytes,
            removed: population.removed,
            refused_no_space: counters.refused_no_space.get(),
            refused_too_large: counters.refused_too_large.get(),
            leases_refused: counters.leases_refused.get(),
            leases_expired: counters.leases_expired.get(),
            late_reads: counters.late_reads.get(),
            expired: counters.expired.get(),
            damaged: counters.damaged.get(),
        }
    }

    /// Whether any tenant has a limit.
    #[must_use]
    pub fn has_tenants(&self) -> bool {
        self.core.config.tenants != TenantLimits::default()
    }

    /// What each tenant with a name in the limits holds, and all others together, which come last
    /// and without a name.
    #[must_use]
    pub fn tenants(&self) -> Vec<TenantStat> {
        let space = self.core.space.lock();
        space.tenants(&self.core.config.tenants)
    }

    /// Notes that a reader who looked nothing up uses an object that he holds. He does not wait for
    /// the lock: while another has it, the object is marked.
    fn use_alone(&self, slot: SlotId) {
        let core = &self.core;
        match core.space.try_lock() {
            Some(mut space) => space.use_alone(&core.slots, slot),
            None => core.slots[slot].mark(),
        }
    }

    /// Removes an object that the caller holds, unless somebody did already.
    fn remove_slot(&self, slot: SlotId) {
        let mut space = self.core.space.lock();
        if self.core.slots[slot].kind() == Kind::Stored {
            space.remove(&self.core.slots, &self.core.index, slot);
        }
    }
}

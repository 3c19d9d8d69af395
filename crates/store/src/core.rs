//! The parts of a store, and what the guards need of them.
//!
//! Called by [`RamStore`](crate::RamStore) and by the guards, which keep it alive. Locks: space,
//! then a shard of the index; the lease table is never locked together with either. Memory of an
//! extent is touched here only while its record is reserved in the caller's name or held by him.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;
use tessera_proto::{OBJECT_HEADER_BYTES, ObjectHeader};

use crate::ages::Ages;
use crate::arena::Arena;
use crate::config::{StoreConfig, StoreError};
use crate::geometry::Geometry;
use crate::index::Index;
use crate::leases::{Lease, Leases};
use crate::prices::Prices;
use crate::slots::{SlotId, Slots};
use crate::space::Space;
use crate::stamp::{read_stamped, stamped};
use crate::stat::{Count, Counters};
use crate::state::{Kind, Queue, State};
use crate::tenants::{Readers, Tenants};

/// The parts of a store.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: StoreConfig,
    pub(crate) geometry: Geometry,
    pub(crate) slots: Slots,
    pub(crate) index: Index,
    pub(crate) leases: Leases,
    pub(crate) counters: Counters,
    pub(crate) readers: Readers,
    pub(crate) prices: Prices,
    pub(crate) space: Mutex<Space>,
    pub(crate) ages: Arc<Ages>,
    arena: Arena,
}

impl Core {
    pub(crate) fn new(config: StoreConfig) -> Result<Self, StoreError> {
        let geometry = config.check()?;
        let length_bytes = geometry.payload_offset(geometry.units());
        let arena = Arena::map(length_bytes, config.fault_threads)?;
        let slots = Slots::new(geometry.units());
        let ages = Ages::new(config.epoch_s, &config.lifetimes);
        let (readers, bytes) = (Readers::new(), geometry.bytes(geometry.units()));
        let tenants = Tenants::new(config.tenants.clone(), bytes, readers.clone());
        Ok(Self {
            space: Mutex::new(Space::new(geometry, &slots, tenants)),
            readers,
            prices: Prices::default(),
            config,
            geometry,
            slots,
            index: Index::new(),
            leases: Leases::new(),
            counters: Counters::default(),
            ages: Arc::new(ages),
            arena,
        })
    }

    /// Where the payload of a taken extent lies, and its length in bytes.
    pub(crate) fn payload(&self, slot: SlotId) -> (NonNull<u8>, usize) {
        let record = &self.slots[slot];
        let length = record.measure.get() as usize;
        let offset = self.geometry.payload_offset(record.start.get());
        (self.arena.address(offset, length), length)
    }

    /// Where a taken extent lies, payload and header and what is between them, and its length.
    pub(crate) fn image(&self, slot: SlotId) -> (NonNull<u8>, usize) {
        let record = &self.slots[slot];
        let units = self.geometry.need(u64::from(record.measure.get())).units;
        let length = self.geometry.payload_offset(units);
        let offset = self.geometry.payload_offset(record.start.get());
        (self.arena.address(offset, length), length)
    }

    /// Writes the header of an extent that is reserved in the caller's name, whose object was
    /// stored in second `stored_s`.
    pub(crate) fn write_header(&self, slot: SlotId, header: &ObjectHeader, stored_s: u32) {
        let bytes = stamped(header, stored_s);
        assert_eq!(bytes.len(), OBJECT_HEADER_BYTES);
        let to = self.header_address(slot).as_ptr();
        // SAFETY: the range is inside the arena and in our reserved extent, beyond the payload,
        // so nothing else refers to it; `bytes` has exactly that length.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Reads the header of an object that the caller holds, or keeps in the index by the space
    /// lock or that of a shard. None if the bytes are not the header of this object any more:
    /// memory was damaged.
    pub(crate) fn read_header(&self, slot: SlotId) -> Option<ObjectHeader> {
        self.read_stamped(slot).map(|(header, _)| header)
    }

    /// The same, with the second in which the object was stored.
    fn read_stamped(&self, slot: SlotId) -> Option<(ObjectHeader, u32)> {
        let from = self.header_address(slot).as_ptr();
        // SAFETY: the range is inside the arena; the object was published, so nobody writes it,
        // and the caller keeps it from being given away.
        let bytes = unsafe { slice::from_raw_parts(from, OBJECT_HEADER_BYTES) };
        let record = &self.slots[slot];
        read_stamped(bytes).filter(|(header, _)| {
            header.id() == record.id() && header.length_bytes == u64::from(record.measure.get())
        })
    }

    /// Whether the time of an object is over, which the caller keeps as for
    /// [`read_header`](Self::read_header). One that is damaged is not: that is found out elsewhere.
    pub(crate) fn is_over(&self, slot: SlotId) -> bool {
        if self.ages.is_endless() {
            return false;
        }
        let kept = self.read_stamped(slot);
        kept.is_some_and(|(header, stored_s)| self.ages.is_over(header.tenant, stored_s))
    }

    /// Whether nobody finds an object any more because its time is over.
    pub(crate) fn is_gone(&self, slot: SlotId) -> bool {
        self.is_over(slot) && self.slots[slot].state().leases() == 0
    }

    /// Gives back a reserved extent.
    pub(crate) fn give_back(&self, slot: SlotId) {
        self.space.lock().give_back(&self.slots, slot);
    }

    /// Gives back one hold. Returns the state before.
    pub(crate) fn drop_hold(&self, slot: SlotId, hold: State) -> State {
        let was = self.slots[slot].drop_hold(hold);
        let last = was.holds() == 1;
        if last && (was.kind() == Kind::Removed || was.queue() == Queue::Parked) {
            self.space.lock().settle(&self.slots, slot, was);
        }
        was
    }

    /// Gives back all holds of leases that left the table. Returns how many.
    pub(crate) fn drop_leases(&self, leases: Vec<Lease>) -> u64 {
        let mut dropped = 0;
        for lease in leases {
            for slot in lease.slots {
                self.drop_lease_hold(slot, &lease.purse);
                dropped += 1;
            }
        }
        dropped
    }

    /// Gives back one hold of kind lease.
    pub(crate) fn drop_lease_hold(&self, slot: SlotId, purse: &Count) {
        let bytes = u64::from(self.slots[slot].measure.get());
        purse.sub(bytes);
        self.counters.lease_holds.sub(1);
        if self.drop_hold(slot, State::LEASE).leases() == 1 {
            self.counters.leased_bytes.sub(bytes);
        }
    }

    /// Where the header of a taken extent lies.
    pub(crate) fn header_address(&self, slot: SlotId) -> NonNull<u8> {
        let record = &self.slots[slot];
        let length = u64::from(record.measure.get());
        let offset = self.geometry.header_offset(record.start.get(), length);
        self.arena.address(offset, OBJECT_HEADER_BYTES)
    }
}

//! The contradictions that must never be found.
//!
//! Called by tests and simulations while no other call runs: it walks every record under the
//! space lock. Each check states one invariant of the file that it speaks of.

use crate::extents::Extents;
use crate::order::Order;
use crate::prices::{CLASSES, Class};
use crate::ram::RamStore;
use crate::slots::{SlotId, Slots};
use crate::state::{Kind, Queue};
use crate::tenants::{TenantId, Tenants};

impl RamStore {
    /// Walks the whole store and panics at the first contradiction. For tests, while no other call
    /// runs and nothing is half done.
    ///
    /// # Panics
    /// If an invariant is broken: a bug in the store.
    pub fn check_invariants(&self) {
        let core = &self.core;
        let space = core.space.lock();
        let (extents, tenants) = space.parts();
        extents.check_invariants(&core.slots);
        tenants.check_invariants(&core.slots, extents);
        let (mut objects, mut bytes, mut reserved, mut leased, mut pins) = (0, 0, 0, 0, 0);
        for slot in extents.tiles(&core.slots) {
            let record = &core.slots[slot];
            let (state, length) = (record.state(), u64::from(record.measure.get()));
            match state.kind() {
                Kind::Stored => {
                    objects += 1;
                    bytes += length;
                    let found = core
                        .index
                        .visit(&core.slots, &record.id(), |found, _| found);
                    assert_eq!(found, Some(slot), "a stored object is not in the index");
                    let idle = state.queue() == Queue::Parked && state.holds() == 0;
                    assert!(
                        !idle,
                        "a parked object that nobody holds is lost to eviction"
                    );
                    assert_ne!(state.queue(), Queue::Nowhere);
                }
                Kind::Reserved => reserved += length,
                Kind::Removed => assert!(state.holds() > 0, "nobody will free this extent"),
                Kind::Free => {}
                Kind::Unused => panic!("an unused record is in the tiling"),
            }
            if state.kind() != Kind::Free {
                pins += state.pins();
                leased += if state.leases() > 0 { length } else { 0 };
            }
        }
        assert_eq!(
            core.index.len(),
            objects,
            "the index finds what is not stored"
        );
        let population = space.population();
        assert_eq!(population.objects, objects as u64);
        assert_eq!(population.bytes, bytes);
        assert_eq!(population.reserved_bytes, reserved);
        assert_eq!(core.counters.pins.get(), pins);
        assert_eq!(core.counters.leased_bytes.get(), leased);
    }
}

impl Extents {
    /// The records of the tiling, by address.
    fn tiles<'a>(&self, slots: &'a Slots) -> impl Iterator<Item = SlotId> + use<'a> {
        let first = self.records().find(|slot| {
            slots[*slot].kind() != Kind::Unused && slots[*slot].before.get() == SlotId::NONE
        });
        std::iter::successors(first, |slot| slots[*slot].after.get().some())
    }

    /// The tiling is without gap, overlap or free neighbours, and the lists hold what is free.
    pub(crate) fn check_invariants(&self, slots: &Slots) {
        let (mut end, mut before, mut free) = (0, SlotId::NONE, Vec::new());
        for slot in self.tiles(slots) {
            let record = &slots[slot];
            assert_eq!(
                record.start.get(),
                end,
                "the tiling has a gap or an overlap"
            );
            assert_eq!(record.before.get(), before, "neighbours disagree");
            if record.kind() == Kind::Free {
                let pair = before
                    .some()
                    .is_some_and(|before| slots[before].kind() == Kind::Free);
                assert!(!pair, "two free neighbours");
                free.push(slot);
            }
            (end, before) = (end + self.units_of(slots, slot), slot);
        }
        assert_eq!(end, self.units(), "the tiling does not end with the arena");
        let units = free
            .iter()
            .map(|slot| self.units_of(slots, *slot))
            .sum::<u32>();
        assert_eq!(units, self.free_units());
        let mut listed = self.listed(slots);
        listed.sort_unstable();
        free.sort_unstable();
        assert_eq!(listed, free, "a free extent is in no list, or in two");
    }
}

impl Tenants {
    /// Each tenant is charged for what says that it is its.
    fn check_invariants(&self, slots: &Slots, extents: &Extents) {
        for (id, tenant) in (0..).map(TenantId).zip(self.iter()) {
            tenant.order.check_invariants(slots, extents, id);
            let (mut objects, mut bytes, mut reserved) = (0, 0, 0);
            let its = extents.tiles(slots).map(|slot| &slots[slot]);
            for record in its.filter(|record| record.state().tenant() == id) {
                let length = u64::from(record.measure.get());
                match record.kind() {
                    Kind::Stored => (objects, bytes) = (objects + 1, bytes + length),
                    Kind::Reserved => reserved += length,
                    _ => {}
                }
            }
            assert_eq!((tenant.objects, tenant.bytes), (objects, bytes + reserved));
            assert_eq!(tenant.reserved_bytes, reserved);
        }
    }
}

impl Order {
    /// Each list holds the objects that say so, and knows their sum.
    fn check_invariants(&self, slots: &Slots, extents: &Extents, tenant: TenantId) {
        let mut says_so = [[0; CLASSES]; 2];
        for slot in extents.tiles(slots) {
            let state = slots[slot].state();
            let its = state.kind() == Kind::Stored && state.tenant() == tenant;
            if its && matches!(state.queue(), Queue::Fresh | Queue::Proven) {
                let is_proven = usize::from(state.queue() == Queue::Proven);
                says_so[is_proven][usize::from(state.class().0)] += 1;
            }
        }
        let (mut units, mut objects) = (0, 0);
        for (queue, says_so) in [Queue::Fresh, Queue::Proven].into_iter().zip(says_so) {
            for (class, says_so) in (0..).map(Class).zip(says_so) {
                let (of_list, count) = self.check_list(slots, extents, (queue, class));
                assert_eq!(says_so, count, "an object is in no list");
                (units, objects) = (units + of_list, objects + count);
            }
        }
        assert_eq!(self.extent(), (units, objects));
    }

    fn check_list(
        &self,
        slots: &Slots,
        extents: &Extents,
        (queue, class): (Queue, Class),
    ) -> (u64, usize) {
        let (mut queued, mut before) = (Vec::new(), SlotId::NONE);
        let (head, units, objects) = self.extent_of(queue, class);
        let walk = std::iter::successors(head.some(), |slot| slots[*slot].next.get().some());
        for slot in walk {
            assert_eq!(
                slots[slot].prev.get(),
                before,
                "neighbours in a list disagree"
            );
            let state = slots[slot].state();
            assert_eq!((state.queue(), state.class()), (queue, class));
            before = slot;
            queued.push(slot);
        }
        let sum = queued
            .iter()
            .map(|slot| u64::from(extents.units_of(slots, *slot)));
        assert_eq!((queued.len(), sum.sum()), (objects, units));
        (units, objects)
    }
}

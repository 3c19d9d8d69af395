//! Holds that come and go while room is made.

use super::*;
use crate::prices::Class;
use crate::tenants::Readers;
use tessera_proto::ObjectId;

/// A store without memory: one object, in the index.
fn one_object() -> (Slots, Index, Space, SlotId) {
    let geometry = Geometry::of_capacity(1 << 20);
    let slots = Slots::new(geometry.units());
    let tenants = Tenants::new(TenantLimits::default(), 1 << 20, Readers::new());
    let (index, mut space) = (Index::new(), Space::new(geometry, &slots, tenants));
    let room = space.make_room(
        &slots,
        &index,
        (TenantTag::NONE, 1_000),
        &mut Effort::default(),
    );
    let Room::Made(slot) = room else {
        panic!("an empty arena has room")
    };
    slots[slot].set_id(&ObjectId(*b"0123456789abcdef"));
    let stored = (TenantTag::NONE, State::new(Kind::Stored));
    assert!(space.publish(&slots, &index, slot, stored));
    (slots, index, space, slot)
}

#[test]
fn hole_is_widened_at_the_cost_of_what_is_cheap_to_compute() {
    for [below, above] in [[2, 4], [4, 2]] {
        let geometry = Geometry::of_capacity(1 << 20);
        let slots = Slots::new(geometry.units());
        let tenants = Tenants::new(TenantLimits::default(), 1 << 20, Readers::new());
        let (index, mut space) = (Index::new(), Space::new(geometry, &slots, tenants));
        let store = |space: &mut Space, class| {
            let effort = &mut Effort::default();
            let room = space.make_room(&slots, &index, (TenantTag::NONE, 1_000), effort);
            let Room::Made(slot) = room else {
                panic!("an empty arena has room")
            };
            slots[slot].set_id(&ObjectId([class; 16]));
            let state = State::new(Kind::Stored).with_class(Class(class));
            assert!(space.publish(&slots, &index, slot, (TenantTag::NONE, state)));
            slot
        };
        let stored = [below, 3, above].map(|class| store(&mut space, class));
        let hole = space.evict(&slots, &index, stored[1], &mut Effort::default());
        let hole = hole.expect("nobody holds it");
        let around = (slots[hole].before.get(), slots[hole].after.get());
        let [low, high] = [stored[0], stored[2]];
        assert_eq!(around, (low, high));
        let plan = space.plan_widening(&slots, geometry.need(2_000), hole, |_| true);
        let cheap = if below < above { low } else { high };
        assert_eq!(plan, Some(vec![cheap]));
    }
}

#[test]
fn hold_taken_after_the_turn_was_looked_at_stops_the_eviction() {
    for hold in [State::pinned, State::leased] {
        let (slots, index, mut space, slot) = one_object();
        let turn = space.turn(&slots, TenantId(0), false);
        assert_eq!(turn, Turn::Evict(slot));
        slots[slot].change(hold).expect("far from full");
        assert_eq!(
            space.evict(&slots, &index, slot, &mut Effort::default()),
            None
        );
        assert_eq!(slots[slot].kind(), Kind::Stored);
        assert_eq!((index.len(), space.population.objects), (1, 1));
    }
}

#[test]
fn last_holder_of_a_parked_object_puts_it_back_once() {
    let (slots, index, mut space, slot) = one_object();
    slots[slot].change(State::leased).expect("far from full");
    assert_eq!(space.turn(&slots, TenantId(0), false), Turn::Kept);
    assert_eq!(space.turn(&slots, TenantId(0), false), Turn::Empty);
    // Late settlements find it held, then parked, then queued.
    space.settle(&slots, slot, slots[slot].state());
    assert_eq!(space.turn(&slots, TenantId(0), false), Turn::Empty);
    let last = slots[slot].drop_hold(State::LEASE);
    space.settle(&slots, slot, last);
    space.settle(&slots, slot, last);
    assert_eq!(space.turn(&slots, TenantId(0), false), Turn::Evict(slot));
    assert!(
        space
            .evict(&slots, &index, slot, &mut Effort::default())
            .is_some()
    );
    assert_eq!(space.turn(&slots, TenantId(0), false), Turn::Empty);
    assert_eq!(space.free_bytes(), 1 << 20);
}

//! The allocator: which parts of the arena are free, and where the next extent goes.
//!
//! Called under the space lock. The arena is tiled by extents, each with a record; two free ones
//! are never neighbours. Free extents hang in lists by size class (sixteen classes for each
//! doubling, two levels of bitmaps), so that finding, splitting and merging take constant time.
//! The list of the size's own class is tried first for a few steps: a store full of equal objects
//! then reuses exactly what was freed. There are no slabs and hence nothing that a change of
//! object sizes could strand; how a hole of the right size comes to be is the business of
//! [`Space`](crate::space::Space).

use std::iter;

use crate::geometry::{Geometry, Need};
use crate::slots::{SlotId, Slots};
use crate::state::{Kind, State};

const COLUMN_BITS: u32 = 4;
const COLUMNS: usize = 1 << COLUMN_BITS;
const ROWS: usize = 33 - COLUMN_BITS as usize;
/// Extents of one class that are looked at before a larger class is taken.
const LOOKS_PER_CLASS: usize = 8;

/// A size class: free extents of between `first` and the next class's `first` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    row: usize,
    column: usize,
}

impl Class {
    fn of(units: u32) -> Self {
        if units < 1 << COLUMN_BITS {
            let column = units as usize;
            return Self { row: 0, column };
        }
        let top = units.ilog2();
        let column = (units >> (top - COLUMN_BITS)) as usize & (COLUMNS - 1);
        let row = (top - COLUMN_BITS + 1) as usize;
        Self { row, column }
    }
}

/// The free and the taken extents of one arena.
#[derive(Debug)]
pub(crate) struct Extents {
    geometry: Geometry,
    rows: u32,
    columns: [u32; ROWS],
    heads: [[SlotId; COLUMNS]; ROWS],
    unused: SlotId,
    made: u32,
    free_units: u32,
}

impl Extents {
    /// An arena that is one free extent.
    pub(crate) fn new(geometry: Geometry, slots: &Slots) -> Self {
        let mut extents = Self {
            geometry,
            rows: 0,
            columns: [0; ROWS],
            heads: [[SlotId::NONE; COLUMNS]; ROWS],
            unused: SlotId::NONE,
            made: 0,
            free_units: 0,
        };
        let whole = extents.take_record(slots);
        slots[whole].start.set(0);
        slots[whole].before.set(SlotId::NONE);
        slots[whole].after.set(SlotId::NONE);
        extents.enter(slots, whole, geometry.units());
        extents
    }

    /// Units of the arena.
    pub(crate) fn units(&self) -> u32 {
        self.geometry.units()
    }

    /// How many records were ever made; their numbers are those below.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// Every record that was ever made, used or not.
    pub(crate) fn records(&self) -> impl Iterator<Item = SlotId> + use<> {
        (0..self.made).map(SlotId)
    }

    /// The free extents as the lists have them; the lists must be right by class and bitmap.
    pub(crate) fn listed(&self, slots: &Slots) -> Vec<SlotId> {
        let mut listed = Vec::new();
        for (row, heads) in self.heads.iter().enumerate() {
            assert_eq!(self.rows & (1 << row) != 0, self.columns[row] != 0);
            for (column, head) in heads.iter().enumerate() {
                let bit = self.columns[row] & (1 << column) != 0;
                assert_eq!(
                    bit,
                    head.some().is_some(),
                    "a bitmap does not match its lists"
                );
                let walk = iter::successors(head.some(), |slot| slots[*slot].next.get().some());
                for slot in walk {
                    let class = Class::of(slots[slot].measure.get());
                    assert_eq!(
                        class,
                        Class { row, column },
                        "an extent is in another's list"
                    );
                    listed.push(slot);
                }
            }
        }
        listed
    }

    /// Units that are free, in however many pieces.
    pub(crate) fn free_units(&self) -> u32 {
        self.free_units
    }

    /// Units of an extent, whatever it is.
    pub(crate) fn units_of(&self, slots: &Slots, slot: SlotId) -> u32 {
        let record = &slots[slot];
        match record.kind() {
            Kind::Free => record.measure.get(),
            _ => self.geometry.need(u64::from(record.measure.get())).units,
        }
    }

    /// Takes an extent for a payload of `length_bytes`; its record is `Reserved`.
    pub(crate) fn allocate(&mut self, slots: &Slots, length_bytes: u32) -> Option<SlotId> {
        let need = self.geometry.need(u64::from(length_bytes));
        let found = self
            .first_fit_of_class(slots, need)
            .or_else(|| self.any_of_larger_class(slots, need))?;
        self.leave(slots, found);
        self.cut_to(slots, found, need);
        slots[found].measure.set(length_bytes);
        slots[found].set_state(State::new(Kind::Reserved));
        Some(found)
    }

    /// Makes a taken extent free, merging it with free neighbours. Returns the record of the free
    /// extent that it became part of.
    pub(crate) fn free(&mut self, slots: &Slots, slot: SlotId) -> SlotId {
        let mut units = self.units_of(slots, slot);
        let mut merged = slot;
        if let Some(before) = free_neighbour(slots, slots[slot].before.get()) {
            units += self.leave(slots, before);
            self.absorb_next(slots, before);
            merged = before;
        }
        if let Some(after) = free_neighbour(slots, slots[merged].after.get()) {
            units += self.leave(slots, after);
            self.absorb_next(slots, merged);
        }
        self.enter(slots, merged, units);
        merged
    }

    /// The first extent of the class of `need` that holds it, among the first few.
    fn first_fit_of_class(&self, slots: &Slots, need: Need) -> Option<SlotId> {
        let Class { row, column } = Class::of(need.units);
        let mut at = self.heads[row][column];
        for _ in 0..LOOKS_PER_CLASS {
            let slot = at.some()?;
            if fits(slots, slot, need) {
                return Some(slot);
            }
            at = slots[slot].next.get();
        }
        None
    }

    /// An extent of a class in which every extent holds `need`: without the loss of alignment if
    /// that one happens to fit, else with it.
    fn any_of_larger_class(&self, slots: &Slots, need: Need) -> Option<SlotId> {
        let tight = self.head_above(need.units)?;
        if fits(slots, tight, need) {
            return Some(tight);
        }
        let padded = need.units.checked_add(need.align - 1)?;
        self.head_above(padded)
    }

    /// The head of the first class that has extents, all of which hold `units`.
    fn head_above(&self, units: u32) -> Option<SlotId> {
        let Class { row, column } = Class::of(units);
        let (row, column) = match first_beyond(self.columns[row], column) {
            Some(column) => (row, column),
            None => {
                let row = first_beyond(self.rows, row)?;
                (row, self.columns[row].trailing_zeros() as usize)
            }
        };
        self.heads[row][column].some()
    }

    /// Cuts an extent that is in no list down to `need`; what is left on either side is free.
    fn cut_to(&mut self, slots: &Slots, slot: SlotId, need: Need) {
        let (start, units) = (slots[slot].start.get(), slots[slot].measure.get());
        let aligned = start.next_multiple_of(need.align);
        if aligned > start {
            let head = self.take_record(slots);
            let before = slots[slot].before.get();
            slots[head].start.set(start);
            link(slots, before, head);
            link(slots, head, slot);
            slots[slot].start.set(aligned);
            self.enter(slots, head, aligned - start);
        }
        let end = start + units;
        let rest = aligned + need.units;
        if end > rest {
            let tail = self.take_record(slots);
            let after = slots[slot].after.get();
            slots[tail].start.set(rest);
            link(slots, tail, after);
            link(slots, slot, tail);
            self.enter(slots, tail, end - rest);
        }
    }

    /// Takes the neighbour after `slot` out of the tiling.
    fn absorb_next(&mut self, slots: &Slots, slot: SlotId) {
        let gone = slots[slot].after.get();
        link(slots, slot, slots[gone].after.get());
        slots[gone].set_state(State::new(Kind::Unused));
        slots[gone].next.set(self.unused);
        self.unused = gone;
    }

    /// Puts an extent of `units` into its list.
    fn enter(&mut self, slots: &Slots, slot: SlotId, units: u32) {
        let Class { row, column } = Class::of(units);
        let record = &slots[slot];
        let head = self.heads[row][column];
        record.measure.set(units);
        record.set_state(State::new(Kind::Free));
        record.prev.set(SlotId::NONE);
        record.next.set(head);
        if let Some(head) = head.some() {
            slots[head].prev.set(slot);
        }
        self.heads[row][column] = slot;
        self.columns[row] |= 1 << column;
        self.rows |= 1 << row;
        self.free_units += units;
    }

    /// Takes a free extent out of its list. Returns its units.
    fn leave(&mut self, slots: &Slots, slot: SlotId) -> u32 {
        let record = &slots[slot];
        let units = record.measure.get();
        let Class { row, column } = Class::of(units);
        let (prev, next) = (record.prev.get(), record.next.get());
        match prev.some() {
            Some(prev) => slots[prev].next.set(next),
            None => self.heads[row][column] = next,
        }
        if let Some(next) = next.some() {
            slots[next].prev.set(prev);
        }
        if self.heads[row][column] == SlotId::NONE {
            self.columns[row] &= !(1 << column);
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
        self.free_units -= units;
        units
    }

    /// A record that names no extent. There is one: each extent has a unit at least, and there are
    /// as many records as units.
    fn take_record(&mut self, slots: &Slots) -> SlotId {
        if let Some(slot) = self.unused.some() {
            self.unused = slots[slot].next.get();
            return slot;
        }
        let slot = SlotId(self.made);
        slots.make(slot);
        self.made += 1;
        slot
    }
}

/// The number of the lowest bit of `bits` above bit `at`.
fn first_beyond(bits: u32, at: usize) -> Option<usize> {
    let above = bits & (u32::MAX << at << 1);
    (above != 0).then_some(above.trailing_zeros() as usize)
}

/// Whether a free extent holds `need`, alignment included.
fn fits(slots: &Slots, slot: SlotId, need: Need) -> bool {
    let (start, units) = (slots[slot].start.get(), slots[slot].measure.get());
    start.next_multiple_of(need.align) + need.units <= start + units
}

fn free_neighbour(slots: &Slots, slot: SlotId) -> Option<SlotId> {
    slot.some().filter(|slot| slots[*slot].kind() == Kind::Free)
}

/// Makes `low` and `high` neighbours; either may be the end of the arena.
fn link(slots: &Slots, low: SlotId, high: SlotId) {
    if let Some(low) = low.some() {
        slots[low].after.set(high);
    }
    if let Some(high) = high.some() {
        slots[high].before.set(low);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ARENA_BYTES: u64 = 4 << 20;

    fn arena() -> (Geometry, Slots, Extents) {
        let geometry = Geometry::of_capacity(ARENA_BYTES);
        let slots = Slots::new(geometry.units());
        let extents = Extents::new(geometry, &slots);
        (geometry, slots, extents)
    }

    #[test]
    fn classes_are_in_the_order_of_their_sizes() {
        let mut last = Class::of(1);
        for units in 2..100_000 {
            let class = Class::of(units);
            assert!(class >= last, "{units}");
            last = class;
        }
        let largest = Class::of(1 << 31);
        assert!(largest.row < ROWS && largest > last);
    }

    #[test]
    fn whole_arena_can_be_one_object_again_after_it_was_many() {
        let (geometry, slots, mut extents) = arena();
        let taken: Vec<_> = std::iter::from_fn(|| extents.allocate(&slots, 1000)).collect();
        assert!(taken.len() > 3_200, "five units each of 16,384");
        for slot in taken {
            extents.free(&slots, slot);
        }
        let whole = u32::try_from(geometry.largest_object_bytes()).expect("4 MiB");
        assert!(extents.allocate(&slots, whole).is_some());
        assert_eq!(extents.free_units(), 0);
    }

    #[test]
    fn hole_of_exactly_the_size_is_found_again_in_a_full_arena() {
        let (_, slots, mut extents) = arena();
        let length = 70_000;
        let taken: Vec<_> = std::iter::from_fn(|| extents.allocate(&slots, length)).collect();
        for slot in taken {
            let start = slots[slot].start.get();
            extents.free(&slots, slot);
            let again = extents.allocate(&slots, length).expect("the hole is there");
            assert_eq!(slots[again].start.get(), start);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u32),
        Free(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        let length = prop_oneof![1..2_000_u32, 60_000..70_000_u32, 1..1_500_000_u32];
        prop_oneof![
            3 => length.prop_map(Step::Allocate),
            2 => any::<prop::sample::Index>().prop_map(Step::Free),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Against a bitmap: extents never overlap, are aligned, long enough, and given back whole.
        #[test]
        fn allocator_agrees_with_a_map_of_units(steps in prop::collection::vec(step(), 1..160)) {
            let (geometry, slots, mut extents) = arena();
            let mut map = vec![false; geometry.units() as usize];
            let mut taken: Vec<SlotId> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(length) => {
                        let need = geometry.need(u64::from(length));
                        let Some(slot) = extents.allocate(&slots, length) else {
                            // A class holds sizes up to 1/16 apart, so a hole that is that much
                            // larger, padding for alignment included, must have been found.
                            let sure = (need.units + need.align) / 16 * 17 + 2;
                            let longest = map
                                .split(|used| *used)
                                .map(<[bool]>::len)
                                .max()
                                .unwrap_or(0);
                            prop_assert!(longest < sure as usize, "{longest} free, {need:?}");
                            continue;
                        };
                        let start = slots[slot].start.get();
                        prop_assert_eq!(start % need.align, 0);
                        for used in &mut map[start as usize..][..need.units as usize] {
                            prop_assert!(!*used, "overlap at {}", start);
                            *used = true;
                        }
                        taken.push(slot);
                    }
                    Step::Free(which) if !taken.is_empty() => {
                        let slot = taken.swap_remove(which.index(taken.len()));
                        let start = slots[slot].start.get() as usize;
                        let units = extents.units_of(&slots, slot) as usize;
                        map[start..][..units].fill(false);
                        extents.free(&slots, slot);
                    }
                    Step::Free(_) => {}
                }
                extents.check_invariants(&slots);
                let free = map.iter().filter(|used| !**used).count();
                prop_assert_eq!(extents.free_units() as usize, free);
            }
        }
    }
}

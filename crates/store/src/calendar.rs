//! The objects of one queue by the time of their last use, in days.
//!
//! Called by the order of eviction under the space lock. A day is a fixed amount of what was
//! admitted, so that a calendar of [`DAYS`] days spans many times the capacity. Every operation
//! takes a few steps, however many objects there are; a day that would be needed twice is joined
//! to the one after it.
//!
//! Invariant: the links of the objects of one day form one list; its ends name the day in place
//! of a neighbour, so that an object can be taken out without anybody knowing its day.

use crate::slots::{SlotId, Slots};

/// Days in a calendar.
pub(crate) const DAYS: u64 = 512;
/// Links from here on name a day. No record has such a number: an arena has 2^31 units at most.
const FIRST_DAY_LINK: u32 = u32::MAX - 512;

const _: () = assert!(FIRST_DAY_LINK as u64 + DAYS == SlotId::NONE.0 as u64);

/// The objects of one day: `first` leaves first. Both are none, or neither.
#[derive(Clone, Copy, Debug)]
struct Day {
    first: SlotId,
    last: SlotId,
}

const EMPTY: Day = Day {
    first: SlotId::NONE,
    last: SlotId::NONE,
};

/// Where in its day an object goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It leaves before the others.
    First,
    /// It leaves after the others.
    Last,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Calendar {
    days: Box<[Day]>,
    /// No object is older; less than [`DAYS`] before today.
    oldest: u64,
}

impl Calendar {
    pub(crate) fn new() -> Self {
        Self {
            days: (0..DAYS).map(|_| EMPTY).collect(),
            oldest: 0,
        }
    }

    /// Makes room for `today`, which is at most one day later than before.
    pub(crate) fn turn_to(&mut self, slots: &Slots, today: u64) {
        if self.oldest + DAYS > today {
            return;
        }
        let (old, next) = (place(self.oldest), place(self.oldest + 1));
        self.oldest += 1;
        let (from, into) = (self.days[old], self.days[next]);
        if from.first == SlotId::NONE {
            return;
        }
        self.days[old] = EMPTY;
        slots[from.first].prev.set(link(next));
        if into.first == SlotId::NONE {
            slots[from.last].next.set(link(next));
            self.days[next] = from;
        } else {
            slots[from.last].next.set(into.first);
            slots[into.first].prev.set(from.last);
            self.days[next].first = from.first;
        }
    }

    /// Enters an object that is in no list, last used on `day`: less than [`DAYS`] ago.
    pub(crate) fn enter(&mut self, slots: &Slots, slot: SlotId, day: u64, end: End) {
        self.oldest = self.oldest.min(day);
        let at = place(day);
        let (record, list) = (&slots[slot], self.days[at]);
        if list.first == SlotId::NONE {
            record.prev.set(link(at));
            record.next.set(link(at));
            self.days[at] = Day {
                first: slot,
                last: slot,
            };
            return;
        }
        match end {
            End::First => {
                record.prev.set(link(at));
                record.next.set(list.first);
                slots[list.first].prev.set(slot);
                self.days[at].first = slot;
            }
            End::Last => {
                record.prev.set(list.last);
                record.next.set(link(at));
                slots[list.last].next.set(slot);
                self.days[at].last = slot;
            }
        }
    }

    /// Takes out an object of this calendar.
    pub(crate) fn leave(&mut self, slots: &Slots, slot: SlotId) {
        let (prev, next) = (slots[slot].prev.get(), slots[slot].next.get());
        match (day_of(prev), day_of(next)) {
            (Some(at), Some(_)) => self.days[at] = EMPTY,
            (Some(at), None) => {
                self.days[at].first = next;
                slots[next].prev.set(prev);
            }
            (None, Some(at)) => {
                self.days[at].last = prev;
                slots[prev].next.set(next);
            }
            (None, None) => {
                slots[prev].next.set(next);
                slots[next].prev.set(prev);
            }
        }
    }

    /// The object whose turn it is, and its day. Of one day the newest leaves first, since the end
    /// of a chain is worth nothing without its beginning; but not of `today`: what is being stored
    /// now would push itself out.
    pub(crate) fn next(&mut self, today: u64) -> Option<(SlotId, u64)> {
        while self.oldest < today && self.days[place(self.oldest)].first == SlotId::NONE {
            self.oldest += 1;
        }
        let list = self.days[place(self.oldest)];
        let slot = if self.oldest == today {
            list.last
        } else {
            list.first
        };
        slot.some().map(|slot| (slot, self.oldest))
    }

    /// Every object, for inspection; panics where neighbours disagree.
    pub(crate) fn walk(&self, slots: &Slots) -> Vec<SlotId> {
        let mut all = Vec::new();
        for (at, day) in self.days.iter().enumerate() {
            let (mut before, mut next) = (link(at), day.first);
            while day_of(next).is_none() && next != SlotId::NONE {
                assert_eq!(
                    slots[next].prev.get(),
                    before,
                    "neighbours in a day disagree"
                );
                all.push(next);
                (before, next) = (next, slots[next].next.get());
            }
            if day.first != SlotId::NONE {
                assert_eq!((before, next), (day.last, link(at)), "a day does not end");
            }
        }
        all
    }
}

fn place(day: u64) -> usize {
    usize::try_from(day % DAYS).expect("below the number of days")
}

fn link(at: usize) -> SlotId {
    let at = u32::try_from(at).expect("below the number of days");
    SlotId(FIRST_DAY_LINK + at)
}

fn day_of(link: SlotId) -> Option<usize> {
    let at = link.some()?.0.checked_sub(FIRST_DAY_LINK)?;
    Some(at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: u32) -> (Slots, Vec<SlotId>) {
        let slots = Slots::new(count);
        let ids: Vec<_> = (0..count).map(SlotId).collect();
        for slot in &ids {
            slots.make(*slot);
        }
        (slots, ids)
    }

    fn drain(calendar: &mut Calendar, slots: &Slots, today: u64) -> Vec<u32> {
        let mut left = Vec::new();
        while let Some((slot, _)) = calendar.next(today) {
            calendar.leave(slots, slot);
            left.push(slot.0);
        }
        assert!(calendar.walk(slots).is_empty());
        left
    }

    #[test]
    fn days_leave_in_order_and_within_a_day_the_newest_first() {
        let (slots, ids) = slots(7);
        let mut calendar = Calendar::new();
        for (slot, day, end) in [
            (0, 3, End::First),
            (1, 3, End::First),
            (2, 3, End::Last),
            (3, 1, End::First),
            (4, 9, End::First),
            (5, 9, End::First),
            (6, 3, End::First),
        ] {
            calendar.enter(&slots, ids[slot], day, end);
        }
        calendar.leave(&slots, ids[1]);
        assert_eq!(calendar.walk(&slots).len(), 6);
        // On the day itself, the one that has been there longest.
        assert_eq!(drain(&mut calendar, &slots, 9), [3, 6, 0, 2, 4, 5]);
    }

    #[test]
    fn day_that_is_needed_again_joins_the_next() {
        let (slots, ids) = slots(4);
        let mut calendar = Calendar::new();
        for (slot, day) in [(0, 0), (1, 0), (2, 1)] {
            calendar.enter(&slots, ids[slot], day, End::First);
        }
        for today in 1..3 * DAYS {
            calendar.turn_to(&slots, today);
            assert_eq!(calendar.walk(&slots).len(), 3);
        }
        calendar.enter(&slots, ids[3], 3 * DAYS - 1, End::First);
        let (slot, day) = calendar.next(3 * DAYS - 1).expect("four objects");
        assert_eq!((slot.0, day), (1, 2 * DAYS));
        assert_eq!(drain(&mut calendar, &slots, 3 * DAYS - 1), [1, 0, 2, 3]);
    }
}

//! The order of eviction: by last use, with more patience for what was read.
//!
//! Called under the space lock, for one tenant each. There are two queues, of objects that nobody
//! has read yet and of those that somebody has, or that came back soon after they had left. In
//! each, the longest unused leaves first; between the two, the one that is unused for longer, where
//! the age of what was read is divided by a *patience*. A patience of one is LRU; a large one is
//! what scans and skewed popularity want.
//!
//! The patience is learnt from what comes back. If of a hundred evictions from one queue more come
//! back soon than of a hundred from the other, the wrong ones leave, and the patience moves
//! towards their equality. Time is counted in what is admitted, so that the order is the same for
//! any speed and any size, and a tenant's by what it admits itself.
//!
//! Reads take no lock: they note the day in the object's own word, and an object that was read is
//! put where it belongs when its turn comes.
//!
//! Invariant: an object in the index is in one of the queues, or parked because it was held when
//! its turn came; its last holder puts a parked one back. So an eviction never walks over what is
//! held twice, and a read buys one more step at most.

use crate::calendar::{Calendar, DAYS, End};
use crate::ghost::Ghost;
use crate::slots::{SlotId, Slots};
use crate::state::{Kind, Queue};

/// Days in which as much is admitted as is held.
const DAYS_OF_HELD: u64 = 32;
/// An object that returns within this came back soon.
const SOON_DAYS: u64 = 16;
/// Evictions that are remembered, as a multiple of the objects that are held.
const REMEMBERED_FACTOR: usize = 4;
/// The patience at the start, at least, and at most.
const PATIENCE: f64 = 1.35;
const PATIENCE_MIN: f64 = 1.0;
const PATIENCE_MAX: f64 = 50.0;
/// What the patience grows or shrinks by while as much comes back as is held.
const STEP: f64 = 8.0;
/// Bounds on what one object does: for how rarely its queue evicts, and in all.
const RARITY_MAX: f64 = 50.0;
const STEP_MAX: f64 = 0.5;
/// Evictions over which the queues' shares of them are compared.
const EVICTIONS_COMPARED: u64 = 2_000;

/// What the next turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This object is to leave; it is still queued.
    Evict(SlotId),
    /// An object was put elsewhere or was parked. Ask again.
    Kept,
    /// Nothing is queued.
    Empty,
}

/// One queue and what it holds.
#[derive(Debug)]
struct List {
    calendar: Calendar,
    units: u64,
    objects: usize,
    /// Recent evictions from it.
    evictions: u64,
}

/// The queues.
#[derive(Debug)]
pub(crate) struct Order {
    fresh: List,
    proven: List,
    ghost: Ghost,
    /// What the age of the proven is divided by.
    patience: f64,
    today: u64,
    /// Units admitted today.
    units_today: u64,
}

impl Order {
    pub(crate) fn new() -> Self {
        let list = || List {
            calendar: Calendar::new(),
            units: 0,
            objects: 0,
            evictions: 0,
        };
        Self {
            fresh: list(),
            proven: list(),
            ghost: Ghost::new(),
            patience: PATIENCE,
            today: 0,
            units_today: 0,
        }
    }

    /// The day, which a touch has to note.
    pub(crate) fn today(&self) -> u64 {
        self.today
    }

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects() == 0
    }

    /// The memory of what it remembers, bytes.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ghost.bytes()
    }

    fn objects(&self) -> usize {
        self.fresh.objects + self.proven.objects
    }

    /// Queues a new object of `units`.
    pub(crate) fn admit(&mut self, slots: &Slots, slot: SlotId, units: u32, hash: u64) {
        self.pass(slots, units);
        let today = self.today;
        let queue = match self.ghost.take(hash, today) {
            Some(returned) => {
                if returned.days <= SOON_DAYS {
                    self.learn(returned.was_proven, units);
                }
                Queue::Proven
            }
            None => Queue::Fresh,
        };
        self.enter(slots, slot, units, (queue, today, End::First));
    }

    /// Puts a parked object back, if it is one and nobody holds it now: it was used until today.
    pub(crate) fn unpark(&mut self, slots: &Slots, slot: SlotId, units: u32) {
        let state = slots[slot].state();
        if state.kind() != Kind::Stored || state.queue() != Queue::Parked || state.holds() > 0 {
            return;
        }
        let queue = match state.is_touched() {
            false => Queue::Fresh,
            true => Queue::Proven,
        };
        self.enter(slots, slot, units, (queue, self.today, End::First));
    }

    /// Takes an object out of its queue, if it is in one.
    pub(crate) fn unlink(&mut self, slots: &Slots, slot: SlotId, units: u32) {
        let queue = slots[slot].state().queue();
        if matches!(queue, Queue::Fresh | Queue::Proven) {
            self.detach(slots, slot, units, queue);
            let changed = slots[slot].change(|state| Some(state.with_queue(Queue::Nowhere)));
            debug_assert!(changed.is_ok());
        }
    }

    /// The objects of a queue as it lists them, the units that it counts, and the objects.
    pub(crate) fn inspect(&self, slots: &Slots, queue: Queue) -> (Vec<SlotId>, u64, usize) {
        let list = match queue {
            Queue::Proven => &self.proven,
            _ => &self.fresh,
        };
        (list.calendar.walk(slots), list.units, list.objects)
    }

    /// Remembers that an object is evicted; it is still queued.
    pub(crate) fn remember(&mut self, slots: &Slots, slot: SlotId, hash: u64) {
        let queue = slots[slot].state().queue();
        self.list(queue).evictions += 1;
        if self.fresh.evictions + self.proven.evictions > EVICTIONS_COMPARED {
            self.fresh.evictions /= 2;
            self.proven.evictions /= 2;
        }
        self.ghost.keep(self.objects() * REMEMBERED_FACTOR);
        self.ghost
            .remember(hash, queue == Queue::Proven, self.today);
    }

    /// Looks at the object whose turn it is. With `hurry`, it leaves also if it was read.
    pub(crate) fn turn(
        &mut self,
        slots: &Slots,
        units_of: impl Fn(SlotId) -> u32,
        hurry: bool,
    ) -> Turn {
        let Some((slot, day)) = self.next() else {
            return Turn::Empty;
        };
        // One step: who gives the last hold back later sees that it is parked.
        let park = slots[slot]
            .change(|state| (state.holds() > 0).then(|| state.with_queue(Queue::Parked)));
        if let Ok(was) = park {
            self.detach(slots, slot, units_of(slot), was.queue());
            return Turn::Kept;
        }
        let state = slots[slot].state();
        if !state.is_touched() || hurry {
            return Turn::Evict(slot);
        }
        let units = units_of(slot);
        self.detach(slots, slot, units, state.queue());
        // Those of one day come in the order in which they leave, and keep it.
        let age = self.today.wrapping_sub(state.day()) % DAYS;
        let used = self.today.saturating_sub(age);
        self.enter(
            slots,
            slot,
            units,
            (Queue::Proven, used.max(day), End::Last),
        );
        Turn::Kept
    }

    /// The object whose turn it is, and its day.
    fn next(&mut self) -> Option<(SlotId, u64)> {
        let today = self.today;
        let age = |day: u64| (today - day + 1) as f64;
        let fresh = self.fresh.calendar.next(today);
        let proven = self.proven.calendar.next(today);
        match (fresh, proven) {
            (Some((_, unread)), Some((_, read))) if age(read) > age(unread) * self.patience => {
                proven
            }
            (Some(_), _) => fresh,
            (None, _) => proven,
        }
    }

    /// Moves time on by what is admitted, by one day at most.
    fn pass(&mut self, slots: &Slots, units: u32) {
        self.units_today += u64::from(units);
        if self.units_today * DAYS_OF_HELD >= self.fresh.units + self.proven.units {
            self.units_today = 0;
            self.today += 1;
            self.fresh.calendar.turn_to(slots, self.today);
            self.proven.calendar.turn_to(slots, self.today);
        }
    }

    /// Moves the patience for an object of `units` that came back soon.
    fn learn(&mut self, was_proven: bool, units: u32) {
        let all = self.fresh.evictions + self.proven.evictions;
        let own = match was_proven {
            true => self.proven.evictions,
            false => self.fresh.evictions,
        };
        let rarity = (all as f64 / own.max(1) as f64).min(RARITY_MAX);
        let share = f64::from(units) / (self.fresh.units + self.proven.units + 1) as f64;
        let factor = 1.0 + (STEP * share * rarity).min(STEP_MAX);
        let patience = match was_proven {
            true => self.patience * factor,
            false => self.patience / factor,
        };
        self.patience = patience.clamp(PATIENCE_MIN, PATIENCE_MAX);
    }

    /// Enters an object that is in no queue, as not read since.
    fn enter(
        &mut self,
        slots: &Slots,
        slot: SlotId,
        units: u32,
        (queue, day, end): (Queue, u64, End),
    ) {
        let list = self.list(queue);
        list.calendar.enter(slots, slot, day, end);
        list.units += u64::from(units);
        list.objects += 1;
        let changed = slots[slot].change(|state| Some(state.with_queue(queue).untouched()));
        debug_assert!(changed.is_ok());
    }

    /// Takes `slot` out of the list of `queue`; its state is the caller's business.
    fn detach(&mut self, slots: &Slots, slot: SlotId, units: u32, queue: Queue) {
        let list = self.list(queue);
        list.calendar.leave(slots, slot);
        list.units -= u64::from(units);
        list.objects -= 1;
    }

    fn list(&mut self, queue: Queue) -> &mut List {
        match queue {
            Queue::Proven => &mut self.proven,
            _ => &mut self.fresh,
        }
    }
}

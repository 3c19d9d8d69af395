//! The order of eviction: by last use, with more patience for what was asked for again.
//!
//! Called under the space lock, for one tenant each. There are two lists, of objects that nobody
//! has asked for yet and of those that somebody has, or that came back soon after they had left. In
//! each, the longest unused leaves first; between the two, the one that is unused for longer, where
//! the age of what was asked for is divided by a *patience*. A patience of one is LRU; a large one
//! is what scans and skewed popularity want.
//!
//! **Chains.** A lookup names the chunks of a prompt from the first to the last, and stores follow
//! in that order; a chunk is worth nothing without those before it. So a lookup begins a *round*,
//! and of one round what is used later leaves earlier. A round that has used a part of everything
//! is over, so that a writer who looks nothing up never displaces what he just wrote.
//!
//! **The patience is learnt** from what comes back: an object that returns soon after it left is
//! one that should have stayed, and moves the patience in favour of its list, in proportion to how
//! rarely that list evicts. Time is counted in what is admitted, so that the order is the same for
//! any speed, and a tenant's by what it admits itself.
//!
//! Lookups move what they hold at once, and what is then read under their lease stays where it is.
//! A read without a lease moves its object if the lock is free, and marks it otherwise: it is then
//! put back once when its turn comes.
//!
//! Invariant: an object in the index is in one of the lists, or parked because it was held when
//! its turn came; its last holder puts a parked one back. So an eviction never walks over what is
//! held twice, and a mark buys one more round at most.

use std::array;

use crate::ghost::Ghost;
use crate::prices::{CLASSES, Class};
use crate::slots::{SlotId, Slots};
use crate::state::{DAYS, Kind, Queue};

/// Days in which as much is admitted as is held.
const DAYS_OF_HELD: u64 = 32;
/// A round is over when it has used this part of what is held.
const ROUND_OF_HELD: u64 = 4;
/// The patience at the start, at least, and at most.
const PATIENCE: f64 = 1.35;
const PATIENCE_MIN: f64 = 1.0;
const PATIENCE_MAX: f64 = 16.0;
/// What an age is divided by at most, for patience and price together.
const KEPT_MAX: f64 = 64.0;
/// What the patience grows or shrinks by while as much comes back as is held.
const STEP: f64 = 8.0;
/// Bounds on what one object does: for how rarely its list evicts, and in all.
const RARITY_MAX: f64 = 50.0;
const STEP_MAX: f64 = 0.5;
/// Evictions over which the lists' shares of them are compared.
const EVICTIONS_COMPARED: u64 = 2_000;

// What is held is admitted within some days, and what was asked for or is dear is kept that many
// times as long: ages that the days of a record cannot tell apart do not come about.
const _: () = assert!(DAYS_OF_HELD as f64 * 2.0 * KEPT_MAX < DAYS as f64);

/// What the next turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This object is to leave; it is still listed.
    Evict(SlotId),
    /// An object was put back because it was read, or was parked because it is. Ask again.
    Kept,
    /// Nothing is listed.
    Empty,
}

/// One list: used last at the head, leaving at the tail.
#[derive(Debug)]
struct List {
    head: SlotId,
    tail: SlotId,
    /// What this round used last; what it uses next goes behind it.
    cursor: SlotId,
    units: u64,
    objects: usize,
}

/// The lists of one tenant, by class.
#[derive(Debug)]
pub(crate) struct Order {
    fresh: [List; CLASSES],
    proven: [List; CLASSES],
    /// What is in all of them.
    units: u64,
    objects: usize,
    /// Recent evictions of what was fresh, and of what was proven.
    evictions: [u64; 2],
    ghost: Ghost,
    /// What the age of the proven is divided by.
    patience: f64,
    today: u64,
    /// Units admitted today.
    units_today: u64,
    /// The round of the last use, and the units that it has used.
    round: u64,
    round_units: u64,
}

impl Order {
    pub(crate) fn new() -> Self {
        Self {
            fresh: array::from_fn(|_| List::new()),
            proven: array::from_fn(|_| List::new()),
            units: 0,
            objects: 0,
            evictions: [0; 2],
            ghost: Ghost::new(),
            patience: PATIENCE,
            today: 0,
            units_today: 0,
            round: 0,
            round_units: 0,
        }
    }

    /// Lists a new object of `units` that is stored in `round`.
    pub(crate) fn admit(
        &mut self,
        slots: &Slots,
        slot: SlotId,
        (units, hash): (u32, u64),
        round: u64,
    ) {
        self.pass(units);
        let queue = match self.ghost.take(hash) {
            Some(returned) => {
                if returned.soon {
                    self.learn(returned.was_proven, units);
                }
                Queue::Proven
            }
            None => Queue::Fresh,
        };
        self.follow(slots, slot, units, (queue, round));
    }

    /// Notes that an object is used, by a lookup of `round` or alone.
    pub(crate) fn use_now(&mut self, slots: &Slots, slot: SlotId, units: u32, round: Option<u64>) {
        let queue = slots[slot].state().queue();
        match queue {
            Queue::Fresh | Queue::Proven => {
                self.detach(slots, slot, units, queue);
                match round {
                    Some(round) => self.follow(slots, slot, units, (Queue::Proven, round)),
                    None => self.enter(slots, slot, units, (Queue::Proven, false)),
                }
            }
            Queue::Parked => slots[slot].mark(),
            Queue::Nowhere => {}
        }
    }

    /// Puts a parked object back, if it is one and nobody holds it now: it was used until now.
    pub(crate) fn unpark(&mut self, slots: &Slots, slot: SlotId, units: u32) {
        let state = slots[slot].state();
        if state.kind() != Kind::Stored || state.queue() != Queue::Parked || state.holds() > 0 {
            return;
        }
        let queue = match state.is_touched() {
            true => Queue::Proven,
            false => Queue::Fresh,
        };
        self.enter(slots, slot, units, (queue, false));
    }

    /// Takes an object out of its list, if it is in one.
    pub(crate) fn unlink(&mut self, slots: &Slots, slot: SlotId, units: u32) {
        let queue = slots[slot].state().queue();
        if matches!(queue, Queue::Fresh | Queue::Proven) {
            self.detach(slots, slot, units, queue);
            let changed = slots[slot].change(|state| Some(state.with_queue(Queue::Nowhere)));
            debug_assert!(changed.is_ok());
        }
    }

    /// Whether nothing is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects == 0
    }

    /// Head, units and objects of a list.
    pub(crate) fn extent_of(&self, queue: Queue, class: Class) -> (SlotId, u64, usize) {
        let lists = match queue {
            Queue::Proven => &self.proven,
            _ => &self.fresh,
        };
        let list = &lists[usize::from(class.0)];
        (list.head, list.units, list.objects)
    }

    /// Units and objects of all lists.
    pub(crate) fn extent(&self) -> (u64, usize) {
        (self.units, self.objects)
    }

    /// Remembers that an object is evicted; it is still listed.
    pub(crate) fn remember(&mut self, slots: &Slots, slot: SlotId, hash: u64) {
        let is_proven = slots[slot].state().queue() == Queue::Proven;
        self.evictions[usize::from(is_proven)] += 1;
        if self.evictions.iter().sum::<u64>() > EVICTIONS_COMPARED {
            self.evictions = self.evictions.map(|count| count / 2);
        }
        self.ghost.keep(self.objects);
        self.ghost.remember(hash, is_proven);
    }

    /// Looks at the object whose turn it is. With `hurry`, it leaves also if it was read.
    pub(crate) fn turn(
        &mut self,
        slots: &Slots,
        units_of: impl Fn(SlotId) -> u32,
        hurry: bool,
    ) -> Turn {
        let Some(slot) = self.next(slots) else {
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
        self.enter(slots, slot, units, (Queue::Proven, false));
        Turn::Kept
    }

    /// The object whose turn it is: of those at the tails, the one that is unused for longest,
    /// its time divided by what it is kept for longer for. Of two alike, the fresh and cheap one.
    fn next(&self, slots: &Slots) -> Option<SlotId> {
        let cheapest = self.cheapest();
        let age = |slot: SlotId| {
            let days = self.today.wrapping_sub(slots[slot].state().day()) % DAYS;
            (days + 1) as f64
        };
        let (mut next, mut next_age, mut next_kept) = (None, 0.0, 1.0);
        for (lists, patience) in [(&self.fresh, 1.0), (&self.proven, self.patience)] {
            for (class, list) in (0..).map(Class).zip(lists) {
                let Some(slot) = list.tail.some() else {
                    continue;
                };
                let worth = f64::from(1_u32 << class.steps_above(cheapest));
                let (age, kept) = (age(slot), (patience * worth).min(KEPT_MAX));
                if age * next_kept > next_age * kept {
                    (next, next_age, next_kept) = (Some(slot), age, kept);
                }
            }
        }
        next
    }

    /// The lowest class with a price of which something is listed.
    pub(crate) fn cheapest(&self) -> Class {
        let priced = (0..).map(Class).zip(self.fresh.iter().zip(&self.proven));
        let mut listed = priced.filter(|(class, (fresh, proven))| {
            *class != Class::NONE && fresh.objects + proven.objects > 0
        });
        listed.next().map_or(Class::NONE, |(class, _)| class)
    }

    /// Moves time on by what is admitted, by one day at most.
    fn pass(&mut self, units: u32) {
        self.units_today += u64::from(units);
        if self.units_today * DAYS_OF_HELD >= self.units {
            self.units_today = 0;
            self.today += 1;
        }
    }

    /// Moves the patience for an object of `units` that came back soon.
    fn learn(&mut self, was_proven: bool, units: u32) {
        let all = self.evictions.iter().sum::<u64>();
        let own = self.evictions[usize::from(was_proven)];
        let rarity = (all as f64 / own.max(1) as f64).min(RARITY_MAX);
        let share = f64::from(units) / (self.units + 1) as f64;
        let factor = 1.0 + (STEP * share * rarity).min(STEP_MAX);
        let patience = match was_proven {
            true => self.patience * factor,
            false => self.patience / factor,
        };
        self.patience = patience.clamp(PATIENCE_MIN, PATIENCE_MAX);
    }

    /// Enters an object that `round` uses: behind what the round used before, while it lasts.
    fn follow(&mut self, slots: &Slots, slot: SlotId, units: u32, (queue, round): (Queue, u64)) {
        if round != self.round {
            self.round = round;
            self.round_units = 0;
            for list in self.fresh.iter_mut().chain(&mut self.proven) {
                list.cursor = SlotId::NONE;
            }
        }
        self.round_units += u64::from(units);
        let lasts = self.round_units * ROUND_OF_HELD <= self.units;
        self.enter(slots, slot, units, (queue, lasts));
    }

    /// Enters an object that is in no list, as used today: behind the cursor, or at the head.
    fn enter(&mut self, slots: &Slots, slot: SlotId, units: u32, (queue, behind): (Queue, bool)) {
        let today = self.today;
        let list = self.list(queue, slots[slot].state().class());
        list.push(slots, slot, behind);
        list.units += u64::from(units);
        list.objects += 1;
        self.units += u64::from(units);
        self.objects += 1;
        let listed =
            slots[slot].change(|state| Some(state.with_queue(queue).with_day(today).untouched()));
        debug_assert!(listed.is_ok());
    }

    /// Takes `slot` out of the list of `queue`; its state is the caller's business.
    fn detach(&mut self, slots: &Slots, slot: SlotId, units: u32, queue: Queue) {
        let list = self.list(queue, slots[slot].state().class());
        list.take(slots, slot);
        list.units -= u64::from(units);
        list.objects -= 1;
        self.units -= u64::from(units);
        self.objects -= 1;
    }

    fn list(&mut self, queue: Queue, class: Class) -> &mut List {
        let lists = match queue {
            Queue::Proven => &mut self.proven,
            _ => &mut self.fresh,
        };
        &mut lists[usize::from(class.0)]
    }
}

impl List {
    const fn new() -> Self {
        Self {
            head: SlotId::NONE,
            tail: SlotId::NONE,
            cursor: SlotId::NONE,
            units: 0,
            objects: 0,
        }
    }

    /// Links an object, and moves the cursor to it.
    fn push(&mut self, slots: &Slots, slot: SlotId, behind: bool) {
        let prev = match behind {
            true => self.cursor,
            false => SlotId::NONE,
        };
        let next = match prev.some() {
            Some(prev) => slots[prev].next.get(),
            None => self.head,
        };
        slots[slot].prev.set(prev);
        slots[slot].next.set(next);
        match prev.some() {
            Some(prev) => slots[prev].next.set(slot),
            None => self.head = slot,
        }
        match next.some() {
            Some(next) => slots[next].prev.set(slot),
            None => self.tail = slot,
        }
        self.cursor = slot;
    }

    /// Unlinks an object; a cursor on it moves to what was used before.
    fn take(&mut self, slots: &Slots, slot: SlotId) {
        let (prev, next) = (slots[slot].prev.get(), slots[slot].next.get());
        match prev.some() {
            Some(prev) => slots[prev].next.set(next),
            None => self.head = next,
        }
        match next.some() {
            Some(next) => slots[next].prev.set(prev),
            None => self.tail = prev,
        }
        if self.cursor == slot {
            self.cursor = prev;
        }
    }
}

//! The order of eviction: S3-FIFO over the stored objects, by bytes.
//!
//! Called under the space lock, for one tenant each. New objects enter a small queue on probation;
//! when its turn comes, an object that was read moves to the main queue and another leaves. An
//! object that comes back soon after it left goes straight to the main queue, where each read buys
//! one more round, up to three. Reads take no lock: they only count touches in the object's own
//! word.
//!
//! How much the small queue is entitled to is learnt from what comes back: an object that returns
//! soon after it left probation asks for a longer probation, one that returns soon after it left
//! the main queue for more room there, each in proportion to how rarely its queue evicts.
//! Conversations come back after minutes and want most of the memory on probation, skewed
//! popularity wants little of it; no fixed share served both.
//!
//! Invariant: an object in the index is in the small queue, in the main queue, or parked because
//! it was held when its turn came; its last holder puts a parked one back. So an eviction never
//! walks over what is held twice.

use crate::ghost::Ghost;
use crate::slots::{SlotId, Slots};
use crate::state::{Kind, Queue};

/// The small queue is entitled to this of all queued bytes at least, in percent,
const SMALL_PERCENT_MIN: u64 = 5;
/// and to this at most.
const SMALL_PERCENT_MAX: u64 = 90;
/// Objects that probation holds before one of them leaves, however large they are.
const SMALL_OBJECTS_MIN: usize = 4;
/// Evictions over which the queues' shares of them are compared.
const EVICTIONS_COMPARED: u64 = 2_000;

/// One queue: new at the head, leaving at the tail.
#[derive(Debug)]
struct List {
    head: SlotId,
    tail: SlotId,
    units: u64,
    objects: usize,
}

/// What the next turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This object is to leave; it is still queued.
    Evict(SlotId),
    /// An object got another round because it was read, or was parked because it is. Ask again.
    Kept,
    /// Nothing is queued.
    Empty,
}

/// The queues.
#[derive(Debug)]
pub(crate) struct Fifo {
    small: List,
    main: List,
    ghost: Ghost,
    /// What the small queue is entitled to, units, before the bounds.
    entitled: u64,
    /// Recent evictions from the small and from the main queue.
    evictions: [u64; 2],
}

impl Fifo {
    pub(crate) fn new() -> Self {
        let empty = || List {
            head: SlotId::NONE,
            tail: SlotId::NONE,
            units: 0,
            objects: 0,
        };
        Self {
            small: empty(),
            main: empty(),
            ghost: Ghost::new(),
            entitled: 0,
            evictions: [0; 2],
        }
    }

    /// Queues a new object of `units`.
    pub(crate) fn admit(&mut self, slots: &Slots, slot: SlotId, units: u32, hash: u64) {
        let queue = match self.ghost.take(hash) {
            Some(returned) => {
                if returned.soon {
                    self.learn(returned.from_main, units);
                }
                Queue::Main
            }
            None => Queue::Small,
        };
        self.push(slots, slot, units, queue);
        self.ghost.keep(self.small.objects + self.main.objects);
    }

    /// Puts a parked object back, if it is one and nobody holds it now: into the main queue if it
    /// was read, else on probation again.
    pub(crate) fn unpark(&mut self, slots: &Slots, slot: SlotId, units: u32) {
        let state = slots[slot].state();
        if state.kind() != Kind::Stored || state.queue() != Queue::Parked || state.holds() > 0 {
            return;
        }
        match state.touches() {
            0 => self.push(slots, slot, units, Queue::Small),
            touches => {
                self.push(slots, slot, units, Queue::Main);
                set_touches(slots, slot, touches - 1);
            }
        }
    }

    /// Takes an object out of its queue, if it is in one.
    pub(crate) fn unlink(&mut self, slots: &Slots, slot: SlotId, units: u32) {
        let queue = slots[slot].state().queue();
        if matches!(queue, Queue::Small | Queue::Main) {
            self.detach(slots, slot, units, queue);
            set_queue(slots, slot, Queue::Nowhere);
        }
    }

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.small.objects + self.main.objects == 0
    }

    /// Head, units and objects of a queue.
    pub(crate) fn extent_of(&self, queue: Queue) -> (SlotId, u64, usize) {
        let list = match queue {
            Queue::Main => &self.main,
            _ => &self.small,
        };
        (list.head, list.units, list.objects)
    }

    /// Remembers that an object is evicted; it is still queued.
    pub(crate) fn remember(&mut self, slots: &Slots, slot: SlotId, hash: u64) {
        let from_main = slots[slot].state().queue() == Queue::Main;
        self.evictions[usize::from(from_main)] += 1;
        if self.evictions.iter().sum::<u64>() > EVICTIONS_COMPARED {
            self.evictions = self.evictions.map(|evictions| evictions / 2);
        }
        self.ghost.remember(hash, from_main);
    }

    /// Looks at the object whose turn it is. With `hurry`, touches buy no further round.
    pub(crate) fn turn(
        &mut self,
        slots: &Slots,
        units_of: impl Fn(SlotId) -> u32,
        hurry: bool,
    ) -> Turn {
        let small_is_full =
            self.small.objects >= SMALL_OBJECTS_MIN && self.small.units >= self.entitled();
        let from_small = small_is_full || self.main.objects == 0;
        let list = if from_small { &self.small } else { &self.main };
        let Some(slot) = list.tail.some() else {
            return Turn::Empty;
        };
        // One step: who gives the last hold back later sees that it is parked.
        let park = slots[slot]
            .change(|state| (state.holds() > 0).then(|| state.with_queue(Queue::Parked)));
        if let Ok(was) = park {
            self.detach(slots, slot, units_of(slot), was.queue());
            return Turn::Kept;
        }
        let touches = slots[slot].state().touches();
        if touches == 0 || hurry {
            return Turn::Evict(slot);
        }
        let units = units_of(slot);
        self.unlink(slots, slot, units);
        self.push(slots, slot, units, Queue::Main);
        let left = if from_small { 0 } else { touches - 1 };
        set_touches(slots, slot, left);
        Turn::Kept
    }

    /// Takes `slot` out of the list of `queue`; its state is the caller's business.
    fn detach(&mut self, slots: &Slots, slot: SlotId, units: u32, queue: Queue) {
        let list = self.list(queue);
        let (prev, next) = (slots[slot].prev.get(), slots[slot].next.get());
        match prev.some() {
            Some(prev) => slots[prev].next.set(next),
            None => list.head = next,
        }
        match next.some() {
            Some(next) => slots[next].prev.set(prev),
            None => list.tail = prev,
        }
        list.units -= u64::from(units);
        list.objects -= 1;
    }

    /// Moves the border between the queues for an object of `units` that came back soon.
    fn learn(&mut self, from_main: bool, units: u32) {
        let own = self.evictions[usize::from(from_main)].max(1);
        let other = self.evictions[usize::from(!from_main)];
        let step = u64::from(units) * other.max(own) / own;
        let entitled = self.entitled();
        self.entitled = match from_main {
            true => entitled.saturating_sub(step),
            false => entitled + step,
        };
    }

    /// What the small queue is entitled to, units.
    fn entitled(&self) -> u64 {
        let all = self.small.units + self.main.units;
        let bounds = [SMALL_PERCENT_MIN, SMALL_PERCENT_MAX].map(|percent| all * percent / 100);
        self.entitled.clamp(bounds[0], bounds[1])
    }

    fn push(&mut self, slots: &Slots, slot: SlotId, units: u32, queue: Queue) {
        let list = self.list(queue);
        let record = &slots[slot];
        record.prev.set(SlotId::NONE);
        record.next.set(list.head);
        match list.head.some() {
            Some(head) => slots[head].prev.set(slot),
            None => list.tail = slot,
        }
        list.head = slot;
        list.units += u64::from(units);
        list.objects += 1;
        set_queue(slots, slot, queue);
    }

    fn list(&mut self, queue: Queue) -> &mut List {
        match queue {
            Queue::Main => &mut self.main,
            _ => &mut self.small,
        }
    }
}

fn set_queue(slots: &Slots, slot: SlotId, queue: Queue) {
    let changed = slots[slot].change(|state| Some(state.with_queue(queue)));
    debug_assert!(changed.is_ok());
}

fn set_touches(slots: &Slots, slot: SlotId, touches: u64) {
    let changed = slots[slot].change(|state| Some(state.with_touches(touches)));
    debug_assert!(changed.is_ok());
}

//! The one word of a record that several threads change at once: holds, kind, queue, touches,
//! day of the last touch.
//!
//! Called through [`Slot`](crate::slots::Slot). Invariant: a record is given back to the allocator
//! exactly once, by whoever makes the transition to "removed and not held": the last holder if it
//! was removed before, else the remover. Because holds and kind share the word, each of them
//! sees in the value that he replaced whether it was he.
//!
//! ```text
//! bits 0..24  pins: reads in progress
//! bits 24..48 leases
//! bits 48..51 kind
//! bits 51..53 queue
//! bits 53..55 touches since it entered its queue, up to 3
//! bits 55..64 day of the last of them, its low bits
//! ```

use crate::calendar::DAYS;

const HOLDS_MAX: u64 = (1 << 24) - 1;
const LEASE_SHIFT: u32 = 24;
const KIND_SHIFT: u32 = 48;
const QUEUE_SHIFT: u32 = 51;
const TOUCH_SHIFT: u32 = 53;
const TOUCHES_MAX: u64 = 3;
const DAY_SHIFT: u32 = 55;

const _: () = assert!(DAYS.is_power_of_two() && DAYS << DAY_SHIFT == 0 && DAYS >> 9 == 1);

/// What an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The record names no extent.
    Unused = 0,
    /// Free memory.
    Free = 1,
    /// Owned by one writer.
    Reserved = 2,
    /// An object in the index.
    Stored = 3,
    /// Out of the index for good; free when the last holder leaves.
    Removed = 4,
}

/// Which eviction queue a stored object is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// None.
    Nowhere = 0,
    /// Objects that nobody has read yet.
    Fresh = 1,
    /// Objects that were asked for again.
    Proven = 2,
    /// Taken out because it was held when its turn came; its last holder puts it back.
    Parked = 3,
}

/// A value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u64);

impl State {
    /// One pin.
    pub(crate) const PIN: Self = Self(1);
    /// One lease.
    pub(crate) const LEASE: Self = Self(1 << LEASE_SHIFT);

    pub(crate) const fn new(kind: Kind) -> Self {
        Self((kind as u64) << KIND_SHIFT)
    }

    /// A stored object with one pin, which is no touch: nobody asked for it yet.
    pub(crate) const fn stored_and_pinned() -> Self {
        Self(Self::new(Kind::Stored).0 + Self::PIN.0)
    }

    pub(crate) const fn pins(self) -> u64 {
        self.0 & HOLDS_MAX
    }

    pub(crate) const fn leases(self) -> u64 {
        (self.0 >> LEASE_SHIFT) & HOLDS_MAX
    }

    /// Pins and leases together.
    pub(crate) const fn holds(self) -> u64 {
        self.pins() + self.leases()
    }

    pub(crate) const fn kind(self) -> Kind {
        match (self.0 >> KIND_SHIFT) & 7 {
            1 => Kind::Free,
            2 => Kind::Reserved,
            3 => Kind::Stored,
            4 => Kind::Removed,
            _ => Kind::Unused,
        }
    }

    pub(crate) const fn queue(self) -> Queue {
        match (self.0 >> QUEUE_SHIFT) & 3 {
            1 => Queue::Fresh,
            2 => Queue::Proven,
            3 => Queue::Parked,
            _ => Queue::Nowhere,
        }
    }

    pub(crate) const fn touches(self) -> u64 {
        (self.0 >> TOUCH_SHIFT) & TOUCHES_MAX
    }

    /// The day of the last touch, from zero to [`DAYS`].
    pub(crate) const fn day(self) -> u64 {
        self.0 >> DAY_SHIFT
    }

    pub(crate) const fn with_kind(self, kind: Kind) -> Self {
        Self(self.0 & !(7 << KIND_SHIFT) | (kind as u64) << KIND_SHIFT)
    }

    pub(crate) const fn with_queue(self, queue: Queue) -> Self {
        Self(self.0 & !(3 << QUEUE_SHIFT) | (queue as u64) << QUEUE_SHIFT)
    }

    pub(crate) const fn with_touches(self, touches: u64) -> Self {
        Self(self.0 & !(TOUCHES_MAX << TOUCH_SHIFT) | touches << TOUCH_SHIFT)
    }

    /// With one more pin, and one more touch `today`; none if 16 million readers hold it already.
    pub(crate) const fn pinned(self, today: u64) -> Option<Self> {
        match self.pinned_again() {
            Some(pinned) => Some(pinned.touched(today)),
            None => None,
        }
    }

    /// With one more touch `today`.
    pub(crate) const fn touched(self, today: u64) -> Self {
        let day = (today % DAYS) << DAY_SHIFT;
        let others = Self(self.0 & !(u64::MAX << DAY_SHIFT) | day);
        match self.touches() {
            TOUCHES_MAX => others,
            touches => others.with_touches(touches + 1),
        }
    }

    /// With one more pin, which is no touch: its reader was counted before.
    pub(crate) const fn pinned_again(self) -> Option<Self> {
        if self.pins() == HOLDS_MAX {
            return None;
        }
        Some(Self(self.0 + Self::PIN.0))
    }

    /// With one more lease; none if 16 million leases hold it already.
    pub(crate) const fn leased(self) -> Option<Self> {
        if self.leases() == HOLDS_MAX {
            return None;
        }
        Some(Self(self.0 + Self::LEASE.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_word_do_not_touch_each_other() {
        let mut state = State::new(Kind::Stored).with_queue(Queue::Parked);
        for pins in 1..=5 {
            state = state
                .pinned(DAYS * 7 + 510 - pins)
                .and_then(State::leased)
                .expect("far from full");
            assert_eq!((state.pins(), state.leases()), (pins, pins));
            assert_eq!(state.day(), 510 - pins);
            assert_eq!(state.touches(), pins.min(3));
            assert_eq!((state.kind(), state.queue()), (Kind::Stored, Queue::Parked));
        }
        let state = state
            .with_kind(Kind::Removed)
            .with_queue(Queue::Nowhere)
            .with_touches(1);
        assert_eq!(
            (state.kind(), state.queue()),
            (Kind::Removed, Queue::Nowhere)
        );
        assert_eq!((state.touches(), state.holds()), (1, 10));
        assert_eq!(state.day(), 505);
    }

    #[test]
    fn holds_are_refused_before_they_overflow_into_each_other() {
        let full = State(HOLDS_MAX | HOLDS_MAX << LEASE_SHIFT).with_kind(Kind::Stored);
        assert_eq!(full.pinned(0), None);
        assert_eq!(full.leased(), None);
        assert_eq!(full.holds(), 2 * HOLDS_MAX);
    }
}

//! The one word of a record that several threads change at once: holds, kind, queue, tenant,
//! day of the last touch.
//!
//! Called through [`Slot`](crate::slots::Slot). Invariant: a record is given back to the allocator
//! exactly once, by whoever makes the transition to "removed and not held": the last holder if it
//! was removed before, else the remover. Because holds and kind share the word, each of them
//! sees in the value that he replaced whether it was he.
//!
//! ```text
//! bits 0..20  pins: reads in progress
//! bits 20..40 leases
//! bits 40..43 kind
//! bits 43..45 queue
//! bit  45     touched since it entered its queue
//! bits 46..55 tenant that is charged for it
//! bits 55..64 day of the last touch, its low bits
//! ```

use crate::calendar::DAYS;
use crate::tenants::{TENANTS_MAX, TenantId};

const HOLDS_MAX: u64 = (1 << LEASE_SHIFT) - 1;
const LEASE_SHIFT: u32 = 20;
const KIND_SHIFT: u32 = 40;
const QUEUE_SHIFT: u32 = 43;
const TOUCHED: u64 = 1 << 45;
const TENANT_SHIFT: u32 = 46;
const TENANT_MASK: u64 = (1 << (DAY_SHIFT - TENANT_SHIFT)) - 1;
const DAY_SHIFT: u32 = 55;

const _: () = assert!(KIND_SHIFT == 2 * LEASE_SHIFT && TOUCHED == 1 << (TENANT_SHIFT - 1));
const _: () = assert!(TENANTS_MAX as u64 == TENANT_MASK + 1);
const _: () = assert!(DAYS == 1 << (64 - DAY_SHIFT));

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

    /// Whether it was asked for since it entered its queue.
    pub(crate) const fn is_touched(self) -> bool {
        self.0 & TOUCHED != 0
    }

    /// The day of the last touch, from zero to [`DAYS`].
    pub(crate) const fn day(self) -> u64 {
        self.0 >> DAY_SHIFT
    }

    pub(crate) fn tenant(self) -> TenantId {
        let tenant = (self.0 >> TENANT_SHIFT) & TENANT_MASK;
        TenantId(u16::try_from(tenant).expect("nine bits"))
    }

    pub(crate) fn with_tenant(self, tenant: TenantId) -> Self {
        let others = self.0 & !(TENANT_MASK << TENANT_SHIFT);
        Self(others | u64::from(tenant.0) << TENANT_SHIFT)
    }

    pub(crate) const fn with_kind(self, kind: Kind) -> Self {
        Self(self.0 & !(7 << KIND_SHIFT) | (kind as u64) << KIND_SHIFT)
    }

    pub(crate) const fn with_queue(self, queue: Queue) -> Self {
        Self(self.0 & !(3 << QUEUE_SHIFT) | (queue as u64) << QUEUE_SHIFT)
    }

    pub(crate) const fn untouched(self) -> Self {
        Self(self.0 & !TOUCHED)
    }

    /// With one more pin, and touched `today`; none if a million readers hold it already.
    pub(crate) const fn pinned(self, today: u64) -> Option<Self> {
        match self.pinned_again() {
            Some(pinned) => Some(pinned.touched(today)),
            None => None,
        }
    }

    /// Touched `today`.
    pub(crate) const fn touched(self, today: u64) -> Self {
        let day = (today % DAYS) << DAY_SHIFT;
        Self(self.0 & !(u64::MAX << DAY_SHIFT) | day | TOUCHED)
    }

    /// With one more pin, which is no touch: its reader was counted before.
    pub(crate) const fn pinned_again(self) -> Option<Self> {
        if self.pins() == HOLDS_MAX {
            return None;
        }
        Some(Self(self.0 + Self::PIN.0))
    }

    /// With one more lease; none if a million leases hold it already.
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
        let tenant = TenantId(0x1a5);
        let mut state = State::new(Kind::Stored)
            .with_queue(Queue::Parked)
            .with_tenant(TenantId(0x1ff))
            .with_tenant(tenant);
        for pins in 1..=5 {
            state = state
                .pinned(DAYS * 7 + 510 - pins)
                .and_then(State::leased)
                .expect("far from full");
            assert_eq!((state.pins(), state.leases()), (pins, pins));
            assert_eq!(state.day(), 510 - pins);
            assert!(state.is_touched());
            assert_eq!((state.kind(), state.queue()), (Kind::Stored, Queue::Parked));
        }
        let state = state
            .with_kind(Kind::Removed)
            .with_queue(Queue::Nowhere)
            .untouched();
        assert_eq!(
            (state.kind(), state.queue()),
            (Kind::Removed, Queue::Nowhere)
        );
        assert_eq!((state.is_touched(), state.holds()), (false, 10));
        assert_eq!((state.day(), state.tenant()), (505, tenant));
    }

    #[test]
    fn holds_are_refused_before_they_overflow_into_each_other() {
        let full = State(HOLDS_MAX | HOLDS_MAX << LEASE_SHIFT).with_kind(Kind::Stored);
        assert_eq!(full.pinned(0), None);
        assert_eq!(full.leased(), None);
        assert_eq!(full.holds(), 2 * HOLDS_MAX);
    }
}

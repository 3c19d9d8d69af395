//! The one word of a record that several threads change at once: holds, kind, list, last use.
//!
//! Called through [`Slot`](crate::slots::Slot). Invariant: a record is given back to the allocator
//! exactly once, by whoever makes the transition to "removed and not held": the last holder if it
//! was removed before, else the remover. Because holds and kind share the word, each of them
//! sees in the value that he replaced whether it was he.
//!
//! ```text
//! bits 0..16  pins: reads in progress
//! bits 16..32 leases
//! bits 32..35 kind
//! bits 35..37 list of the order of eviction,
//! bits 37..41 of this class of prices
//! bit  41     touched since it entered its list
//! bits 42..55 day of its last use before that
//! bits 55..64 tenant that is charged for it
//! ```

use crate::prices::{CLASSES, Class};
use crate::tenants::{TENANTS_MAX, TenantId};

const PINS_MAX: u64 = (1 << LEASE_SHIFT) - 1;
const LEASE_SHIFT: u32 = 16;
const LEASES_MAX: u64 = (1 << (KIND_SHIFT - LEASE_SHIFT)) - 1;
const KIND_SHIFT: u32 = 32;
const QUEUE_SHIFT: u32 = 35;
const CLASS_SHIFT: u32 = 37;
const TOUCH_SHIFT: u32 = 41;
const DAY_SHIFT: u32 = 42;
const TENANT_SHIFT: u32 = 55;

/// Days that a record tells apart.
pub(crate) const DAYS: u64 = 1 << (TENANT_SHIFT - DAY_SHIFT);

const _: () = assert!(TENANTS_MAX == 1 << (64 - TENANT_SHIFT));
const _: () = assert!(CLASSES == 1 << (TOUCH_SHIFT - CLASS_SHIFT));

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

/// Which list of the order of eviction a stored object is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// None.
    Nowhere = 0,
    /// Objects that nobody asked for yet.
    Fresh = 1,
    /// Objects that were asked for.
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

    /// A stored object with one pin.
    pub(crate) const fn stored_and_pinned() -> Self {
        Self(Self::new(Kind::Stored).0 + Self::PIN.0)
    }

    pub(crate) const fn pins(self) -> u64 {
        self.0 & PINS_MAX
    }

    pub(crate) const fn leases(self) -> u64 {
        (self.0 >> LEASE_SHIFT) & LEASES_MAX
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

    pub(crate) fn class(self) -> Class {
        let bits = (self.0 >> CLASS_SHIFT) % CLASSES as u64;
        Class(u8::try_from(bits).expect("four bits"))
    }

    pub(crate) const fn is_touched(self) -> bool {
        (self.0 >> TOUCH_SHIFT) & 1 == 1
    }

    /// The day of the last use, modulo [`DAYS`].
    pub(crate) const fn day(self) -> u64 {
        (self.0 >> DAY_SHIFT) & (DAYS - 1)
    }

    pub(crate) fn tenant(self) -> TenantId {
        TenantId(u16::try_from(self.0 >> TENANT_SHIFT).expect("nine bits"))
    }

    pub(crate) fn with_tenant(self, tenant: TenantId) -> Self {
        Self(self.0 & !(u64::MAX << TENANT_SHIFT) | u64::from(tenant.0) << TENANT_SHIFT)
    }

    pub(crate) const fn with_kind(self, kind: Kind) -> Self {
        Self(self.0 & !(7 << KIND_SHIFT) | (kind as u64) << KIND_SHIFT)
    }

    pub(crate) const fn with_queue(self, queue: Queue) -> Self {
        Self(self.0 & !(3 << QUEUE_SHIFT) | (queue as u64) << QUEUE_SHIFT)
    }

    pub(crate) fn with_class(self, class: Class) -> Self {
        let mask = (CLASSES as u64 - 1) << CLASS_SHIFT;
        Self(self.0 & !mask | u64::from(class.0) << CLASS_SHIFT)
    }

    pub(crate) const fn with_day(self, day: u64) -> Self {
        Self(self.0 & !((DAYS - 1) << DAY_SHIFT) | (day % DAYS) << DAY_SHIFT)
    }

    pub(crate) const fn touched(self) -> Self {
        Self(self.0 | 1 << TOUCH_SHIFT)
    }

    pub(crate) const fn untouched(self) -> Self {
        Self(self.0 & !(1 << TOUCH_SHIFT))
    }

    /// With one more pin; none if 65,535 readers hold it already.
    pub(crate) const fn pinned(self) -> Option<Self> {
        if self.pins() == PINS_MAX {
            return None;
        }
        Some(Self(self.0 + Self::PIN.0))
    }

    /// With one more lease; none if 65,535 leases hold it already.
    pub(crate) const fn leased(self) -> Option<Self> {
        if self.leases() == LEASES_MAX {
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
            .with_tenant(tenant)
            .with_class(Class(0xf))
            .with_class(Class(0xa));
        for pins in 1..=5 {
            state = state
                .pinned()
                .and_then(State::leased)
                .expect("far from full")
                .touched();
            assert_eq!((state.pins(), state.leases()), (pins, pins));
            assert!(state.is_touched());
            state = state.with_day(DAYS + 5_077 + pins);
            assert_eq!(state.day(), 5_077 + pins);
            assert_eq!((state.kind(), state.queue()), (Kind::Stored, Queue::Parked));
            assert_eq!(state.class(), Class(0xa));
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
        assert_eq!(state.day(), 5_082);
        assert_eq!(state.tenant(), tenant);
    }

    #[test]
    fn holds_are_refused_before_they_overflow_into_each_other() {
        let full = State(PINS_MAX | LEASES_MAX << LEASE_SHIFT).with_kind(Kind::Stored);
        assert_eq!(full.pinned(), None);
        assert_eq!(full.leased(), None);
        assert_eq!(full.holds(), PINS_MAX + LEASES_MAX);
    }
}

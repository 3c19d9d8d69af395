//! What a namespace costs to compute again, as its engines say, in the steps that eviction needs.
//!
//! Called when an object is published, and by the writer of a disk that decides what of a segment
//! to keep. A price is a time for a KiB, so that it is what a byte held is worth beside others. It
//! belongs to the namespace and not to the object: of one model all objects are needed together,
//! and what a chunk costs more for standing behind others, the order of chains makes up for, since
//! it lets the last leave first.
//!
//! Nothing depends on it but the order of eviction, so it is kept in memory only: engines say it
//! again on each connection. Nobody is trusted with it either: tenants
//! have orders of their own, and no price counts for more than [`STEPS_MAX`] doublings.

use std::collections::HashMap;
use std::num::NonZeroU32;

use parking_lot::RwLock;
use tessera_proto::NamespaceDigest;

/// Classes, each twice as dear as the one before; the first is of what nobody has priced.
pub(crate) const CLASSES: usize = 16;
/// Doublings by which what is dear may outweigh what is cheap.
const STEPS_MAX: u8 = 4;
/// What is below 16 ns a KiB is of the lowest class with a price, what takes 131 us of the highest.
const LOWEST_LOG2: u32 = 3;
/// Namespaces with a price. Beyond that all are forgotten, and said again in time.
const NAMESPACES_MAX: usize = 4_096;

/// A class of prices; 0 is of no price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(pub(crate) u8);

impl Class {
    /// What nobody has priced.
    pub(crate) const NONE: Self = Self(0);

    fn of(ns_per_kib: NonZeroU32) -> Self {
        let step = ns_per_kib.ilog2().saturating_sub(LOWEST_LOG2) + 1;
        Self(u8::try_from(step.min(15)).expect("four bits"))
    }

    /// How many doublings a byte of this class is worth more than one of `cheapest`, the lowest
    /// class with a price that it is compared with. What has none counts as the cheapest.
    pub(crate) fn steps_above(self, cheapest: Self) -> u8 {
        match self {
            Self::NONE => 0,
            Self(class) => class.saturating_sub(cheapest.0).min(STEPS_MAX),
        }
    }
}

/// The prices that are known.
#[derive(Debug, Default)]
pub(crate) struct Prices(RwLock<HashMap<NamespaceDigest, Class>>);

impl Prices {
    /// Notes the price of a namespace, which is the same most of the time.
    pub(crate) fn note(&self, namespace: NamespaceDigest, ns_per_kib: NonZeroU32) {
        let class = Class::of(ns_per_kib);
        if self.class(&namespace) == class {
            return;
        }
        let mut known = self.0.write();
        if known.len() >= NAMESPACES_MAX && !known.contains_key(&namespace) {
            known.clear();
        }
        known.insert(namespace, class);
    }

    /// The class of a namespace.
    pub(crate) fn class(&self, namespace: &NamespaceDigest) -> Class {
        self.0.read().get(namespace).copied().unwrap_or_default()
    }

    /// The lowest of all prices.
    pub(crate) fn cheapest(&self) -> Class {
        self.0.read().values().min().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(ns: u32) -> NonZeroU32 {
        NonZeroU32::new(ns).expect("a price")
    }

    #[test]
    fn each_doubling_is_a_class_and_both_ends_hold_all_that_is_beyond() {
        let classes = [1, 15, 16, 31, 32, 400, 65_536, 131_072, u32::MAX];
        let classes = classes.map(|ns| Class::of(price(ns)).0);
        assert_eq!(classes, [1, 1, 2, 2, 3, 6, 14, 15, 15]);
    }

    #[test]
    fn what_has_no_price_counts_as_the_cheapest_and_nothing_for_more_than_the_bound() {
        let steps = |class, cheapest| Class(class).steps_above(Class(cheapest));
        assert_eq!((steps(0, 5), steps(5, 5), steps(7, 5)), (0, 0, 2));
        assert_eq!((steps(15, 5), steps(3, 5)), (4, 0));
    }

    #[test]
    fn the_latest_price_counts_and_however_many_there_are_memory_is_bounded() {
        let prices = Prices::default();
        let namespace = |number: u16| {
            let mut digest = [0; 32];
            digest[..2].copy_from_slice(&number.to_le_bytes());
            NamespaceDigest(digest)
        };
        for number in 0..4_096 {
            prices.note(namespace(number), price(100));
        }
        prices.note(namespace(7), price(1_000));
        assert_eq!(prices.class(&namespace(7)), Class::of(price(1_000)));
        assert_eq!(prices.cheapest(), Class::of(price(100)));
        prices.note(namespace(5_000), price(1_000));
        assert_eq!(prices.class(&namespace(7)), Class::NONE);
        assert_eq!(prices.cheapest(), Class::of(price(1_000)));
        assert_eq!(prices.0.read().len(), 1);
    }
}

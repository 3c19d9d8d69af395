//! What time it is, and how old objects may become.
//!
//! Called by both tiers whenever an object is looked for. Time is told with the operations and
//! only goes on: within a run it is that of a clock which nobody sets, and what an earlier run
//! stamped with a later time counts as new. Invariant: an object that is over is found only by who
//! holds a lease on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use tessera_proto::{Instant, TenantTag};

use crate::config::Lifetimes;

const SECOND_NS: u64 = 1_000_000_000;

/// The clock of a store and the lifetimes in it.
#[derive(Debug)]
pub(crate) struct Ages {
    /// Seconds from the start of 1970 to instant 0.
    epoch_s: u32,
    /// Of the latest time that was told, since instant 0.
    seconds: AtomicU32,
    named: HashMap<TenantTag, u32>,
    others: Option<u32>,
}

impl Ages {
    pub(crate) fn new(epoch_s: u32, lifetimes: &Lifetimes) -> Self {
        let named = lifetimes.named.iter();
        Self {
            epoch_s,
            seconds: AtomicU32::new(0),
            named: named
                .map(|(name, ttl_s)| (TenantTag::of(name), *ttl_s))
                .collect(),
            others: lifetimes.others,
        }
    }

    /// Learns what time it is. A clock that went back is not believed.
    pub(crate) fn note(&self, now: Instant) {
        let seconds = u32::try_from(now.0 / SECOND_NS).unwrap_or(u32::MAX);
        // Most calls find it noted, and leave the line shared.
        if self.seconds.load(Ordering::Relaxed) < seconds {
            self.seconds.fetch_max(seconds, Ordering::Relaxed);
        }
    }

    /// Seconds since the start of 1970.
    pub(crate) fn now_s(&self) -> u32 {
        let seconds = self.seconds.load(Ordering::Relaxed);
        self.epoch_s.saturating_add(seconds)
    }

    /// Whether no object is ever over, so that nobody has to look how old one is.
    pub(crate) fn is_endless(&self) -> bool {
        self.others.is_none() && self.named.is_empty()
    }

    /// Whether the time of an object of a tenant is over which was stored in second `stored_s`.
    pub(crate) fn is_over(&self, tenant: TenantTag, stored_s: u32) -> bool {
        if self.is_endless() {
            return false;
        }
        let ttl_s = self.named.get(&tenant).copied().or(self.others);
        ttl_s.is_some_and(|ttl_s| self.now_s().saturating_sub(stored_s) >= ttl_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_goes_back_and_stamps_of_the_future_end_nothing_early_or_late() {
        let lifetimes = Lifetimes {
            named: vec![("a".to_owned(), 10)],
            others: None,
        };
        let ages = Ages::new(1_000, &lifetimes);
        let (named, other) = (TenantTag::of("a"), TenantTag::of("b"));
        assert!(!ages.is_over(named, 1_000));
        ages.note(Instant(9 * SECOND_NS + SECOND_NS - 1));
        assert!(!ages.is_over(named, 1_000));
        ages.note(Instant(10 * SECOND_NS));
        ages.note(Instant(2 * SECOND_NS));
        assert!(ages.is_over(named, 1_000));
        assert!(!ages.is_over(other, 0), "nobody said how long it lives");
        assert!(!ages.is_over(named, 5_000));
        ages.note(Instant::NEVER);
        assert_eq!(ages.now_s(), u32::MAX);
    }
}

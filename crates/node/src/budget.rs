//! A number of bytes that may be in use at once over all connections.
//!
//! Called before memory is reserved for an object that is still to arrive. Invariant: the bytes of
//! all living grants never exceed the budget, and a grant gives its bytes back exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared by all connections.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: u64,
    used: AtomicU64,
}

/// The right to some bytes of a budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            used: AtomicU64::new(0),
        })
    }

    /// The right to `bytes`, or `None` if others use too much of the budget now.
    pub(crate) fn grant(self: &Arc<Self>, bytes: u64) -> Option<Grant> {
        self.grant_within(bytes, self.bytes)
    }

    /// The right to `bytes`, if all grants together then take no more than `most`.
    pub(crate) fn grant_within(self: &Arc<Self>, bytes: u64, most: u64) -> Option<Grant> {
        let most = most.min(self.bytes);
        let within = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
        // Relaxed is enough: the number guards no other memory.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .ok()?;
        Some(Grant {
            budget: Arc::clone(self),
            bytes,
        })
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_never_exceed_the_budget_and_come_back_once() {
        let budget = Budget::new(100);
        let first = budget.grant(60).expect("60 of 100");
        assert!(budget.grant(41).is_none());
        assert!(budget.grant(u64::MAX).is_none());
        assert!(budget.grant_within(20, 79).is_none());
        let second = budget.grant(40).expect("40 of the other 40");
        assert_eq!(budget.used(), 100);
        drop(first);
        assert_eq!(budget.used(), 40);
        drop(second);
        assert_eq!(budget.used(), 0);
    }
}

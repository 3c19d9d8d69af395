//! What of the scheduler's machine decides its future, and how full its tables are.
//!
//! Called by tests that visit every reachable state and must know one that they have seen. The
//! invariant: two machines of one configuration with equal digests answer every later call alike,
//! but for the numbers that they give to new requests, lookups and steps.

use std::hash::{Hash, Hasher};

use crate::scheduler::root::SchedulerRoot;

/// Entries in each table of a [`SchedulerRoot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerTables {
    /// Requests that are known.
    pub requests: usize,
    /// Questions that the nodes have not answered.
    pub questions: usize,
    /// Loads of ended requests that some rank has not reported.
    pub draining: usize,
    /// Loads and cancellations that no plan has carried yet.
    pub unsent: usize,
}

impl SchedulerRoot {
    /// How full the tables are.
    #[must_use]
    pub fn tables(&self) -> SchedulerTables {
        SchedulerTables {
            requests: self.entries.len(),
            questions: self.questions.len(),
            draining: self.draining.len(),
            unsent: self.orders.len() + self.cancels.len(),
        }
    }
}

impl Hash for SchedulerRoot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Every field is named, so that a new one cannot be forgotten.
        let Self {
            config: _,
            shards: _,
            ranks: _,
            entries,
            questions,
            draining,
            orders,
            cancels,
            ended,
            commands,
            counters: _,
            step: _,
            next_timeout,
            next_key: _,
            next_lookup: _,
        } = self;
        entries.hash(state);
        questions.hash(state);
        draining.hash(state);
        (orders, cancels, ended).hash(state);
        commands.hash(state);
        next_timeout.hash(state);
    }
}

//! What of the worker's machine decides its future.
//!
//! Called by tests that visit every reachable state and must know one that they have seen. The
//! invariant: two machines of one configuration with equal digests answer every later call alike,
//! but for the numbers of new saves, while plans come in the order of their numbers.

use std::hash::{Hash, Hasher};

use crate::worker::root::WorkerRoot;

impl Hash for WorkerRoot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Every field is named, so that a new one cannot be forgotten.
        let Self {
            config: _,
            shards: _,
            incarnation,
            last_step: _,
            loads,
            turns,
            queued,
            in_flight,
            settled,
            invalid,
            to_save,
            saves,
            next_save: _,
            commands,
            closed,
            counters: _,
        } = self;
        (incarnation, loads, turns, queued, in_flight).hash(state);
        (settled, invalid, to_save).hash(state);
        (saves, commands, closed).hash(state);
    }
}

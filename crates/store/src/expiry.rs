//! How objects in memory end with their time: when somebody meets them.
//!
//! Called by the store. Invariant: an object is removed for its age only while nobody leases it.

use std::sync::Arc;

use tessera_proto::{Instant, ObjectId};

use crate::ages::Ages;
use crate::ram::RamStore;
use crate::space::Space;

impl RamStore {
    /// Learns what time it is.
    pub(crate) fn note(&self, now: Instant) {
        self.core.ages.note(now);
    }

    /// The clock and the lifetimes.
    pub(crate) fn ages(&self) -> Arc<Ages> {
        Arc::clone(&self.core.ages)
    }

    /// Seconds since the start of 1970, by the latest time that was told.
    pub(crate) fn now_s(&self) -> u32 {
        self.core.ages.now_s()
    }

    /// Removes an object whose time is over, so that another one can take its place.
    pub(crate) fn bury(&self, space: &mut Space, id: &ObjectId) {
        let core = &self.core;
        if core.ages.is_endless() {
            return;
        }
        let found = core.index.visit(&core.slots, id, |slot, _| slot);
        if let Some(slot) = found.filter(|slot| core.is_gone(*slot)) {
            space.remove(&core.slots, &core.index, slot);
            core.counters.expired.add(1);
        }
    }
}

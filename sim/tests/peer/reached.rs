//! What a search has seen, so that a world that no longer reaches something is noticed.

use std::sync::atomic::Ordering;

use crate::world::World;

/// Something that a world must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    Succeeded,
    Failed,
    Error,
    Closed,
    Revoked,
    Broken,
    Aborted,
    Preempted,
    Restarted,
    Death,
    Raised,
    Again,
    Landed,
}

impl Reached {
    pub(crate) const COUNT: usize = 13;
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Succeeded,
        Self::Failed,
        Self::Error,
        Self::Closed,
        Self::Revoked,
        Self::Broken,
        Self::Aborted,
        Self::Preempted,
        Self::Restarted,
        Self::Death,
        Self::Raised,
        Self::Again,
        Self::Landed,
    ];
}

impl World {
    pub(crate) fn saw(&self, what: Reached) {
        self.reached[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn has_seen(&self, what: Reached) -> bool {
        self.reached[what as usize].load(Ordering::Relaxed) > 0
    }
}

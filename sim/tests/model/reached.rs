//! What a search has seen, so that a model that no longer reaches something is noticed.

use std::sync::atomic::Ordering;

use crate::world::World;

/// Something that a world must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    LoadSucceeded,
    LoadFailed,
    Recomputed,
    AbortedParked,
    Preempted,
    Deadline,
    LateAnswer,
    QuarantinedLookup,
    NameReused,
    LeaseOver,
    Saved,
    FailedOnOneRankOnly,
    FenceFailed,
}

impl Reached {
    pub(crate) const COUNT: usize = 13;
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::LoadSucceeded,
        Self::LoadFailed,
        Self::Recomputed,
        Self::AbortedParked,
        Self::Preempted,
        Self::Deadline,
        Self::LateAnswer,
        Self::QuarantinedLookup,
        Self::NameReused,
        Self::LeaseOver,
        Self::Saved,
        Self::FailedOnOneRankOnly,
        Self::FenceFailed,
    ];
}

impl World {
    pub(crate) fn saw(&self, what: Reached) {
        self.reached[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// What was never seen.
    pub(crate) fn unseen(&self) -> Vec<Reached> {
        let seen = |what: &Reached| self.reached[*what as usize].load(Ordering::Relaxed) > 0;
        Reached::ALL
            .into_iter()
            .filter(|what| !seen(what))
            .collect()
    }
}

//! What a [`SchedulerRoot`](super::SchedulerRoot) is started with, its limits and its counters.

use tessera_proto::NamespaceDigest;

use crate::shape::Shape;

/// Settings of the scheduler's machine, fixed at start.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The namespace of all objects.
    pub namespace: NamespaceDigest,
    /// The engine's cache.
    pub shape: Shape,
    /// Whether hits are promised at all.
    pub loads: bool,
    /// Whether objects are saved at all.
    pub saves: bool,
    /// A lookup that has no answer after this long is answered with 0.
    pub lookup_timeout_ms: u64,
    /// A load fails if it is not over this long after a worker learned of it.
    pub load_timeout_ms: u64,
    /// How long leases are asked for. A hit is offered only while its lease outlasts a load.
    pub lease_ms: u32,
    /// Names this scheduler process in its plans.
    pub incarnation: u128,
    /// Bounds of the tables.
    pub limits: SchedulerLimits,
}

/// Bounds of the scheduler's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Requests that are known at once; further ones are neither loaded nor saved.
    pub requests: usize,
    /// Objects that one lookup asks for; a longer prompt is looked up to that length.
    pub lookup_objects: usize,
}

impl Default for SchedulerLimits {
    fn default() -> Self {
        Self {
            requests: 65_536,
            lookup_objects: 16_384,
        }
    }
}

/// What happened so far. Counts only; a snapshot is a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Lookups that were put to the nodes.
    pub lookups: u64,
    /// Lookups answered with tokens.
    pub hits: u64,
    /// Lookups answered with 0 after the nodes were asked.
    pub misses: u64,
    /// Lookups answered with 0 because their deadline passed.
    pub lookups_expired: u64,
    /// Lookups answered with 0 because an earlier hit of the request had failed.
    pub lookups_quarantined: u64,
    /// Tokens promised to the engine and taken by it.
    pub hit_tokens: u64,
    /// Loads that were ordered.
    pub loads: u64,
    /// Loads that ended well on every rank.
    pub loads_succeeded: u64,
    /// Loads that failed on some rank.
    pub loads_failed: u64,
    /// Loads whose request was gone before they ended.
    pub loads_cancelled: u64,
    /// Objects ordered to be saved, before division over ranks.
    pub saves: u64,
    /// Objects never ordered: null or given-up blocks, a state that was not at a boundary.
    pub saves_skipped: u64,
    /// Completions of loads that were over or never known.
    pub late_completions: u64,
    /// Answers to lookups that nobody waited for.
    pub late_lookups: u64,
    /// Requests that were not tracked because the table was full.
    pub requests_refused: u64,
}

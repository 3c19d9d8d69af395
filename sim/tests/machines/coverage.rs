//! What a simulation has seen, so that a model that no longer reaches something is noticed.

macro_rules! coverage {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of what happened.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Coverage { $($(#[$doc])* pub(crate) $name: u64,)* }

        impl Coverage {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Whether each of these happened at least ten times.
            pub(crate) fn is_everything_reached(&self) -> bool {
                true $(&& self.$name >= 10)*
            }
        }
    };
}

coverage! {
    /// Steps in which a request computed.
    forwards,
    /// Requests that were done.
    requests_done,
    /// Lookups answered with tokens.
    hits,
    /// Loads that succeeded on every rank.
    loads_succeeded,
    /// Loads that failed on some rank.
    loads_failed,
    /// Requests aborted while they were parked.
    aborted_parked,
    /// Requests that lost their blocks while they ran.
    preempted,
    /// Objects that a node took.
    stored,
    /// Fetches that left garbage behind.
    partial_writes,
    /// Writes that became visible before their fence.
    early_writes,
    /// Nodes that forgot everything.
    restarts,
    /// Lookups that were answered after their deadline.
    late_answers,
    /// Requests under a name that was used before.
    names_reused,
    /// Allocations that the engine could not make after a hit.
    allocations_failed,
    /// Lookups of a request whose earlier hit had failed.
    quarantined_lookups,
    /// Requests that began with blocks of another one.
    prefixes_shared,
    /// Fences that failed before they succeeded.
    fences_failed,
}

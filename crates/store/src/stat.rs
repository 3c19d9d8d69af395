//! The counters and gauges of a store.
//!
//! Called by the node, which reports them. Counters only grow; gauges are as of one moment each,
//! not of one moment together. Names and units are those of [`StoreStat::entries`].

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that many threads change.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, by: u64) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `by` unless the sum would exceed `most`.
    pub(crate) fn add_within(&self, by: u64, most: u64) -> bool {
        let within = |now: u64| now.checked_add(by).filter(|sum| *sum <= most);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }
}

/// What one tenant holds, and what left it for others or for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantStat {
    /// As its limit was given; empty for all those without one.
    pub name: String,
    /// Its objects in RAM.
    pub objects: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// Objects of it that were evicted from RAM.
    pub evictions: u64,
    /// Its objects on disk.
    pub disk_objects: u64,
    /// Payload bytes of these.
    pub disk_bytes: u64,
    /// Objects of it that left the disk for others or for its quota.
    pub disk_evictions: u64,
}

/// The counters that are changed outside the space lock.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: Count,
    pub(crate) misses: Count,
    pub(crate) existed: Count,
    pub(crate) refused_no_space: Count,
    pub(crate) refused_too_large: Count,
    pub(crate) damaged: Count,
    pub(crate) late_reads: Count,
    pub(crate) expired: Count,
    pub(crate) pins: Count,
    pub(crate) leased_bytes: Count,
    /// Objects of all leases, each counted for each lease.
    pub(crate) lease_holds: Count,
    pub(crate) leases_refused: Count,
    pub(crate) leases_expired: Count,
}

macro_rules! store_stat {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What a store holds and what happened to it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StoreStat {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl StoreStat {
            /// All numbers with their names, in the order in which people should read them.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}

store_stat! {
    /// Objects that a reader finds.
    objects,
    /// Payload bytes of these objects.
    bytes,
    /// Bytes of the arena.
    capacity_bytes,
    /// Bytes of the arena that nothing occupies.
    free_bytes,
    /// Payload bytes of extents that writers own.
    reserved_bytes,
    /// Payload bytes under lease, each object once.
    leased_bytes,
    /// Leases that have not ended.
    leases,
    /// Reads in progress.
    pins,
    /// Reads that found their object.
    hits,
    /// Reads that did not.
    misses,
    /// Objects published.
    stored,
    /// Publications that found the object there already.
    existed,
    /// Objects evicted to make room.
    evictions,
    /// Payload bytes of these.
    evicted_bytes,
    /// Objects removed by request or because they were damaged.
    removed,
    /// Reservations refused because no room could be made.
    refused_no_space,
    /// Reservations refused because of their length.
    refused_too_large,
    /// Items that an acquire found but could not hold within its bounds.
    leases_refused,
    /// Leases that ended by their deadline.
    leases_expired,
    /// Reads that named a lease which had ended; they were answered if the object was there.
    late_reads,
    /// Objects that were looked for after their time and removed.
    expired,
    /// Objects whose own header was found damaged; they were removed.
    damaged,
}

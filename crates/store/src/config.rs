//! What a store may use: memory, object size, leases.
//!
//! Called by whoever starts a store. Every bound of the store is stated here or in
//! `tessera_proto::limits`; [`StoreConfig::check`] is the only place that relates them.

use std::io;

use tessera_proto::TenantTag;
use tessera_proto::limits::{LEASE_MS_MAX, OBJECT_BYTES_MAX};
use thiserror::Error;

use crate::geometry::{Geometry, PAGE_BYTES};

/// What a RAM store may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes of the arena: payloads, their headers and what rounding loses. Rounded down to
    /// whole pages of 4 KiB.
    pub capacity_bytes: u64,
    /// Largest payload that is taken, bytes; at most `OBJECT_BYTES_MAX`.
    pub max_object_bytes: u64,
    /// Bounds on leases.
    pub leases: LeaseLimits,
    /// What tenants may hold.
    pub tenants: TenantLimits,
    /// How long their objects are found.
    pub lifetimes: Lifetimes,
    /// Seconds from the start of 1970 to the instant 0 of this store: what is kept across starts is
    /// stamped with the time.
    pub epoch_s: u32,
    /// Threads that fault the arena in at start.
    pub fault_threads: usize,
}

/// How much of a store tenants may hold, payload bytes. Who is at his limit makes room among his
/// own objects, whether the store is full or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// The tenants with a name, each with its limit if it has one. They have numbers of their own.
    pub named: Vec<(String, Option<u64>)>,
    /// The limit of each other tenant.
    pub others: Option<u64>,
}

impl TenantLimits {
    /// The limit of a tenant; beyond all that there is if it has none.
    pub(crate) fn quota_bytes(&self, tag: TenantTag) -> u64 {
        let named = self
            .named
            .iter()
            .find(|(name, _)| TenantTag::of(name) == tag);
        named
            .map_or(self.others, |(_, quota)| *quota)
            .unwrap_or(u64::MAX)
    }

    /// Whether a tenant has a name here.
    pub(crate) fn is_named(&self, tag: TenantTag) -> bool {
        self.named
            .iter()
            .any(|(name, _)| TenantTag::of(name) == tag)
    }
}

/// How long objects are found after they were stored, whole seconds. What is leased when its time
/// comes is there until the lease ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of the objects of these tenants.
    pub named: Vec<(String, u32)>,
    /// Of all others; without one they are found until they are evicted.
    pub others: Option<u32>,
}

/// Bounds on leases. A lease takes memory out of eviction's reach, so each is a bound on how much
/// of the store can stop being a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimits {
    /// Longest lease, nanoseconds; a longer wish is shortened to it.
    pub ttl_ns_max: u64,
    /// Most payload bytes under any lease, each object counted once.
    pub store_bytes_max: u64,
    /// Most payload bytes under the leases of one owner, counted once for each lease.
    pub owner_bytes_max: u64,
    /// Most leases of one owner.
    pub owner_leases_max: usize,
}

impl StoreConfig {
    /// The usual configuration of a store of `capacity_bytes`: objects up to a quarter of it, half
    /// of it under lease, two threads to fault it in.
    #[must_use]
    pub fn with_capacity(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            max_object_bytes: OBJECT_BYTES_MAX.min(capacity_bytes / 4),
            leases: LeaseLimits {
                ttl_ns_max: u64::from(LEASE_MS_MAX) * 1_000_000,
                store_bytes_max: capacity_bytes / 2,
                owner_bytes_max: capacity_bytes / 2,
                owner_leases_max: 4_096,
            },
            tenants: TenantLimits::default(),
            lifetimes: Lifetimes::default(),
            epoch_s: 0,
            fault_threads: 2,
        }
    }

    /// The geometry of the arena that this configuration asks for.
    pub(crate) fn check(&self) -> Result<Geometry, StoreError> {
        if self.capacity_bytes < PAGE_BYTES {
            return Err(StoreError::CapacityTooSmall {
                got: self.capacity_bytes,
                least: PAGE_BYTES,
            });
        }
        if usize::try_from(self.capacity_bytes).is_err()
            || self.capacity_bytes > Geometry::CAPACITY_BYTES_MAX
        {
            return Err(StoreError::CapacityTooLarge {
                got: self.capacity_bytes,
                most: Geometry::CAPACITY_BYTES_MAX,
            });
        }
        let geometry = Geometry::of_capacity(self.capacity_bytes);
        let most = OBJECT_BYTES_MAX.min(geometry.largest_object_bytes());
        if self.max_object_bytes == 0 || self.max_object_bytes > most {
            return Err(StoreError::ObjectLimit {
                got: self.max_object_bytes,
                most,
            });
        }
        Ok(geometry)
    }
}

/// Why a store did not start.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The capacity holds nothing: give at least `least` bytes.
    #[error("capacity of {got} bytes holds nothing; give at least {least}")]
    CapacityTooSmall {
        /// What was configured.
        got: u64,
        /// What is needed.
        least: u64,
    },
    /// The capacity is beyond what the store can address: give at most `most` bytes.
    #[error("capacity of {got} bytes is more than a store can address; give at most {most}")]
    CapacityTooLarge {
        /// What was configured.
        got: u64,
        /// What can be addressed.
        most: u64,
    },
    /// The object limit is zero, or an object of that size fits neither the capacity nor the
    /// protocol: give 1 to `most` bytes, or more capacity.
    #[error("largest object of {got} bytes cannot be kept; give 1 to {most}, or more capacity")]
    ObjectLimit {
        /// What was configured.
        got: u64,
        /// What fits.
        most: u64,
    },
    /// The system did not give the memory: give less capacity, or free memory on this machine.
    #[error("no memory for an arena of {capacity_bytes} bytes ({source}); configure less")]
    Memory {
        /// What was asked for.
        capacity_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

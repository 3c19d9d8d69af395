//! The behaviour of the disk tier through the public operations of the store.
//!
//! Called by the test runner. Disks are in memory, where every write can be the last one, or small
//! files; faults come through the trait `Disk` and nowhere else.
#![expect(clippy::cast_possible_truncation, reason = "sizes of tests are small")]

mod absent;
mod admission;
mod conformance;
mod crash;
mod drops;
mod eviction;
mod expiry;
mod faults;
mod folders;
mod format;
mod leases;
mod memory;
mod model;
mod removals;
mod support;
mod tenants;
mod tiers;

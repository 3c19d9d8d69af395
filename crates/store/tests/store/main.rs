//! The behaviour of the RAM store through its public operations.
//!
//! Called by the test runner. Arenas are small, time is a number, and every test ends with a walk
//! over the whole store.

mod disk;
mod eviction;
mod expiry;
#[cfg(feature = "fault-injection")]
mod faults;
mod leases;
mod model;
mod prices;
mod publication;
mod sample;
mod tenants;
mod threads;

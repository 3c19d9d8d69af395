//! The scheduler's half: what is promised, to whom, and under which lease.
//!
//! [`SchedulerRoot`] answers lookups, turns allocations into loads, says what to save, and keeps
//! the books of leases and failures. One per engine; driven by the client's scheduler driver.

mod config;
mod digest;
mod leases;
mod lookup;
mod request;
mod root;
mod step;

#[cfg(test)]
mod tests;

pub use config::{SchedulerConfig, SchedulerCounters, SchedulerLimits};
pub use digest::SchedulerTables;
pub use leases::{Held, LeaseGrant, NodeIndex};
pub use lookup::{Found, LookupAnswer, LookupInput};
pub use root::{SchedulerCommand, SchedulerEvent, SchedulerRoot};
pub use step::{NotPromised, ScheduledRequest, StepInput};

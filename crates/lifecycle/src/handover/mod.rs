//! The scheduler's side of direct transfers: who offers a prompt, and who takes one.
//!
//! ```text
//!  prefill    finished ─ offer ─▶ blocks held by the engine ─ sent ─▶ free
//!                           │ ticket, through whoever routes requests
//!                           ▼
//!  decode     admitted ─▶ promised ─ allocated ─▶ taken ─ received ─▶ spent
//!                │                                  │ request gone: called off
//!                └── not needed, request gone ──▶ declined
//! ```
//!
//! [`HandoverRoot`] is one machine for both ends, beside the cache's
//! [`SchedulerRoot`](crate::SchedulerRoot). Its orders travel in the step's plan; every worker
//! gives its own part of one to its [`PeerRoot`](crate::PeerRoot), which alone decides when memory
//! is at rest. A ticket that is admitted is taken or declined, so that prefill never waits for its
//! lease.

mod config;
mod order;
mod root;
mod taker;

#[cfg(test)]
mod tests;

pub use config::{HandoverConfig, HandoverCounters, HandoverLimits};
pub use order::{End, HandoverBlock, HandoverOrder};
pub use root::{HandoverRoot, Offered, Refused};

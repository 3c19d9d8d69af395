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
//! Where prefill writes, the request comes to both engines at once, and decode's ticket to prefill:
//!
//! ```text
//!  decode     expected ─▶ promised ─ allocated, lent ─▶ taken ─ received ─▶ spent
//!                │                        │ ticket
//!                └── not needed, gone     ▼
//!                       │ empty ticket   met ─▶ written, or given back ─ sent ─▶ free
//!                       └────────────────▲                ▲
//!  prefill    promised ─ finished: blocks held ───────────┴─ nobody came in the lease
//! ```
//!
//! [`HandoverRoot`] is one machine for both ends, beside the cache's
//! [`SchedulerRoot`](crate::SchedulerRoot). Its orders travel in the step's plan; every worker
//! gives its own part of one to its [`PeerRoot`](crate::PeerRoot), which alone decides when memory
//! is at rest. A ticket that is admitted is taken or declined, so that prefill never waits for its
//! lease.

mod config;
mod giver;
mod meeting;
mod order;
mod root;
mod taker;

#[cfg(test)]
mod tests;

pub use config::{HandoverConfig, HandoverCounters, HandoverLimits};
pub use giver::Answer;
pub use meeting::Letter;
pub use order::{End, HandoverBlock, HandoverOrder};
pub use root::{HandoverRoot, Offered, Refused};

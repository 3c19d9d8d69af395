//! The cache nodes as one thing: routing, batches, health, outcomes.
//!
//! Called by the driver of an inference process and by the command line. Every operation ends by
//! its deadline with an outcome that is a value; a node that is down, slow, paused or restarted is
//! a miss, and comes back by itself.

mod acquire;
mod config;
mod counters;
mod handle;
mod node;
mod outcome;
mod requests;
mod supervisor;

pub use config::ClusterConfig;
pub(crate) use counters::NodeCounters;
pub use counters::{ClusterMetrics, NodeMetrics};
pub use handle::Cluster;
pub use outcome::{AcquireOutcome, FetchOutcome, Lease, NodeError, Presence, StoreOutcome};

//! The worker's half: what one rank moves, and when its memory is at rest again.
//!
//! [`WorkerRoot`] turns the scheduler's plans into fetches, fences and saves of its own rank, and
//! reports each load exactly once, after the last write and the fence behind it. One per worker;
//! driven by the client's worker driver.

mod command;
mod config;
mod digest;
mod load;
mod root;
mod save;

#[cfg(test)]
mod tests;

pub use command::{Fetch, Phase, Save, TransferResults, WorkerCommand, WorkerEvent};
pub use config::{LoadFailure, SaveOutcome, WorkerConfig, WorkerCounters, WorkerLimits};
pub use root::WorkerRoot;

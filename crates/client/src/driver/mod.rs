//! The drivers of the lifecycle's machines: what the engine's hooks call.
//!
//! [`SchedulerDriver`] runs in the engine's scheduler process, [`WorkerDriver`] in each of its
//! workers. Each owns a machine, a runtime and the handle on the nodes; it gives the machine time
//! and events, and executes its commands. Nothing is decided here.

mod admission;
mod clock;
mod config;
mod error;
mod fence;
mod handover;
mod inbox;
mod landing;
mod metrics;
mod passes;
mod price;
mod remote;
mod scheduler;
mod staging;
mod task;
mod transfer;
mod worker;

#[cfg(test)]
mod tests;

pub(crate) use clock::Clock;
pub(crate) use fence::{Fences, answered};

pub use config::{EngineConfig, NamespaceConfig, TopologyConfig};
pub use error::{DriverError, MemoryFault, StartError};
pub use handover::PeerPlace;
pub use metrics::{SchedulerMetrics, WorkerMetrics};
pub use remote::Remote;
pub use scheduler::{Finished, SchedulerDriver};
pub use tessera_lifecycle::handover::Refused;
pub use tessera_lifecycle::scheduler::{LookupAnswer, ScheduledRequest, StepInput};
pub use tessera_lifecycle::worker::TransferResults;
pub use tessera_proto::ticket::{Prompt, TicketWorker};
pub use worker::WorkerDriver;

//! What stops a driver from starting, and what a hook can raise.
//!
//! Mapped one-to-one to exceptions by the Python module.

use std::time::Duration;

use tessera_lifecycle::scheduler::NotPromised;
use tessera_lifecycle::{PlanError, Rank, ShapeError};
use tessera_transport::DeviceError;
use thiserror::Error;

use super::config::TopologyConfig;
use crate::layout::LayoutError;
use crate::local::LocalError;
use crate::peer::{KeyError, PeerError, PeerStartError};

/// Why a driver does not start. Each message says what to change.
#[derive(Debug, Error)]
pub enum StartError {
    /// The connector's description cannot be read.
    #[error("the engine's description is malformed: {0}")]
    Config(String),
    /// The cache's shape is not supported, or an option contradicts it.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The worker is not one of the topology.
    #[error("worker {rank:?} is outside the topology {topology:?}")]
    Rank {
        /// What the worker says it is.
        rank: Rank,
        /// The sizes.
        topology: TopologyConfig,
    },
    /// The block memory cannot be addressed.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There is no place for the local node.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// No staging memory.
    #[error(
        "staging memory of {bytes} bytes cannot be used: {reason}; set `staging` to another value"
    )]
    Staging {
        /// What was asked for.
        bytes: u64,
        /// Why not.
        reason: String,
    },
    /// There is no key for tickets.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No listener for other engines.
    #[error(transparent)]
    Peer(#[from] PeerStartError),
    /// The machine refused threads or randomness.
    #[error("the driver's runtime does not start: {0}")]
    Runtime(#[from] std::io::Error),
}

/// Why block memory may be written for ever.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MemoryFault {
    /// No answer.
    #[error("{device} did not answer within {limit:?}")]
    Silent {
        /// The device.
        device: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// Failures only.
    #[error("{device} cannot be fenced: {source}")]
    Failing {
        /// The device.
        device: String,
        /// The last failure.
        source: DeviceError,
    },
    /// Its own end.
    #[error("{device} ended with memory in its hands")]
    Lost {
        /// The device.
        device: String,
    },
    /// A transfer that does not end, whatever ends its connection.
    #[error("a transfer did not give memory back within {limit:?} of the end of its time")]
    Transfer {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The worker's own code, in a task or a hook, with memory in its hands.
    #[error("its own code failed while it moved block memory; see the log, and report it")]
    Panicked,
}

/// Why a hook fails. The engine's step must not go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DriverError {
    /// A hook was called after shutdown.
    #[error("the connector was shut down: no hook may be called after that")]
    Closed,
    /// The engine expects tokens that were not promised.
    #[error(transparent)]
    NotPromised(#[from] NotPromised),
    /// The scheduler's plan cannot be read.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A direct transfer may touch block memory for ever. The engine must end.
    #[error(transparent)]
    Peer(PeerError),
    /// Nobody can say that block memory is at rest. The engine must end: what it would free may
    /// still be written.
    #[error("the worker stops, because {0}; restart the engine")]
    Memory(MemoryFault),
}

//! What a [`WorkerRoot`](super::WorkerRoot) is started with, how a load can fail, and what is
//! counted.

use tessera_proto::NamespaceDigest;
use thiserror::Error;

use crate::shape::{Rank, Shape};

/// Settings of the worker's machine, fixed at start.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The namespace of all objects.
    pub namespace: NamespaceDigest,
    /// The engine's cache.
    pub shape: Shape,
    /// This worker's place.
    pub rank: Rank,
    /// Bounds of the tables.
    pub limits: WorkerLimits,
}

/// Bounds of the worker's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Objects that wait to be fetched, over all loads; a load beyond that fails.
    pub queued: usize,
    /// Objects that are fetched at once.
    pub in_flight: usize,
    /// Objects that are being saved at once; further ones are not saved.
    pub saves: usize,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        Self {
            queued: 65_536,
            in_flight: 32,
            saves: 1_024,
        }
    }
}

/// Why a load failed. Every kind ends the load once, and its request computes instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum LoadFailure {
    /// The object is gone since the lookup.
    #[error("object is gone")]
    Miss,
    /// The lease that held the object is over.
    #[error("lease is over")]
    LeaseOver,
    /// The object is shorter or longer than the layout.
    #[error("object has another length")]
    Length,
    /// The bytes are not those that were saved.
    #[error("object is damaged")]
    Corrupt,
    /// The node does not answer.
    #[error("node is unreachable")]
    Unreachable,
    /// The node has no room for the request.
    #[error("node is busy")]
    Busy,
    /// The code that executes the fetch failed.
    #[error("fetch ended abnormally")]
    Abnormal,
    /// The device that owns the memory failed.
    #[error("device failed")]
    Device,
    /// A block that must be filled is null or missing in the table.
    #[error("destination is not allocated")]
    Unallocated,
    /// The plan contradicts itself or the shape.
    #[error("order is malformed")]
    Malformed,
    /// The load's deadline passed.
    #[error("deadline passed")]
    Deadline,
    /// Too much is queued already.
    #[error("queue is full")]
    QueueFull,
    /// The worker shuts down.
    #[error("queue is closed")]
    QueueClosed,
    /// The request was gone before all was fetched.
    #[error("load was cancelled")]
    Cancelled,
}

impl LoadFailure {
    /// Every kind, in the order of the type.
    pub const ALL: [Self; 14] = [
        Self::Miss,
        Self::LeaseOver,
        Self::Length,
        Self::Corrupt,
        Self::Unreachable,
        Self::Busy,
        Self::Abnormal,
        Self::Device,
        Self::Unallocated,
        Self::Malformed,
        Self::Deadline,
        Self::QueueFull,
        Self::QueueClosed,
        Self::Cancelled,
    ];
}

/// How the save of one object ended. No kind reaches a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// It is stored.
    Stored,
    /// The node has it already.
    Existed,
    /// There was no staging memory.
    StagingFull,
    /// The device that owns the blocks did not give them out in time.
    Device,
    /// The node did not take it: full, busy or unreachable.
    Refused,
}

/// What happened so far. Counts only; a snapshot is a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Loads that began.
    pub loads: u64,
    /// Loads that ended well.
    pub loads_succeeded: u64,
    /// Loads that failed, by kind, in the order of [`LoadFailure::ALL`].
    pub loads_failed: [u64; LoadFailure::ALL.len()],
    /// Objects fetched.
    pub objects_loaded: u64,
    /// Completions for loads or parts that were over or never known.
    pub late_completions: u64,
    /// Plans that came again and were not executed again.
    pub repeated_plans: u64,
    /// Objects handed out to be saved.
    pub saves: u64,
    /// Objects stored.
    pub saves_stored: u64,
    /// Objects that their node had already, as it said before they were sent or when it got them.
    pub saves_existed: u64,
    /// Objects not saved because too many were under way, staging was full, or the device did not
    /// give them out.
    pub saves_skipped: u64,
    /// Objects that no node took.
    pub saves_refused: u64,
}

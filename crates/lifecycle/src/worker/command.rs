//! What a [`WorkerRoot`](super::WorkerRoot) asks of its driver, and what the driver reports.
//!
//! Closed lists: the driver executes every command and answers as each says.

use tessera_proto::{Instant, KeyDigest};

use crate::ids::{LoadId, SaveId};
use crate::plan::Destination;
use crate::scheduler::Held;
use crate::worker::config::{LoadFailure, SaveOutcome};

/// Which fence of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// All earlier work of the owning device on the memory is over.
    Before,
    /// What was written is visible to all later work of that device.
    After,
}

/// Fetch one object into blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// The load.
    pub load: LoadId,
    /// The part of it.
    pub part: u32,
    /// The group, for its layout.
    pub group: usize,
    /// The object.
    pub key: KeyDigest,
    /// The lease that holds it.
    pub lease: Option<Held>,
    /// Where each of its blocks goes, in payload order.
    pub destinations: Vec<Destination>,
    /// When the load is over for the request.
    pub deadline: Instant,
}

/// Copy one object out of blocks, now, and store the copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Save {
    /// The save.
    pub save: SaveId,
    /// The group, for its layout.
    pub group: usize,
    /// The object.
    pub key: KeyDigest,
    /// Its blocks, in payload order.
    pub blocks: Vec<u32>,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerCommand {
    /// Fence the device for a load; answer with [`WorkerEvent::Fenced`], and go on trying until
    /// then: [`WorkerEvent::FenceFailed`] is no answer.
    Fence {
        /// The load.
        load: LoadId,
        /// Which fence.
        phase: Phase,
    },
    /// Fetch an object; answer with [`WorkerEvent::Fetched`] when nothing can write for it.
    Fetch(Fetch),
    /// The end of this step will save these objects: ask meanwhile which of them are stored. There
    /// is no answer: it is a hint, and a save of what is stored is [`SaveOutcome::Existed`].
    Probe(Vec<KeyDigest>),
    /// Save an object; answer with [`WorkerEvent::Saved`].
    Save(Save),
}

/// What the driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEvent {
    /// A fence is complete.
    Fenced {
        /// The load.
        load: LoadId,
        /// Which fence.
        phase: Phase,
    },
    /// A fence failed and proved nothing. The load has failed, and its memory stays claimed until
    /// the same fence is complete.
    FenceFailed {
        /// The load.
        load: LoadId,
        /// Which fence.
        phase: Phase,
    },
    /// A fetch is over: nothing writes to its blocks any more.
    Fetched {
        /// The load.
        load: LoadId,
        /// The part of it.
        part: u32,
        /// How it went.
        result: Result<(), LoadFailure>,
    },
    /// A save is over.
    Saved {
        /// The save.
        save: SaveId,
        /// How it went.
        outcome: SaveOutcome,
    },
}

/// One snapshot for the engine: each request is in at most one snapshot for each of its loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferResults {
    /// Requests whose blocks no other engine reads any more. Never for a save: saves are copies.
    pub finished_sending: Vec<String>,
    /// Requests whose receive on this rank is over.
    pub finished_recving: Vec<String>,
    /// Those of them that failed.
    pub failed_recving: Vec<String>,
}

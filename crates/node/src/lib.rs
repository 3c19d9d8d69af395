//! Everything that runs inside a cache node: listen, admit, serve, count.
//!
//! Called by the command line and by tests. May import: proto, transport, store. Never sees:
//! client, lifecycle. Nothing that a client sends can stop the listener, make the node hold more
//! than its limits say, or make it answer with bytes that were not verified.
#![forbid(unsafe_code)]

mod backlog;
mod budget;
mod clock;
mod config;
mod connection;
mod counters;
mod data;
mod error;
mod get;
mod listen;
mod node;
mod offline;
mod put;
mod reply;
mod requests;
mod scrub;
mod sending;
mod shared;
mod silence;
mod writer;

pub use config::{DataConfig, NodeConfig, NodeLimits};
pub use error::StartError;
pub use node::{Node, RunningNode, StopReason};
pub use offline::{remove, verify};
pub use tessera_store::{Admission, DiskReport, FolderError, Lifetimes, TenantLimits, WritePolicy};
pub use tessera_transport::{Address, AddressError};

/// The store without a node around it, for those who measure it.
pub mod store {
    pub use tessera_proto::{Instant, checksum};
    pub use tessera_store::{
        Admission, Bytes, DataFolder, Direction, Disk, DiskConfig, DiskSize, DiskStat, DiskTier,
        Engine, Fetched, OwnerId, Presence, Published, RamStore, RawDisk, Store, StoreConfig,
        TenantLimits, Transfer, WritePolicy,
    };
}

/// The wire without a client at its other end, for those who measure it.
pub mod wire {
    pub use tessera_proto::message::{Features, Get, GetAnswer, Hello, HelloAnswer};
    pub use tessera_proto::{Checksum, FRAME_HEADER_BYTES, FrameHeader, Kind, PROTOCOL_VERSION};
}

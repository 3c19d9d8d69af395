//! All that runs inside an inference process: the cache nodes as one thing (routing, connections,
//! health), and the drivers that carry out what the lifecycle machines decide, with the nodes and
//! with other engines.
//!
//! Called by the Python module and the command line. Imports `proto`, `lifecycle` and `transport`;
//! never sees `store` or `node`. Invariant: no state of any node reaches a request as an error: it
//! is a miss, in bounded time.
#![forbid(unsafe_code)]

pub mod driver;
pub mod geometry;
pub mod layout;
pub mod local;
pub mod options;
pub mod peer;
pub mod weights;

mod cluster;
mod connection;
mod health;
mod latch;
mod routing;
mod sentry;
mod until;

pub use cluster::{
    AcquireOutcome, Cluster, ClusterConfig, ClusterMetrics, FetchOutcome, Lease, NodeError,
    NodeMetrics, Presence, StoreOutcome,
};
pub use health::{CircuitState, HealthConfig};
pub use routing::{NodeIndex, NodeSpec};
pub use until::{Over, Recall, Until};

pub use tessera_proto::message::DropAnswer;
// The words in which callers speak of objects and memory, so that they need no other crate.
pub use tessera_proto::{
    Expectation, Incarnation, KeyDigest, NamespaceDigest, ObjectHeader, ObjectId, TenantTag,
    WriteId, checksum,
};
pub use tessera_transport::{
    Address, CudaDriver, Device, DeviceError, FenceSide, Lent, Region, Segments, SimDevice,
};

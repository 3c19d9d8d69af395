//! What the drivers need of the cache nodes.
//!
//! Implemented by [`Cluster`] for real and by the tests' store in memory, so that faults are
//! injected through the interface that production uses.

use std::future::Future;
use std::num::NonZeroU32;

use tessera_proto::{Expectation, ObjectHeader, ObjectId};
use tessera_transport::{Lent, Segments};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::error::StartError;
use crate::cluster::{AcquireOutcome, Cluster, ClusterConfig, FetchOutcome, Lease, StoreOutcome};
use crate::local::LocalNode;
use crate::options::Options;
use crate::routing::NodeSpec;
use crate::until::Until;

/// The cache nodes as the drivers see them. Every operation ends by its deadline, or sooner when it
/// is recalled, and memory comes back with its outcome, when nothing uses it any more.
pub trait Remote: Send + Sync + 'static {
    /// Probes and leases; see [`Cluster::acquire`].
    fn acquire(
        &self,
        ids: Vec<ObjectId>,
        ttl_ms: u32,
        deadline: Instant,
    ) -> impl Future<Output = AcquireOutcome> + Send;

    /// Which of `ids` are stored; see [`Cluster::probe`].
    fn probe(
        &self,
        ids: Vec<ObjectId>,
        deadline: Instant,
    ) -> impl Future<Output = Vec<bool>> + Send;

    /// Loads and verifies one object; see [`Cluster::fetch`].
    fn fetch(
        &self,
        expectation: Expectation,
        lease: Option<Lease>,
        lent: Lent,
        until: Until,
    ) -> impl Future<Output = (FetchOutcome, Lent)> + Send;

    /// Says what it costs to compute what is stored; see [`Cluster::price`].
    fn price(&self, ns_per_kib: NonZeroU32);

    /// Stores one object; see [`Cluster::store`].
    fn store(
        &self,
        header: ObjectHeader,
        segments: Segments,
        deadline: Instant,
    ) -> impl Future<Output = (StoreOutcome, Segments)> + Send;

    /// Gives leases back; see [`Cluster::release`].
    fn release(
        &self,
        leases: Vec<(Lease, Vec<ObjectId>)>,
        deadline: Instant,
    ) -> impl Future<Output = u64> + Send;

    /// Ends all operations, and waits until none uses memory that was lent: the proof that an
    /// abandoned operation cannot write any more. See [`Cluster::shutdown`].
    fn shutdown(&self) -> impl Future<Output = ()> + Send;
}

impl Remote for Cluster {
    fn acquire(
        &self,
        ids: Vec<ObjectId>,
        ttl_ms: u32,
        deadline: Instant,
    ) -> impl Future<Output = AcquireOutcome> + Send {
        self.acquire(ids, ttl_ms, deadline)
    }

    fn probe(
        &self,
        ids: Vec<ObjectId>,
        deadline: Instant,
    ) -> impl Future<Output = Vec<bool>> + Send {
        self.probe(ids, deadline)
    }

    fn fetch(
        &self,
        expectation: Expectation,
        lease: Option<Lease>,
        lent: Lent,
        until: Until,
    ) -> impl Future<Output = (FetchOutcome, Lent)> + Send {
        self.fetch(expectation, lease, lent, until)
    }

    fn price(&self, ns_per_kib: NonZeroU32) {
        self.price(ns_per_kib);
    }

    fn store(
        &self,
        header: ObjectHeader,
        segments: Segments,
        deadline: Instant,
    ) -> impl Future<Output = (StoreOutcome, Segments)> + Send {
        self.store(header, segments, deadline)
    }

    fn release(
        &self,
        leases: Vec<(Lease, Vec<ObjectId>)>,
        deadline: Instant,
    ) -> impl Future<Output = u64> + Send {
        self.release(leases, deadline)
    }

    fn shutdown(&self) -> impl Future<Output = ()> + Send {
        self.shutdown()
    }
}

/// The nodes of the options, or the local node of this user if there are none.
pub(crate) fn connect(options: &Options, runtime: &Handle) -> Result<Cluster, StartError> {
    let mut nodes: Vec<NodeSpec> = Vec::with_capacity(options.nodes.len().max(1));
    for node in &options.nodes {
        nodes.push(NodeSpec {
            address: node.address.clone(),
            weight: f64::from(node.weight),
        });
    }
    if nodes.is_empty() {
        nodes.push(NodeSpec::new(LocalNode::address_for(options)?));
    }
    let mut config = ClusterConfig::new(nodes);
    config.connect_timeout = options.connect_timeout;
    Ok(Cluster::start(config, runtime))
}

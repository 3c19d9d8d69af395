//! The handle on all nodes: the operations that the driver of an inference process calls.
//!
//! Invariants: every operation ends by its deadline; lent memory comes back with the outcome, when
//! nothing can write it any more; a damaged object is removed, so that the next writer replaces it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tessera_proto::message::{Acquire, DropAnswer, Ping, Stat, StatAnswer, StatEntry};
use tessera_proto::{
    Expectation, Incarnation, Kind, NamespaceDigest, ObjectHeader, ObjectId, WriteId,
};
use tessera_transport::{Lent, Segments};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::config::ClusterConfig;
use super::counters::ClusterMetrics;
use super::node::Node;
use super::outcome::{AcquireOutcome, FetchOutcome, Lease, NodeError, StoreOutcome};
use super::requests::{self, body};
use super::{acquire, supervisor};
use crate::connection::{Cargo, ConnectSpec};
use crate::latch::Latch;
use crate::routing::{NodeIndex, Ring};
use crate::until::Until;

/// For the removal of a damaged object, which nobody waits for.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(2);

/// All nodes. Clones share the connections; the last one to go ends them.
#[derive(Debug, Clone)]
pub struct Cluster(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    nodes: Vec<Arc<Node>>,
    ring: Ring,
    lease_bytes_max: u64,
    /// Nanoseconds a KiB; 0 before it is known.
    price: AtomicU32,
    runtime: Handle,
    ended: Latch,
    supervisors: Mutex<Option<JoinSet<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.ended.set();
        if let Some(mut supervisors) = self.supervisors.lock().take() {
            // They end by the latch, after their connections: nothing is aborted in the middle.
            supervisors.detach_all();
        }
    }
}

impl Cluster {
    /// Starts connecting to all nodes on `runtime` and returns at once. Operations before the first
    /// connection wait for it, within their deadline.
    #[must_use]
    pub fn start(config: ClusterConfig, runtime: &Handle) -> Self {
        let ring = Ring::new(&config.nodes);
        let ended = Latch::default();
        let incarnation = Incarnation(random_incarnation());
        let mut supervisors = JoinSet::new();
        let mut nodes = Vec::with_capacity(config.nodes.len());
        for node in config.nodes {
            let connections = config.connections_per_node.max(1);
            let node = Arc::new(Node::new(node.address, connections, &config.health));
            let spec = ConnectSpec {
                address: node.address.clone(),
                incarnation,
                name: config.name.clone(),
                connect_timeout: config.connect_timeout,
                frame_timeout: config.frame_timeout,
                counters: Arc::clone(&node.counters),
            };
            for slot in 0..connections {
                let supervised = Arc::clone(&node);
                let spec = spec.clone();
                let supervisor =
                    supervisor::run(supervised, slot, spec, config.health, ended.clone());
                supervisors.spawn_on(supervisor, runtime);
            }
            nodes.push(node);
        }
        Self(Arc::new(Shared {
            nodes,
            ring,
            lease_bytes_max: config.lease_bytes_max,
            price: AtomicU32::new(0),
            runtime: runtime.clone(),
            ended,
            supervisors: Mutex::new(Some(supervisors)),
        }))
    }

    /// Number of configured nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.0.nodes.len()
    }

    /// The node that holds `id`; none only when no node is configured.
    #[must_use]
    pub fn owner(&self, id: &ObjectId) -> Option<NodeIndex> {
        self.0.ring.owner(id)
    }

    /// Probes `ids` and leases what is there for `ttl_ms` milliseconds: one request a node, all at
    /// once. What nobody answered by `deadline` is unreachable; a lease that is granted later is
    /// given back at once.
    pub async fn acquire(
        &self,
        ids: Vec<ObjectId>,
        ttl_ms: u32,
        deadline: Instant,
    ) -> AcquireOutcome {
        let bytes_max = self.0.lease_bytes_max;
        let request = Acquire {
            lease_ms: ttl_ms,
            bytes_max,
            ids: Vec::new(),
        };
        acquire::run(&self.0.nodes, &self.0.ring, &ids, request, deadline).await
    }

    /// Which of `ids` are stored, as far as their nodes say so by `deadline`: one request a node,
    /// all at once. Nothing is leased: a hint for whoever would store them, and no promise.
    pub async fn probe(&self, ids: Vec<ObjectId>, deadline: Instant) -> Vec<bool> {
        acquire::probe(&self.0.nodes, &self.0.ring, &ids, deadline).await
    }

    /// Loads one object into `lent` and verifies it there, under `lease` if there is one. The
    /// memory comes back with the outcome, when nothing can write it any more; a dropped future
    /// frees it after its last write.
    pub async fn fetch(
        &self,
        expectation: Expectation,
        lease: Option<Lease>,
        lent: Lent,
        until: impl Into<Until>,
    ) -> (FetchOutcome, Lent) {
        let until = until.into();
        let id = expectation.id();
        let index = lease.map(|lease| lease.node).or_else(|| self.owner(&id));
        let Some(node) = index.and_then(|NodeIndex(index)| self.0.nodes.get(index)) else {
            return (FetchOutcome::Unreachable, lent);
        };
        if lent.length_bytes() != expectation.length_bytes {
            return (FetchOutcome::Length, lent);
        }
        let started = Instant::now();
        let bytes = lent.length_bytes();
        let (outcome, lent) = requests::fetch(node, expectation, lease, lent, &until).await;
        node.counters.fetched(outcome, bytes, started.elapsed());
        match outcome {
            FetchOutcome::Corrupt { write, .. } => self.remove_damaged(node, id, Some(write)),
            FetchOutcome::Length => self.remove_damaged(node, id, None),
            _ => {}
        }
        (outcome, lent)
    }

    /// Tells each node that listens, before the next object that it stores, what it costs to
    /// compute what is stored from here, nanoseconds a KiB.
    pub fn price(&self, ns_per_kib: NonZeroU32) {
        self.0.price.store(ns_per_kib.get(), Ordering::Relaxed);
    }

    /// Stores one object from `segments`, whose bytes give `header.checksum`. The memory comes back
    /// with the outcome, when nothing reads it any more.
    pub async fn store(
        &self,
        header: ObjectHeader,
        segments: Segments,
        deadline: Instant,
    ) -> (StoreOutcome, Segments) {
        let Some(NodeIndex(index)) = self.owner(&header.id()) else {
            return (StoreOutcome::Unreachable, segments);
        };
        if header.length_bytes != segments.length_bytes() {
            return (StoreOutcome::Length, segments);
        }
        let node = &self.0.nodes[index];
        let started = Instant::now();
        let price = NonZeroU32::new(self.0.price.load(Ordering::Relaxed));
        let object = (header, price);
        let (outcome, segments) = requests::store(node, object, segments, deadline).await;
        node.counters
            .stored(outcome, header.length_bytes, started.elapsed());
        (outcome, segments)
    }

    /// Gives leased ids back, at most [`BATCH_ITEMS_MAX`] of one lease; no ids end the whole lease.
    ///
    /// [`BATCH_ITEMS_MAX`]: tessera_proto::limits::BATCH_ITEMS_MAX
    /// Returns how many the nodes released;
    /// leases of nodes that cannot be reached end by themselves.
    pub async fn release(&self, leases: Vec<(Lease, Vec<ObjectId>)>, deadline: Instant) -> u64 {
        let mut tasks = JoinSet::new();
        for (lease, ids) in leases {
            let Some(node) = self.0.nodes.get(lease.node.0) else {
                continue;
            };
            let node = Arc::clone(node);
            tasks.spawn(async move { requests::release(&node, lease, ids, deadline).await });
        }
        let mut released = 0;
        while let Some(joined) = tasks.join_next().await {
            // A node that cannot be reached ends its leases by itself.
            released += joined.ok().and_then(Result::ok).unwrap_or(0);
        }
        released
    }

    /// Removes one object for good; with `write`, only that write of it. Returns whether it was
    /// there.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn remove(
        &self,
        id: ObjectId,
        write: Option<WriteId>,
        deadline: Instant,
    ) -> Result<bool, NodeError> {
        let NodeIndex(index) = self.owner(&id).ok_or(NodeError::Unknown(0))?;
        requests::remove(&self.0.nodes[index], id, write, deadline).await
    }

    /// Drops a namespace on one node: what was stored in it before is gone for good once this
    /// returns. Returns what that was. An answer may take as long as the node needs to walk over
    /// its memory.
    ///
    /// # Errors
    /// See [`NodeError`]. After any but `Unknown`, `Unknowing` and `Refused` the namespace may be
    /// gone or not: drop it again.
    pub async fn drop_namespace(
        &self,
        node: NodeIndex,
        namespace: NamespaceDigest,
        deadline: Instant,
    ) -> Result<DropAnswer, NodeError> {
        requests::drop_namespace(self.node(node)?, namespace, deadline).await
    }

    /// The counters of one node.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn stat(
        &self,
        node: NodeIndex,
        deadline: Instant,
    ) -> Result<Vec<StatEntry>, NodeError> {
        let node = self.node(node)?;
        let mut request = Vec::new();
        Stat.encode(&mut request);
        let completion = node
            .call(Kind::Stat, &request, Cargo::None, &deadline.into())
            .await;
        Ok(StatAnswer::decode(&body(completion.answer)?)?.entries)
    }

    /// Asks whether one node is alive; returns how long the answer took.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn ping(&self, node: NodeIndex, deadline: Instant) -> Result<Duration, NodeError> {
        let node = self.node(node)?;
        let mut request = Vec::new();
        Ping { nonce: 0 }.encode(&mut request);
        let started = Instant::now();
        let completion = node
            .call(Kind::Ping, &request, Cargo::None, &deadline.into())
            .await;
        Ping::decode(&body(completion.answer)?)?;
        Ok(started.elapsed())
    }

    /// Why the last attempt to connect to `node` failed, in words; `None` if it did not, or if
    /// there is no such node.
    #[must_use]
    pub fn why_down(&self, node: NodeIndex) -> Option<String> {
        self.node(node).ok()?.why_down()
    }

    /// What happened with all nodes.
    #[must_use]
    pub fn metrics(&self) -> ClusterMetrics {
        ClusterMetrics {
            nodes: self.0.nodes.iter().map(|node| node.metrics()).collect(),
        }
    }

    /// Ends all connections and waits until no task uses memory that was lent. Operations in flight
    /// end as unreachable.
    pub async fn shutdown(&self) {
        self.0.ended.set();
        let supervisors = self.0.supervisors.lock().take();
        if let Some(mut supervisors) = supervisors {
            while supervisors.join_next().await.is_some() {}
        }
    }

    fn node(&self, index: NodeIndex) -> Result<&Arc<Node>, NodeError> {
        self.0.nodes.get(index.0).ok_or(NodeError::Unknown(index.0))
    }

    /// Removes a damaged object in the background.
    fn remove_damaged(&self, node: &Arc<Node>, id: ObjectId, write: Option<WriteId>) {
        tracing::warn!(node = %node.address, object = ?id, "damaged object: removed");
        let node = Arc::clone(node);
        self.0.runtime.spawn(async move {
            let deadline = Instant::now() + REMOVE_TIMEOUT;
            if let Err(error) = requests::remove(&node, id, write, deadline).await {
                tracing::warn!(node = %node.address, %error, "damaged object is still there");
            }
        });
    }
}

/// Without a source of randomness the process id and the clock still tell two starts apart.
fn random_incarnation() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_ok() {
        return u128::from_le_bytes(bytes);
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos()) ^ (u128::from(std::process::id()) << 96)
}

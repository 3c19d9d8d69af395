//! What a cluster needs to know before it starts. Filled from the options of the connector, or by
//! the command line.

use std::time::Duration;

use crate::health::HealthConfig;
use crate::routing::NodeSpec;

/// Nodes and patience.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterConfig {
    /// All nodes; the same list in every process that shares the cache, in any order.
    pub nodes: Vec<NodeSpec>,
    /// Connections to each node, at least 1.
    pub connections_per_node: usize,
    /// For the socket and the handshake of one connection together.
    pub connect_timeout: Duration,
    /// For the header and the body of an answer once its first byte is there, and for the payload
    /// of an answer that nobody waits for.
    pub frame_timeout: Duration,
    /// Most bytes that one lookup may lease on one node.
    pub lease_bytes_max: u64,
    /// When a node counts as dead and when it is tried again.
    pub health: HealthConfig,
    /// This client in the nodes' logs.
    pub name: String,
}

impl ClusterConfig {
    /// Defaults for `nodes`.
    #[must_use]
    pub fn new(nodes: Vec<NodeSpec>) -> Self {
        Self {
            nodes,
            connections_per_node: 1,
            connect_timeout: Duration::from_secs(1),
            frame_timeout: Duration::from_secs(5),
            lease_bytes_max: u64::MAX,
            health: HealthConfig::default(),
            name: format!("client {}", std::process::id()),
        }
    }
}

//! One node as the small commands see it: connect, ask, and say what to do when nobody answers.
//!
//! Called by `stat`, `ping` and `drop`.

use std::time::Duration;

use anyhow::{Context, Result};
use tessera_client::local::LocalNode;
use tessera_client::{Address, Cluster, ClusterConfig, NodeError, NodeIndex, NodeSpec};
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// The only node of these clusters.
pub(crate) const NODE: NodeIndex = NodeIndex(0);

/// An operator waits this long for any answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A runtime and a cluster of one node on it.
pub(crate) fn connect(node: &Address) -> Result<(Runtime, Cluster)> {
    let runtime = Runtime::new().context("starting the runtime")?;
    let mut config = ClusterConfig::new(vec![NodeSpec::new(node.clone())]);
    config.name = format!("tessera command {}", std::process::id());
    let cluster = Cluster::start(config, runtime.handle());
    Ok((runtime, cluster))
}

/// When to give up a question that is asked now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// The error with its reason and what to do about it.
pub(crate) fn explain(cluster: &Cluster, node: &Address, error: NodeError) -> anyhow::Error {
    if !matches!(error, NodeError::Unreachable | NodeError::Deadline) {
        return anyhow::Error::new(error).context(format!("the node at {node} gave no answer"));
    }
    let reason = cluster.why_down(NODE).unwrap_or_else(|| error.to_string());
    let local = LocalNode::running_address();
    let other = local.map_or_else(
        || "name another with --node".to_owned(),
        |local| format!("see the local node of your engines with `--node {local}`"),
    );
    anyhow::anyhow!(
        "no node answers at {node} ({reason}): start one with `tessera node --listen {node} --ram \
         4GiB`, or {other}"
    )
}

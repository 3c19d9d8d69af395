//! The local node at the start of either side.
//!
//! Called where no nodes are configured. The scheduler's side keeps the node alive for as long as
//! the engine runs; a worker only sees to it that there is one before it connects, because workers
//! start before the scheduler does.

use std::path::Path;
use std::time::Duration;

use pyo3::prelude::*;
use tessera_client::driver::EngineConfig;
use tessera_client::local::LocalNode;

use crate::error::Raise as _;

/// How long a start waits for a node that was just started. Without it, the engine starts too.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Keeps the local node alive if the engine uses it. `binary` is the path of the `tessera` program.
pub(crate) fn keep_alive(
    py: Python<'_>,
    config: &EngineConfig,
    binary: &str,
) -> PyResult<Option<LocalNode>> {
    if !config.options.nodes.is_empty() {
        return Ok(None);
    }
    let node = LocalNode::keep_alive(Path::new(binary), &config.options);
    let node = node.map_err(|error| error.raise(py))?;
    if !py.detach(|| node.wait_until_ready(START_LIMIT)) {
        let (address, log) = (node.address(), node.log());
        tracing::warn!(%address, ?log, "the local node is not ready: nothing is saved until it is");
    }
    Ok(Some(node))
}

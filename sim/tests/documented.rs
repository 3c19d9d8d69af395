//! What the documents say in numbers and names, against what a running node and client report.
//!
//! The tidy test holds what text can be held against text; here the product itself is asked.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use tessera_client::driver::{SchedulerMetrics, WorkerMetrics};
use tessera_client::{Cluster, ClusterConfig, NodeSpec};
use tessera_node::{Address, Node, NodeConfig, NodeLimits};
use tokio::runtime::Handle;

const RAM_BYTES: u64 = 64 << 20;

fn document(path: &str) -> Result<String> {
    let sim = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = sim.parent().context("sim lies in the repository root")?;
    std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned())
}

/// The names in the first column of the table under `heading`.
fn names(document: &str, heading: &str) -> Vec<String> {
    document
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect()
}

fn config() -> Result<NodeConfig> {
    Ok(NodeConfig::new(
        "127.0.0.1:0".parse::<Address>()?,
        RAM_BYTES,
    ))
}

#[tokio::test]
async fn documented_numbers_of_a_node_are_those_that_it_reports() -> Result<()> {
    let node = Node::start(config()?).await?;
    let reported: Vec<String> = node.stat().into_iter().map(|entry| entry.name).collect();
    node.shutdown();
    assert_eq!(names(&document("docs/metrics.md")?, "## Node"), reported);
    Ok(())
}

#[tokio::test]
async fn documented_counters_of_a_client_are_those_that_it_keeps() -> Result<()> {
    let node = Node::start(config()?).await?;
    let spec = NodeSpec {
        address: node.address().clone(),
        weight: 1.0,
    };
    let cluster = Cluster::start(ClusterConfig::new(vec![spec]), &Handle::current());
    let metrics = cluster.metrics();
    cluster.shutdown().await;
    node.shutdown();
    let counters = metrics.nodes.first().context("one node")?.counters();
    let kept: Vec<&str> = counters.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names(&document("docs/metrics.md")?, "## Client, for each node"),
        kept
    );
    Ok(())
}

#[test]
fn documented_metrics_of_the_connector_are_those_that_it_reports() -> Result<()> {
    let document = document("docs/metrics.md")?;
    let documented: BTreeSet<String> = names(&document, "## Connector").into_iter().collect();
    let scheduler = SchedulerMetrics::default().named();
    let worker = WorkerMetrics::default().named();
    let reported = scheduler.into_iter().chain(worker);
    let reported: BTreeSet<String> = reported.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(documented, reported);
    Ok(())
}

#[test]
fn documented_limits_of_a_node_are_its_limits() -> Result<()> {
    let limits = NodeLimits::for_ram(RAM_BYTES);
    let seconds = |duration: std::time::Duration| format!("{} s", duration.as_secs());
    let documented = document("docs/operations.md")?;
    let rows = [
        (
            "connections",
            "1,024".to_owned(),
            limits.connections == 1024 && limits.silent_timeout.as_secs() == 10,
        ),
        (
            "requests in flight on one connection",
            "256".to_owned(),
            limits.in_flight == 256,
        ),
        (
            "one object",
            "an eighth of the arena, 1 GiB at most".to_owned(),
            limits.object_bytes == RAM_BYTES / 8
                && NodeLimits::for_ram(1 << 40).object_bytes == 1 << 30,
        ),
        (
            "bytes in reception, all connections",
            "a quarter of the arena".to_owned(),
            limits.unpublished_bytes == RAM_BYTES / 4,
        ),
        (
            "bytes under lease, all connections",
            "half of the arena".to_owned(),
            limits.leased_bytes == RAM_BYTES / 2,
        ),
        (
            "bytes that are being sent, all connections",
            "an eighth of the arena".to_owned(),
            limits.sending_bytes == RAM_BYTES / 8,
        ),
        (
            "time to a complete HELLO",
            seconds(limits.hello_timeout),
            true,
        ),
        (
            "time for one frame, each direction",
            seconds(limits.frame_timeout),
            true,
        ),
        (
            "time to finish answers when told to stop",
            seconds(limits.drain_timeout),
            true,
        ),
    ];
    for (what, limit, holds) in rows {
        ensure!(holds, "{what} is no longer {limit}");
        let row = format!("| {what} | {limit} |");
        ensure!(
            documented.contains(&row),
            "docs/operations.md has no row `{row}`"
        );
    }
    Ok(())
}

//! `tessera stat`: every number that a node has about itself.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::connect::{NODE, connect, deadline, explain};
use crate::args::StatArguments;
use crate::units::format_size;

/// Prints the numbers, for people or as one JSON object
/// `{"node": ADDRESS, "stat": {NAME: NUMBER}}`.
pub(crate) fn run(arguments: &StatArguments) -> Result<()> {
    let node = &arguments.node;
    let (runtime, cluster) = connect(node)?;
    let entries = runtime
        .block_on(cluster.stat(NODE, deadline()))
        .map_err(|error| explain(&cluster, node, error))?;
    if arguments.json {
        let stat: Map<String, Value> = entries
            .into_iter()
            .map(|entry| (entry.name, json!(entry.value)))
            .collect();
        println!("{}", json!({ "node": node.to_string(), "stat": stat }));
    } else {
        let width = entries
            .iter()
            .map(|entry| entry.name.len())
            .max()
            .unwrap_or(0);
        for entry in entries {
            let size = if entry.name.ends_with("bytes") {
                format_size(entry.value)
            } else {
                String::new()
            };
            let line = format!("{:<width$}  {:>20}  {size}", entry.name, entry.value);
            println!("{}", line.trim_end());
        }
    }
    runtime.block_on(cluster.shutdown());
    Ok(())
}

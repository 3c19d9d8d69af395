//! `tessera drop`: removes everything that a node holds of one namespace.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tessera_client::DropAnswer;
use tokio::time::Instant;

use super::connect::{NODE, connect, explain};
use crate::args::DropArguments;
use crate::units::format_size;

/// A node walks over everything in its memory before it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks, unless told not to, and prints what is gone, for people or as one JSON object.
pub(crate) fn run(arguments: &DropArguments) -> Result<()> {
    let (node, namespace) = (&arguments.node, arguments.namespace);
    if !arguments.yes {
        ensure!(
            stdin().is_terminal(),
            "dropping a namespace cannot be undone: confirm it with --yes where nobody can be asked"
        );
        ensure!(is_confirmed(arguments)?, "nothing was dropped");
    }
    let (runtime, cluster) = connect(node)?;
    let deadline = Instant::now() + PATIENCE;
    let dropped = runtime
        .block_on(cluster.drop_namespace(NODE, namespace, deadline))
        .map_err(|error| explain(&cluster, node, error))?;
    let DropAnswer {
        ram_objects,
        ram_bytes,
        disk_objects,
        disk_bytes,
    } = dropped;
    if arguments.json {
        let said = json!({
            "node": node.to_string(), "namespace": namespace.to_string(),
            "ram_objects": ram_objects, "ram_bytes": ram_bytes,
            "disk_objects": disk_objects, "disk_bytes": disk_bytes,
        });
        println!("{said}");
    } else {
        println!(
            "{node}: dropped {ram_objects} objects of {} from memory and {disk_objects} of {} from \
             disk",
            format_size(ram_bytes),
            format_size(disk_bytes)
        );
    }
    runtime.block_on(cluster.shutdown());
    Ok(())
}

fn is_confirmed(arguments: &DropArguments) -> Result<bool> {
    let DropArguments {
        node, namespace, ..
    } = arguments;
    eprint!(
        "Everything that the node at {node} holds of namespace\n{namespace}\nwill be gone, from \
         memory and from disk, for every engine. Type yes to drop it: "
    );
    stderr().flush().context("asking")?;
    let mut line = String::new();
    stdin().lock().read_line(&mut line).context("the answer")?;
    Ok(line.trim() == "yes")
}

//! The node under measurement, in a process of its own: this binary again, on a free port.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tessera_node::Address;

/// A node that ends with this value.
pub(crate) struct NodeProcess {
    child: Child,
    address: Address,
}

impl NodeProcess {
    /// Starts a node with `ram_bytes` and waits until it listens.
    pub(crate) fn start(ram_bytes: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe().context("finding this program")?)
            .args([
                "node",
                "--listen",
                "127.0.0.1:0",
                "--ram",
                &format!("{ram_bytes}B"),
            ])
            // If this process is killed, nobody else ends the node.
            .args(["--idle-exit", "60s"])
            .env("TESSERA_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the node")?;
        let stdout = child.stdout.take().context("the node has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ").map(str::parse);
        let address = address.context("the node did not start")??;
        Ok(Self { child, address })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // A node that is gone already needs no signal.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

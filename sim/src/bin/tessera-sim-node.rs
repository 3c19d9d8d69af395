//! A node as a process of its own, for tests that kill it, stop it or damage its memory.
//!
//! Usage: `tessera-sim-node ADDRESS RAM_MIB [FOLDER DISK_MIB]`. It prints `listening ADDRESS` and
//! ends when its standard input does, so that no node outlives the test that started it.

use std::io::Read;
use std::thread;

use anyhow::{Context, Result};
use tessera_node::{DataConfig, Node, NodeConfig, TenantLimits, WritePolicy};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |name| {
        arguments
            .next()
            .with_context(|| format!("{name} is missing"))
    };
    let address = argument("ADDRESS")?.parse().context("ADDRESS")?;
    let ram_mib: u64 = argument("RAM_MIB")?.parse().context("RAM_MIB")?;
    let mut config = NodeConfig::new(address, ram_mib << 20);
    if let Ok(folder) = argument("FOLDER") {
        let disk_mib: u64 = argument("DISK_MIB")?.parse().context("DISK_MIB")?;
        config.data = Some(DataConfig {
            folders: vec![folder.into()],
            bytes: Some(disk_mib << 20),
            write: WritePolicy::Through,
            tenants: TenantLimits::default(),
            scrub_bytes_s: 0,
        });
    }
    let mut node = Node::start(config).await?;
    println!("listening {}", node.address());
    thread::spawn(|| {
        // An error is an end as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    node.wait().await;
    Ok(())
}

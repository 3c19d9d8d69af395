//! The wire family: GET, PUT, ACQUIRE and PING through a loopback socket between two processes,
//! each against what a raw socket does in the same seconds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use tessera_client::{Cluster, ClusterConfig, NodeSpec};
use tessera_node::Address;
use tokio::runtime::Runtime;

use super::bare::Bare;
use super::cost;
use super::floor::{ARENA_BYTES, Floor};
use super::load::{Load, Operation};
use super::node_process::NodeProcess;
use super::objects::{Memory, Objects};
use super::row::Row;
use super::statistics::{median, median_us};

/// Pairs of a repeat and its floor.
const REPEATS: u32 = 5;
/// Five times the working set: new objects find old ones to evict, reads find all of theirs, and a
/// quarter of it, what one client may lease, holds all of it.
const NODE_RAM_BYTES: u64 = 5 * ARENA_BYTES as u64;
const SIZES: [(&str, usize); 3] = [("64KiB", 64 << 10), ("1MiB", 1 << 20), ("4MiB", 4 << 20)];
/// Where the cost of the checksum has a figure to hold, with so many GETs in flight.
const CHECKSUM_SIZES: [&str; 2] = ["1MiB", "4MiB"];
const CHECKSUM_IN_FLIGHT: u64 = 8;
const IN_FLIGHT: [usize; 2] = [1, 8];
/// Keys of an ACQUIRE at each block size. Eight of them stay below what one client may lease.
const ACQUIRE_KEYS: u64 = 16;
/// Keys of the largest ACQUIRE that has a figure to hold.
const ACQUIRE_MANY_KEYS: u64 = 4_096;
const PINGS: usize = 500;

/// Rows of this family, for the progress bar.
pub(crate) const ROWS: u64 = (SIZES.len() * IN_FLIGHT.len() * 3 + 2 + CHECKSUM_SIZES.len()) as u64;

/// Everything that the rows of this family share.
struct Wire<'a> {
    load: Load,
    node: &'a Address,
    floor: &'a mut Floor,
    /// Of one repeat, its floor not included.
    slice: Duration,
    progress: &'a ProgressBar,
    rows: &'a mut Vec<Row>,
}

/// Measures the family; a row takes about `seconds`.
pub(crate) fn run(seconds: u32, progress: &ProgressBar) -> Result<Vec<Row>> {
    progress.set_message("starting the floor");
    let mut floor = Floor::start()?;
    let memory = Memory::allocate()?;
    let slice = Duration::from_secs(u64::from(seconds)) / (2 * REPEATS);
    let mut rows = Vec::new();
    for (name, block_bytes) in SIZES {
        // A node for each size: what one size left behind would decide what the next one evicts.
        progress.set_message(format!("storing the working set of {name} objects"));
        let node = NodeProcess::start(NODE_RAM_BYTES)?;
        let runtime = Runtime::new().context("starting the runtime")?;
        let nodes = vec![NodeSpec::new(node.address().clone())];
        let cluster = Cluster::start(ClusterConfig::new(nodes), runtime.handle());
        let objects = Arc::new(Objects::new(&memory, block_bytes)?);
        let load = Load::new(runtime, cluster, objects);
        load.fill()?;
        let mut wire = Wire {
            load,
            node: node.address(),
            floor: &mut floor,
            slice,
            progress,
            rows: &mut rows,
        };
        wire.family(name)?;
        wire.load.shutdown();
    }
    Ok(rows)
}

impl Wire<'_> {
    fn family(&mut self, size: &str) -> Result<()> {
        for in_flight in IN_FLIGHT {
            self.throughput_row(Operation::Get, size, in_flight)?;
        }
        if CHECKSUM_SIZES.contains(&size) {
            self.checksum_row(size)?;
        }
        for in_flight in IN_FLIGHT {
            let name = format!("acquire {ACQUIRE_KEYS} keys {size} x{in_flight}");
            self.acquire_row(name, ACQUIRE_KEYS, in_flight, "us", None)?;
        }
        if self.load.objects.count() >= ACQUIRE_MANY_KEYS {
            let name = format!("acquire {ACQUIRE_MANY_KEYS} keys");
            self.acquire_row(name, ACQUIRE_MANY_KEYS, 1, "ms", Some(1.0))?;
            self.ping_row()?;
        }
        for in_flight in IN_FLIGHT {
            self.throughput_row(Operation::Put, size, in_flight)?;
        }
        Ok(())
    }

    fn throughput_row(&mut self, operation: Operation, size: &str, in_flight: usize) -> Result<()> {
        let verb = if operation == Operation::Get {
            "get"
        } else {
            "put"
        };
        let name = format!("{verb} {size} x{in_flight}");
        self.progress.set_message(name.clone());
        let (mut speeds, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            let floor = self
                .floor
                .throughput(self.load.objects.block_bytes(), self.slice)?;
            let speed = self.load.throughput(operation, in_flight, self.slice)?;
            floors.push(floor / 1e9);
            speeds.push(speed / 1e9);
            ratios.push(speed / floor);
        }
        let (must, reach) = figures(operation, size, in_flight);
        self.push(Row {
            name,
            value: median(&ratios),
            unit: "of raw socket",
            floor: Some(median(&floors)),
            must,
            reach,
            higher: true,
            absolute: format!("{:.2} GB/s", median(&speeds)),
        });
        Ok(())
    }

    /// The cost of verifying what a GET brings, in a client that can leave it out.
    fn checksum_row(&mut self, size: &str) -> Result<()> {
        let name = format!("get {size} x{CHECKSUM_IN_FLIGHT}, checksum");
        self.progress.set_message(name.clone());
        let mut bare = Bare::connect(self.node)?;
        let (objects, slice) = (&self.load.objects, self.slice / cost::SHORTER);
        let row = cost::row(&name, |with| {
            bare.throughput(objects, self.floor.arena(), CHECKSUM_IN_FLIGHT, with, slice)
        })?;
        self.push(row);
        Ok(())
    }

    fn acquire_row(
        &mut self,
        name: String,
        keys: u64,
        in_flight: usize,
        unit: &'static str,
        reach: Option<f64>,
    ) -> Result<()> {
        self.progress.set_message(name.clone());
        let scale = if unit == "ms" { 1e-3 } else { 1.0 };
        let (mut medians, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            floors.push(median_us(&self.floor.ping(PINGS)?) * scale);
            let times = self.load.acquire(keys, in_flight, self.slice)?;
            medians.push(median_us(&times) * scale);
        }
        let value = median(&medians);
        let absolute = format!("{value:.2} {unit}");
        let floor = Some(median(&floors));
        self.push(Row {
            name,
            value,
            unit,
            floor,
            must: None,
            reach,
            higher: false,
            absolute,
        });
        Ok(())
    }

    fn ping_row(&mut self) -> Result<()> {
        let name = "ping 64 bytes".to_owned();
        self.progress.set_message(name.clone());
        let (mut times, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            let floor = median_us(&self.floor.ping(PINGS)?);
            let time = median_us(&self.load.ping(PINGS)?);
            floors.push(floor);
            times.push(time);
            ratios.push(time / floor);
        }
        self.push(Row {
            name,
            value: median(&ratios),
            unit: "of raw ping-pong",
            floor: Some(median(&floors)),
            must: None,
            reach: Some(1.2),
            higher: false,
            absolute: format!("{:.0} us", median(&times)),
        });
        Ok(())
    }

    fn push(&mut self, row: Row) {
        self.progress.inc(1);
        self.rows.push(row);
    }
}

/// What this release must hold and what the design reaches for, as parts of a raw socket.
fn figures(operation: Operation, size: &str, in_flight: usize) -> (Option<f64>, Option<f64>) {
    match (operation, size, in_flight) {
        (Operation::Get, "1MiB", 8) => (Some(0.6), Some(0.95)),
        (Operation::Get, "4MiB", 8) => (None, Some(0.95)),
        (Operation::Get, "64KiB", 8) => (None, Some(0.8)),
        (Operation::Put, "1MiB", 8) => (Some(0.5), Some(0.9)),
        (Operation::Put, "4MiB", 8) => (None, Some(0.9)),
        _ => (None, None),
    }
}

//! Other systems beside ours, under the same load in one run: `cargo xtask bench --peers`.
//!
//! Called by [`crate::bench`]. Every system is a process that follows orders; repeats of all of
//! them alternate, so that what else the machine does meanwhile meets each alike. The invariants: a
//! system that does not install, start or answer is named with its reason, and never a figure; a
//! figure is of bytes that have arrived; nothing is downloaded by any other command.

mod chart;
mod contestant;
mod environment;
mod figures;
mod place;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use self::contestant::Contestant;
use self::figures::{Figures, Pass, Skipped};
use crate::project::Project;

/// Rounds of a row, each with one repeat of every system; one more before them is not counted.
const ROUNDS: usize = 5;
const SIZES: [(&str, u64); 3] = [("64KiB", 64 << 10), ("1MiB", 1 << 20), ("4MiB", 4 << 20)];
const IN_FLIGHT: [u32; 2] = [1, 8];

/// A system, and how its bytes travel.
struct System {
    name: &'static str,
    transport: &'static str,
}

/// The first is the floor that ratios are to, the second is ours.
const SYSTEMS: [System; 8] = [
    System {
        name: "socket",
        transport: "raw TCP, congestion control as ours",
    },
    System {
        name: "tessera",
        transport: "TCP",
    },
    System {
        name: "socket-default",
        transport: "raw TCP, congestion control of the system",
    },
    System {
        name: "copy",
        transport: "memory, one thread",
    },
    System {
        name: "redis",
        transport: "TCP",
    },
    System {
        name: "mooncake",
        transport: "TCP",
    },
    System {
        name: "openlake",
        transport: "shared memory",
    },
    System {
        name: "lmcache",
        transport: "TCP",
    },
];

/// Runs all systems that can, prints the table, and returns the rows for the closing line.
pub(crate) fn run(project: &Project, chart: Option<&PathBuf>) -> Result<(Vec<Value>, Value)> {
    let place = place::find();
    eprintln!("systems run {}", place.describe());
    let mut skipped = Vec::new();
    let mut running = Vec::new();
    for system in &SYSTEMS {
        let started = environment::command(project, system.name)
            .and_then(|command| Contestant::start(project, system.name, place.hold(&command)));
        match started {
            Ok(contestant) => running.push(contestant),
            Err(error) => skipped.push(skip(system.name, &error)),
        }
    }
    let mut figures = Figures::default();
    for (size, bytes) in SIZES {
        keep(&mut running, &mut skipped, |contestant| {
            contestant.order("size", bytes).map(drop)
        });
        for operation in ["get", "put"] {
            for in_flight in IN_FLIGHT {
                let name = format!("{operation} {size} x{in_flight}");
                row(
                    &mut running,
                    &mut skipped,
                    &mut figures,
                    (&name, operation, in_flight),
                );
            }
        }
    }
    drop(running);
    println!("{}", figures.table(&skipped));
    if let Some(path) = chart {
        fs::write(path, chart::svg(&figures))
            .with_context(|| format!("writing the chart {}", path.display()))?;
    }
    Ok((figures.rows(), figures::skipped_json(&skipped)))
}

/// All rounds of a row.
fn row(
    running: &mut Vec<Contestant>,
    skipped: &mut Vec<Skipped>,
    figures: &mut Figures,
    (name, operation, in_flight): (&str, &str, u32),
) {
    eprintln!("     ...  {name}");
    for round in 0..=ROUNDS {
        keep(running, skipped, |contestant| {
            let seconds = contestant.seconds(operation, in_flight)?;
            if round > 0 {
                figures.add(Pass {
                    row: name.to_owned(),
                    system: contestant.name,
                    seconds,
                });
            }
            Ok(())
        });
    }
}

/// Gives each an order; whoever fails leaves.
fn keep(
    running: &mut Vec<Contestant>,
    skipped: &mut Vec<Skipped>,
    mut order: impl FnMut(&mut Contestant) -> Result<()>,
) {
    running.retain_mut(|contestant| match order(contestant) {
        Ok(()) => true,
        Err(error) => {
            skipped.push(skip(contestant.name, &error));
            false
        }
    });
}

fn skip(system: &'static str, error: &anyhow::Error) -> Skipped {
    let reason = format!("{error:#}");
    eprintln!(" skipped  {system}: {reason}");
    Skipped { system, reason }
}

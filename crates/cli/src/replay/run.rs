//! `tessera replay`: a public trace against a node, or against the store in this process, beside
//! LRU and Belady of the same capacity.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use tessera_node::store::Admission;

use super::cache::{Cache, Tally, replay};
use super::chart;
use super::direct::Direct;
use super::figures::{Figures, Row, TierRow};
use super::latency::Latencies;
use super::live::Live;
use super::oracle::{Belady, Lru};
use super::tiered::Tiered;
use super::trace::Trace;
use crate::args::ReplayArguments;

/// Prints the figures, with `--json` as one JSON object, and draws the chart that was asked for.
pub(crate) fn run(arguments: &ReplayArguments) -> Result<()> {
    let trace = Trace::read(&arguments.trace)?;
    let figures = figures(arguments, &trace)?;
    if let Some(path) = &arguments.chart {
        std::fs::write(path, chart::svg(&figures))
            .with_context(|| format!("writing the chart {}", path.display()))?;
    }
    match arguments.json {
        true => println!("{}", serde_json::to_string(&figures)?),
        false => println!("{}", figures.table()),
    }
    Ok(())
}

fn figures(arguments: &ReplayArguments, trace: &Trace) -> Result<Figures> {
    let name = arguments.trace.file_name().unwrap_or_default();
    let mut figures = Figures {
        trace: name.to_string_lossy().into_owned(),
        node: arguments.node.as_ref().map(ToString::to_string),
        requests: trace.requests.len() as u64,
        tokens: trace.tokens(),
        blocks: trace.blocks(),
        unique_blocks: trace.unique_blocks(),
        object_bytes: arguments.object_bytes,
        rows: Vec::new(),
        tiers: Vec::new(),
        latency: Vec::new(),
        failed: 0,
    };
    match &arguments.node {
        Some(node) => {
            let in_flight = usize::from(arguments.in_flight);
            let (mut live, blocks) = Live::connect(node, arguments.object_bytes, in_flight)?;
            let progress = progress(trace, 1)?;
            let tally = tally(trace, &mut live, &progress)?;
            live.shutdown();
            figures
                .rows
                .push(row(arguments, trace, blocks, tally, &progress)?);
            figures.latency = live.latencies.quantiles();
            figures.failed = live.failed;
            progress.finish_and_clear();
        }
        None => {
            let mut latencies = Latencies::new()?;
            let progress = progress(trace, arguments.capacity.len() as u64)?;
            if let Some(disk) = arguments.disk {
                figures.tiers = tiers(arguments, trace, disk)?;
            }
            for percent in &arguments.capacity {
                let blocks = (figures.unique_blocks * u64::from(*percent) / 100).max(1);
                let mut direct = Direct::new(blocks)?;
                let tally = tally(trace, &mut direct, &progress)?;
                latencies.add(&direct.latencies)?;
                figures
                    .rows
                    .push(row(arguments, trace, blocks, tally, &progress)?);
            }
            figures.latency = latencies.quantiles();
            progress.finish_and_clear();
        }
    }
    Ok(figures)
}

/// What a disk of `disk` percent of the working set adds to each capacity, with both settings.
fn tiers(arguments: &ReplayArguments, trace: &Trace, disk: u8) -> Result<Vec<TierRow>> {
    let unique = trace.unique_blocks();
    let blocks = |percent: u8| (unique * u64::from(percent) / 100).max(1);
    let percent = |blocks: u64| 100.0 * blocks as f64 / unique.max(1) as f64;
    let rounds = 2 * arguments.capacity.len() * trace.requests.len();
    let progress = bar(rounds as u64)?;
    let mut rows = Vec::new();
    for capacity in &arguments.capacity {
        let settings = [
            ("all", Admission::All),
            ("second-touch", Admission::SecondTouch),
        ];
        for (name, admission) in settings {
            let (memory, disk) = (blocks(*capacity), blocks(disk));
            let mut tiered = Tiered::new(memory, disk, admission)?;
            let tally = tally(trace, &mut tiered, &progress)?;
            rows.push(TierRow::new(
                (percent(memory), percent(disk)),
                (name, arguments.object_bytes),
                (tally, &tiered.stat()),
            ));
        }
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// The row of a capacity: what Tessera came to, beside both oracles.
fn row(
    arguments: &ReplayArguments,
    trace: &Trace,
    blocks: u64,
    tessera: Tally,
    progress: &ProgressBar,
) -> Result<Row> {
    let lru = tally(trace, &mut Lru::new(blocks), progress)?;
    let belady = tally(trace, &mut Belady::new(trace, blocks), progress)?;
    let capacity = (blocks, trace.unique_blocks());
    Ok(Row::new(
        capacity,
        arguments.object_bytes,
        (tessera, lru, belady),
    ))
}

fn tally(trace: &Trace, cache: &mut impl Cache, progress: &ProgressBar) -> Result<Tally> {
    replay(trace, cache, |_| progress.inc(1))
}

/// For `rows` capacities, each with three caches.
fn progress(trace: &Trace, rows: u64) -> Result<ProgressBar> {
    bar(3 * rows * trace.requests.len() as u64)
}

fn bar(steps: u64) -> Result<ProgressBar> {
    let progress = ProgressBar::new(steps);
    let style = "{bar:30} {pos}/{len} {elapsed} {msg}";
    progress.set_style(ProgressStyle::with_template(style)?);
    Ok(progress)
}

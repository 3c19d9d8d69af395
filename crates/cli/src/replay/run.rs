//! `tessera replay`: a public trace against a node, or against the store in this process, beside
//! LRU and Belady of the same capacity.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::cache::{Cache, Tally, replay};
use super::chart;
use super::direct::Direct;
use super::figures::{Figures, Row};
use super::latency::Latencies;
use super::live::Live;
use super::oracle::{Belady, Lru};
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
    let progress = ProgressBar::new(3 * rows * trace.requests.len() as u64);
    let style = "{bar:30} {pos}/{len} {elapsed} {msg}";
    progress.set_style(ProgressStyle::with_template(style)?);
    Ok(progress)
}

//! `cargo xtask bench`: the data path from the binary's own bench, the engine's part from Python.
//!
//! Both print the same rows; with `--json` they are merged into one closing line.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::command;
use crate::contest;
use crate::project::Project;
use crate::setup::{self, Need};

/// Flags of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct BenchArguments {
    /// End with one JSON line.
    #[arg(long)]
    json: bool,
    /// Measure one family only.
    #[arg(long, value_name = "NAME")]
    only: Option<Family>,
    /// Also run other systems on the same load, beside a node of ours: what of them installs here.
    /// The first run downloads them.
    #[arg(long)]
    peers: bool,
    /// Draw GB/s of these systems into this SVG file.
    #[arg(long, value_name = "FILE", requires = "peers")]
    chart: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Family {
    /// GET, PUT, ACQUIRE and PING over loopback TCP, against a raw socket.
    Wire,
    /// The RAM tier in process, against memcpy.
    Store,
    /// READ and WRITE between two workers, against a raw socket.
    Peer,
    /// The connector's own time in an engine step.
    Engine,
    /// Nothing of ours by itself: the other systems of `--peers` alone.
    Systems,
}

/// `cargo xtask bench`.
pub(crate) fn command(project: &Project, arguments: &BenchArguments) -> Result<ExitCode> {
    let systems = arguments.only == Some(Family::Systems);
    ensure!(
        arguments.peers || !systems,
        "`--only systems` needs `--peers`, which downloads them"
    );
    let engine = arguments.only.is_none_or(|family| family == Family::Engine);
    let need = match engine {
        true => Need::Everything,
        false if systems => Need::Tools,
        false => Need::Package,
    };
    if systems {
        setup::build_binary(project)?;
    }
    let _ready = setup::ensure(project, need)?;
    let mut programs = Vec::new();
    match arguments.only {
        None => programs.extend([data_path(project, None), engine_step(project)]),
        Some(Family::Engine) => programs.push(engine_step(project)),
        Some(Family::Wire) => programs.push(data_path(project, Some("wire"))),
        Some(Family::Store) => programs.push(data_path(project, Some("store"))),
        Some(Family::Peer) => programs.push(data_path(project, Some("peer"))),
        Some(Family::Systems) => {}
    }
    let chart = arguments.chart.as_ref();
    let contest = || match arguments.peers {
        true => contest::run(project, chart),
        false => Ok((Vec::new(), Value::Null)),
    };
    if arguments.json {
        let mut rows = programs
            .into_iter()
            .map(measure)
            .collect::<Result<Vec<_>>>()?
            .concat();
        let (mut beside, skipped) = contest()?;
        rows.append(&mut beside);
        println!("{}", json!({ "rows": rows, "skipped": skipped }));
        return Ok(ExitCode::SUCCESS);
    }
    for mut program in programs {
        let status = program.status().context("cannot start a bench")?;
        if !status.success() {
            bail!("`{}` ended with {status}", command::describe(&program));
        }
    }
    contest()?;
    Ok(ExitCode::SUCCESS)
}

fn data_path(project: &Project, only: Option<&str>) -> Command {
    let mut bench = project.program(project.binary());
    bench.arg("bench");
    if let Some(family) = only {
        bench.args(["--only", family]);
    }
    bench
}

fn engine_step(project: &Project) -> Command {
    let mut bench = project.program(project.cache.engine_program("python"));
    bench.arg("python/demo/bench_engine.py");
    bench.arg("--binary").arg(project.binary());
    bench.arg("--models").arg(project.cache.models());
    bench
}

/// The rows of one bench, from its closing line.
fn measure(mut program: Command) -> Result<Vec<Value>> {
    program.arg("--json").stderr(Stdio::inherit());
    let named = command::describe(&program);
    let output = program
        .output()
        .with_context(|| format!("cannot start {named}"))?;
    if !output.status.success() {
        bail!("`{named}` ended with {}", output.status);
    }
    rows(&String::from_utf8_lossy(&output.stdout)).with_context(|| format!("`{named}`"))
}

fn rows(output: &str) -> Result<Vec<Value>> {
    let line = output
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .context("no output")?;
    let value: Value = serde_json::from_str(line).context("the last line is not JSON")?;
    let rows = value
        .get("rows")
        .and_then(Value::as_array)
        .context("the last line has no rows")?;
    Ok(rows.clone())
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn rows_come_from_the_last_line_only() {
        let found = rows("measuring\n{\"rows\":[{\"name\":\"a\"},{\"name\":\"b\"}]}\n\n").unwrap();
        assert_eq!(found.len(), 2);
        assert!(rows("{\"rows\":[]}\nafterwards\n").is_err());
        assert!(rows("").is_err());
    }
}

//! `cargo xtask ci`: all that must hold before a change is accepted, in order of cost.
//!
//! Every stage runs even when an earlier one failed, so that one run shows all there is to mend.
//! The last line counts the tests, and each other check as one.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::command;
use crate::counts;
use crate::documented;
use crate::fuzz;
use crate::project::Project;
use crate::rdma;
use crate::setup::{self, Need};
use crate::step;
use crate::suite;
use crate::tally::Tally;

/// How long the fuzz targets together run.
const FUZZ_SECONDS: u64 = 60;

/// What ran so far.
#[derive(Default)]
struct Stages {
    passed: u64,
    failed: Vec<String>,
}

/// Flags of `cargo xtask ci`.
#[derive(Args)]
pub(crate) struct CiArguments {
    /// Run one stage only.
    #[arg(long, value_name = "STAGE")]
    only: Option<Stage>,
}

/// The stages, in order of cost.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Format, clippy, tidy, and cargo-deny where it is installed.
    Rust,
    /// Ruff and mypy.
    Python,
    /// `cargo xtask counts`.
    Counts,
    /// Clippy of the RDMA transport, and `cargo xtask rdma-test`.
    Rdma,
    /// `cargo xtask test`.
    Tests,
    /// A minute of fuzzing.
    Fuzz,
    /// `cargo xtask demo --json`, and with `--pd`.
    Demo,
    /// The commands that the documents show.
    Documented,
}

/// `cargo xtask ci`.
pub(crate) fn command(project: &Project, arguments: &CiArguments) -> Result<ExitCode> {
    let mut stages = Stages::default();
    let mut total = Tally::default();
    for stage in Stage::value_variants() {
        if arguments.only.is_some_and(|only| only != *stage) {
            continue;
        }
        match stage {
            Stage::Rust => rust_checks(project, &mut stages),
            Stage::Python => python_checks(project, &mut stages),
            Stage::Counts => stages.note("counts", counts::check(project)),
            Stage::Rdma => {
                stages.run(project, "clippy-verbs", rdma::clippy(project));
                match rdma::run_all(project) {
                    Ok(tally) => total += tally,
                    Err(error) => stages.note("rdma-test", Err(error)),
                }
            }
            Stage::Tests => match suite::run_all(project) {
                Ok(tally) => total += tally,
                Err(error) => stages.note("tests", Err(error)),
            },
            Stage::Fuzz => stages.note("fuzz", fuzz_stage(project)),
            Stage::Demo => {
                stages.note("demo", demo_stage(project, &[], "models"));
                stages.note("demo --pd", demo_stage(project, &["--pd"], "runs"));
            }
            Stage::Documented => stages.note("documented commands", documented::run(project)),
        }
    }
    for name in &stages.failed {
        println!("failed stage: {name}");
    }
    total.passed += stages.passed;
    total.failed += u64::try_from(stages.failed.len()).unwrap_or(u64::MAX);
    println!("{total}");
    Ok(if total.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn rust_checks(project: &Project, stages: &mut Stages) {
    let cargo = |arguments: &[&str]| project.cargo(arguments);
    stages.run(project, "fmt", cargo(&["fmt", "--all", "--", "--check"]));
    let fuzz = ["fmt", "--manifest-path", fuzz::MANIFEST, "--check"];
    stages.run(project, "fmt-fuzz", cargo(&fuzz));
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    stages.run(project, "clippy", cargo(&clippy));
    stages.run(
        project,
        "tidy",
        cargo(&[
            "test",
            "--locked",
            "--package",
            "tessera-sim",
            "--test",
            "tidy",
        ]),
    );
    let fuzz = [
        "clippy",
        "--locked",
        "--manifest-path",
        fuzz::MANIFEST,
        "--",
        "-D",
        "warnings",
    ];
    stages.run(project, "clippy-fuzz", cargo(&fuzz));
    if project.has_cargo_command("deny") {
        let deny = ["deny", "--offline", "check", "bans", "licenses", "sources"];
        stages.run(project, "deny", cargo(&deny));
    } else {
        eprintln!("{:>8}  deny  (cargo-deny is not installed)", "skipped");
    }
}

fn python_checks(project: &Project, stages: &mut Stages) {
    let lease = match setup::ensure(project, Need::Tools) {
        Ok(lease) => lease,
        Err(error) => return stages.note("engine environment", Err(error)),
    };
    let tool = |name: &str, arguments: &[&str]| {
        let mut tool = Command::new(project.cache.engine_program(name));
        tool.current_dir(project.root.join("python"))
            .args(arguments);
        tool
    };
    stages.run(project, "ruff", tool("ruff", &["check", "."]));
    stages.run(
        project,
        "ruff-format",
        tool("ruff", &["format", "--check", "."]),
    );
    stages.run(project, "mypy", tool("mypy", &[]));
    drop(lease);
}

fn fuzz_stage(project: &Project) -> Result<()> {
    step::run("fuzz", &project.cache.log("fuzz"), |step| {
        step.command(fuzz::program(project, FUZZ_SECONDS))
    })
}

/// Runs the demo, whose closing line has a list of what was shown, named `shown`.
fn demo_stage(project: &Project, arguments: &[&str], shown: &str) -> Result<()> {
    let mut demo = project.cargo(&["xtask", "demo", "--json"]);
    demo.args(arguments);
    demo.env_remove("CARGO_MANIFEST_DIR");
    eprintln!("\n== demo: {}", command::describe(&demo));
    let finished = command::run(demo, |line| eprintln!("{line}"))?;
    if !finished.status.success() {
        bail!("the demo ended with {}", finished.status);
    }
    let line = finished
        .output
        .lines()
        .last()
        .context("the demo printed nothing")?;
    judge_demo(line, shown)
}

/// Judges the closing line of the demo by itself, not only by the exit code.
fn judge_demo(line: &str, shown: &str) -> Result<()> {
    let report: Value = serde_json::from_str(line).context("the demo's last line is no JSON")?;
    let served = report[shown]
        .as_array()
        .with_context(|| format!("the demo names no {shown}"))?;
    if report["ok"] != Value::Bool(true) || served.is_empty() {
        bail!("the demo is not ok: {line}");
    }
    Ok(())
}

impl Stages {
    fn run(&mut self, project: &Project, name: &str, command: Command) {
        let result = step::run(name, &project.cache.log(name), |step| step.command(command));
        self.note(name, result);
    }

    fn note(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                eprintln!("{name}: {error:#}");
                self.failed.push(name.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::judge_demo;

    #[test]
    fn a_demo_that_is_not_ok_or_served_nothing_fails_the_stage() {
        let judge = |line: &str| judge_demo(line, "models");
        assert!(judge(r#"{"ok":true,"models":[{"name":"llama"}]}"#).is_ok());
        assert!(judge(r#"{"ok":false,"models":[{"name":"llama"}]}"#).is_err());
        assert!(judge(r#"{"ok":true,"models":[]}"#).is_err());
        assert!(judge(r#"{"ok":true,"runs":[{"name":"llama"}]}"#).is_err());
        assert!(judge("done").is_err());
    }
}

//! `cargo xtask test`: runs every suite to its end, then says once what passed and what failed.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::command;
use crate::project::Project;
use crate::setup::{self, Need, OLDER_ENGINES, Ready};
use crate::tally::{Runner, Tally};

/// Flags of `cargo xtask test`.
#[derive(Args, Default)]
pub(crate) struct TestArguments {
    /// Leave out the tests that start a real engine.
    #[arg(long)]
    quick: bool,
    /// End with one JSON line instead of the summary; all other output goes to standard error.
    #[arg(long)]
    json: bool,
}

/// A suite to run.
struct Suite {
    name: String,
    runner: Runner,
    command: Command,
}

/// How a suite ended.
#[derive(Serialize)]
struct Outcome {
    name: String,
    #[serde(flatten)]
    tally: Tally,
    seconds: f64,
}

/// The closing JSON line.
#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    #[serde(flatten)]
    total: Tally,
    suites: &'a [Outcome],
}

/// `cargo xtask test`.
pub(crate) fn command(project: &Project, arguments: &TestArguments) -> Result<ExitCode> {
    let outcomes = run(project, arguments)?;
    let total = total(&outcomes);
    if arguments.json {
        let report = Report {
            ok: total.failed == 0,
            total,
            suites: &outcomes,
        };
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_table(&outcomes);
        println!("{total}");
    }
    Ok(if total.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs all suites for `cargo xtask ci`, which prints the total itself.
pub(crate) fn run_all(project: &Project) -> Result<Tally> {
    let outcomes = run(project, &TestArguments::default())?;
    print_table(&outcomes);
    Ok(total(&outcomes))
}

fn run(project: &Project, arguments: &TestArguments) -> Result<Vec<Outcome>> {
    let need = if arguments.quick {
        Need::Package
    } else {
        Need::OlderEngines
    };
    let ready = setup::ensure(project, need)?;
    let suites = suites(project, arguments, &ready);
    suites
        .into_iter()
        .map(|suite| run_suite(suite, arguments.json))
        .collect()
}

fn suites(project: &Project, arguments: &TestArguments, _ready: &Ready) -> Vec<Suite> {
    let color = if std::io::stdout().is_terminal() {
        "--color=always"
    } else {
        "--color=never"
    };
    let (rust, runner) = if project.has_cargo_command("nextest") {
        (
            project.cargo(&["nextest", "run", "--workspace", "--no-fail-fast", color]),
            Runner::Nextest,
        )
    } else {
        let everything = [
            "test",
            "--workspace",
            "--all-targets",
            "--no-fail-fast",
            color,
        ];
        (project.cargo(&everything), Runner::Libtest)
    };
    let python = project.cache.engine_program("python");
    let mut engine = pytest(project, python.clone(), ENGINE, color);
    engine.args(ENGINE_WORKERS);
    let documentation = project.cargo(&["test", "--doc", "--workspace", "--no-fail-fast", color]);
    let mut suites = vec![
        Suite {
            name: "rust".into(),
            runner,
            command: rust,
        },
        Suite {
            name: "documentation".into(),
            runner: Runner::Libtest,
            command: documentation,
        },
        Suite {
            name: "python".into(),
            runner: Runner::Pytest,
            command: pytest(project, python, UNIT, color),
        },
    ];
    if arguments.quick {
        return suites;
    }
    suites.push(Suite {
        name: "engine".into(),
        runner: Runner::Pytest,
        command: engine,
    });
    for version in OLDER_ENGINES {
        let python = project.cache.older_engine_program(version, "python");
        let unit = pytest(project, python.clone(), UNIT, color);
        let mut engine = pytest(project, python, ENGINE, color);
        engine.args(OLDER_ENGINE_TESTS);
        suites.extend(
            [("python", unit), ("engine", engine)].map(|(name, command)| Suite {
                name: format!("{name}, vLLM {version}"),
                runner: Runner::Pytest,
                command,
            }),
        );
    }
    suites
}

/// A folder of tests, and the seconds that one of them may take.
const UNIT: (&str, &str) = ("python/tests/unit", "120");
const ENGINE: (&str, &str) = ("python/tests/engine", "900");

/// Two engine tests at a time, for much of one is waiting; those that share engines stay together.
const ENGINE_WORKERS: [&str; 4] = ["-n", "2", "--dist", "loadgroup"];

/// What of the engine tests runs on older engines too: all that tokens and hits depend on, for the
/// model with the most groups.
const OLDER_ENGINE_TESTS: [&str; 2] = ["-k", "test_tokens and gemma3"];

fn pytest(
    project: &Project,
    python: PathBuf,
    (folder, timeout_s): (&str, &str),
    color: &str,
) -> Command {
    let mut pytest = project.program(python);
    let color = color.replace("always", "yes").replace("never", "no");
    pytest.args([
        "-m",
        "pytest",
        folder,
        "--timeout",
        timeout_s,
        "-ra",
        &color,
    ]);
    pytest.env("TESSERA_BINARY", project.binary());
    pytest.env("TESSERA_TEST_MODELS", project.cache.models());
    pytest
}

fn run_suite(suite: Suite, quiet: bool) -> Result<Outcome> {
    eprintln!("\n== {}: {}", suite.name, command::describe(&suite.command));
    let started = Instant::now();
    let finished = command::run(suite.command, |line| {
        if quiet {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    })?;
    let output = without_colors(&finished.output);
    Ok(Outcome {
        name: suite.name,
        tally: Tally::read(suite.runner, &output, finished.status.success()),
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn total(outcomes: &[Outcome]) -> Tally {
    let mut total = Tally::default();
    for outcome in outcomes {
        total += outcome.tally;
    }
    total
}

fn print_table(outcomes: &[Outcome]) {
    println!(
        "\n{:<20} {:>7} {:>7} {:>8} {:>8}",
        "suite", "passed", "failed", "skipped", "seconds"
    );
    for Outcome {
        name,
        tally,
        seconds,
    } in outcomes
    {
        let Tally {
            passed,
            failed,
            skipped,
        } = tally;
        println!("{name:<20} {passed:>7} {failed:>7} {skipped:>8} {seconds:>8.1}");
    }
}

/// `text` without the escape sequences that runners colour their lines with.
fn without_colors(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut pieces = text.split("\x1b[");
    plain.extend(pieces.next());
    for piece in pieces {
        let rest = piece
            .split_once(|end: char| end.is_ascii_alphabetic())
            .map(|(_, rest)| rest);
        plain.extend(rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::without_colors;

    #[test]
    fn colours_are_removed_and_text_is_kept() {
        let colored = "\x1b[32;1m     Summary\x1b[0m [ 0.1s] \x1b[1m3\x1b[0m tests run";
        assert_eq!(without_colors(colored), "     Summary [ 0.1s] 3 tests run");
    }
}

//! `cargo xtask rdma-test`: the tests of the RDMA transport, on real verbs in a guest.
//!
//! Called by people and by [`crate::ci`]. The invariant: a test that did not run is a failure,
//! since everywhere else these tests are skipped.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::command;
use crate::guest::{self, Job};
use crate::project::Project;
use crate::step;
use crate::tally::{Runner, Tally};

/// The package that has the tests, and the test binary that they are in.
const PACKAGE: &str = "tessera-transport";
const TESTS: &str = "verbs";
const FEATURE: &str = "verbs";

/// Flags of `cargo xtask rdma-test`.
#[derive(Args)]
pub(crate) struct RdmaArguments {
    /// When the guest is ended.
    #[arg(long, default_value_t = 600)]
    limit_seconds: u64,
    /// Run these test binaries instead of building the transport's.
    #[arg(long, value_name = "PATH")]
    binary: Vec<PathBuf>,
    /// Run only tests whose names have this in them.
    filter: Option<String>,
}

/// `cargo xtask rdma-test`.
pub(crate) fn command(project: &Project, arguments: &RdmaArguments) -> Result<ExitCode> {
    let tally = run(project, arguments)?;
    println!("{tally}");
    Ok(if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// All of them, for `cargo xtask ci`.
pub(crate) fn run_all(project: &Project) -> Result<Tally> {
    let arguments = RdmaArguments {
        limit_seconds: 600,
        binary: Vec::new(),
        filter: None,
    };
    run(project, &arguments)
}

/// Clippy over what only the feature of the RDMA transport builds.
pub(crate) fn clippy(project: &Project) -> Command {
    let mut clippy = project.cargo(&["clippy", "--locked", "--all-targets"]);
    clippy.args(["--package", PACKAGE, "--features", FEATURE]);
    clippy.args(["--", "-D", "warnings"]);
    clippy
}

fn run(project: &Project, arguments: &RdmaArguments) -> Result<Tally> {
    guest::check()?;
    let binaries = match arguments.binary.as_slice() {
        [] => vec![build(project)?],
        given => given.to_vec(),
    };
    let script = script(&binaries, arguments.filter.as_deref());
    let job = Job {
        files: &binaries,
        script: &script,
        limit: Duration::from_secs(arguments.limit_seconds),
    };
    let log = project.cache.log("rdma-guest");
    let ended = step::run("rdma guest", &log, |step| {
        guest::run(project, &job, |line| step.line(line))
    })?;
    if ended.status != "0" {
        eprintln!(
            "{}the job in the guest ended with: {}",
            ended.output, ended.status
        );
    }
    let tally = Tally::read(Runner::Libtest, &ended.output, ended.status == "0");
    Ok(all_ran(tally))
}

/// A test that was skipped, or that is not there, did not run: here that is a failure.
fn all_ran(mut tally: Tally) -> Tally {
    tally.failed += tally.skipped;
    tally.skipped = 0;
    if tally.passed == 0 && tally.failed == 0 {
        tally.failed = 1;
    }
    tally
}

/// Runs every binary, the later ones also if an earlier one failed.
fn script(binaries: &[PathBuf], filter: Option<&str>) -> String {
    let mut script = String::from(
        "cd /tmp\nstatus=0\nexport TESSERA_RDMA_DEVICES=rxe0,rxe1,rxe2\n\
         export TESSERA_RDMA_CABLE=/run/cable.sh\n",
    );
    for binary in binaries {
        let name = binary.file_name().unwrap_or_default().to_string_lossy();
        // Ignored elsewhere; one at a time, because some of them cut the cable.
        script += &format!("/mnt/{name} --include-ignored --test-threads=1 --color=never");
        if let Some(filter) = filter {
            script += &format!(" '{}'", filter.replace('\'', ""));
        }
        script += " || status=$?\n";
    }
    script + "exit $status\n"
}

/// Runs the transport's tests that need no device, builds those that do, and finds their binary.
fn build(project: &Project) -> Result<PathBuf> {
    check_build()?;
    let build = || {
        let mut build = project.cargo(&["test", "--locked", "--no-run"]);
        build.args(["--package", PACKAGE, "--features", FEATURE, "--test", TESTS]);
        build
    };
    // What needs no device runs here, where it is quick.
    let mut unit = project.cargo(&["test", "--locked", "--lib"]);
    unit.args(["--package", PACKAGE, "--features", FEATURE, "verbs::"]);
    let log = project.cache.log("rdma-unit");
    step::run("rdma unit tests", &log, |step| step.command(unit))?;
    let log = project.cache.log("rdma-build");
    step::run("rdma tests", &log, |step| step.command(build()))?;
    let mut named = build();
    named.arg("--message-format=json");
    let finished = command::run(named, |_| ())?;
    let binary = finished.output.lines().find_map(executable);
    binary.context("cargo named no test binary")
}

/// The test binary that one of cargo's messages names.
fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let named = message["target"]["name"] == TESTS;
    let executable = message["executable"].as_str().filter(|_| named)?;
    Some(PathBuf::from(executable))
}

/// The bindings to libibverbs are made while they are built.
fn check_build() -> Result<()> {
    let mut missing = Vec::new();
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|folder| folder.join("cmake").is_file()) {
        missing.push("cmake");
    }
    if env::var_os("LIBCLANG_PATH").is_none() && !has_libclang(Path::new("/usr/lib")) {
        missing.push("libclang-dev");
    }
    if !missing.is_empty() {
        bail!(
            "the RDMA transport needs packages to be built: apt-get install {}",
            missing.join(" ")
        );
    }
    Ok(())
}

fn has_libclang(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.into_iter().any(|name| {
        name.starts_with("llvm-") && {
            let library = folder.join(name).join("lib");
            ["libclang.so", "libclang.so.1"]
                .iter()
                .any(|name| library.join(name).exists())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_did_not_run_is_a_failure() {
        let tally = |passed, failed, skipped| Tally {
            passed,
            failed,
            skipped,
        };
        assert_eq!(all_ran(tally(5, 0, 0)), tally(5, 0, 0));
        assert_eq!(all_ran(tally(5, 1, 2)), tally(5, 3, 0));
        assert_eq!(all_ran(tally(0, 0, 0)), tally(0, 1, 0));
    }

    #[test]
    fn the_binary_is_the_one_of_the_tests() {
        let message = |name: &str| {
            format!(r#"{{"reason":"x","target":{{"name":"{name}"}},"executable":"/t/{name}-1"}}"#)
        };
        assert_eq!(
            executable(&message("verbs")),
            Some(PathBuf::from("/t/verbs-1"))
        );
        assert_eq!(executable(&message("link")), None);
        assert_eq!(executable("    Finished"), None);
    }

    #[test]
    fn every_binary_runs_whatever_the_ones_before_it_did() {
        let script = script(&["/t/a".into(), "/t/b".into()], Some("fence"));
        let runs: Vec<&str> = script
            .lines()
            .filter(|line| line.contains("/mnt/"))
            .collect();
        let [first, second] = runs[..] else {
            panic!("{script}")
        };
        assert!(first.starts_with("/mnt/a --include-ignored"), "{first}");
        assert!(second.starts_with("/mnt/b") && second.ends_with("'fence' || status=$?"));
        assert!(script.ends_with("exit $status\n"));
    }
}

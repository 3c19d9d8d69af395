//! `cargo xtask fuzz`: the fuzz targets of the decoders and of recovery, on stable Rust.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::project::Project;

/// Where the fuzzer's own workspace is.
pub(crate) const MANIFEST: &str = "fuzz/Cargo.toml";

/// Flags of `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct FuzzArguments {
    /// How long all targets together may take.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// `cargo xtask fuzz`. Its exit code is the fuzzer's own.
pub(crate) fn command(project: &Project, arguments: &FuzzArguments) -> Result<ExitCode> {
    let status = program(project, arguments.seconds)
        .status()
        .context("cannot start the fuzzer")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The fuzzer, to run for `seconds`. It is a workspace of its own, built with coverage flags.
pub(crate) fn program(project: &Project, seconds: u64) -> Command {
    let mut fuzz = project.cargo(&["run", "--quiet", "--manifest-path", MANIFEST]);
    fuzz.args(["--", "--seconds", &seconds.to_string()]);
    fuzz
}

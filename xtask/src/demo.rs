//! `cargo xtask demo`: sets everything up and hands over to `python/demo/demo.py`.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::project::Project;
use crate::setup::{self, Need, Ready};

/// Flags of `cargo xtask demo`.
#[derive(Args, Default)]
pub(crate) struct DemoArguments {
    /// Run one model class only.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// End with one JSON line.
    #[arg(long)]
    json: bool,
}

/// `cargo xtask demo`. Its exit code is the demo's own.
pub(crate) fn command(project: &Project, arguments: &DemoArguments) -> Result<ExitCode> {
    let ready = setup::ensure(project, Need::Everything)?;
    let mut demo = program(project, arguments, &ready);
    let status = demo.status().context("cannot start the demo")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn program(project: &Project, arguments: &DemoArguments, _ready: &Ready) -> Command {
    let mut demo = project.program(project.cache.engine_program("python"));
    demo.arg("python/demo/demo.py");
    demo.arg("--binary").arg(project.binary());
    demo.arg("--models").arg(project.cache.models());
    if let Some(model) = &arguments.model {
        demo.args(["--model", model]);
    }
    if arguments.json {
        demo.arg("--json");
    }
    demo
}

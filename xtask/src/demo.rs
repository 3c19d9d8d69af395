//! `cargo xtask demo`: sets everything up and hands over to `python/demo/demo.py`, or with `--pd`
//! to `python/demo/pd.py`.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::project::Project;
use crate::setup::{self, Need, Ready};

/// The model classes of `python/tests/models/recipes.py`, in the order of the demo.
const MODELS: [&str; 5] = ["llama", "gemma3", "gpt_oss", "qwen3_next", "deepseek_v3"];

/// Flags of `cargo xtask demo`.
#[derive(Args, Default)]
pub(crate) struct DemoArguments {
    /// Hand prompts over from a prefill to a decode engine instead, through a router.
    #[arg(long)]
    pd: bool,
    /// Run one model class only.
    #[arg(long, value_parser = MODELS)]
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
    let script = if arguments.pd { "pd.py" } else { "demo.py" };
    demo.arg(format!("python/demo/{script}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_are_those_of_the_recipes() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let recipes = format!("{root}/python/tests/models/recipes.py");
        let recipes = std::fs::read_to_string(recipes).expect("the recipes");
        let table = recipes.split("RECIPES: dict").nth(1).expect("the table");
        let table = table.split('}').next().expect("its end");
        let names: Vec<&str> = table.split('"').skip(1).step_by(2).collect();
        assert_eq!(names, MODELS);
    }
}

//! Runs the commands that the documents show, so that none of them can rot.
//!
//! A fenced block marked `sh` runs to its end with bash, in the repository root, with the engine
//! environment and the release binary on the path and `MODEL` naming a test model. A block marked
//! `sh serve PORT` is a server: it is started, awaited on that port of the loopback, and stopped
//! when the document ends. Blocks of one document run in order; other marks are not commands.

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::children::{Runtime, Server};
use crate::project::Project;
use crate::setup::{self, Need};
use crate::step;

/// The documents whose commands run.
const DOCUMENTS: [&str; 4] = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/operations.md",
    "docs/benchmarks.md",
];

/// Commands that are stages of `cargo xtask ci` or parts of one, or are it.
const STAGES: [&str; 5] = [
    "cargo xtask demo",
    "cargo xtask test",
    "cargo xtask test --quick",
    "cargo xtask fuzz --seconds 10",
    "cargo xtask ci",
];

/// The test model that stands for the reader's own.
const MODEL: &str = "llama";

/// A command block of a document.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The line of the opening fence, from 1.
    line: usize,
    /// The port of a server block.
    port: Option<u16>,
    script: String,
}

/// Runs every command of every document, and fails at the first that fails.
pub(crate) fn run(project: &Project) -> Result<()> {
    // Not kept: the documented commands take their own lease of the cache, or change it.
    drop(setup::ensure(project, Need::Everything)?);
    let model = model(project)?;
    let runtime = Runtime::create()?;
    for document in DOCUMENTS {
        let text = fs::read_to_string(project.root.join(document))
            .with_context(|| format!("cannot read {document}"))?;
        let mut servers = Vec::new();
        for block in blocks(&text).with_context(|| document.to_owned())? {
            let title = format!("{document}:{}  {}", block.line, first_line(&block.script));
            if is_stage(&block.script) {
                eprintln!("{:>8}  {title}  (a stage of its own)", "ok");
                continue;
            }
            step::run(
                &title,
                &project.cache.log("documented"),
                |step| match block.port {
                    None => step.command(bash(project, &block.script, &model, &runtime)),
                    Some(port) => {
                        let log = project.cache.log(&format!("documented-{port}"));
                        let server = bash(project, &block.script, &model, &runtime);
                        servers.push(Server::start(server, port, &log)?);
                        Ok(())
                    }
                },
            )?;
        }
    }
    Ok(())
}

/// The command blocks of a document, in order.
fn blocks(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (line, content) in (1..).zip(text.lines()) {
        match (&mut open, content.trim_start().strip_prefix("```")) {
            (None, Some(mark)) => open = Some((line, mark.trim(), String::new())),
            (None, None) => {}
            (Some((_, _, script)), None) => {
                script.push_str(content);
                script.push('\n');
            }
            (Some(_), Some(_)) => {
                let Some((line, mark, script)) = open.take() else {
                    continue;
                };
                blocks.extend(block(line, mark, script)?);
            }
        }
    }
    if let Some((line, ..)) = open {
        bail!("the block that opens at line {line} never ends");
    }
    Ok(blocks)
}

fn block(line: usize, mark: &str, script: String) -> Result<Option<Block>> {
    let words: Vec<&str> = mark.split_whitespace().collect();
    let port = match words[..] {
        ["sh"] => None,
        ["sh", "serve", port] => Some(port.parse().with_context(|| format!("line {line}"))?),
        ["sh", ..] => bail!("line {line}: `{mark}` is neither `sh` nor `sh serve PORT`"),
        _ => return Ok(None),
    };
    Ok(Some(Block { line, port, script }))
}

fn is_stage(script: &str) -> bool {
    script.lines().all(|line| STAGES.contains(&line.trim()))
}

fn first_line(script: &str) -> &str {
    script
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("(empty)")
}

fn bash(project: &Project, script: &str, model: &str, runtime: &Runtime) -> Command {
    let mut path = vec![
        project.cache.engine().join("bin"),
        project.target().join("release"),
    ];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut bash = project.program("bash");
    bash.args(["-euo", "pipefail", "-c", script]);
    bash.env("PATH", env::join_paths(path).unwrap_or_default());
    bash.env("VIRTUAL_ENV", project.cache.engine());
    bash.env("XDG_RUNTIME_DIR", runtime.folder());
    bash.env("MODEL", model)
        .env("VLLM_CPU_KVCACHE_SPACE", "1")
        .env("HF_HUB_OFFLINE", "1");
    bash
}

/// The folder of [`MODEL`], as the builder of the models prints it.
fn model(project: &Project) -> Result<String> {
    let mut build = project.program(project.cache.engine_program("python"));
    build
        .args(["python/tests/models/build.py", MODEL, "--cache"])
        .arg(project.cache.models());
    let output = build
        .output()
        .context("cannot start the builder of the test models")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = printed.lines().last().unwrap_or_default();
    let path = line
        .strip_prefix(MODEL)
        .map(str::trim)
        .context("no model was built")?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_blocks_are_found_and_others_are_not() {
        let text = "# T\n```sh\na\nb\n```\n```text\nno\n```\n```sh serve 8000\nc\n```\n";
        let expected = [
            Block {
                line: 2,
                port: None,
                script: "a\nb\n".to_owned(),
            },
            Block {
                line: 9,
                port: Some(8000),
                script: "c\n".to_owned(),
            },
        ];
        assert_eq!(blocks(text).unwrap(), expected);
    }

    #[test]
    fn a_block_that_would_silently_not_run_is_an_error() {
        assert!(blocks("```sh server 8000\nc\n```\n").is_err());
        assert!(blocks("```sh serve many\nc\n```\n").is_err());
        assert!(blocks("```sh\nc\n").is_err());
    }
}

//! How each system is started, and the Python environments of those that come from PyPI.
//!
//! Called once for each system. The versions are pinned in `xtask/peers/requirements.txt`, the
//! environments lie in the cache folder, one for each system: one that cannot be installed keeps
//! no other from running. Invariant: an environment whose stamp is current is not touched.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::fingerprint::Fingerprint;
use crate::project::Project;
use crate::python;
use crate::setup;
use crate::step::{self, Step};

const FOLDER: &str = "xtask/peers";
const REQUIREMENTS: &str = "xtask/peers/requirements.txt";
/// LMCache without what it asks for, which is CUDA, and the one package that its server lacks in
/// the engine's environment.
const LMCACHE: [&str; 3] = ["--no-deps", "lmcache", "sortedcontainers"];

/// The process that follows orders for the system of that name.
pub(super) fn command(project: &Project, name: &str) -> Result<Command> {
    let python = match name {
        "mooncake" => own(project, name, "mooncake-transfer-engine-non-cuda")?,
        "openlake" => own(project, name, "openlake-vllm")?,
        "lmcache" => project.cache.engine_program("python"),
        _ => {
            let mut ours = project.program(project.binary());
            ours.args(["bench-contest", name]);
            return Ok(ours);
        }
    };
    let mut command = project.program(python);
    command.arg(format!("{FOLDER}/run_{name}.py"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    if name == "lmcache" {
        command.env("PYTHONPATH", beside_engine(project)?);
    }
    Ok(command)
}

/// The interpreter of an environment that holds one system.
fn own(project: &Project, name: &str, package: &str) -> Result<PathBuf> {
    let folder = project.cache.peers(name);
    let python = folder.join("bin/python");
    made(project, name, |step| {
        let mut venv = setup::uv(project, "venv");
        venv.args(["--python", &python::find()?]).arg(&folder);
        step.command(venv)?;
        let mut install = setup::uv_install(project, &python);
        install.args(["--constraint", REQUIREMENTS, package]);
        step.command(install)
    })?;
    Ok(python)
}

/// A folder of packages for the engine's interpreter.
fn beside_engine(project: &Project) -> Result<PathBuf> {
    let folder = project.cache.peers("lmcache");
    let python = project.cache.engine_program("python");
    made(project, "lmcache", |step| {
        let mut install = setup::uv_install(project, &python);
        install.arg("--target").arg(&folder);
        install.args(["--constraint", REQUIREMENTS]).args(LMCACHE);
        step.command(install)
    })?;
    Ok(folder)
}

fn made(project: &Project, name: &str, make: impl FnOnce(&Step) -> Result<()>) -> Result<()> {
    let name = format!("peers-{name}");
    let (stamp, folder) = (project.cache.stamp(&name), project.cache.peers(&name[6..]));
    let inputs = Fingerprint::new().with_tree(&project.root, REQUIREMENTS)?;
    let current = fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == inputs.to_string());
    if current && folder.exists() {
        return Ok(());
    }
    let _ = fs::remove_file(&stamp);
    setup::remove(&folder)?;
    step::run(
        &format!("environment {name}"),
        &project.cache.log(&name),
        make,
    )
    .context("it cannot be installed")?;
    fs::write(&stamp, inputs.to_string())
        .with_context(|| format!("cannot write {}", stamp.display()))
}

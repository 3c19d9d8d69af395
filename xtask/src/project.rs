//! Where this checkout lies and which tools its machine has; handed to every command.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::cache::Cache;

/// A checkout and the cache folder that belongs to its user.
pub(crate) struct Project {
    /// The repository root, absolute.
    pub(crate) root: PathBuf,
    /// Everything that lives outside the tree.
    pub(crate) cache: Cache,
}

impl Project {
    /// Finds the checkout from cargo's own variable, so that any working directory will do.
    pub(crate) fn locate() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest
            .parent()
            .context("xtask lies in a folder of the repository")?;
        Ok(Self {
            root: root.to_path_buf(),
            cache: Cache::locate()?,
        })
    }

    /// `program`, to be started in the repository root.
    pub(crate) fn program(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(&self.root);
        command
    }

    /// The cargo that runs us, with `arguments`.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.program(PathBuf::from(cargo));
        command.args(arguments);
        command
    }

    /// Whether `cargo NAME` is installed. Building such a tool takes minutes, so none is fetched.
    pub(crate) fn has_cargo_command(&self, name: &str) -> bool {
        let mut command = self.cargo(&[name, "--version"]);
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Cargo's output folder.
    pub(crate) fn target(&self) -> PathBuf {
        env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| self.root.join("target"), |target| self.root.join(target))
    }

    /// The release build of the shipped binary.
    pub(crate) fn binary(&self) -> PathBuf {
        self.target().join("release").join("tessera")
    }

    /// The folder of the built wheel.
    pub(crate) fn wheels(&self) -> PathBuf {
        self.target().join("wheels")
    }
}

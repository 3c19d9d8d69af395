//! The guest's kernel: the distribution's own, downloaded and unpacked, never installed.
//!
//! Called by [`crate::guest`]. A kernel that is in the cache is used as it is: nothing that is
//! tested depends on its being the newest. The invariant: the modules lie in the order in which
//! they can be loaded, each behind all that it depends on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::project::Project;
use crate::step::{self, Step};

/// The package that names the newest kernel, in the dependencies that it has.
const META_PACKAGE: &str = "linux-image-amd64";

/// What the guest needs beside what is built in: the host's files, RDMA devices over Ethernet and
/// the checksum of their packets, two ends of a cable, and what makes the cable worse than it is.
const MODULES: [&str; 8] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "veth",
    "sch_netem",
];

/// A kernel in the cache.
pub(crate) struct Kernel {
    folder: PathBuf,
}

impl Kernel {
    /// The kernel of the cache, downloaded if there is none.
    pub(crate) fn ensure(project: &Project) -> Result<Self> {
        let kernel = Self {
            folder: project.cache.guest_kernel(),
        };
        let wanted = MODULES.join(" ");
        let made = kernel.folder.join("made");
        let is_made = || fs::read_to_string(&made).is_ok_and(|made| made == wanted);
        if is_made() {
            return Ok(kernel);
        }
        let _owned = project.cache.own()?;
        // Asked again: whoever held the lock before may have made it.
        if is_made() {
            return Ok(kernel);
        }
        step::run("guest kernel", &project.cache.log("guest-kernel"), |step| {
            kernel.make(step)
        })?;
        fs::write(&made, &wanted)?;
        Ok(kernel)
    }

    /// The image to boot.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The modules in the order in which they load, with their file names.
    pub(crate) fn modules(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut modules = Vec::new();
        for path in files(&self.folder.join("modules"))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            modules.push((name.into_owned(), fs::read(&path)?));
        }
        modules.sort();
        Ok(modules)
    }

    fn make(&self, step: &Step) -> Result<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        let unpacked = self.folder.join("unpacked");
        fs::create_dir_all(&unpacked)?;
        let name = newest().or_else(|_| {
            // A fresh machine has no lists. Only its root user may fetch them.
            let mut update = Command::new("apt-get");
            update.arg("update");
            step.command(update).and_then(|()| newest())
        })?;
        let mut download = Command::new("apt-get");
        download.args(["download", &name]);
        download.current_dir(&self.folder);
        step.command(download)?;
        let packages = files(&self.folder)?;
        let package = packages.first().context("apt-get downloaded nothing")?;
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(package).arg(&unpacked);
        step.command(unpack)?;
        let boot = files(&unpacked.join("boot"))?;
        let image = boot
            .iter()
            .find(|path| file_name(path).starts_with("vmlinuz"));
        let image = image.context("the kernel's package has no image")?;
        fs::rename(image, self.image())?;
        keep_modules(&unpacked, &self.folder.join("modules"))?;
        fs::remove_file(package)?;
        fs::remove_dir_all(&unpacked).context("cannot remove what is not needed of the kernel")
    }
}

/// The name of the newest kernel's package.
fn newest() -> Result<String> {
    let asked = Command::new("apt-cache")
        .args(["depends", "--important", META_PACKAGE])
        .output()
        .context("no apt-cache: the guest's kernel is that of Debian or Ubuntu")?;
    let text = String::from_utf8_lossy(&asked.stdout);
    let named = resolve(&text).map(str::to_owned);
    named.with_context(|| format!("apt knows no {META_PACKAGE}: run `apt-get update` first"))
}

/// The one kernel among the dependencies of the meta package.
fn resolve(depends: &str) -> Option<&str> {
    let mut names = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-"))
}

/// Copies the modules that are wanted, and all that they depend on, with numbers for their order.
fn keep_modules(unpacked: &Path, into: &Path) -> Result<()> {
    let mut found = BTreeMap::new();
    find_modules(unpacked, &mut found)?;
    let mut order = Vec::new();
    for name in MODULES {
        load_order(name, &mut order, &|name| {
            // One that is built in is no file, and needs no loading.
            let Some(path) = found.get(name) else {
                return Ok(None);
            };
            Ok(Some(depends(&fs::read(path)?)))
        })?;
    }
    if !order.iter().any(|name| name == "rdma_rxe") {
        bail!("the kernel has no uncompressed module rdma_rxe: its distribution is not known here");
    }
    fs::create_dir_all(into)?;
    for (at, name) in order.iter().enumerate() {
        fs::copy(&found[name], into.join(format!("{at:02}-{name}.ko")))?;
    }
    Ok(())
}

/// Appends `name` to `order`, behind what it depends on. `depends_of` is `None` for what no file
/// holds.
fn load_order(
    name: &str,
    order: &mut Vec<String>,
    depends_of: &dyn Fn(&str) -> Result<Option<Vec<String>>>,
) -> Result<()> {
    if order.iter().any(|other| other == name) {
        return Ok(());
    }
    let Some(needed) = depends_of(name)? else {
        return Ok(());
    };
    for other in needed {
        load_order(&other, order, depends_of)?;
    }
    order.push(name.to_owned());
    Ok(())
}

/// What a module says that it depends on: one of the zero-ended texts in it.
fn depends(module: &[u8]) -> Vec<String> {
    let mut texts = module.split(|byte| *byte == 0);
    let depends = texts.find_map(|text| text.strip_prefix(b"depends="));
    String::from_utf8_lossy(depends.unwrap_or_default())
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Every module below `folder`, by the name that others depend on it by.
fn find_modules(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find_modules(&path, found)?;
        } else if let Some(name) = file_name(&path).strip_suffix(".ko") {
            found.insert(name.replace('-', "_"), path.clone());
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    Ok(paths.filter(|path| path.is_file()).collect())
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_one_that_the_meta_package_depends_on() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-57-amd64\n";
        assert_eq!(resolve(text), Some("linux-image-6.1.0-57-amd64"));
        assert_eq!(
            resolve("N: Unable to locate package linux-image-amd64\n"),
            None
        );
    }

    #[test]
    fn a_module_names_what_it_depends_on() {
        let module = b"\x7fELF\0name=9p\0depends=9pnet,netfs\0retpoline=Y\0";
        assert_eq!(depends(module), ["9pnet", "netfs"]);
        assert_eq!(depends(b"\0depends=\0"), Vec::<String>::new());
        assert_eq!(depends(b"no module"), Vec::<String>::new());
    }

    #[test]
    fn modules_load_behind_what_they_depend_on_each_once() {
        let depends_of = |name: &str| {
            Ok(match name {
                "a" => Some(vec!["b".to_owned(), "c".to_owned()]),
                "c" => Some(vec!["b".to_owned(), "built_in".to_owned()]),
                "b" | "d" => Some(Vec::new()),
                _ => None,
            })
        };
        let mut order = Vec::new();
        for name in ["d", "a", "b"] {
            load_order(name, &mut order, &depends_of).unwrap();
        }
        assert_eq!(order, ["d", "b", "c", "a"]);
    }
}

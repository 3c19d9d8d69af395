//! A small virtual machine in which RDMA devices are made of Ethernet ones, so that real verbs run
//! on a machine without an RDMA card.
//!
//! Called by [`crate::rdma`]. It boots the distribution's kernel by translation, which needs no
//! right and no hardware, with a first process of ours; see `xtask/guest/init.sh`. The invariants:
//! the guest writes nothing of the host; it is ended by its own time limit, however it goes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::cpio::Archive;
use crate::kernel::Kernel;
use crate::project::Project;

/// The guest's first process.
const INIT: &str = include_str!("../guest/init.sh");

/// How its lines begin that are for us.
const OURS: &str = "tessera-guest ";

/// Programs that must be here, and the packages that have them.
const PROGRAMS: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("apt-cache", "apt"),
    ("dpkg-deb", "dpkg"),
];

/// Libraries that must be here, and the packages that have them.
const LIBRARIES: [(&str, &str); 2] = [
    ("libibverbs.so.1", "libibverbs1"),
    ("libibverbs/librxe-rdmav34.so", "ibverbs-providers"),
];

/// A job for a guest.
pub(crate) struct Job<'a> {
    /// Files that lie beside the script, under their own names.
    pub(crate) files: &'a [PathBuf],
    /// Run by `sh` as the root user in `/mnt`, which is not writable; `/tmp` is.
    pub(crate) script: &'a str,
    /// When the guest is ended.
    pub(crate) limit: Duration,
}

/// How a job ended.
pub(crate) struct Ended {
    /// Its exit status, or why there is none.
    pub(crate) status: String,
    /// What it wrote, from the point where the devices were there.
    pub(crate) output: String,
}

/// Says which packages are to be installed before a guest can run.
pub(crate) fn check() -> Result<()> {
    if env::consts::ARCH != "x86_64" {
        bail!(
            "the guest is an x86_64 one, and this machine is {}",
            env::consts::ARCH
        );
    }
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    let library = |name: &str| {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        folders
            .iter()
            .any(|folder| Path::new(folder).join(name).exists())
    };
    let absent = LIBRARIES.iter().filter(|(name, _)| !library(name));
    missing.extend(absent.map(|(_, package)| *package));
    missing.dedup();
    if !missing.is_empty() {
        bail!(
            "the guest needs packages that are not installed: apt-get install {}",
            missing.join(" ")
        );
    }
    Ok(())
}

/// Runs `job` in a guest of its own.
pub(crate) fn run(
    project: &Project,
    job: &Job<'_>,
    mut on_line: impl FnMut(&str),
) -> Result<Ended> {
    let kernel = Kernel::ensure(project)?;
    let folder = Folder::create(project)?;
    let shared = folder.0.join("job");
    fs::create_dir(&shared)?;
    for file in job.files {
        let name = file.file_name().context("a file of the job has no name")?;
        fs::copy(file, shared.join(name))
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    fs::write(shared.join("job.sh"), job.script)?;
    let first = folder.0.join("first-files");
    fs::write(&first, first_files(&kernel)?)?;
    let mut ready = false;
    let mut ended = Ended {
        status: "nothing was said: the guest died, or its time was over".into(),
        output: String::new(),
    };
    let machine = machine(&kernel, &first, &shared, job.limit);
    let finished = command::run(machine, |line| match line.strip_prefix(OURS) {
        Some("ready") => ready = true,
        Some(said) => ended.status = said.trim_start_matches("exit ").to_owned(),
        None if ready => {
            on_line(line);
            ended.output.push_str(line);
            ended.output.push('\n');
        }
        None => {}
    })?;
    if !ready {
        bail!(
            "the guest made no devices: {}\n{}",
            ended.status,
            finished.output
        );
    }
    Ok(ended)
}

/// The files that the kernel starts with.
fn first_files(kernel: &Kernel) -> Result<Vec<u8>> {
    let busybox = find_program("busybox").context("no busybox")?;
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "sys", "host", "modules"] {
        archive.folder(folder);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("bin/busybox", &fs::read(busybox)?);
    for (name, module) in kernel.modules()? {
        archive.file(&format!("modules/{name}"), &module);
    }
    Ok(archive.finish())
}

/// The virtual machine. `timeout` ends it even if this process has been killed.
fn machine(kernel: &Kernel, first: &Path, shared: &Path, limit: Duration) -> Command {
    let share = |tag: &str, path: &str| {
        let fsdev =
            format!("local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap");
        let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
        ["-fsdev".to_owned(), fsdev, "-device".to_owned(), device]
    };
    let mut machine = Command::new("timeout");
    machine.args(["--kill-after=5", &limit.as_secs().to_string()]);
    machine.arg("qemu-system-x86_64");
    machine.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
    machine.args(["-m", "2G", "-nodefaults", "-display", "none", "-no-reboot"]);
    machine
        .args(["-serial", "stdio", "-kernel"])
        .arg(kernel.image());
    machine.arg("-initrd").arg(first);
    let append = "console=ttyS0 quiet loglevel=3 mitigations=off panic=-1";
    machine.args(["-append", append]);
    machine.args(share("host", "/"));
    machine.args(share("job", &shared.to_string_lossy()));
    machine
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut folders = env::split_paths(&path).chain(system);
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

/// The folder of one run, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn create(project: &Project) -> Result<Self> {
        let folder = project.cache.guest_run(std::process::id());
        sweep(folder.parent().unwrap_or(&folder));
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }
}

/// Removes what runs left whose process was killed: their folders have its number.
fn sweep(runs: &Path) {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix("run-"));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed_and_nothing_else() {
        let process = std::process::id();
        let runs = env::temp_dir().join(format!("tessera-guest-runs-{process}"));
        let (alive, dead) = (format!("run-{process}"), "run-4194305");
        for name in [alive.as_str(), dead, "kernel"] {
            fs::create_dir_all(runs.join(name).join("job")).unwrap();
        }
        sweep(&runs);
        let left = |name: &str| runs.join(name).exists();
        assert!(left(&alive) && left("kernel") && !left(dead));
        fs::remove_dir_all(&runs).unwrap();
    }
}

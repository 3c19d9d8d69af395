//! A node in a process of its own, and what can happen to such a process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, prlimit, waitpid};
use tessera_client::{Cluster, ClusterConfig, NodeIndex, NodeSpec};
use tessera_transport::Address;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::tile::{PATIENCE, soon};

/// Megabytes of the RAM tier of a node of which nobody asks for less.
const RAM_MIB: u64 = 64;

/// A running node. Dropping it kills the process.
pub(crate) struct NodeProcess {
    child: Child,
    address: Address,
    ram_mib: u64,
    /// Its data folder and the megabytes in it.
    data: Option<(PathBuf, u64)>,
}

impl NodeProcess {
    /// A node on a free port.
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0", RAM_MIB, None)
    }

    /// A node on a free port, with a data folder.
    pub(crate) fn start_on(folder: &Path, disk_mib: u64) -> Self {
        Self::start_small(folder, RAM_MIB, disk_mib)
    }

    /// A node on a free port, with a data folder and little memory.
    pub(crate) fn start_small(folder: &Path, ram_mib: u64, disk_mib: u64) -> Self {
        Self::start_at("127.0.0.1:0", ram_mib, Some((folder.to_owned(), disk_mib)))
    }

    fn start_at(address: &str, ram_mib: u64, data: Option<(PathBuf, u64)>) -> Self {
        // A write beyond a limit is to fail, as that of a disk does, and not to end the process.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]);
        command.args([env!("CARGO_BIN_EXE_tessera-sim-node"), address]);
        command.arg(ram_mib.to_string());
        if let Some((folder, disk_mib)) = &data {
            command.arg(folder).arg(disk_mib.to_string());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the node says where it listens");
        let address = line.trim().strip_prefix("listening ").expect("an address");
        Self {
            address: address.parse().expect("an address"),
            child,
            ram_mib,
            data,
        }
    }

    /// Kills the process at once and starts another at the same address.
    pub(crate) fn restart(&mut self) {
        let address = self.address.to_string();
        self.kill();
        *self = Self::start_at(&address, self.ram_mib, self.data.clone());
    }

    /// Ends the process with no chance to say anything.
    pub(crate) fn kill(&mut self) {
        // Killing what is dead already is no failure.
        let _ = self.child.kill();
        self.child.wait().expect("a child of ours");
    }

    /// Stops the process where it stands, and returns when it does: connections stay open and
    /// nothing is answered.
    pub(crate) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).expect("our own process");
        let stopped = waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("our own child");
        assert!(
            stopped.is_some_and(|(_, status)| status.stopped()),
            "the node ended: {stopped:?}"
        );
    }

    /// Lets a paused process go on.
    pub(crate) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("our own process");
    }

    /// Makes every write of the process fail that begins beyond so many bytes of its file, and
    /// cuts short the one that crosses them.
    pub(crate) fn limit_writes(&self, bytes: u64) {
        let limit = Rlimit {
            current: Some(bytes),
            maximum: None,
        };
        prlimit(Some(self.pid()), Resource::Fsize, limit).expect("our own child");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// A client of this node, as patient as an engine would have it.
    pub(crate) fn client(&self) -> Cluster {
        self.client_on(&Handle::current())
    }

    /// Such a client on a runtime of somebody else.
    pub(crate) fn client_on(&self, runtime: &Handle) -> Cluster {
        let config = ClusterConfig::new(vec![NodeSpec::new(self.address.clone())]);
        Cluster::start(config, runtime)
    }

    /// Flips one bit of every copy of `needle`, eight bytes aligned, in the memory of the process,
    /// as failing memory would, and says how many there were.
    pub(crate) fn flip_bit(&self, needle: &[u8]) -> usize {
        let proc = format!("/proc/{}", self.child.id());
        let maps = fs::read_to_string(format!("{proc}/maps")).expect("the maps of our child");
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("{proc}/mem"));
        let memory = memory.expect("the memory of our child");
        let writable = maps.lines().filter(|line| line.contains(" rw"));
        let mut flipped = 0;
        for line in writable {
            let (start, end) = range(line);
            let mut bytes = vec![0; usize::try_from(end - start).expect("a mapping")];
            // Some special mappings cannot be read; the arena is not among them.
            if memory.read_exact_at(&mut bytes, start).is_err() {
                continue;
            }
            for at in positions(&bytes, needle) {
                let place = start + at as u64;
                memory
                    .write_all_at(&[needle[0] ^ 1], place)
                    .expect("a writable mapping");
                flipped += 1;
            }
        }
        flipped
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The range of one line of `/proc/PID/maps`.
fn range(line: &str) -> (u64, u64) {
    let (range, _) = line.split_once(' ').expect("a range first");
    let (start, end) = range.split_once('-').expect("two addresses");
    let address = |hex| u64::from_str_radix(hex, 16).expect("an address");
    (address(start), address(end))
}

/// Where `needle` begins in `bytes`, at multiples of eight: an object begins at one.
fn positions<'a>(bytes: &'a [u8], needle: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    (0..bytes.len())
        .step_by(8)
        .filter(|at| bytes[*at..].starts_with(needle))
}

/// One number of the node behind `client`.
pub(crate) async fn stat(client: &Cluster, name: &str) -> u64 {
    let entries = client
        .stat(NodeIndex(0), soon())
        .await
        .expect("the node answers");
    let entry = entries.iter().find(|entry| entry.name == name);
    entry
        .unwrap_or_else(|| panic!("no number {name} among {entries:?}"))
        .value
}

/// Waits until `name` has one of the values that `wanted` accepts, and returns it.
pub(crate) async fn until_stat(client: &Cluster, name: &str, wanted: impl Fn(u64) -> bool) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let value = stat(client, name).await;
        if wanted(value) {
            return value;
        }
        assert!(Instant::now() < deadline, "{name} stays at {value}");
        sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// Descriptors that this process has open.
pub(crate) fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("our own descriptors")
        .count()
}

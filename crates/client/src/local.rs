//! The shared local node: what an engine uses when no nodes are configured.
//!
//! Held by the scheduler's driver, one per engine. All engines of one user share one node: a unix
//! socket and a lock file in a folder that only the user can enter. Whoever finds the lock free
//! starts the node, detached, from the `tessera` binary beside the Python package; it outlives the
//! engine, ends by itself when idle, and finds on disk what it held. A thread of its own watches
//! the lock and starts the node again after it died, at growing intervals. The invariant: no
//! request ever waits here. Without a node every lookup is a miss, and hits come back when a node
//! is there.

mod data;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FlockOperation, flock};
use tessera_proto::PROTOCOL_VERSION;
use tessera_transport::{Address, FolderError, check_private, make_private};

use self::data::Data;
use crate::options::Options;

/// The longest path of a unix socket, in bytes, without its final zero.
const SOCKET_PATH_MAX: usize = 107;

/// A log above this size is begun anew when a node is started.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// Runs its arguments in the background and ends, which leaves them without a parent.
const ORPHAN: &str = "\"$0\" \"$@\" &";

/// What the node inherits from the engine's environment; an engine's own settings are not for it.
const ENVIRONMENT: [&str; 6] = [
    "HOME",
    "PATH",
    "TMPDIR",
    "LANG",
    "TESSERA_LOG",
    "RUST_BACKTRACE",
];

/// Why there can be no local node. Each names the way out.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Neither a runtime folder nor a home.
    #[error("no folder for the local node: set HOME, or the option \"local_dir\", or \"nodes\"")]
    NoFolder,
    /// A folder that a node would refuse, or that could not be made.
    #[error("{0}; or set the option \"local_dir\" to another")]
    Folder(#[from] FolderError),
    /// A path that does not fit into a socket address.
    #[error("{0} is too long for a unix socket; set the option \"local_dir\" to a shorter folder")]
    PathTooLong(PathBuf),
    /// The package holds no binary.
    #[error("{0} is missing; reinstall tessera-kv, or set the option \"nodes\"")]
    NoBinary(PathBuf),
    /// The system refused.
    #[error("cannot prepare the local node at {path}: {source}; set the option \"local_dir\"")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// How often the lock is looked at, and how far apart starts are.
#[derive(Debug, Clone, Copy)]
struct Pace {
    look: Duration,
    restart_first: Duration,
    restart_max: Duration,
}

const PACE: Pace = Pace {
    look: Duration::from_millis(250),
    restart_first: Duration::from_secs(1),
    restart_max: Duration::from_secs(60),
};

/// Where the local node of a user lives. The name holds the protocol, so that an engine of another
/// version never meets a node that it cannot talk to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    socket: PathBuf,
    lock: PathBuf,
    log: PathBuf,
}

/// Keeps the shared local node alive for as long as it is held.
#[derive(Debug)]
pub struct LocalNode {
    place: Place,
    stop: Arc<Stop>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl LocalNode {
    /// Begins to keep the node alive. Starts it if nobody else has; does not wait for it.
    ///
    /// `binary` is the path of the `tessera` program.
    ///
    /// # Errors
    ///
    /// When there is no safe folder, or no binary.
    pub fn keep_alive(binary: &Path, options: &Options) -> Result<Self, LocalError> {
        Self::keep_alive_at(binary, options, PACE)
    }

    fn keep_alive_at(binary: &Path, options: &Options, pace: Pace) -> Result<Self, LocalError> {
        if !binary.is_file() {
            return Err(LocalError::NoBinary(binary.to_owned()));
        }
        let place = Place::prepare(&options.local_dir)?;
        let starter = Starter {
            binary: binary.to_owned(),
            ram_bytes: options.local_ram_bytes,
            idle_exit: options.local_idle_exit,
            data: Data::of(options)?,
            place: place.clone(),
        };
        let stop = Arc::new(Stop::default());
        let watched = Arc::clone(&stop);
        let watcher = thread::Builder::new()
            .name("tessera-local".into())
            .spawn(move || watch(&starter, &watched, pace))
            .map_err(|source| LocalError::Io {
                path: place.lock.clone(),
                source,
            })?;
        Ok(Self {
            place,
            stop,
            watcher: Some(watcher),
        })
    }

    /// The address of the local node of this user, for every rank of the engine.
    ///
    /// # Errors
    ///
    /// When there is no safe folder.
    pub fn address_for(options: &Options) -> Result<Address, LocalError> {
        Ok(Address::Unix(Place::prepare(&options.local_dir)?.socket))
    }

    /// The address of the local node of this user if one accepts connections now, in its default
    /// folder. Creates nothing.
    #[must_use]
    pub fn running_address() -> Option<Address> {
        let socket = Place::within(&default_folder().ok()?).socket;
        UnixStream::connect(&socket).ok()?;
        Some(Address::Unix(socket))
    }

    /// The private folder of this user's local node, made if it is missing.
    ///
    /// # Errors
    ///
    /// When there is no safe folder.
    pub(crate) fn private_folder(options: &Options) -> Result<PathBuf, LocalError> {
        let socket = Place::prepare(&options.local_dir)?.socket;
        Ok(socket.parent().map(Path::to_owned).unwrap_or_default())
    }

    /// The file that the node logs to.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.place.log
    }

    /// The folder in which the local node of this user keeps objects on disk.
    ///
    /// # Errors
    ///
    /// When there is no home to put it in.
    pub fn data_folder(options: &Options) -> Result<PathBuf, LocalError> {
        data::folder(options)
    }

    /// Where the node listens.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::Unix(self.place.socket.clone())
    }

    /// Waits until the node accepts connections, for at most `limit`. Only for the engine's start.
    #[must_use]
    pub fn wait_until_ready(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            if UnixStream::connect(&self.place.socket).is_ok() {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.wait(left.min(Duration::from_millis(20))) {
                return false;
            }
        }
    }
}

impl Drop for LocalNode {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        if let Some(watcher) = self.watcher.take() {
            // A panic there was reported by its own thread, and there is nothing to undo.
            let _ = watcher.join();
        }
    }
}

impl Stop {
    /// Waits for at most `limit`; whether it is time to end.
    fn wait(&self, limit: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        let end = Instant::now() + limit;
        while !*stopped {
            if self.changed.wait_until(&mut stopped, end).timed_out() {
                break;
            }
        }
        *stopped
    }
}

impl Place {
    fn prepare(local_dir: &str) -> Result<Self, LocalError> {
        let folder = if local_dir.is_empty() {
            default_folder()?
        } else {
            PathBuf::from(local_dir)
        };
        let place = Self::within(&folder);
        if place.socket.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(LocalError::PathTooLong(place.socket));
        }
        make_private(&folder)?;
        check_private(&folder)?;
        Ok(place)
    }

    fn within(folder: &Path) -> Self {
        let name = |ending: &str| folder.join(format!("node-v{PROTOCOL_VERSION}.{ending}"));
        Self {
            socket: name("sock"),
            lock: name("lock"),
            log: name("log"),
        }
    }

    /// Whether no node lives. A node holds the lock from its start to its end.
    fn is_free(&self) -> io::Result<bool> {
        let mut open = OpenOptions::new();
        open.read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let lock = match open.open(&self.lock) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Somebody removed the folder, and with it whatever node was in it.
                if let Some(folder) = self.lock.parent() {
                    make_private(folder).map_err(io::Error::other)?;
                }
                open.open(&self.lock)?
            }
            opened => opened?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn default_folder() -> Result<PathBuf, LocalError> {
    match environment_folder("XDG_RUNTIME_DIR").filter(|it| it.is_dir()) {
        Some(runtime) => Ok(runtime.join("tessera")),
        None => Ok(cache_folder()?.join("run")),
    }
}

/// What Tessera keeps for this user.
fn cache_folder() -> Result<PathBuf, LocalError> {
    let cache = environment_folder("XDG_CACHE_HOME");
    let cache = cache.or_else(|| Some(environment_folder("HOME")?.join(".cache")));
    Ok(cache.ok_or(LocalError::NoFolder)?.join("tessera"))
}

fn environment_folder(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(name)?);
    folder.is_absolute().then_some(folder)
}

/// What it takes to start a node.
struct Starter {
    binary: PathBuf,
    ram_bytes: u64,
    idle_exit: Duration,
    data: Option<Data>,
    place: Place,
}

impl Starter {
    /// Starts the node as nobody's child, in a process group of its own: what ends the engine, and
    /// engines end all their descendants, spares it.
    fn start(&self) -> io::Result<()> {
        let log = self.open_log()?;
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(ORPHAN).arg(&self.binary).arg("node");
        command
            .arg("--listen")
            .arg(Address::Unix(self.place.socket.clone()).to_string());
        command.arg("--ram").arg(format!("{}B", self.ram_bytes));
        command
            .arg("--idle-exit")
            .arg(format!("{}s", self.idle_exit.as_secs()));
        command.arg("--lock").arg(&self.place.lock);
        command.args(self.data.iter().flat_map(Data::arguments));
        command.env_clear();
        command.envs(
            ENVIRONMENT
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        command.current_dir("/").process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        match command.status()?.success() {
            true => Ok(()),
            false => Err(io::Error::other("/bin/sh could not start it")),
        }
    }

    fn open_log(&self) -> io::Result<File> {
        let grown = fs::metadata(&self.place.log).is_ok_and(|log| log.len() > LOG_BYTES_MAX);
        if grown {
            fs::remove_file(&self.place.log)?;
        }
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.place.log)
    }
}

/// Starts the node whenever its lock is free, at growing intervals while it does not stay.
fn watch(starter: &Starter, stop: &Stop, pace: Pace) {
    let mut interval = pace.restart_first;
    let mut last_start: Option<Instant> = None;
    let mut trouble = Trouble::default();
    loop {
        let since = last_start.map(|at| at.elapsed());
        // Within the interval the lock is not touched: a look could make a new node fail to start.
        if since.is_none_or(|since| since >= interval) {
            match starter.place.is_free() {
                Ok(true) => {
                    trouble.end();
                    if since.is_some() {
                        interval = (interval * 2).min(pace.restart_max);
                    }
                    last_start = Some(Instant::now());
                    report(starter, starter.start());
                }
                Ok(false) if since.is_some_and(|since| since > pace.restart_max) => {
                    trouble.end();
                    interval = pace.restart_first;
                }
                Ok(false) => trouble.end(),
                Err(error) => {
                    if trouble.is_new(&error) {
                        tracing::warn!(%error, lock = ?starter.place.lock, "local node");
                    }
                }
            }
        }
        if stop.wait(pace.look) {
            return;
        }
    }
}

/// What the watcher could not do the last time, so that it is said once and not at every look.
#[derive(Debug, Default)]
struct Trouble(Option<String>);

impl Trouble {
    fn is_new(&mut self, error: &io::Error) -> bool {
        let said = Some(error.to_string());
        let is_new = self.0 != said;
        self.0 = said;
        is_new
    }

    fn end(&mut self) {
        self.0 = None;
    }
}

fn report(starter: &Starter, started: io::Result<()>) {
    let (binary, log) = (&starter.binary, &starter.place.log);
    match started {
        Ok(()) => tracing::info!(?log, "local node started"),
        Err(error) => tracing::warn!(%error, ?binary, "the local node does not start"),
    }
}

#[cfg(test)]
mod tests;

//! What the documented commands leave running, ended for certain.
//!
//! Called by [`crate::documented`] only. Both values here end their processes when they are
//! dropped, however the run ended.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a documented server may take until it listens: an engine loads and warms up.
const START_LIMIT: Duration = Duration::from_secs(600);

/// How long a stopped server may take to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// The runtime folder of the documented commands. An engine without configured nodes starts a node
/// that outlives it, with its socket in here; it ends with this value.
pub(crate) struct Runtime(PathBuf);

/// A server of the document, ended with its whole process group.
pub(crate) struct Server(Child);

impl Runtime {
    /// Creates it for this process, for its user only.
    pub(crate) fn create() -> Result<Self> {
        // Not in the cache: the path of a unix socket may have no more than about a hundred bytes.
        let folder = env::temp_dir().join(format!("tessera-documented-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// The folder itself.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// The processes whose command line names this folder.
    fn processes(&self) -> Vec<String> {
        let folder = self.0.to_string_lossy();
        let names_folder = |process: &String| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(folder.as_ref())
        };
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.parse::<u32>().is_ok())
            .filter(names_folder)
            .collect()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        for process in self.processes() {
            let _ = Command::new("kill").args(["-TERM", &process]).status();
        }
        let stopped = Instant::now();
        while !self.processes().is_empty() && stopped.elapsed() < STOP_LIMIT {
            thread::sleep(Duration::from_millis(50));
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Server {
    /// Starts `command`, and returns once it listens on `port` of the loopback.
    pub(crate) fn start(mut command: Command, port: u16, log: &Path) -> Result<Self> {
        let listens = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        if listens() {
            bail!("something listens on port {port} already: end it first");
        }
        let file =
            fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0);
        let mut server = Server(
            command
                .spawn()
                .context("cannot start a documented server")?,
        );
        let started = Instant::now();
        while !listens() {
            if let Some(status) = server.0.try_wait()? {
                let output = fs::read_to_string(log).unwrap_or_default();
                bail!("the server ended with {status} before it listened:\n{output}");
            }
            if started.elapsed() > START_LIMIT {
                bail!(
                    "nothing listened on port {port} in {START_LIMIT:?}; see {}",
                    log.display()
                );
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(server)
    }

    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.0.id());
        // The group may have ended by itself; then there is nothing to signal.
        let _ = Command::new("kill")
            .args([signal, "--", &group])
            .stderr(Stdio::null())
            .status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("-TERM");
        let stopped = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && stopped.elapsed() < STOP_LIMIT {
            thread::sleep(Duration::from_millis(50));
        }
        self.signal("-KILL");
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_a_documented_command_left_behind_is_ended() {
        let runtime = Runtime::create().unwrap();
        let folder = runtime.0.clone();
        let mut left = Command::new("tail");
        let mut left = left.args(["-f", "/dev/null"]).arg(&folder).spawn().unwrap();
        // Its command line appears a moment after it was started.
        let started = Instant::now();
        while runtime.processes() != [left.id().to_string()] {
            assert!(started.elapsed() < STOP_LIMIT, "{:?}", runtime.processes());
        }
        // Reaped beside, as init would: an unreaped child would still be listed, without arguments.
        let reaper = thread::spawn(move || left.wait().unwrap());
        drop(runtime);
        assert!(!reaper.join().unwrap().success());
        assert!(!folder.exists());
    }

    #[test]
    fn a_server_that_ends_before_it_listens_is_reported_with_its_output() {
        let log = env::temp_dir().join(format!("tessera-server-log-{}", std::process::id()));
        let mut script = Command::new("sh");
        script.args(["-c", "echo no such model; exit 3"]);
        let Err(error) = Server::start(script, 1, &log) else {
            panic!("nothing listens on port 1")
        };
        fs::remove_file(&log).unwrap();
        let message = format!("{error:#}");
        assert!(
            message.contains("no such model") && message.contains('3'),
            "{message}"
        );
    }
}

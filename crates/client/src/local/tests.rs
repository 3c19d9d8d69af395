//! The local node with a program in its place that holds the lock and writes down its life.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

use super::*;

const FAST: Pace = Pace {
    look: Duration::from_millis(5),
    restart_first: Duration::from_millis(20),
    restart_max: Duration::from_millis(200),
};

/// A busy machine takes its time from the start of a node to its lock; within the interval nobody
/// tries again.
const PATIENT: Pace = Pace {
    restart_first: Duration::from_secs(2),
    restart_max: Duration::from_secs(2),
    ..FAST
};

const LIMIT: Duration = Duration::from_secs(20);

/// A folder with a program that stands for `tessera`: it locks, writes its pid, and stays.
struct Stage {
    folder: TempDir,
    options: Options,
}

impl Stage {
    fn new(life: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let run = folder.path().join("run");
        let options = json!({ "local_dir": run.to_str().unwrap(), "local_ram": "64MiB",
                              "local_disk": "256MiB" });
        let options = Options::parse(&options).unwrap();
        let pids = folder.path().join("pids");
        let script = format!(
            "#!/bin/sh\necho \"$@\" >> {args}\nexec 9>>\"$9\"\nflock -n 9 || exit 3\n\
             echo $$ >> {pids}\n{life}\n",
            args = folder.path().join("args").display(),
            pids = pids.display()
        );
        let binary = folder.path().join("tessera");
        fs::write(&binary, script).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, options }
    }

    fn keep_alive(&self) -> LocalNode {
        self.keep_alive_at(FAST)
    }

    fn keep_alive_at(&self, pace: Pace) -> LocalNode {
        let binary = self.folder.path().join("tessera");
        LocalNode::keep_alive_at(&binary, &self.options, pace).unwrap()
    }

    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.folder.path().join("pids")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn attempts(&self) -> usize {
        let args = fs::read_to_string(self.folder.path().join("args")).unwrap_or_default();
        args.lines().count()
    }

    /// Waits until so many nodes were started.
    fn wait_for_starts(&self, count: usize) -> Vec<i32> {
        let end = Instant::now() + LIMIT;
        while self.pids().len() < count {
            assert!(
                Instant::now() < end,
                "{} of {count} starts",
                self.pids().len()
            );
            thread::sleep(Duration::from_millis(2));
        }
        self.pids()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for pid in self.pids() {
            kill(pid);
        }
    }
}

fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

#[test]
fn node_is_started_with_its_socket_lock_and_limits_and_outlives_the_engine() {
    let stage = Stage::new("exec sleep 600");
    let node = stage.keep_alive_at(PATIENT);
    let pid = stage.wait_for_starts(1)[0];
    let args = fs::read_to_string(stage.folder.path().join("args")).unwrap();
    let run = stage.folder.path().join("run");
    let run = run.display();
    assert_eq!(
        args.trim(),
        format!(
            "node --listen unix:{run}/node-v{PROTOCOL_VERSION}.sock --ram 67108864B \
             --idle-exit 3600s --lock {run}/node-v{PROTOCOL_VERSION}.lock \
             --data {run}/data --disk 268435456B"
        )
    );
    drop(node);
    assert!(
        Path::new(&format!("/proc/{pid}")).exists(),
        "the node ended with the engine"
    );
}

#[test]
fn killed_node_is_started_again() {
    let stage = Stage::new("exec sleep 600");
    let _node = stage.keep_alive();
    kill(stage.wait_for_starts(1)[0]);
    stage.wait_for_starts(2);
}

#[test]
fn folder_that_was_removed_is_made_again_with_a_node_in_it() {
    let stage = Stage::new("exec sleep 600");
    let node = stage.keep_alive();
    let pid = stage.wait_for_starts(1)[0];
    fs::remove_dir_all(stage.folder.path().join("run")).unwrap();
    kill(pid);
    stage.wait_for_starts(2);
    let folder = node.log().parent().unwrap();
    let mode = fs::metadata(folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn trouble_is_told_once_until_it_ends_or_is_another() {
    let mut trouble = Trouble::default();
    let error = |kind: io::ErrorKind| io::Error::from(kind);
    assert!(trouble.is_new(&error(io::ErrorKind::PermissionDenied)));
    assert!(!trouble.is_new(&error(io::ErrorKind::PermissionDenied)));
    assert!(trouble.is_new(&error(io::ErrorKind::StorageFull)));
    trouble.end();
    assert!(trouble.is_new(&error(io::ErrorKind::StorageFull)));
}

#[test]
fn engines_share_one_node_and_the_survivor_replaces_it() {
    let stage = Stage::new("exec sleep 600");
    let first = stage.keep_alive_at(PATIENT);
    let pid = stage.wait_for_starts(1)[0];
    let second = stage.keep_alive_at(PATIENT);
    let third = stage.keep_alive_at(PATIENT);
    drop(first);
    drop(second);
    // Many looks at the lock later nobody has tried to start another.
    assert!(!third.wait_until_ready(FAST.look * 20));
    assert_eq!(stage.pids(), [pid]);
    assert_eq!(stage.attempts(), 1);
    kill(pid);
    stage.wait_for_starts(2);
    drop(third);
}

#[test]
fn node_that_does_not_stay_is_started_at_growing_intervals() {
    let stage = Stage::new("exit 1");
    let begin = Instant::now();
    let _node = stage.keep_alive();
    stage.wait_for_starts(5);
    // 20 + 40 + 80 + 160 ms lie between five starts.
    assert!(
        begin.elapsed() >= Duration::from_millis(290),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn waiting_for_a_node_that_never_listens_ends() {
    let stage = Stage::new("exec sleep 600");
    let node = stage.keep_alive();
    assert!(!node.wait_until_ready(Duration::from_millis(30)));
}

#[test]
fn unsafe_places_are_refused_with_the_way_out() {
    let folder = TempDir::new().unwrap();
    let at = |dir: &Path| {
        Place::prepare(dir.to_str().unwrap())
            .expect_err("it must be refused")
            .to_string()
    };
    // A node refuses these as well: a start that accepted them would wait for it in vain.
    for mode in [0o777, 0o755] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let refused = at(folder.path());
        assert!(refused.contains("chmod 700"), "{refused}");
        assert!(refused.contains("local_dir"), "{refused}");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let (run, link) = (folder.path().join("run"), folder.path().join("link"));
    Place::prepare(run.to_str().unwrap()).unwrap();
    std::os::unix::fs::symlink(run, &link).unwrap();
    assert!(at(&link).contains("not a link"));
    assert!(at(&folder.path().join("x".repeat(100))).contains("shorter folder"));
    fs::write(folder.path().join("file"), b"").unwrap();
    assert!(at(&folder.path().join("file")).contains("local_dir"));
    let missing = LocalNode::keep_alive(&folder.path().join("none"), &Options::default());
    assert!(
        missing
            .unwrap_err()
            .to_string()
            .contains("reinstall tessera-kv")
    );
}

//! The real binary, as an operator and a script use it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(20);

fn tessera(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    tessera(arguments).output().expect("the binary runs")
}

/// A running node; killed with this value if a test fails before it stopped it.
struct NodeProcess {
    child: Child,
    address: String,
}

impl NodeProcess {
    fn start(arguments: &[&str]) -> Self {
        let mut child = tessera(&["node", "--ram", "64MiB"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("standard output");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .expect("the address")
            .to_owned();
        Self { child, address }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a pid");
        kill_process(pid, signal).expect("the node runs");
    }

    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the node does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_node_ends_cleanly_on_sigterm_and_on_ctrl_c_and_the_socket_is_gone() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("run/node.sock");
        let mut node = NodeProcess::start(&["--listen", &format!("unix:{}", socket.display())]);
        assert!(socket.exists());
        let pinged = run(&["ping", "--node", &node.address, "--count", "3"]);
        assert!(pinged.status.success(), "{pinged:?}");
        node.signal(signal);
        assert_eq!(node.ended().code(), Some(0));
        assert!(!socket.exists());
        let mut log = String::new();
        node.child
            .stderr
            .take()
            .expect("a log")
            .read_to_string(&mut log)
            .expect("text");
        assert!(log.contains("stopped"), "{log}");
    }
}

#[test]
fn a_killed_node_leaves_a_socket_that_the_next_one_takes_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}/run/node.sock", folder.path().display());
    let mut node = NodeProcess::start(&["--listen", &address]);
    node.signal(Signal::KILL);
    node.ended();
    assert!(folder.path().join("run/node.sock").exists());
    let next = NodeProcess::start(&["--listen", &address]);
    let pinged = run(&["ping", "--node", &next.address]);
    assert!(pinged.status.success(), "{pinged:?}");
}

#[test]
fn a_second_node_with_the_same_lock_is_refused_with_a_message_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("node.lock").display().to_string();
    let _first = NodeProcess::start(&["--listen", "127.0.0.1:0", "--lock", &lock]);
    let refused = run(&[
        "node",
        "--ram",
        "64MiB",
        "--listen",
        "127.0.0.1:0",
        "--lock",
        &lock,
    ]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        message.contains("another node holds") && message.contains(&lock),
        "{message}"
    );
}

#[test]
fn a_disk_beyond_the_limit_on_files_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let refused = Command::new("sh")
        .args(["-c", "ulimit -f 2048; exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_tessera"), "node", "--ram", "64MiB"])
        .args(["--listen", "127.0.0.1:0", "--disk", "64MiB", "--data"])
        .arg(&data)
        .output()
        .expect("the binary runs");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("File too large"), "{message}");
}

#[test]
fn a_second_node_on_a_data_folder_is_refused_with_a_message_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data").display().to_string();
    let disk = [
        "--listen",
        "127.0.0.1:0",
        "--data",
        &data,
        "--disk",
        "64MiB",
    ];
    let mut first = NodeProcess::start(&disk);
    let refused = run(&[&["node", "--ram", "64MiB"][..], &disk].concat());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        message.contains("in use by another node") && message.contains(&data),
        "{message}"
    );
    let verified = run(&["verify", &data]);
    let message = String::from_utf8_lossy(&verified.stderr);
    assert_eq!(verified.status.code(), Some(1));
    assert!(message.contains("in use by another node"), "{message}");
    // A node that was killed has let go of it, and its size need not be said again.
    first.signal(Signal::KILL);
    first.ended();
    let verified = run(&["verify", &data, "--json"]);
    assert_eq!(verified.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&verified.stdout).expect("JSON");
    assert_eq!(
        (&report["objects"], &report["damaged"]),
        (&0.into(), &0.into())
    );
    drop(NodeProcess::start(&disk[..4]));
    for said in ["removed", "nothing there"] {
        let cleaned = run(&["clean", &data]);
        assert_eq!(cleaned.status.code(), Some(0));
        assert_eq!(
            String::from_utf8_lossy(&cleaned.stdout),
            format!("{data}: {said}\n")
        );
    }
    assert!(!folder.path().join("data").exists());
}

#[test]
fn clean_without_a_folder_is_about_the_local_node_of_the_user() {
    let home = tempfile::tempdir().expect("a folder");
    let cleaned = tessera(&["clean"])
        .env("XDG_CACHE_HOME", home.path())
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&cleaned.stdout);
    let expected = home.path().join("tessera/data");
    assert_eq!(said, format!("{}: nothing there\n", expected.display()));
}

#[test]
fn a_node_listens_beyond_this_machine_only_with_insecure() {
    let arguments = ["node", "--ram", "64MiB", "--listen", "0.0.0.0:0"];
    let refused = run(&arguments);
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("--insecure"), "{message}");
    NodeProcess::start(&["--listen", "0.0.0.0:0", "--insecure"]);
}

#[test]
fn an_unused_node_ends_by_itself_when_asked_to() {
    let mut node = NodeProcess::start(&["--listen", "127.0.0.1:0", "--idle-exit", "50ms"]);
    assert_eq!(node.ended().code(), Some(0));
}

#[test]
fn stat_shows_every_counter_to_people_and_to_programs() {
    let node = NodeProcess::start(&["--listen", "127.0.0.1:0"]);
    let people = run(&["stat", "--node", &node.address]);
    assert!(people.status.success(), "{people:?}");
    let text = String::from_utf8_lossy(&people.stdout);
    for name in [
        "hits",
        "misses",
        "evictions",
        "integrity_failures",
        "leased_bytes",
    ] {
        assert!(text.contains(name), "{name} is missing: {text}");
    }
    let programs = run(&["stat", "--node", &node.address, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&programs.stdout).expect("JSON");
    assert_eq!(json["node"], node.address);
    assert_eq!(json["stat"]["connections"], 1);
    assert_eq!(json["stat"]["requests_stat"], 2);
}

#[test]
fn ping_reports_the_round_trips_to_people_and_to_programs() {
    let node = NodeProcess::start(&["--listen", "127.0.0.1:0"]);
    let people = run(&["ping", "--node", &node.address, "--count", "5"]);
    let text = String::from_utf8_lossy(&people.stdout);
    assert!(text.contains("5 round trips"), "{text}");
    let programs = run(&["ping", "--node", &node.address, "--count", "5", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&programs.stdout).expect("JSON");
    assert_eq!(json["count"], 5);
    assert!(json["p50_us"].as_f64().expect("a number") > 0.0);
    assert!(json["p50_us"].as_f64() <= json["max_us"].as_f64());
}

#[test]
fn without_a_node_stat_and_ping_fail_in_bounded_time_and_say_how_to_start_one() {
    for command in ["stat", "ping"] {
        let begun = Instant::now();
        let failed = run(&[command, "--node", "127.0.0.1:1"]);
        assert_eq!(failed.status.code(), Some(1));
        let message = String::from_utf8_lossy(&failed.stderr);
        assert!(
            message.contains("tessera node --listen 127.0.0.1:1"),
            "{message}"
        );
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[test]
fn more_memory_than_there_is_is_refused_before_any_is_taken() {
    let refused = run(&["node", "--listen", "127.0.0.1:0", "--ram", "4096TiB"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    assert!(message.contains("--ram 4096 TiB is more than"), "{message}");
    assert!(message.contains("choose less"), "{message}");
}

#[test]
fn an_unreachable_node_is_reported_once_with_the_reason_and_the_way_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = format!("unix:{}/nobody.sock", folder.path().display());
    let refused = run(&["stat", "--node", &socket]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("No such file"), "{message}");
    assert!(message.contains("tessera node --listen"), "{message}");
    assert_eq!(message.matches("connection failed").count(), 1, "{message}");
}

#[test]
fn the_cause_of_a_failed_start_is_said_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let refused = run(&["node", "--listen", &address, "--ram", "64MiB"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(message.matches("in use").count(), 1, "{message}");
    assert!(message.contains("choose another --listen"), "{message}");
}

#[test]
fn a_node_that_does_not_answer_names_the_local_node_if_there_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let run_folder = folder.path().join("tessera");
    let local = format!("unix:{}/node-v1.sock", run_folder.display());
    let asked = || {
        let mut stat = tessera(&["stat", "--node", "127.0.0.1:9"]);
        let failed = stat.env("XDG_RUNTIME_DIR", folder.path()).output();
        String::from_utf8_lossy(&failed.expect("the binary runs").stderr).into_owned()
    };
    assert!(!asked().contains(&local));
    let _node = NodeProcess::start(&["--listen", &local]);
    assert!(asked().contains(&format!("--node {local}")), "{}", asked());
}

#[test]
fn a_node_whose_output_goes_nowhere_serves_and_ends_cleanly() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}/run/node.sock", folder.path().display());
    let full = || std::fs::File::create("/dev/full").expect("a device that is always full");
    let child = tessera(&["node", "--ram", "64MiB", "--listen", &address])
        .env("TESSERA_LOG", "debug")
        .stdout(full())
        .stderr(full())
        .spawn()
        .expect("the binary runs");
    let mut node = NodeProcess { child, address };
    let deadline = Instant::now() + PATIENCE;
    while !run(&["ping", "--node", &node.address, "--count", "3"])
        .status
        .success()
    {
        assert!(Instant::now() < deadline, "the node does not answer");
    }
    node.signal(Signal::TERM);
    assert_eq!(node.ended().code(), Some(0));
}

/// A namespace in which nothing was ever stored.
const NAMESPACE: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[test]
fn a_drop_that_nobody_can_confirm_is_refused_and_one_that_is_says_what_is_gone() {
    let node = NodeProcess::start(&["--listen", "127.0.0.1:0"]);
    let refused = run(&["drop", NAMESPACE, "--node", &node.address]);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--yes"), "{said}");
    let dropped = run(&["drop", NAMESPACE, "--node", &node.address, "--yes"]);
    let said = String::from_utf8_lossy(&dropped.stdout).into_owned();
    assert!(dropped.status.success(), "{dropped:?}");
    assert!(said.contains("dropped 0 objects of 0 B"), "{said}");
    let dropped = run(&[
        "drop",
        NAMESPACE,
        "--node",
        &node.address,
        "--yes",
        "--json",
    ]);
    let said: serde_json::Value = serde_json::from_slice(&dropped.stdout).expect("JSON");
    assert_eq!(said["namespace"], NAMESPACE);
    assert_eq!(
        (&said["ram_objects"], &said["disk_bytes"]),
        (&0.into(), &0.into())
    );
}

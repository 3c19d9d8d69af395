//! `tessera replay` as people and programs use it, over a trace that can be counted by hand.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traces/small.jsonl");
const GOLDEN: &str = include_str!("golden/replay.json");

fn replay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera"))
        .arg("replay")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

fn figures(arguments: &[&str]) -> Value {
    let output = replay(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn small_trace_has_the_hits_that_can_be_counted_by_hand() {
    let mut said = figures(&[TRACE, "--capacity", "50,100", "--json"]);
    let times = said["latency"].as_array_mut().expect("a list");
    for operation in times {
        let operation = operation.as_object_mut().expect("an object");
        let mut before = 0.0;
        for quantile in ["p50_us", "p90_us", "p99_us"] {
            let time = operation.remove(quantile).and_then(|time| time.as_f64());
            let time = time.expect("a number");
            assert!(time >= before && time > 0.0, "{quantile} {time}");
            before = time;
        }
    }
    let golden: Value = serde_json::from_str(GOLDEN).expect("JSON");
    assert_eq!(said, golden);
    let people = replay(&[TRACE, "--capacity", "50"]);
    let text = String::from_utf8_lossy(&people.stdout);
    let row = "50.00 %     256 KiB   29.72 %   29.72 %   55.91 %    1.000      0.532   \
               29.75 %   29.75 %   55.91 %";
    assert!(text.contains(row), "{text}");
}

#[test]
fn chart_is_an_svg_with_a_line_for_each_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let chart = folder.path().join("chart.svg");
    let drawn = replay(&[TRACE, "--chart", &chart.display().to_string()]);
    assert!(drawn.status.success(), "{drawn:?}");
    let svg = std::fs::read_to_string(&chart).expect("the chart");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for name in ["Belady", "Tessera", "LRU"] {
        assert_eq!(svg.matches(&format!(">{name}</text>")).count(), 1, "{svg}");
    }
    assert_eq!(svg.matches("<circle").count(), 3 * 6, "a point a capacity");
}

#[test]
fn broken_line_of_a_trace_is_named_with_its_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broken.jsonl");
    let mut file = std::fs::File::create(&path).expect("a file");
    let whole = std::fs::read_to_string(TRACE).expect("the trace");
    let lines: Vec<_> = whole.lines().take(2).collect();
    writeln!(file, "{}\n{}\n{{\"input_length\": 5}}", lines[0], lines[1]).expect("written");
    let path = path.display().to_string();
    let refused = replay(&[&path]);
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains(&path), "{message}");
    assert!(message.contains("line 3 is not a request"), "{message}");
    assert!(message.contains("hash_ids"), "{message}");
}

/// A running node; killed with this value.
struct Node(Child, String);

impl Node {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tessera"))
            .args(["node", "--ram", "64MiB", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("standard output");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ");
        Self(child, address.expect("the address").to_owned())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn node_is_replayed_against_cold_each_time_and_its_capacity_is_that_of_the_oracles() {
    let node = Node::start();
    for _ in 0..2 {
        let arguments = [TRACE, "--node", &node.1, "--object-bytes", "4KiB", "--json"];
        let said = figures(&arguments);
        let row = &said["rows"][0];
        assert_eq!(said["node"], node.1);
        assert_eq!(
            (&said["failed"], &said["latency"][0]["count"]),
            (&0.into(), &8.into())
        );
        assert_eq!(
            (&row["tessera"], &row["lru"]),
            (&55.91.into(), &55.91.into())
        );
        // 64 MiB of objects of 4 KiB, each with its header in units of 256 bytes.
        assert_eq!(row["capacity_blocks"], (64 << 20) / (4096 + 256));
        assert_eq!(row["hit_bytes"], 9 * 4096);
    }
}

#[test]
fn without_a_node_the_replay_fails_and_says_how_to_start_one() {
    let failed = replay(&[TRACE, "--node", "127.0.0.1:1"]);
    assert_eq!(failed.status.code(), Some(1));
    let message = String::from_utf8_lossy(&failed.stderr);
    assert!(
        message.contains("tessera node --listen 127.0.0.1:1"),
        "{message}"
    );
}

#[test]
fn disk_behind_memory_is_compared_with_both_settings_of_admission() {
    let said = figures(&[TRACE, "--capacity", "100", "--disk", "100", "--json"]);
    let tiers = said["tiers"].as_array().expect("a row a setting");
    let of = |row: &Value, name: &str| row[name].as_u64().expect("a number");
    let settings = tiers.iter().map(|row| row["admission"].as_str());
    assert!(settings.eq([Some("all"), Some("second-touch")]), "{said}");
    let (all, second) = (&tiers[0], &tiers[1]);
    // With room for everything, all that repeats is found, and each block is written once.
    assert_eq!(all["tessera"], said["rows"][0]["tessera"]);
    assert_eq!(second["tessera"], said["rows"][0]["tessera"]);
    let blocks = said["unique_blocks"].as_u64().expect("a number");
    assert_eq!(of(all, "written_bytes"), blocks * (64 << 10));
    assert!(
        of(second, "written_bytes") < of(all, "written_bytes"),
        "{said}"
    );
    let people = replay(&[TRACE, "--capacity", "25", "--disk", "100"]);
    let text = String::from_utf8_lossy(&people.stdout);
    assert!(text.contains("second-touch"), "{text}");
}

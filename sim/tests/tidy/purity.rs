//! What a file may speak to: pure crates to nothing, `unsafe` in its three crates, Python's engine
//! imports in one folder.

use crate::tree::{self, Source};

/// Words that no pure crate may have in its shipped code.
const IMPURE: [&str; 10] = [
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::time",
    "tokio",
    "unsafe",
    "SystemTime",
    "RandomState",
];

/// Words that the state machines, beyond those, may not have: they are driven, they never wait.
const CONCURRENT: [&str; 7] = [
    "async",
    "await",
    "mpsc",
    "Mutex",
    "RwLock",
    "Condvar",
    "std::sync::atomic",
];

/// Folders of the crates that may hold `unsafe`.
const UNSAFE: [&str; 3] = ["crates/transport/", "crates/store/", "python/src/"];

/// Crate roots that must forbid it.
const SAFE_ROOTS: [&str; 8] = [
    "crates/proto/src/lib.rs",
    "crates/lifecycle/src/lib.rs",
    "crates/client/src/lib.rs",
    "crates/node/src/lib.rs",
    "crates/cli/src/main.rs",
    "sim/src/lib.rs",
    "sim/tests/tidy/main.rs",
    "xtask/src/main.rs",
];

/// Folders whose Python files may import the engine.
const ENGINE: [&str; 3] = ["python/tessera_kv/vllm/", "python/tests/", "python/demo/"];

fn check_pure(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&[".rs"]))
    {
        let words: Vec<&str> = if source.path.starts_with("crates/proto/src/") {
            IMPURE.to_vec()
        } else if source.path.starts_with("crates/lifecycle/src/") {
            IMPURE.into_iter().chain(CONCURRENT).collect()
        } else {
            continue;
        };
        for (number, line) in source.code() {
            for word in words.iter().filter(|word| tree::has_word(line, word)) {
                complaints.push(format!(
                    "{}:{number}: a pure crate sees `{word}`",
                    source.path
                ));
            }
        }
    }
    complaints
}

fn check_unsafe(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&[".rs"]))
    {
        let allowed = UNSAFE.iter().any(|folder| source.path.starts_with(folder));
        // This rule's own text names the word.
        if allowed || source.path.starts_with("sim/tests/tidy/") {
            continue;
        }
        for (number, line) in source
            .code()
            .filter(|(_, line)| tree::has_word(line, "unsafe"))
        {
            complaints.push(format!("{}:{number}: unsafe: {}", source.path, line.trim()));
        }
    }
    for root in SAFE_ROOTS {
        let Some(source) = sources.iter().find(|source| source.path == root) else {
            complaints.push(format!("{root} is a crate root and does not exist"));
            continue;
        };
        if !source
            .text
            .lines()
            .any(|line| line == "#![forbid(unsafe_code)]")
        {
            complaints.push(format!("{root} does not forbid unsafe code"));
        }
    }
    complaints
}

fn check_engine_imports(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&[".py", ".pyi"]))
    {
        if ENGINE.iter().any(|folder| source.path.starts_with(folder)) {
            continue;
        }
        for (number, line) in source.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (["import", module, ..] | ["from", module, ..]) = words[..] else {
                continue;
            };
            let package = module.split(['.', ',']).next().unwrap_or_default();
            if ["torch", "vllm"].contains(&package) {
                complaints.push(format!("{}:{number}: imports {package}", source.path));
            }
        }
    }
    complaints
}

#[test]
fn pure_crates_see_no_outside_world() {
    tree::assert_none(&check_pure(&tree::read()));
}

#[test]
fn unsafe_stays_in_its_crates() {
    tree::assert_none(&check_unsafe(&tree::read()));
}

#[test]
fn the_engine_is_imported_in_one_folder() {
    tree::assert_none(&check_engine_imports(&tree::read()));
}

#[test]
fn a_clock_in_a_pure_crate_is_reported() {
    let sources = [
        Source::sample(
            "crates/proto/src/a.rs",
            "//! std::time is not used\nuse std::time::Instant;\n",
        ),
        Source::sample("crates/lifecycle/src/b.rs", "async fn f() {}\n"),
        Source::sample(
            "crates/node/src/c.rs",
            "async fn f() { std::fs::read(x) }\n",
        ),
    ];
    let complaints = check_pure(&sources);
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].starts_with("crates/proto/src/a.rs:2"));
    assert!(complaints[1].starts_with("crates/lifecycle/src/b.rs:1"));
}

#[test]
fn unsafe_elsewhere_and_a_missing_forbid_are_reported() {
    let root = "#![forbid(unsafe_code)]\n";
    let mut sources: Vec<Source> = SAFE_ROOTS
        .iter()
        .map(|path| Source::sample(path, root))
        .collect();
    assert_eq!(check_unsafe(&sources), Vec::<String>::new());

    sources.push(Source::sample(
        "crates/node/src/a.rs",
        "fn f() { unsafe { g() } }\n",
    ));
    sources.push(Source::sample(
        "crates/store/src/a.rs",
        "fn f() { unsafe { g() } }\n",
    ));
    assert_eq!(check_unsafe(&sources).len(), 1);

    sources[0].text = "//! nothing\n".to_owned();
    assert_eq!(check_unsafe(&sources).len(), 2);
    assert_eq!(check_unsafe(&sources[1..]).len(), 2);
}

#[test]
fn an_engine_import_elsewhere_is_reported() {
    let text = "import os\n    from torch.nn import Linear\nimport vllm\nimport torchish\n";
    let outside = Source::sample("python/tessera_kv/options.py", text);
    let inside = Source::sample("python/tessera_kv/vllm/worker.py", text);
    let complaints = check_engine_imports(&[outside, inside]);
    assert_eq!(complaints.len(), 2, "{complaints:?}");
}

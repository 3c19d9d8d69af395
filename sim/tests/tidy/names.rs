//! Names that say nothing are not given to files or types.

use crate::tree::{self, Source};

/// Parts of a path, in lower case, without their extension.
const PATHS: [&str; 7] = [
    "manager", "helper", "helpers", "util", "utils", "common", "misc",
];

/// Parts of a type's name.
const TYPES: [&str; 4] = ["Manager", "Helper", "Util", "Common"];

/// Words that a type's name follows.
const DECLARE: [&str; 6] = ["struct", "enum", "trait", "type", "union", "class"];

fn check_paths(sources: &[Source]) -> Vec<String> {
    let empty = |part: &str| {
        let stem = part.split('.').next().unwrap_or_default().to_lowercase();
        stem.split(['_', '-']).any(|word| PATHS.contains(&word))
    };
    sources
        .iter()
        .filter(|source| source.path.split('/').any(empty))
        .map(|source| format!("{}: the name says nothing", source.path))
        .collect()
}

fn check_types(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&[".rs", ".py"]))
    {
        for (number, line) in source.lines() {
            let code = line.split("//").next().unwrap_or_default();
            let words: Vec<&str> = code
                .split(|end: char| !end.is_alphanumeric() && end != '_')
                .collect();
            for pair in words.windows(2) {
                let declared =
                    DECLARE.contains(&pair[0]) && pair[1].starts_with(char::is_uppercase);
                if declared && TYPES.iter().any(|part| pair[1].contains(part)) {
                    complaints.push(format!("{}:{number}: {}", source.path, pair[1]));
                }
            }
        }
    }
    complaints
}

#[test]
fn paths_say_something() {
    tree::assert_none(&check_paths(&tree::read()));
}

#[test]
fn types_say_something() {
    // The samples below declare such types on purpose.
    let mut sources = tree::read();
    sources.retain(|source| source.path != "sim/tests/tidy/names.rs");
    tree::assert_none(&check_types(&sources));
}

#[test]
fn an_empty_path_is_reported() {
    let paths = [
        "a/utils/b.rs",
        "a/lease_manager.rs",
        "common.py",
        "crates/client/src/pool.rs",
    ];
    let sources: Vec<Source> = paths.iter().map(|path| Source::sample(path, "")).collect();
    assert_eq!(check_paths(&sources).len(), 3);
}

#[test]
fn an_empty_type_is_reported_and_a_use_of_one_is_not() {
    let rust = "pub struct LeaseManager<T>(T);\nuse vllm::Manager;\ntrait CommonCase {}\n";
    let python = "class UtilBox(Base):\n    manager = KVCacheManager()\n";
    let sources = [Source::sample("a.rs", rust), Source::sample("b.py", python)];
    let complaints = check_types(&sources);
    assert_eq!(
        complaints,
        [
            "a.rs:1: LeaseManager",
            "a.rs:3: CommonCase",
            "b.py:1: UtilBox"
        ]
    );
}

//! The documents: their links lead somewhere, and their commands are such that CI runs them.

use crate::tree::{self, Source};

/// The marks that a fenced block may have. Commands are `sh` and `sh serve PORT`, and CI runs them.
const MARKS: [&str; 6] = ["text", "json", "python", "rust", "toml", "mermaid"];

/// Documents whose commands `cargo xtask ci` runs; no other may show one.
const RUN: [&str; 4] = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/operations.md",
    "docs/benchmarks.md",
];

fn check_links(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for document in sources
        .iter()
        .filter(|source| source.has_extension(&[".md"]))
    {
        let folder = document
            .path
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        for (number, line) in document.lines() {
            for link in line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                let target = link.split('#').next().unwrap_or_default();
                if target.is_empty() || target.contains("://") {
                    continue;
                }
                if !exists(sources, &resolve(folder, target)) {
                    complaints.push(format!("{}:{number}: no {target}", document.path));
                }
            }
        }
    }
    complaints
}

fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn exists(sources: &[Source], path: &str) -> bool {
    let folder = format!("{path}/");
    sources
        .iter()
        .any(|source| source.path == path || source.path.starts_with(&folder))
}

fn check_blocks(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for document in sources
        .iter()
        .filter(|source| source.has_extension(&[".md"]))
    {
        let fences = document
            .lines()
            .filter_map(|(number, line)| Some((number, line.trim_start().strip_prefix("```")?)));
        // Every other fence closes a block.
        for (number, mark) in fences.step_by(2) {
            let command = mark == "sh" || mark.starts_with("sh serve ");
            if command && !RUN.contains(&document.path.as_str()) {
                complaints.push(format!("{}:{number}: CI does not run this", document.path));
            } else if !command && !MARKS.contains(&mark) {
                complaints.push(format!(
                    "{}:{number}: a block marked `{mark}`",
                    document.path
                ));
            }
        }
    }
    complaints
}

#[test]
fn links_lead_somewhere() {
    tree::assert_none(&check_links(&tree::read()));
}

#[test]
fn every_block_is_run_or_is_no_command() {
    tree::assert_none(&check_blocks(&tree::read()));
}

#[test]
fn a_dead_link_is_reported() {
    let text = "[a](../README.md) [b](wire.md#x) [c](https://example.org) [d](#here) [e](gone.md)";
    let sources = [
        Source::sample("docs/a.md", text),
        Source::sample("docs/wire.md", ""),
        Source::sample("README.md", "[docs](docs)"),
    ];
    assert_eq!(check_links(&sources), ["docs/a.md:1: no gone.md"]);
}

#[test]
fn a_command_that_nobody_runs_is_reported() {
    let text = "```sh\na\n```\n```bash\nb\n```\n```text\nc\n```\n";
    let run = check_blocks(&[Source::sample("README.md", text)]);
    assert_eq!(run, ["README.md:4: a block marked `bash`"]);
    let idle = check_blocks(&[Source::sample("docs/wire.md", text)]);
    assert_eq!(idle.len(), 2);
}

//! What the documents promise is tested: every test that they name exists and is one.
//!
//! A test is named as `path/to/file.rs::name` or `path/to/file.py::name`, in backticks. Each point
//! of docs/acceptance.md must name at least one.

use crate::tree::{self, Source};

const ACCEPTANCE: &str = "docs/acceptance.md";

/// How far above its function the attribute of a Rust test may stand, in lines.
const ATTRIBUTE_LINES: usize = 8;

fn check_names(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for document in sources
        .iter()
        .filter(|source| source.has_extension(&[".md"]))
    {
        for (number, line) in document.lines() {
            for (path, name) in tree::quoted(line).filter_map(test_name) {
                let Some(file) = sources.iter().find(|source| source.path == path) else {
                    complaints.push(format!("{}:{number}: no file {path}", document.path));
                    continue;
                };
                if !has_test(file, name) {
                    complaints.push(format!(
                        "{}:{number}: no test {path}::{name}",
                        document.path
                    ));
                }
            }
        }
    }
    complaints
}

/// Every row of the tables of the acceptance document names a test.
fn check_points(sources: &[Source]) -> Vec<String> {
    let Some(document) = sources.iter().find(|source| source.path == ACCEPTANCE) else {
        return vec![format!("{ACCEPTANCE} does not exist")];
    };
    let lines: Vec<(usize, &str)> = document.lines().collect();
    let is_rule = |line: &str| line.starts_with("|--") || line.starts_with("| --");
    let mut points = 0;
    let mut complaints = Vec::new();
    for (index, (number, line)) in lines.iter().enumerate() {
        let header = lines.get(index + 1).is_some_and(|(_, next)| is_rule(next));
        if !line.starts_with('|') || is_rule(line) || header {
            continue;
        }
        points += 1;
        if tree::quoted(line).filter_map(test_name).next().is_none() {
            complaints.push(format!("{ACCEPTANCE}:{number}: a point without a test"));
        }
    }
    if points == 0 {
        complaints.push(format!("{ACCEPTANCE} has no points"));
    }
    complaints
}

fn test_name(quoted: &str) -> Option<(&str, &str)> {
    let (path, name) = quoted.split_once("::")?;
    (path.ends_with(".rs") || path.ends_with(".py")).then_some((path, name))
}

fn has_test(file: &Source, name: &str) -> bool {
    let lines: Vec<&str> = file.text.lines().collect();
    if file.has_extension(&[".py"]) {
        let defined = format!("def {name}(");
        return name.starts_with("test_") && lines.iter().any(|line| line.contains(&defined));
    }
    let defined = format!("fn {name}(");
    let marked = |line: &&str| {
        let line = line.trim();
        line.starts_with("#[") && tree::has_word(line, "test") && !line.contains("cfg")
    };
    lines.iter().enumerate().any(|(index, line)| {
        let above = &lines[index.saturating_sub(ATTRIBUTE_LINES)..index];
        // The attribute must belong to this function, not to one above it.
        let own = above
            .iter()
            .rev()
            .take_while(|line| !line.trim_start().starts_with('}'));
        line.contains(&defined) && own.into_iter().any(marked)
    })
}

#[test]
fn every_test_that_a_document_names_exists() {
    tree::assert_none(&check_names(&tree::read()));
}

#[test]
fn every_acceptance_point_names_a_test() {
    tree::assert_none(&check_points(&tree::read()));
}

const RUST: &str =
    "//! x\nfn helper() {\n}\n#[tokio::test]\nasync fn is_one() {\n}\nfn is_none() {\n}\n";
const PYTHON: &str = "\"\"\"x\"\"\"\ndef test_one(a):\n    pass\ndef other():\n    pass\n";

fn tree_with(acceptance: &str) -> Vec<Source> {
    vec![
        Source::sample("a.rs", RUST),
        Source::sample("b.py", PYTHON),
        Source::sample(ACCEPTANCE, acceptance),
    ]
}

#[test]
fn a_missing_test_is_reported() {
    assert!(check_names(&tree_with("| x | `a.rs::is_one`, `b.py::test_one` |")).is_empty());
    for bad in [
        "a.rs::is_two",
        "c.rs::is_one",
        "a.rs::is_none",
        "a.rs::helper",
        "b.py::other",
    ] {
        let complaints = check_names(&tree_with(&format!("| x | `{bad}` |")));
        assert_eq!(complaints.len(), 1, "{bad}");
    }
}

#[test]
fn a_point_without_a_test_is_reported() {
    let good = "| point | tests |\n|---|---|\n| x | `a.rs::is_one` |\n";
    assert_eq!(check_points(&tree_with(good)), Vec::<String>::new());
    let bad = format!("{good}| y | by hand |\n");
    assert_eq!(check_points(&tree_with(&bad)).len(), 1);
    assert_eq!(check_points(&tree_with("no table\n")).len(), 1);
    assert_eq!(check_points(&[]).len(), 1);
}

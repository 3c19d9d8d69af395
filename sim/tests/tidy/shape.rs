//! Sizes: lines of a file, columns of a line, lines of a Python function, and how a file opens.
//!
//! The length of Rust functions is clippy's to hold (`too_many_lines`).

use crate::tree::{self, Source};

const FILE_LINES: usize = 800;
const COLUMNS: usize = 100;
const FUNCTION_LINES: usize = 70;

/// Text that people write by hand in columns.
const WIDTH: [&str; 4] = [".rs", ".py", ".pyi", ".sh"];

fn check_sizes(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&[".rs", ".py", ".pyi"]))
    {
        let lines = source.text.lines().count();
        if lines > FILE_LINES {
            complaints.push(format!(
                "{}: {lines} lines, {FILE_LINES} allowed",
                source.path
            ));
        }
    }
    for source in sources.iter().filter(|source| source.has_extension(&WIDTH)) {
        for (number, line) in source.lines() {
            let columns = line.chars().count();
            if columns > COLUMNS {
                complaints.push(format!("{}:{number}: {columns} columns", source.path));
            }
        }
    }
    complaints
}

fn check_openings(sources: &[Source]) -> Vec<String> {
    let opens = |source: &&Source| {
        let first = source.text.lines().next().unwrap_or_default();
        if source.has_extension(&[".rs"]) {
            !first.starts_with("//! ")
        } else if source.has_extension(&[".py", ".pyi"]) {
            !first.starts_with("\"\"\"")
        } else {
            false
        }
    };
    let complain = |source: &Source| {
        format!(
            "{}: the first line does not say what the file holds",
            source.path
        )
    };
    sources.iter().filter(opens).map(complain).collect()
}

/// `mod.rs` declares and documents; logic has a name of its own.
fn check_module_files(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.path.ends_with("/mod.rs"))
    {
        for (number, line) in source.code() {
            let logic = ["fn", "struct", "enum", "trait", "impl"];
            if logic.iter().any(|word| tree::has_word(line, word)) {
                complaints.push(format!("{}:{number}: logic in mod.rs", source.path));
            }
        }
    }
    complaints
}

fn check_python_functions(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&[".py"]))
    {
        let lines: Vec<&str> = source.text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            if !code.starts_with("def ") && !code.starts_with("async def ") {
                continue;
            }
            let length = function_lines(&lines[start..], line.len() - code.len());
            if length > FUNCTION_LINES {
                let name = code.split('(').next().unwrap_or(code);
                complaints.push(format!(
                    "{}:{}: {name}: {length} lines",
                    source.path,
                    start + 1
                ));
            }
        }
    }
    complaints
}

/// The lines of the function that opens `lines`: up to the last that is indented deeper than it is.
/// A closing bracket of the signature, at the indent of the function, is part of it.
fn function_lines(lines: &[&str], indent: usize) -> usize {
    let mut length = 1;
    for (offset, line) in lines.iter().enumerate().skip(1) {
        let code = line.trim_start();
        if code.is_empty() {
            continue;
        }
        if line.len() - code.len() <= indent && !code.starts_with(')') {
            break;
        }
        length = offset + 1;
    }
    length
}

#[test]
fn files_and_lines_keep_their_size() {
    tree::assert_none(&check_sizes(&tree::read()));
}

#[test]
fn files_open_with_what_they_hold() {
    tree::assert_none(&check_openings(&tree::read()));
}

#[test]
fn module_files_only_declare() {
    tree::assert_none(&check_module_files(&tree::read()));
}

#[test]
fn python_functions_keep_their_size() {
    tree::assert_none(&check_python_functions(&tree::read()));
}

#[test]
fn a_long_file_and_a_wide_line_are_reported() {
    let long = Source::sample("a.rs", &"//! x\n".repeat(FILE_LINES + 1));
    let wide = Source::sample("b.pyi", &format!("# {}\n", "x".repeat(COLUMNS - 1)));
    let good = Source::sample("c.py", &format!("# {}\n", "ä".repeat(COLUMNS - 2)));
    let complaints = check_sizes(&[long, wide, good]);
    assert_eq!(
        complaints,
        ["a.rs: 801 lines, 800 allowed", "b.pyi:1: 101 columns"]
    );
}

#[test]
fn a_file_without_an_opening_is_reported() {
    let sources = [
        Source::sample("a.rs", "// a comment\n"),
        Source::sample("b.py", "import os\n"),
        Source::sample("c.py", ""),
        Source::sample("d.rs", "//! Holds d.\n"),
        Source::sample("e.py", "\"\"\"Holds e.\"\"\"\n"),
    ];
    assert_eq!(check_openings(&sources).len(), 3);
}

#[test]
fn logic_in_a_module_file_is_reported() {
    let good = Source::sample("src/a/mod.rs", "//! The fn of it.\nmod b;\npub use b::B;\n");
    let bad = Source::sample("src/b/mod.rs", "//! x\npub(crate) fn f() {}\n");
    assert_eq!(
        check_module_files(&[good, bad]),
        ["src/b/mod.rs:2: logic in mod.rs"]
    );
}

#[test]
fn a_long_python_function_is_reported() {
    let body = "        x()\n\n".repeat(FUNCTION_LINES / 2);
    let good = format!(
        "class A:\n    def f(\n        self,\n    ):\n{}",
        &body[..body.len() / 2]
    );
    let bad =
        format!("class A:\n    def f(self):\n{body}        y()\n    def g(self):\n        x()\n");
    let sources = [Source::sample("a.py", &good), Source::sample("b.py", &bad)];
    assert_eq!(
        check_python_functions(&sources),
        ["b.py:2: def f: 72 lines"]
    );
}

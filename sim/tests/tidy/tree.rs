//! The committed text of the repository, read once by each rule.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the repository.
pub(crate) struct Source {
    /// Path from the repository root, with `/`.
    pub(crate) path: String,
    /// Its whole text.
    pub(crate) text: String,
}

impl Source {
    /// A made-up file, for tests of the rules.
    pub(crate) fn sample(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Whether the file ends with one of `extensions` (with their dots).
    pub(crate) fn has_extension(&self, extensions: &[&str]) -> bool {
        extensions
            .iter()
            .any(|extension| self.path.ends_with(extension))
    }

    /// The lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The lines of shipped Rust code: without comments, and without items that only tests have.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut in_test_item = false;
        self.lines().filter_map(move |(number, line)| {
            if line.starts_with("#[cfg(test)]") {
                in_test_item = true;
                return None;
            }
            if in_test_item {
                // rustfmt ends an item at the left margin, with its brace or its semicolon.
                let ends = line.starts_with('}') || !line.starts_with(' ') && line.ends_with(';');
                in_test_item = !ends;
                return None;
            }
            Some((number, line.split("//").next().unwrap_or_default()))
        })
    }
}

/// The repository root.
pub(crate) fn root() -> PathBuf {
    let sim = Path::new(env!("CARGO_MANIFEST_DIR"));
    sim.parent()
        .expect("sim lies in the repository root")
        .to_path_buf()
}

/// Every text file that is committed or would be.
pub(crate) fn read() -> Vec<Source> {
    let root = root();
    let listing = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("git lists the files of the checkout");
    assert!(
        listing.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&listing.stderr)
    );
    let listing = String::from_utf8(listing.stdout).expect("paths are UTF-8");
    let sources: Vec<Source> = listing
        .lines()
        // What is not UTF-8 is no text; what git still lists but is deleted cannot be read.
        .filter_map(|path| {
            Some(Source::sample(
                path,
                &fs::read_to_string(root.join(path)).ok()?,
            ))
        })
        .collect();
    assert!(
        sources.len() > 50,
        "only {} files were found",
        sources.len()
    );
    sources
}

/// Fails with all complaints at once.
pub(crate) fn assert_none(complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

/// The occurrences of `word` in `line` that are not part of a longer word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let joins = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(joins) && !after.is_some_and(joins)
    })
}

/// The texts between backticks of one line of Markdown.
pub(crate) fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn words_are_found_whole() {
    assert!(has_word("an unsafe block", "unsafe"));
    assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
    assert!(!has_word("my_unsafe", "unsafe"));
}

#[test]
fn code_leaves_out_comments_and_what_only_tests_have() {
    let text = "use a; // std::fs\n//! std::fs\n#[cfg(test)]\nmod one;\nfn f() {}\n\
                #[cfg(test)]\nmod two {\n    use b;\n}\nfn g() {}\n";
    let sample = Source::sample("a.rs", text);
    let code: Vec<&str> = sample.code().map(|(_, line)| line).collect();
    assert_eq!(code, ["use a; ", "", "fn f() {}", "fn g() {}"]);
}

#[test]
fn quoted_text_is_what_stands_between_backticks() {
    assert_eq!(
        quoted("| `a` and `b::c` |").collect::<Vec<_>>(),
        ["a", "b::c"]
    );
}

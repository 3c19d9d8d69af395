//! Words that no committed text may have: places of one machine, work that is not done, and how the
//! work was organised. They are spelled in two halves here, so that this file obeys its own rule.

use crate::tree::{self, Source};

/// Matched without regard to case, anywhere.
const FORBIDDEN: [&str; 19] = [
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("py", "pi.org"),
    concat!("python", "hosted"),
    concat!("crates", ".io"),
    concat!("npm", "js."),
    concat!("this ses", "sion"),
    concat!("ses", "sion of the project"),
    concat!("sub-", "agent"),
    concat!("sub", "agent"),
    concat!("the br", "ief"),
    concat!("work", "place"),
    concat!("later iss", "ue"),
    concat!("next iss", "ue"),
    concat!("this iss", "ue"),
    concat!("other buil", "der"),
    concat!("cla", "ude"),
];

/// Matched as they stand: marks of work that is not done.
const MARKS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Made by tools, or not ours to word.
const EXEMPT: [&str; 2] = ["Cargo.lock", "LICENSE"];

fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        let name = source.path.rsplit('/').next().unwrap_or_default();
        if EXEMPT.contains(&name) {
            continue;
        }
        for (number, line) in source.lines() {
            let lower = line.to_lowercase();
            for word in FORBIDDEN
                .iter()
                .filter(|word| lower.contains(&word.to_lowercase()))
            {
                complaints.push(format!("{}:{number}: `{word}`", source.path));
            }
            for mark in MARKS.iter().filter(|mark| line.contains(**mark)) {
                complaints.push(format!("{}:{number}: `{mark}`", source.path));
            }
            if numbered_issue(&lower) {
                complaints.push(format!("{}:{number}: an issue by its number", source.path));
            }
        }
    }
    complaints
}

/// Whether a line of lower case speaks of an issue by its number.
fn numbered_issue(line: &str) -> bool {
    line.match_indices("issue").any(|(start, word)| {
        let after = line[start + word.len()..].trim_start_matches([' ', '#']);
        after.len() < line.len() - start - word.len()
            && after.starts_with(|c: char| c.is_ascii_digit())
    })
}

#[test]
fn committed_text_speaks_of_the_product_only() {
    tree::assert_none(&check(&tree::read()));
}

#[test]
fn a_forbidden_word_is_reported_in_any_case() {
    for word in FORBIDDEN {
        let text = format!("a line\nwith {} in it\n", word.to_uppercase());
        let complaints = check(&[Source::sample("docs/a.md", &text)]);
        assert_eq!(complaints, [format!("docs/a.md:2: `{word}`")]);
        assert!(check(&[Source::sample("fuzz/Cargo.lock", &text)]).is_empty());
    }
}

#[test]
fn a_mark_of_unfinished_work_is_reported() {
    for mark in MARKS {
        assert_eq!(
            check(&[Source::sample("a.rs", &format!("// {mark}: later\n"))]).len(),
            1
        );
    }
    assert!(check(&[Source::sample("Cargo.toml", "todo = \"deny\"\n")]).is_empty());
}

#[test]
fn an_issue_by_number_is_reported() {
    let bad = ["see issue {}", "Issue #{}4", "issue#{}"].map(|text| text.replace("{}", "1"));
    let bad = bad.map(|text| Source::sample("a.md", &text));
    assert_eq!(check(&bad).len(), 3);
    assert!(check(&[Source::sample("a.md", "to issue 'GET' or file an issue")]).is_empty());
}

//! The limits table of docs/operations.md against the constants of the wire.

use std::collections::BTreeMap;

use crate::tree::{self, Source};

const DOCUMENT: &str = "docs/operations.md";
const CONSTANTS: &str = "crates/proto/src/limits.rs";

type Values = BTreeMap<String, u64>;

/// The public constants of `limits.rs`, evaluated.
fn constants(text: &str) -> Result<Values, String> {
    let mut values = Values::new();
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "))
    {
        let (name, rest) = line
            .split_once(':')
            .ok_or_else(|| format!("no type: {line}"))?;
        let (_, expression) = rest
            .split_once('=')
            .ok_or_else(|| format!("no value: {line}"))?;
        let expression = expression.trim().trim_end_matches(';');
        let value = evaluate(expression, &values)
            .ok_or_else(|| format!("{name}: cannot evaluate `{expression}`"))?;
        values.insert(name.trim().to_owned(), value);
    }
    Ok(values)
}

/// Products and shifts of numbers and of constants above.
fn evaluate(expression: &str, known: &Values) -> Option<u64> {
    if let Some((left, right)) = expression.split_once("<<") {
        let shift = u32::try_from(evaluate(right, known)?).ok()?;
        return evaluate(left, known)?.checked_shl(shift);
    }
    if let Some((left, right)) = expression.rsplit_once('*') {
        return evaluate(left, known)?.checked_mul(evaluate(right, known)?);
    }
    let word = expression.trim();
    known
        .get(word)
        .copied()
        .or_else(|| word.replace('_', "").parse().ok())
}

/// `1 GiB`, `16,384` or `600,000 ms`: the first column names the constant, the second its value.
fn documented(text: &str) -> Values {
    let mut values = Values::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').collect();
        let [_, name, value, ..] = cells[..] else {
            continue;
        };
        let name = name.trim().trim_matches('`');
        let mut words = value.split_whitespace();
        let number = words
            .next()
            .and_then(|word| word.replace(',', "").parse::<u64>().ok());
        let scale = match words.next() {
            Some("KiB") => 1 << 10,
            Some("MiB") => 1 << 20,
            Some("GiB") => 1 << 30,
            _ => 1,
        };
        if let (true, Some(number)) = (name.ends_with("_MAX"), number) {
            values.insert(name.to_owned(), number * scale);
        }
    }
    values
}

fn check(constants: &Values, documented: &Values) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, value) in constants {
        match documented.get(name) {
            None => complaints.push(format!("{name} is not in {DOCUMENT}")),
            Some(said) if said != value => {
                complaints.push(format!("{name} is {value}; {DOCUMENT} says {said}"));
            }
            Some(_) => {}
        }
    }
    let gone = documented
        .keys()
        .filter(|name| !constants.contains_key(*name));
    complaints.extend(gone.map(|name| format!("{name} is in {DOCUMENT} and is no constant")));
    complaints
}

#[test]
fn documented_limits_are_the_limits() {
    let sources = tree::read();
    let text = |path: &str| {
        let found = sources.iter().find(|source: &&Source| source.path == path);
        &found.unwrap_or_else(|| panic!("{path} exists")).text
    };
    let constants = constants(text(CONSTANTS)).expect("every limit is a product or a shift");
    assert!(!constants.is_empty());
    tree::assert_none(&check(&constants, &documented(text(DOCUMENT))));
}

#[test]
fn expressions_are_evaluated() {
    let text = "pub const A_MAX: u64 = 1 << 30;\npub const B_MAX: u32 = 10 * 60 * 1_000;\n\
                pub const C_MAX: u32 = B_MAX;\nconst D: u32 = 7;\n";
    let values = constants(text).unwrap();
    let read: Vec<u64> = values.into_values().collect();
    assert_eq!(read, [1 << 30, 600_000, 600_000]);
    assert!(constants("pub const A: u64 = f(1);\n").is_err());
}

#[test]
fn a_wrong_a_missing_and_an_unknown_limit_are_reported() {
    let constants =
        constants("pub const A_MAX: u64 = 1 << 30;\npub const B_MAX: u32 = 2;\n").unwrap();
    let good = "| `A_MAX` | 1 GiB | x |\n| `B_MAX` | 2 | y |\n";
    assert!(check(&constants, &documented(good)).is_empty());
    let bad = "| `A_MAX` | 1 MiB | x |\n| `C_MAX` | 2 | y |\n";
    assert_eq!(check(&constants, &documented(bad)).len(), 3);
}

//! Reads the closing lines of test runners.
//!
//! A runner whose closing line cannot be read, or that fails without a failed test, counts as one
//! failure: nothing that went wrong may leave the total unchanged.

use std::fmt;
use std::ops::AddAssign;

use serde::Serialize;

/// Counted tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed, timed out or could not be set up.
    pub(crate) failed: u64,
    /// Tests that did not run.
    pub(crate) skipped: u64,
}

/// Whose closing line is to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runner {
    /// `cargo nextest run`.
    Nextest,
    /// `cargo test`: one closing line for each binary.
    Libtest,
    /// `pytest`.
    Pytest,
}

impl Tally {
    /// The counts in `output` of a runner that ended with or without `success`.
    pub(crate) fn read(runner: Runner, output: &str, success: bool) -> Self {
        let read = match runner {
            Runner::Nextest => nextest(output),
            Runner::Libtest => libtest(output),
            Runner::Pytest => pytest(output),
        };
        let mut tally = read.unwrap_or(Self {
            failed: 1,
            ..Self::default()
        });
        if !success && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }

    fn add(&mut self, count: u64, word: &str) {
        match word {
            "passed" => self.passed += count,
            "skipped" | "ignored" | "xfailed" => self.skipped += count,
            "failed" | "error" | "errors" | "timed" | "exec" | "xpassed" => self.failed += count,
            _ => {}
        }
    }

    /// Adds every "COUNT WORD" of a comma- or semicolon-separated list.
    fn from_list(list: &str) -> Self {
        let mut tally = Self::default();
        for item in list.split([',', ';']) {
            let mut words = item.split_whitespace();
            if let (Some(Ok(count)), Some(word)) = (words.next().map(str::parse), words.next()) {
                tally.add(count, word);
            }
        }
        tally
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(formatter, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// `Summary [ 1.2s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 2 skipped`.
fn nextest(output: &str) -> Option<Tally> {
    let line = output
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with("Summary ["))?;
    let (_, list) = line.split_once("run:")?;
    Some(Tally::from_list(&without_parentheses(list)))
}

/// `test result: ok. 7 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s`.
fn libtest(output: &str) -> Option<Tally> {
    let lists = output
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("test result: "))
        .filter_map(|line| line.split_once(". ").map(|(_, list)| list));
    let mut total = None;
    for list in lists {
        *total.get_or_insert_with(Tally::default) += Tally::from_list(list);
    }
    total
}

/// `=== 1 failed, 7 passed, 1 warning in 3.21s ===`, with or without the rules.
fn pytest(output: &str) -> Option<Tally> {
    let closing = |line: &&str| {
        line.contains(" in ")
            && [" passed", " failed", " error", " skipped", "no tests ran"]
                .iter()
                .any(|word| line.contains(word))
    };
    let line = output.lines().rev().find(closing)?;
    let (list, _) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    Some(Tally::from_list(list))
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0_u32;
    let keep = |character: &char| match character {
        '(' => {
            depth += 1;
            false
        }
        ')' => {
            depth = depth.saturating_sub(1);
            false
        }
        _ => depth == 0,
    };
    text.chars().filter(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, skipped: u64) -> Tally {
        Tally {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn nextest_counts_time_outs_as_failures_and_ignores_parentheses() {
        let output = "  PASS [ 0.1s] a\n     Summary [   1.003s] 10 tests run: 7 passed \
                      (1 slow, 1 flaky), 1 failed, 2 timed out, 3 skipped\nerror: failed\n";
        assert_eq!(Tally::read(Runner::Nextest, output, false), tally(7, 3, 3));
    }

    #[test]
    fn libtest_adds_up_every_binary() {
        let output = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 5 filtered out\n\
                      test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured\n";
        assert_eq!(Tally::read(Runner::Libtest, output, false), tally(5, 4, 1));
    }

    #[test]
    fn pytest_reads_both_forms_of_its_closing_line() {
        let ruled = "== 2 failed, 5 passed, 1 skipped, 3 warnings, 1 error in 1.20s (0:00:01) ==\n";
        assert_eq!(Tally::read(Runner::Pytest, ruled, false), tally(5, 3, 1));
        assert_eq!(
            Tally::read(Runner::Pytest, "5 passed in 0.10s\n", true),
            tally(5, 0, 0)
        );
    }

    #[test]
    fn a_runner_without_a_closing_line_is_one_failure() {
        let output = "error: could not compile `tessera-store`\n";
        for runner in [Runner::Nextest, Runner::Libtest, Runner::Pytest] {
            assert_eq!(
                Tally::read(runner, output, false),
                tally(0, 1, 0),
                "{runner:?}"
            );
            assert_eq!(Tally::read(runner, "", true), tally(0, 1, 0), "{runner:?}");
        }
    }

    #[test]
    fn a_failed_exit_without_a_failed_test_is_one_failure() {
        let output = "test result: ok. 3 passed; 0 failed; 0 ignored\n";
        assert_eq!(Tally::read(Runner::Libtest, output, false), tally(3, 1, 0));
        assert_eq!(
            Tally::read(Runner::Pytest, "no tests ran in 0.01s\n", false),
            tally(0, 1, 0)
        );
    }

    #[test]
    fn the_closing_line_names_skipped_tests_only_where_there_are_any() {
        assert_eq!(tally(4, 0, 0).to_string(), "4 passed, 0 failed");
        assert_eq!(tally(4, 1, 2).to_string(), "4 passed, 1 failed, 2 skipped");
    }
}

//! `cargo xtask counts`: instructions of the hot paths, against a committed table.
//!
//! Called by people and by [`crate::ci`]. Times cannot guard the hot paths on a noisy machine, and
//! counts can: callgrind counts the jobs of `tessera-counts`, each in a process of its own. The
//! invariant: what was not counted fails, and so does a count that left its table in either
//! direction, since a table of too high counts guards nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::command;
use crate::project::Project;
use crate::step;

/// Where the table lies.
const TABLE: &str = "sim/src/counts/table.txt";

/// How far a count may be from its table. One run differs from the next by less than a tenth of it:
/// the keys of hash tables are random.
const TOLERANCE_PERCENT: f64 = 3.0;

/// The function whose instructions are counted, with all that it calls.
const COUNTED: &str = "--toggle-collect=*counted_work*";

/// Flags of `cargo xtask counts`.
#[derive(Args)]
pub(crate) struct CountsArguments {
    /// Make the table anew from what is counted.
    #[arg(long)]
    write: bool,
}

/// Counts, and the compiler that they belong to.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    compiler: String,
    counts: Vec<(String, u64)>,
}

/// `cargo xtask counts`.
pub(crate) fn command(project: &Project, arguments: &CountsArguments) -> Result<ExitCode> {
    let path = project.root.join(TABLE);
    if arguments.write {
        let counted = count(project)?;
        fs::write(&path, counted.print()).with_context(|| format!("cannot write {TABLE}"))?;
        print!("{}", counted.print());
    } else {
        check(project)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares what is counted with the table.
pub(crate) fn check(project: &Project) -> Result<()> {
    let path = project.root.join(TABLE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {TABLE}"))?;
    let table = Table::read(&text).context(TABLE)?;
    // Said before the build, which takes longer than everything else here.
    ensure!(
        table.compiler == compiler(project)?,
        "{TABLE} was made with {}, this is {}: counts depend on the compiler, so make the table \
         anew with `cargo xtask counts --write`, from a commit that is known to be good",
        table.compiler,
        compiler(project)?
    );
    let counted = count(project)?;
    let (lines, wrong) = table.compare(&counted);
    println!("{lines}");
    if !wrong.is_empty() {
        bail!(
            "{} left {TABLE} by more than {TOLERANCE_PERCENT} %: mend what got slower, or, where \
             the change is meant, make the table anew with `cargo xtask counts --write`",
            wrong.join("; ")
        );
    }
    Ok(())
}

/// Builds the jobs as they are shipped, and counts each.
fn count(project: &Project) -> Result<Table> {
    let probe = Command::new("valgrind").arg("--version").output();
    ensure!(
        probe.is_ok_and(|probe| probe.status.success()),
        "valgrind is not installed, and instructions are counted with it: apt-get install valgrind"
    );
    let log = project.cache.log("counts");
    step::run("instruction counts", &log, |step| {
        let mut build = project.cargo(&["build", "--release", "--locked"]);
        // Both packages, so that what they share is built once for this and for setup.
        build.args(["--package", "tessera", "--package", "tessera-sim"]);
        build.args(["--bin", "tessera-counts"]);
        step.command(build)?;
        let program = project.target().join("release/tessera-counts");
        let jobs = printed(project.program(&program))?;
        let folder = project.cache.counts(std::process::id());
        fs::create_dir_all(&folder)?;
        let counts = jobs.lines().map(|job| {
            step.line(job);
            Ok((
                job.to_owned(),
                instructions(project, &program, job, &folder)?,
            ))
        });
        let counts = counts.collect::<Result<_>>();
        // What is left of it is of no use to anybody.
        let _ = fs::remove_dir_all(&folder);
        Ok(Table {
            compiler: compiler(project)?,
            counts: counts?,
        })
    })
}

fn instructions(project: &Project, program: &Path, job: &str, folder: &Path) -> Result<u64> {
    let profile: PathBuf = folder.join("profile");
    let mut valgrind = project.program("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", COUNTED]);
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    valgrind.arg(program).arg(job);
    printed(valgrind)?;
    let text = fs::read_to_string(&profile).context("callgrind left no profile")?;
    totals(&text).with_context(|| format!("{job}: callgrind counted nothing"))
}

/// The instructions of a profile; none if the counted function was not found in the program.
fn totals(profile: &str) -> Option<u64> {
    let line = profile
        .lines()
        .find_map(|line| line.strip_prefix("totals: "))?;
    line.trim().parse().ok().filter(|count| *count > 0)
}

/// The release of the compiler that cargo uses.
fn compiler(project: &Project) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = project.program(PathBuf::from(rustc));
    rustc.arg("--version");
    let version = printed(rustc)?;
    let words: Vec<_> = version.split_whitespace().take(2).collect();
    Ok(words.join(" "))
}

/// What a program printed, if it ended well.
fn printed(mut program: Command) -> Result<String> {
    let named = command::describe(&program);
    let output = program.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {named}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{named}` ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

impl Table {
    /// The compiler in the first line, then a count and its job in each.
    fn read(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let compiler = lines.next().context("the table is empty")?.to_owned();
        let counts = lines.map(|line| {
            let (count, job) = line
                .trim()
                .split_once("  ")
                .context("a count and its job")?;
            Ok((job.to_owned(), count.parse()?))
        });
        let counts = counts.collect::<Result<_>>()?;
        Ok(Self { compiler, counts })
    }

    fn print(&self) -> String {
        let head = "# Instructions of the hot paths, by callgrind; made by \
                    `cargo xtask counts --write`.\n";
        let mut text = format!("{head}{}\n", self.compiler);
        for (job, count) in &self.counts {
            text.push_str(&format!("{count:>12}  {job}\n"));
        }
        text
    }

    /// What was counted beside this table, for people, and what must not be.
    fn compare(&self, counted: &Self) -> (String, Vec<String>) {
        let (mut lines, mut wrong) = (Vec::new(), Vec::new());
        for (job, count) in &counted.counts {
            let known = self.counts.iter().find(|(known, _)| known == job);
            let Some((_, before)) = known else {
                wrong.push(format!("`{job}` is not in the table"));
                continue;
            };
            let change = (*count as f64 / *before as f64 - 1.0) * 100.0;
            lines.push(format!("{count:>12}  {change:>+6.2} %  {job}"));
            if change.abs() > TOLERANCE_PERCENT {
                wrong.push(format!("`{job}` ({before} to {count}, {change:+.1} %)"));
            }
        }
        for (job, _) in &self.counts {
            if !counted.counts.iter().any(|(other, _)| other == job) {
                wrong.push(format!("`{job}` was not counted"));
            }
        }
        (lines.join("\n"), wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(counts: &[(&str, u64)]) -> Table {
        let counts = counts
            .iter()
            .map(|(job, count)| ((*job).to_owned(), *count));
        Table {
            compiler: "rustc 1.95.0".to_owned(),
            counts: counts.collect(),
        }
    }

    #[test]
    fn a_table_is_read_as_it_was_printed() {
        let made = table(&[("pin 4 objects", 1_234), ("put", 5)]);
        assert_eq!(Table::read(&made.print()).unwrap(), made);
        assert!(Table::read("").is_err());
        assert!(Table::read("rustc\nmany  pins\n").is_err());
    }

    #[test]
    fn a_count_that_left_its_table_in_either_direction_is_named() {
        let known = table(&[("a", 1_000), ("b", 1_000)]);
        let wrong = |counts: &[(&str, u64)]| known.compare(&table(counts)).1;
        assert!(wrong(&[("a", 1_029), ("b", 971)]).is_empty());
        assert_eq!(
            wrong(&[("a", 1_031), ("b", 1_000)]),
            ["`a` (1000 to 1031, +3.1 %)"]
        );
        assert_eq!(
            wrong(&[("a", 1_000), ("b", 960)]),
            ["`b` (1000 to 960, -4.0 %)"]
        );
    }

    #[test]
    fn a_job_that_is_missing_on_either_side_is_named() {
        let known = table(&[("a", 1_000)]);
        let wrong = known.compare(&table(&[("b", 1)])).1;
        assert_eq!(wrong, ["`b` is not in the table", "`a` was not counted"]);
    }

    #[test]
    fn a_profile_without_instructions_counts_nothing() {
        assert_eq!(totals("events: Ir\ntotals: 4711\n"), Some(4_711));
        assert_eq!(totals("events: Ir\ntotals: 0\n"), None);
        assert_eq!(totals(""), None);
    }
}

//! One visible step: a spinner on a terminal, plain lines elsewhere, the output only when it fails.
//!
//! Everything goes to standard error, so that the standard output of `--json` commands stays clean.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::command;

/// How much of the output of a failed step is printed; the log file has all of it.
const TAIL_LINES: usize = 120;

/// A step that runs, to which commands report.
pub(crate) struct Step {
    title: String,
    bar: Option<ProgressBar>,
    log: PathBuf,
}

/// Runs `body` as the step `title`, whose output is kept in `log`.
pub(crate) fn run<T>(title: &str, log: &Path, body: impl FnOnce(&Step) -> Result<T>) -> Result<T> {
    let started = Instant::now();
    File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let step = Step {
        title: title.to_owned(),
        bar: spinner(title),
        log: log.to_path_buf(),
    };
    let result = body(&step);
    if let Some(bar) = &step.bar {
        bar.finish_and_clear();
    }
    let seconds = started.elapsed().as_secs_f64();
    let mark = if result.is_ok() { "ok" } else { "FAILED" };
    eprintln!("{mark:>8}  {title}  ({seconds:.1} s)");
    result
}

impl Step {
    /// Shows a line of what the step does, and keeps it in the log.
    pub(crate) fn line(&self, line: &str) {
        // A log that cannot be written must not fail the step it describes.
        if let Ok(mut log) = File::options().append(true).open(&self.log) {
            let _ = writeln!(log, "{line}");
        }
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}  {}", self.title, line.trim()));
        }
    }

    /// Runs `command`; its last line is shown, and all of it is printed if it fails.
    pub(crate) fn command(&self, command: Command) -> Result<()> {
        let named = command::describe(&command);
        let mut log = File::options()
            .append(true)
            .open(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        writeln!(log, "$ {named}")?;
        let finished = command::run(command, |line| {
            // A log that cannot be written must not fail the step it describes.
            let _ = writeln!(log, "{line}");
            if let Some(bar) = &self.bar {
                bar.set_message(format!("{}  {}", self.title, line.trim()));
            }
        })?;
        if finished.status.success() {
            return Ok(());
        }
        let lines: Vec<&str> = finished.output.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        let print = || eprintln!("{tail}\n(all of it: {})", self.log.display());
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
        bail!("{}: `{named}` ended with {}", self.title, finished.status)
    }
}

fn spinner(title: &str) -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        eprintln!("{:>8}  {title}", "...");
        return None;
    }
    let style = ProgressStyle::with_template("{spinner:>8}  {wide_msg} {elapsed:>5}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style);
    bar.set_message(title.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    Some(bar)
}

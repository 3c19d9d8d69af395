//! A system in a process of its own: orders in, answers out, one line each.
//!
//! Called by the run. Invariant: whoever does not answer in time is ended, and whatever goes wrong
//! ends in a reason of one line, the last that the process has said.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::project::Project;

/// How long a start or an order may take: on a machine that is not resting, too.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long a process without input may take to go.
const FAREWELL: Duration = Duration::from_secs(20);

/// What a table has room for.
const REASON_BYTES: usize = 160;

/// A running system.
pub(super) struct Contestant {
    pub(super) name: &'static str,
    child: Child,
    answers: Receiver<String>,
    log: PathBuf,
}

impl Contestant {
    /// Starts it, and waits until it is ready.
    pub(super) fn start(
        project: &Project,
        name: &'static str,
        mut command: Command,
    ) -> Result<Self> {
        let log = project.cache.log(&format!("peers-{name}"));
        let errors =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .context("it cannot be started")?;
        let output = child.stdout.take().context("it has no output")?;
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut contestant = Self {
            name,
            child,
            answers,
            log,
        };
        match contestant.answer()?.as_str() {
            "ready" => Ok(contestant),
            other => bail!("it began with `{other}`"),
        }
    }

    /// Seconds that moving all objects took.
    pub(super) fn seconds(&mut self, operation: &str, in_flight: u32) -> Result<f64> {
        let answer = self.order(operation, u64::from(in_flight))?;
        let seconds: f64 = answer
            .parse()
            .with_context(|| format!("it answered `{answer}`"))?;
        anyhow::ensure!(seconds.is_finite() && seconds > 0.0, "it took {seconds} s");
        Ok(seconds)
    }

    /// Gives an order, and waits for its answer.
    pub(super) fn order(&mut self, word: &str, number: u64) -> Result<String> {
        let input = self.child.stdin.as_mut().context("it has no input")?;
        // Whoever does not read any more has said why.
        let _ = writeln!(input, "{word} {number}").and_then(|()| input.flush());
        self.answer()
    }

    fn answer(&mut self) -> Result<String> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                bail!("no answer within {} s", PATIENCE.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                bail!(
                    "{}",
                    reason(&said).unwrap_or_else(|| format!("it ended with {status}"))
                )
            }
        }
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        // Without input it ends its servers and itself; what does not is ended with all it started.
        drop(self.child.stdin.take());
        let silent = loop {
            match self.answers.recv_timeout(FAREWELL) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        if silent == RecvTimeoutError::Timeout {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The last line that somebody has said, cut to what a table can hold.
fn reason(said: &str) -> Option<String> {
    let line = said.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim().chars().take(REASON_BYTES).collect())
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn the_reason_is_the_last_line_that_says_something() {
        assert_eq!(
            reason("Traceback\nOSError: no port\n\n").unwrap(),
            "OSError: no port"
        );
        assert_eq!(reason("\n \n"), None);
        assert_eq!(reason(&"x".repeat(1_000)).unwrap().len(), 160);
    }
}

//! Runs a child process and hands its output on, line by line, both streams in one order.
//!
//! A grandchild that outlives the child (a cache node that a test started, say) may hold the pipe
//! open: the run is over when the *child* is, and whatever it wrote has been read.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// How often a silent child is asked whether it has ended.
const POLL: Duration = Duration::from_millis(50);

/// How long the output of an ended child may stay silent before it counts as read.
const GRACE: Duration = Duration::from_millis(300);

/// A child that has ended.
pub(crate) struct Finished {
    /// Its exit status.
    pub(crate) status: ExitStatus,
    /// Standard output and error, interleaved as written.
    pub(crate) output: String,
}

/// Runs `command` to its end, calling `on_line` for each line that it writes.
pub(crate) fn run(mut command: Command, mut on_line: impl FnMut(&str)) -> Result<Finished> {
    let named = describe(&command);
    let (reader, writer) = std::io::pipe().context("no pipe for a child process")?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {named}"))?;
    drop(command); // with it our copies of the writing end

    let lines = read_lines(reader);
    let mut output = String::new();
    let status = loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => keep(&line, &mut output, &mut on_line),
            Err(RecvTimeoutError::Disconnected) => break child.wait()?,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = ended(&mut child)? {
                    break status;
                }
            }
        }
    };
    while let Ok(line) = lines.recv_timeout(GRACE) {
        keep(&line, &mut output, &mut on_line);
    }
    Ok(Finished { status, output })
}

/// The command as one would type it, for messages.
pub(crate) fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>> {
    child.try_wait().context("cannot wait for a child process")
}

fn keep(line: &str, output: &mut String, on_line: &mut impl FnMut(&str)) {
    on_line(line);
    output.push_str(line);
    output.push('\n');
}

fn read_lines(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line)
                .trim_end_matches('\r')
                .to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_arrive_in_order_with_the_status() {
        let mut seen = Vec::new();
        let finished = run(
            shell("echo one; echo two >&2; printf three; exit 3"),
            |line| {
                seen.push(line.to_owned());
            },
        )
        .unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!(seen, ["one", "two", "three"]);
        assert_eq!(finished.output, "one\ntwo\nthree\n");
    }

    #[test]
    fn a_grandchild_that_holds_the_pipe_does_not_hold_the_run() {
        let start = std::time::Instant::now();
        let finished = run(shell("sleep 30 & echo started"), |_| ()).unwrap();
        assert!(finished.status.success());
        assert_eq!(finished.output, "started\n");
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

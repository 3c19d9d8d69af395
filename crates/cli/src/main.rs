//! The one shipped binary of Tessera: `node`, `stat`, `ping`, `drop`, `verify`,
//! `clean`, `proxy`, `bench`, `replay`.
//!
//! May import: client, node and proxy. Parses the command line, sets up the log, calls one command,
//! and prints an error as one line that says what to do.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod commands;
mod replay;
mod units;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A server's log is its voice; the other commands speak through their output.
    match arguments.command {
        Command::Node(_) => start_log("info", Form::Text),
        Command::Proxy(_) => start_log("info", Form::Json),
        _ => start_log("warn", Form::Text),
    }
    let outcome = match arguments.command {
        Command::Node(arguments) => commands::node::run(arguments),
        Command::Stat(arguments) => commands::stat::run(&arguments),
        Command::Ping(arguments) => commands::ping::run(&arguments),
        Command::Drop(arguments) => commands::drop::run(&arguments),
        Command::Verify(arguments) => commands::verify::run(&arguments),
        Command::Clean(arguments) => commands::clean::run(arguments),
        Command::Proxy(arguments) => commands::proxy::run(arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::BenchFloor { system } => bench::floor::serve(if system {
            bench::floor::Congestion::System
        } else {
            bench::floor::Congestion::Ours
        }),
        Command::BenchContest { name } => bench::contest::serve(&name),
        Command::BenchPrefill { arguments } => bench::prefill::serve(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera: {}", in_one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes. Messages of libraries often end with their cause: it is said once.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

/// How a line of the log looks.
#[derive(Clone, Copy)]
enum Form {
    Text,
    /// For machines: one object a line.
    Json,
}

/// `TESSERA_LOG` takes the filters of `tracing`, such as `debug` or `tessera_node=trace`.
fn start_log(default: &str, form: Form) {
    let filter = EnvFilter::try_from_env("TESSERA_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A log that cannot be written, on a full disk or without a reader, must stop nothing.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match form {
        Form::Text => log.init(),
        Form::Json => log.json().flatten_event(true).init(),
    }
}

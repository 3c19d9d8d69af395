//! `cargo xtask`: the development commands, called by people and by `.ci/run`.
//!
//! Every command makes for itself what it needs (see [`setup`]), so that a fresh clone on a machine
//! with Rust, Python, a C compiler and git needs no other step. Nothing here imports a crate of the
//! product: xtask must build while the product does not.

#![forbid(unsafe_code)]

mod bench;
mod cache;
mod children;
mod ci;
mod command;
mod contest;
mod counts;
mod cpio;
mod demo;
mod documented;
mod fingerprint;
mod fuzz;
mod guest;
mod kernel;
mod project;
mod python;
mod rdma;
mod setup;
mod step;
mod suite;
mod tally;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::project::Project;

/// The development commands of Tessera.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make the engine environment, the binary, the wheel and the test models, where out of date.
    Setup,
    /// Serve each model class cold in one process and warm in another, and compare the tokens.
    Demo(demo::DemoArguments),
    /// Run every test: Rust, documentation, Python, and the real engine.
    Test(suite::TestArguments),
    /// Measure the data path against a raw socket floor of the same run.
    Bench(bench::BenchArguments),
    /// Count the instructions of the hot paths, and compare them with the committed table.
    Counts(counts::CountsArguments),
    /// Run the tests of the RDMA transport on real verbs, in a guest that has RDMA devices.
    RdmaTest(rdma::RdmaArguments),
    /// Everything that must hold before a change is accepted, in order of cost.
    Ci(ci::CiArguments),
    /// Feed mutated bytes to every decoder for a while.
    Fuzz(fuzz::FuzzArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = Project::locate().and_then(|project| match &arguments.task {
        Task::Setup => setup::command(&project),
        Task::Demo(arguments) => demo::command(&project, arguments),
        Task::Test(arguments) => suite::command(&project, arguments),
        Task::Bench(arguments) => bench::command(&project, arguments),
        Task::Counts(arguments) => counts::command(&project, arguments),
        Task::RdmaTest(arguments) => rdma::command(&project, arguments),
        Task::Ci(arguments) => ci::command(&project, arguments),
        Task::Fuzz(arguments) => fuzz::command(&project, arguments),
    });
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

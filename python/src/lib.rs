//! The native module `tessera_kv._native`: what the connector for vLLM calls.
//!
//! Called by `tessera_kv.vllm`. Imports the client and nothing below it. It translates Python
//! values and errors and decides nothing; the interpreter is released in everything that can wait.
//! This is the only place where an address that came from Python becomes memory ([`memory`]).

mod block_copy;
mod error;
mod local;
mod memory;
mod meter;
mod options;
mod scheduler;
mod sim_device;
mod worker;

use std::io::IsTerminal as _;

use std::path::Path;

use pyo3::prelude::*;
use tessera_client::driver::{SchedulerMetrics, WorkerMetrics};
use tessera_client::weights;

use crate::error::Raise as _;

/// The fingerprint of the weights in a local model folder, as hexadecimal digits.
#[pyfunction]
fn weights_fingerprint(py: Python<'_>, folder: &str) -> PyResult<String> {
    let digest = py.detach(|| weights::fingerprint(Path::new(folder)));
    let digest = digest.map_err(|error| error.raise(py))?;
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The names of all values that the two sides count, sorted.
#[pyfunction]
fn metric_names() -> Vec<&'static str> {
    let scheduler = SchedulerMetrics::default().named();
    let mut names: Vec<&str> = scheduler.into_iter().map(|(name, _)| name).collect();
    names.extend(
        WorkerMetrics::default()
            .named()
            .into_iter()
            .map(|(name, _)| name),
    );
    names.sort_unstable();
    names.dedup();
    names
}

/// The module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::register(module)?;
    module.add_class::<block_copy::BlockCopier>()?;
    module.add_class::<options::Options>()?;
    module.add_class::<scheduler::Scheduler>()?;
    module.add_class::<sim_device::SimDevice>()?;
    module.add_class::<worker::Worker>()?;
    module.add_function(wrap_pyfunction!(weights_fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(metric_names, module)?)?;
    start_log();
    Ok(())
}

/// Warnings go to standard error, where the engine's own log goes. `TESSERA_LOG` asks for more.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TESSERA_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written, on a full disk or without a reader, must stop nothing.
        .log_internal_errors(false);
    // Another library of the process may have a log already; then ours goes there.
    let _ = log.try_init();
}

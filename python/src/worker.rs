//! The native side in a worker's process.
//!
//! Each method translates one hook into one call of the driver, with the interpreter released while
//! the driver works. The invariant: the engine's tensors are held for as long as the driver may
//! touch their memory, so that the regions over it never outlive it; for ever, if a device cannot
//! say that it is done with it.

use std::collections::HashMap;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyAny;
use tessera_client::driver::{EngineConfig, TransferResults, WorkerDriver};

use crate::error::Raise as _;
use crate::meter::Meter;
use crate::sim_device::{SimDevice, device_of};
use crate::{local, memory};

/// Ids of requests: sent, received, failed to be received.
type Results = (Vec<String>, Vec<String>, Vec<String>);

/// The worker's side of the connector.
#[pyclass(frozen, module = "tessera_kv._native")]
pub(crate) struct Worker {
    // Fields are dropped in this order: the driver ends before the tensors are given back.
    driver: WorkerDriver,
    meter: Meter,
    uncollected: Mutex<TransferResults>,
    memory: Vec<Py<PyAny>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.driver.shutdown();
        if self.driver.is_stopped() {
            // A device may write to the tensors for ever: the engine must not get them back.
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

#[pymethods]
impl Worker {
    /// Starts the driver on block memory. `layers` describes it as JSON, `memory` holds the tensors
    /// described, `binary` is the path of the `tessera` program; `device` is a test's.
    #[new]
    #[pyo3(signature = (document, layers, num_blocks, memory, binary, device=None))]
    fn new(
        py: Python<'_>,
        document: &str,
        layers: &str,
        num_blocks: u64,
        memory: Vec<Py<PyAny>>,
        binary: &str,
        device: Option<PyRef<'_, SimDevice>>,
    ) -> PyResult<Self> {
        let config = EngineConfig::from_json(document).map_err(|error| error.raise(py))?;
        // SAFETY: `layers` describes the tensors of `memory`. They are stored beside the driver and
        // dropped after it, and the driver's end is the end of all regions and orders.
        let layers = unsafe { memory::layers(layers, num_blocks, device_of(device)) };
        let layers = layers.map_err(|error| error.raise(py))?;
        drop(local::keep_alive(py, &config, binary)?);
        let driver = py.detach(|| WorkerDriver::start(&config, layers));
        let driver = driver.map_err(|error| error.raise(py))?;
        let uncollected = Mutex::new(TransferResults::default());
        Ok(Self {
            driver,
            meter: Meter::default(),
            uncollected,
            memory,
        })
    }

    /// Where other engines find this worker, if they may: its rank, its process start in
    /// hexadecimal digits, and its address.
    #[getter]
    fn peer_place(&self) -> Option<(u16, String, String)> {
        let place = self.driver.peer_place()?;
        let start = format!("{:032x}", place.incarnation.0);
        Some((place.rank, start, place.address))
    }

    /// Returns when nothing writes any more to the blocks of the requests that the plan preempts.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn preempt(&self, py: Python<'_>, plan: PyBackedBytes) -> PyResult<()> {
        py.detach(|| self.driver.preempt(&plan))
            .map_err(|error| error.raise(py))
    }

    /// Starts the loads of the plan.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn begin_step(&self, py: Python<'_>, plan: PyBackedBytes) -> PyResult<()> {
        py.detach(|| self.driver.begin_step(&plan))
            .map_err(|error| error.raise(py))
    }

    /// Copies what the step completed, to be saved.
    fn end_step(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.driver.end_step())
            .map_err(|error| error.raise(py))
    }

    /// What ended since the last call, and whether the driver is idle: then no later call has news
    /// before the next plan.
    fn poll(&self, py: Python<'_>) -> PyResult<(Results, bool)> {
        // Asked first, so that what ends in between is not missed.
        let (idle, results) = py.detach(|| (self.driver.is_idle(), self.driver.poll()));
        let results = results.map_err(|error| error.raise(py))?;
        Ok((named(results), idle))
    }

    /// Blocks that could not be filled.
    fn take_invalid_blocks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        py.detach(|| self.driver.take_invalid_blocks())
            .map_err(|error| error.raise(py))
    }

    /// All values since the start, by name.
    fn metrics(&self, py: Python<'_>) -> HashMap<&'static str, u64> {
        py.detach(|| self.driver.metrics())
            .named()
            .into_iter()
            .collect()
    }

    /// By how much values have changed since the last call, by name; None if none has.
    fn changes(&self, py: Python<'_>) -> Option<HashMap<&'static str, i64>> {
        py.detach(|| self.meter.changes(&self.driver.metrics().named()))
    }

    /// Waits for what still touches memory, then ends the driver.
    fn shutdown(&self, py: Python<'_>) {
        let results = py.detach(|| self.driver.shutdown());
        *self.uncollected.lock() = results;
    }

    /// Outcomes that were there when the driver ended and that nobody had collected.
    fn uncollected(&self) -> Results {
        named(std::mem::take(&mut *self.uncollected.lock()))
    }
}

fn named(results: TransferResults) -> Results {
    let TransferResults {
        finished_sending,
        finished_recving,
        failed_recving,
    } = results;
    (finished_sending, finished_recving, failed_recving)
}

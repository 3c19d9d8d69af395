//! A simulated device under an engine's block memory, for tests of the real engine.
//!
//! Given to [`crate::worker::Worker`] and [`crate::block_copy::BlockCopier`] by a connector that
//! only tests have; no option, file or environment puts one there. The invariant: it is reached
//! through the trait that every device has, so that the driver treats it as it treats a GPU.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tessera_client::{Device, FenceSide, SimDevice as Simulated};

/// A device on which a missing fence shows, and its faults.
#[pyclass(frozen, module = "tessera_kv._native")]
pub(crate) struct SimDevice {
    device: Arc<Simulated>,
}

/// The device behind the argument of a constructor.
pub(crate) fn device_of(given: Option<PyRef<'_, SimDevice>>) -> Option<Arc<dyn Device>> {
    given.map(|given| Arc::clone(&given.device) as Arc<dyn Device>)
}

#[pymethods]
impl SimDevice {
    /// Starts a device whose writes land in an order of `seed`.
    #[new]
    fn new(seed: u64) -> PyResult<Self> {
        let device = Simulated::start(seed)?;
        Ok(Self { device })
    }

    /// Lets the next `count` fences of `side` fail, without effect.
    fn fail_fences(&self, side: &str, count: u32) -> PyResult<()> {
        self.device.fail_fences(side_of(side)?, count);
        Ok(())
    }

    /// Lets the next `count` fences of `side` hang until `release`; all else goes on.
    fn owe_fences(&self, side: &str, count: u32) -> PyResult<()> {
        self.device.owe_fences(side_of(side)?, count);
        Ok(())
    }

    /// Lets the next `count` fences of `side` succeed without effect.
    fn skip_fences(&self, side: &str, count: u32) -> PyResult<()> {
        self.device.skip_fences(side_of(side)?, count);
        Ok(())
    }

    /// Lets the next `count` copies fail, after a part of each.
    fn fail_copies(&self, count: u32) {
        self.device.fail_copies(count);
    }

    /// Answers the fences that are owed.
    fn release(&self) {
        self.device.release();
    }

    /// Fences of `side` that were asked for, and how many of them succeeded.
    fn fences(&self, side: &str) -> PyResult<(u64, u64)> {
        Ok(self.device.fences(side_of(side)?))
    }
}

fn side_of(word: &str) -> PyResult<FenceSide> {
    match word {
        "before" => Ok(FenceSide::Before),
        "after" => Ok(FenceSide::After),
        _ => Err(PyValueError::new_err(format!(
            "a fence is \"before\" or \"after\", not {word:?}"
        ))),
    }
}

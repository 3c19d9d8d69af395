//! Copies blocks the way objects travel: gathered as a payload, scattered into other blocks.
//!
//! Called by the connector's self-test at start and by the tests of all layouts. No node takes
//! part, but the payload is built by the very layout that saves and loads use.

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes};
use tessera_client::driver::EngineConfig;
use tessera_client::layout::{CopyError, Layout};

use crate::error::{ErrorKind, Raise, raise};
use crate::memory;
use crate::sim_device::{SimDevice, device_of};

/// The block memory of one worker before it is used.
#[pyclass(frozen, module = "tessera_kv._native")]
pub(crate) struct BlockCopier {
    // Fields are dropped in this order: the regions end before the tensors are given back.
    layout: Layout,
    _memory: Vec<Py<PyAny>>,
}

#[pymethods]
impl BlockCopier {
    /// Registers memory as a worker does: the same checks, the same refusals.
    #[new]
    #[pyo3(signature = (document, layers, num_blocks, memory, device=None))]
    fn new(
        py: Python<'_>,
        document: &str,
        layers: &str,
        num_blocks: u64,
        memory: Vec<Py<PyAny>>,
        device: Option<PyRef<'_, SimDevice>>,
    ) -> PyResult<Self> {
        let config = EngineConfig::from_json(document).map_err(|error| error.raise(py))?;
        let shape = config.shape().map_err(|error| error.raise(py))?;
        // SAFETY: `layers` describes the tensors of `memory`, which are dropped after the layout
        // that holds the regions. Copies wait for the device's answers.
        let layers = unsafe { memory::layers(layers, num_blocks, device_of(device)) };
        let layers = layers.map_err(|error| error.raise(py))?;
        let layout = Layout::new(&shape, layers).map_err(|error| error.raise(py))?;
        Ok(Self {
            layout,
            _memory: memory,
        })
    }

    /// The payload of an object of `group` in `source`, after it was written to `target`.
    ///
    /// Nothing else may use either of the blocks meanwhile.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn copy<'py>(
        &self,
        py: Python<'py>,
        group: usize,
        source: Vec<u32>,
        target: Vec<u32>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let payload = py.detach(|| {
            let payload = self.layout.read(group, &source)?;
            self.layout.write(group, &target, &payload)?;
            Ok(payload)
        });
        let refused = |error: CopyError| raise(py, ErrorKind::Layout, error.to_string());
        let payload = payload.map_err(refused)?;
        Ok(PyBytes::new(py, &payload))
    }
}

//! The options, as far as the connector itself needs them before anything is started.

use pyo3::prelude::*;
use pyo3::types::PyAny;
use serde_json::Value;
use tessera_client::options::{OnLoadFailure, OptionError, Options as Parsed};

use crate::error::Raise as _;

/// The parsed options of one engine.
#[pyclass(frozen, module = "tessera_kv._native")]
pub(crate) struct Options {
    parsed: Parsed,
}

#[pymethods]
impl Options {
    /// Parses `kv_connector_extra_config`, strictly.
    #[new]
    fn new(py: Python<'_>, extra_config: &Bound<'_, PyAny>) -> PyResult<Self> {
        let text: String = py
            .import("json")?
            .call_method1("dumps", (extra_config,))?
            .extract()?;
        let parsed = serde_json::from_str::<Value>(&text)
            .map_err(|error| OptionError::NotAnObject {
                got: error.to_string(),
            })
            .and_then(|value| Parsed::parse(&value));
        parsed
            .map(|parsed| Self { parsed })
            .map_err(|error| error.raise(py))
    }

    /// The user's own name for the weights; empty if there is none.
    #[getter]
    fn model_revision(&self) -> &str {
        &self.parsed.model_revision
    }

    /// Whether a worker checks its addressing at start.
    #[getter]
    fn self_test(&self) -> bool {
        self.parsed.self_test
    }

    /// Whether the tokens of a failed load are computed, whatever the engine's policy.
    #[getter]
    fn recompute(&self) -> bool {
        self.parsed.on_load_failure == OnLoadFailure::Recompute
    }
}

//! The exceptions of the native module: one for each kind of error, all of one parent.
//!
//! Every error enum of the client maps to one exception here; a message is never rewritten, because
//! it already says what to do.

use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use tessera_client::driver::{DriverError, StartError};
use tessera_client::layout::LayoutError;
use tessera_client::local::LocalError;
use tessera_client::options::OptionError;
use tessera_client::weights::WeightsError;

use crate::memory::MemoryError;

/// The kinds of errors, each an exception of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    Option,
    Config,
    Layout,
    Resource,
    Weights,
    Closed,
    Step,
}

/// Every kind, the name of its exception, and whether the caller gave a wrong value.
const KINDS: [(ErrorKind, &str, bool); 7] = [
    (ErrorKind::Option, "OptionError", true),
    (ErrorKind::Config, "ConfigError", true),
    (ErrorKind::Layout, "LayoutError", true),
    (ErrorKind::Resource, "ResourceError", false),
    (ErrorKind::Weights, "WeightsError", true),
    (ErrorKind::Closed, "ClosedError", false),
    (ErrorKind::Step, "StepError", false),
];

static EXCEPTIONS: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// Adds the parent and all exceptions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let parent = exception(py, "TesseraError", &[py.get_type::<PyException>()])?;
    module.add("TesseraError", &parent)?;
    let mut exceptions = Vec::new();
    for (_, name, is_value) in KINDS {
        let built_in = if is_value {
            py.get_type::<PyValueError>()
        } else {
            py.get_type::<PyRuntimeError>()
        };
        let exception = exception(py, name, &[parent.clone(), built_in])?;
        module.add(name, &exception)?;
        exceptions.push(exception.unbind());
    }
    // A second import in one process is refused before this point.
    let _ = EXCEPTIONS.set(py, exceptions);
    Ok(())
}

fn exception<'py>(
    py: Python<'py>,
    name: &str,
    bases: &[Bound<'py, PyType>],
) -> PyResult<Bound<'py, PyType>> {
    let attributes = PyDict::new(py);
    attributes.set_item("__module__", "tessera_kv._native")?;
    let bases = PyTuple::new(py, bases)?;
    let made = py.get_type::<PyType>().call1((name, bases, attributes))?;
    Ok(made.cast_into::<PyType>()?)
}

/// An error that is raised as the exception of its kind, with its own message.
pub(crate) trait Raise: std::fmt::Display {
    /// Which exception.
    fn kind(&self) -> ErrorKind;

    /// The exception.
    fn raise(&self, py: Python<'_>) -> PyErr {
        raise(py, self.kind(), self.to_string())
    }
}

/// The exception of a kind, with a message.
pub(crate) fn raise(py: Python<'_>, kind: ErrorKind, message: String) -> PyErr {
    let index = KINDS.iter().position(|(other, ..)| *other == kind);
    let exception = index.and_then(|index| EXCEPTIONS.get(py)?.get(index));
    match exception {
        Some(exception) => PyErr::from_type(exception.bind(py).clone(), message),
        None => PyRuntimeError::new_err(message),
    }
}

impl Raise for OptionError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Option
    }
}

impl Raise for StartError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_) | Self::Shape(_) | Self::Rank { .. } => ErrorKind::Config,
            Self::Layout(_) => ErrorKind::Layout,
            Self::Local(_)
            | Self::Staging { .. }
            | Self::Key(_)
            | Self::Peer(_)
            | Self::Runtime(_) => ErrorKind::Resource,
        }
    }
}

impl Raise for MemoryError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Layout
    }
}

impl Raise for LayoutError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Layout
    }
}

impl Raise for LocalError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Resource
    }
}

impl Raise for WeightsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Weights
    }
}

impl Raise for DriverError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Closed => ErrorKind::Closed,
            Self::NotPromised(_) | Self::Plan(_) | Self::Peer(_) | Self::Memory(_) => {
                ErrorKind::Step
            }
        }
    }
}

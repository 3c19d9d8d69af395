//! Why a call of the RDMA transport failed.

use std::error::Error;
use std::fmt::Write;

use super::card::CardError;

/// Why a call failed. None of them says anything about memory in use: only a fence does.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// There is no library, so there is no RDMA.
    #[error("libibverbs cannot be loaded: {reason}; install libibverbs1 and ibverbs-providers")]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// There is a library, and a kernel without RDMA.
    #[error("the kernel offers no RDMA devices: `modprobe ib_uverbs` and the driver of the device")]
    NoKernel,
    /// No such device.
    #[error("there is no RDMA device {wanted}, only: {found}; `rdma link` lists them")]
    NoDevice {
        /// The name that was asked for.
        wanted: String,
        /// The names that there are, with commas.
        found: String,
    },
    /// A device whose port has no address that a peer could reach.
    #[error("port 1 of {device} has no address: give its network interface an IP address")]
    NoAddress {
        /// The device.
        device: String,
    },
    /// The library, the kernel or the device refused.
    #[error("{call} failed on {device}: {reason}")]
    Refused {
        /// What was asked.
        call: &'static str,
        /// The device.
        device: String,
        /// What it answered.
        reason: String,
    },
    /// Memory that could not be registered.
    #[error(
        "{device} cannot register {length} bytes at {address:#x}: {reason}; check that they are \
         mapped and that `ulimit -l` allows as much locked memory"
    )]
    Register {
        /// The device.
        device: String,
        /// Where the memory begins.
        address: usize,
        /// Its bytes.
        length: usize,
        /// What it answered.
        reason: String,
    },
    /// Bytes outside of what is registered: a mistake of the caller.
    #[error("bytes {offset}+{length} lie outside a registration of {registered} bytes")]
    OutOfRegistration {
        /// The first byte.
        offset: usize,
        /// How many.
        length: usize,
        /// Bytes registered.
        registered: usize,
    },
    /// What the peer said of itself.
    #[error(transparent)]
    Card(#[from] CardError),
}

impl VerbsError {
    /// A refusal, with all that the library says of it.
    pub(super) fn refused(call: &'static str, device: &str, error: &dyn Error) -> Self {
        Self::Refused {
            call,
            device: device.to_owned(),
            reason: chain(error),
        }
    }
}

/// An error and its causes, each said once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.ends_with(&said) {
            let _ = write!(text, ": {said}");
        }
        cause = next.source();
    }
    text
}

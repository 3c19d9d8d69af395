//! What every device does, and how it fails.
//!
//! Implemented by the devices beside it, called by the client's drivers. Invariants that each
//! implementation keeps: an answered copy no longer uses the memory it was given; an answered fence
//! covers all that was submitted before it was asked for, whoever asks and from whichever thread;
//! no fence and no copy holds the asking thread.

use std::fmt::Debug;
use std::sync::Arc;

use super::completion::Completion;
use super::ranges::{DeviceRanges, LentRanges};
use crate::lent::Lent;
use crate::region::Region;
use crate::segments::Segments;

/// How a write ended, and what it was given.
pub type Written = (Result<(), DeviceError>, Segments, LentRanges);

/// Which side of an access a fence stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceSide {
    /// All earlier work of the device on its memory is over.
    Before,
    /// What was written to the device's memory is visible to all of its later work.
    After,
}

/// Where memory lives, and who says when it is at rest.
pub trait Device: Debug + Send + Sync {
    /// What messages call it.
    fn name(&self) -> String;

    /// Whether host code and the kernel reach its memory in place.
    fn is_host(&self) -> bool {
        false
    }

    /// Checks that the device owns `length` bytes from `address`, and makes them known to it.
    /// Called by [`Region::on_device`].
    ///
    /// # Errors
    /// [`DeviceError::NotOwned`], or the device's own refusal.
    fn register(&self, address: usize, length: usize) -> Result<(), DeviceError>;

    /// Makes copies from and to `staging` fast, where the device has a way to. It keeps the memory
    /// for as long as it lives.
    ///
    /// # Errors
    /// The device's refusal; copies work all the same, and slower.
    fn pin(&self, staging: &Arc<Region>) -> Result<(), DeviceError>;

    /// Asks for a fence. It covers all that was submitted to the device before this call.
    fn fence(&self, side: FenceSide) -> Completion<Result<(), DeviceError>>;

    /// Writes the bytes of `from`, a whole payload, to the places of `to`. Over, `from` is not read
    /// any more; the bytes are visible only behind a fence [`FenceSide::After`], and until then
    /// `to` is not at rest. After an error some may be written, and that fence says when no more
    /// will be.
    fn write(&self, from: Segments, to: LentRanges) -> Completion<Written>;

    /// Reads the places of `from` into `to`, a whole payload, as the device sees them now. Over,
    /// `to` is not written any more.
    fn read(&self, from: DeviceRanges, to: Lent) -> Completion<(Result<(), DeviceError>, Lent)>;
}

/// Why a device refuses or fails. None of them says anything about memory in use: only a fence
/// does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no driver library, so there is no such device.
    #[error("the CUDA driver library cannot be loaded: {reason}; install the NVIDIA driver")]
    NoDriver {
        /// What the loader said.
        reason: String,
    },
    /// The driver library lacks a function.
    #[error("the CUDA driver has no {function}: install a driver for CUDA 12 or newer")]
    NoFunction {
        /// Its name.
        function: &'static str,
    },
    /// A call into the driver failed.
    #[error("{call} failed on {device} with {code} ({name})")]
    Call {
        /// The function.
        call: &'static str,
        /// The device.
        device: String,
        /// The driver's code.
        code: i32,
        /// The driver's name for it.
        name: String,
    },
    /// Memory that the device does not own.
    #[error("{length} bytes at {address:#x} do not belong to {device}: register the tensor's own")]
    NotOwned {
        /// Where it begins.
        address: usize,
        /// Its bytes.
        length: usize,
        /// The device asked.
        device: String,
    },
    /// A payload and its places have different lengths: a mistake of the caller.
    #[error("{have} staged bytes do not fit places for {want}")]
    Length {
        /// Bytes staged.
        have: u64,
        /// Bytes that the places cover.
        want: u64,
    },
    /// A failure that a test asked for.
    #[error("injected: {device} fails")]
    Injected {
        /// The device.
        device: String,
    },
    /// The device's queue has ended.
    #[error("{device} has ended: restart the engine")]
    Ended {
        /// The device.
        device: String,
    },
}

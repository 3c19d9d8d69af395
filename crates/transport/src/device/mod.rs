//! Memory that lives on a device, and the fences that say when it may be touched.
//!
//! The client's drivers call it; the memory itself is registered here because registered memory and
//! `unsafe` are this crate's. [`HostDevice`] is the memory that a socket can reach in place,
//! [`SimDevice`] a device of one's own whose writes show late, and [`CudaDevice`] a GPU.

mod completion;
mod contract;
mod cuda;
mod host;
mod ranges;
mod sim;

pub use completion::{Completion, DeviceLost, Promise};
pub use contract::{Device, DeviceError, FenceSide, Written};
pub use cuda::{CudaDevice, CudaDriver};
pub use host::HostDevice;
pub use ranges::{DeviceRanges, LentRanges};
pub use sim::SimDevice;

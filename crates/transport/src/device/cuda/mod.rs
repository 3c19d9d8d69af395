//! Memory of an NVIDIA GPU, through the driver library that is found at run time.
//!
//! [`CudaDriver`] is the library, [`CudaDevice`] one GPU. Nothing links against CUDA: without a
//! driver there is only no such device. The owner of memory is what the driver says of its
//! address, never the device of the thread that asks.

mod device;
mod driver;
mod queue;

pub use device::CudaDevice;
pub use driver::CudaDriver;

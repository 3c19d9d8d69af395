//! Moves frames between processes and owns the words for registered memory. The client and the node
//! call it; it imports `proto` only, reports what happened to the bytes and judges nothing.
//!
//! Invariants kept here:
//! - every frame, in both directions, has an absolute deadline; a peer that trickles bytes does not
//!   extend it;
//! - a payload goes from and to its final memory without an intermediate copy (all but the few
//!   bytes that a read for a header took along);
//! - a [`Lent`] destination is written only between the start and the end of one
//!   [`Receiver::payload_scatter`] call, never later: the kernel holds no pointer between two
//!   reads;
//! - memory of a device is in no list that host code reads or writes; its own [`Device`] copies
//!   from and to it, and says by fences when that is over;
//! - after an error in the middle of a frame the half of the link is broken and says so.

mod address;
mod destination;
mod device;
mod error;
mod folder;
mod gather;
mod lent;
mod link;
mod listener;
mod loans;
mod receiver;
mod region;
mod segments;
mod sender;
mod socket;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use address::{Address, AddressError};
pub use device::{
    Completion, CudaDevice, CudaDriver, Device, DeviceError, DeviceLost, DeviceRanges, FenceSide,
    HostDevice, LentRanges, Promise, SimDevice, Written,
};
pub use error::LinkError;
pub use folder::{FolderError, check_private, make_private};
pub use gather::{Frame, Payload};
pub use lent::Lent;
pub use link::{Closer, Link};
pub use listener::{Listener, Reserved};
pub use receiver::{Progress, Receiver};
pub use region::Region;
pub use segments::{SegmentError, Segments};
pub use sender::Sender;

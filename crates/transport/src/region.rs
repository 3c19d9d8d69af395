//! Registered memory: a range that outlives every operation on it. The client registers the
//! engine's block memory and its own staging memory; segments point into it.
//!
//! Invariant: while an `Arc<Region>` lives, the range is mapped and does not move. Bytes in a
//! region are written by the kernel, the engine and device copies behind the compiler's back, so no
//! Rust reference to them outlives one copy, one checksum or one system call.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::device::{Device, DeviceError, HostDevice};

/// A mapped, immovable range of bytes.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    owned: bool,
    /// Where it lives, unless that is the host.
    device: Option<Arc<dyn Device>>,
}

// SAFETY: a region is an address and a length; the bytes behind it are reached only through raw
// copies whose exclusion the holder of the segments upholds, whatever the thread.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives out no reference to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Registers memory that somebody else owns.
    ///
    /// # Safety
    /// `base..base + length` must stay mapped, readable and writable until the last clone of the
    /// returned `Arc` is gone. Whoever builds segments over the region answers for exclusion:
    /// bytes of a lent segment are touched by nobody else until the operation gives it back.
    ///
    /// # Panics
    /// When `base` is null.
    pub unsafe fn from_raw(base: *mut u8, length: usize) -> Arc<Self> {
        let base = NonNull::new(base).expect("a registered region has an address");
        Arc::new(Self {
            base,
            length,
            owned: false,
            device: None,
        })
    }

    /// Registers memory of `device` that somebody else owns. The host does not touch it: lists for
    /// sockets and checksums refuse it, unless the device's memory is the host's.
    ///
    /// # Errors
    /// The device's refusal, for one if it is not the owner.
    ///
    /// # Safety
    /// As [`from_raw`](Self::from_raw), on that device.
    ///
    /// # Panics
    /// When `base` is null.
    pub unsafe fn on_device(
        device: &Arc<dyn Device>,
        base: *mut u8,
        length: usize,
    ) -> Result<Arc<Self>, DeviceError> {
        let base = NonNull::new(base).expect("a registered region has an address");
        device.register(base.as_ptr().expose_provenance(), length)?;
        Ok(Arc::new(Self {
            base,
            length,
            owned: false,
            device: (!device.is_host()).then(|| Arc::clone(device)),
        }))
    }

    /// Allocates page-aligned zeroed memory of `length` bytes and faults it in at once, because the
    /// first touch of a page is several times slower than a copy.
    ///
    /// # Errors
    /// The system's answer when it has no such memory.
    pub fn allocate(length: usize) -> io::Result<Arc<Self>> {
        Self::allocate_on(None, length)
    }

    /// As [`allocate`](Self::allocate), for a device that is a part of the host's memory.
    pub(crate) fn allocate_on(
        device: Option<Arc<dyn Device>>,
        length: usize,
    ) -> io::Result<Arc<Self>> {
        let mapped = length.max(1);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        // SAFETY: the range was mapped just now. A refusal only means small pages.
        let _ = unsafe { madvise(base, mapped, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self {
            base,
            length,
            owned: true,
            device,
        }))
    }

    /// Length of the range in bytes.
    pub fn length_bytes(&self) -> usize {
        self.length
    }

    /// The address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Where the memory lives.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.device.as_ref().unwrap_or_else(|| HostDevice::shared())
    }

    /// Whether host code and the kernel may touch it in place.
    pub fn is_host(&self) -> bool {
        self.device.is_none()
    }

    /// The address of `offset`, when `offset..offset + length` lies inside the region.
    pub(crate) fn range(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        // SAFETY: `offset <= self.length`, so the sum stays inside the mapping or one past it.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the mapping came from `allocate` with this length, and the last holder of a
            // pointer into it held an `Arc` of this region.
            let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length.max(1)) };
            debug_assert!(
                unmapped.is_ok(),
                "a mapping of our own could not be unmapped"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_stays_inside_its_region() {
        let region = Region::allocate(100).unwrap();
        assert!(region.range(0, 100).is_some());
        assert!(region.range(100, 0).is_some());
        assert!(region.range(1, 100).is_none());
        assert!(region.range(usize::MAX, 2).is_none());
    }

    #[test]
    fn an_empty_region_is_allowed() {
        assert_eq!(Region::allocate(0).unwrap().length_bytes(), 0);
    }
}

//! One stretch of memory, faulted in at start, in which all objects lie.
//!
//! Called by the store, which decides who may touch which bytes. Invariant: the mapping neither
//! moves nor shrinks while the arena lives, and every page is backed before the first object
//! arrives, so that no request pays for a page fault (first touch runs at 1.4 to 2.7 GB/s).

use std::io;
use std::ptr::{self, NonNull};
use std::thread;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::config::StoreError;

/// Alignment of the arena: that of a huge page.
const ARENA_ALIGN_BYTES: usize = 2 << 20;
/// What one thread faults in at a time.
const FAULT_STEP_BYTES: usize = 64 << 20;

/// A mapped, faulted stretch of memory.
#[derive(Debug)]
pub(crate) struct Arena {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    base: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: the arena is an address and a length; whoever reads or writes through it upholds the
// exclusion himself (see `WriteExtent` and `ReadPin`), from whichever thread.
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` hands out addresses only.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `length_bytes` and faults every page in with `threads` threads.
    ///
    /// # Errors
    /// [`StoreError::Memory`] if the system does not give the memory.
    pub(crate) fn map(length_bytes: usize, threads: usize) -> Result<Self, StoreError> {
        let arena = Self::reserve(length_bytes).map_err(|source| refused(length_bytes, source))?;
        arena
            .fault_in(threads)
            .map_err(|source| refused(length_bytes, source))?;
        Ok(arena)
    }

    /// The address of `length_bytes` bytes from `offset`. What may be done with it is the
    /// caller's to know.
    ///
    /// # Panics
    /// If the range is not inside the arena: the allocator is broken.
    pub(crate) fn address(&self, offset: usize, length_bytes: usize) -> NonNull<u8> {
        let inside = offset
            .checked_add(length_bytes)
            .is_some_and(|end| end <= self.length_bytes);
        assert!(inside, "range outside the arena");
        // SAFETY: `offset` is inside the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }

    fn reserve(length_bytes: usize) -> io::Result<Self> {
        let mapping_bytes = length_bytes
            .checked_add(ARENA_ALIGN_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let (access, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        );
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory
        // that exists already.
        let mapping = unsafe { mmap_anonymous(ptr::null_mut(), mapping_bytes, access, flags)? };
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = mapping.as_ptr().align_offset(ARENA_ALIGN_BYTES);
        // SAFETY: `skip` is below the alignment, and the mapping is that much longer.
        let base = unsafe { mapping.add(skip) };
        let arena = Self {
            mapping,
            mapping_bytes,
            base,
            length_bytes,
        };
        // SAFETY: the range is our own mapping. Refusal is no loss: the machine then has no huge
        // pages, and small ones serve.
        let _ = unsafe { madvise(base.as_ptr().cast(), length_bytes, Advice::LinuxHugepage) };
        Ok(arena)
    }

    fn fault_in(&self, threads: usize) -> io::Result<()> {
        let threads = threads.max(1);
        let share = self
            .length_bytes
            .div_ceil(threads)
            .next_multiple_of(ARENA_ALIGN_BYTES);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|worker| {
                    let from = (worker * share).min(self.length_bytes);
                    let to = (from + share).min(self.length_bytes);
                    scope.spawn(move || self.fault_range(from, to))
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| io::ErrorKind::Other)?)
        })
    }

    fn fault_range(&self, from: usize, to: usize) -> io::Result<()> {
        for at in (from..to).step_by(FAULT_STEP_BYTES) {
            let length = FAULT_STEP_BYTES.min(to - at);
            let address = self.address(at, length).as_ptr();
            // SAFETY: the range is our own mapping, which nobody else has seen yet; populating
            // changes no byte.
            let populated = unsafe { madvise(address.cast(), length, Advice::LinuxPopulateWrite) };
            match populated {
                Ok(()) => {}
                // A kernel before 5.14 does not know the advice.
                Err(rustix::io::Errno::INVAL) => {
                    // SAFETY: as above; the bytes are zero and stay zero.
                    unsafe { address.write_bytes(0, length) };
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, and whoever holds bytes of it holds the arena.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok(), "our own mapping cannot be refused");
    }
}

fn refused(length_bytes: usize, source: io::Error) -> StoreError {
    StoreError::Memory {
        capacity_bytes: length_bytes as u64,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_is_zero_writable_and_aligned_to_its_last_byte() {
        let length = (3 << 20) + 4096;
        let arena = Arena::map(length, 3).expect("three MiB");
        assert_eq!(
            arena.address(0, 1).as_ptr().align_offset(ARENA_ALIGN_BYTES),
            0
        );
        let last = arena.address(length - 1, 1).as_ptr();
        // SAFETY: inside the arena, and nobody else has it.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn arena_refuses_a_range_beyond_its_end() {
        let arena = Arena::map(4096, 1).expect("one page");
        let _ = arena.address(4000, 97);
    }

    #[test]
    fn memory_that_does_not_exist_is_refused_with_its_size() {
        let refused = Arena::map(1 << 55, 1).expect_err("32 PiB");
        assert!(
            refused.to_string().contains("36028797018963968"),
            "{refused}"
        );
    }
}

//! The floor of the bench: blocks between memory and a file through io_uring, a constant number in
//! flight, and nothing else.
//!
//! Called by `tessera bench` only. Invariant: as in `uring.rs`, the kernel has no transfer left
//! when a call returns.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::{process, slice};

use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;

use super::device::BLOCK_BYTES;
use super::portable::allocate;
use crate::arena::Arena;

/// A file that is read and written in blocks of one size, past the page cache, from and into memory
/// like that of the store: in huge pages, which make the kernel twice as fast, and more than a
/// cache holds, each block used in turn.
pub struct RawDisk {
    file: File,
    ring: IoUring,
    memory: Arena,
    /// Blocks of the memory, the one longest idle first.
    idle: VecDeque<usize>,
    depth: usize,
    block_bytes: usize,
}

/// Which way the blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

impl RawDisk {
    /// Makes a file of `blocks` of `block_bytes`, a multiple of [`BLOCK_BYTES`], that are moved
    /// from and to `memory` blocks in turn, and keeps up to `depth` transfers in flight.
    ///
    /// # Errors
    /// The file system has no direct I/O or no room, or the kernel gives no ring or no memory.
    ///
    /// # Panics
    /// If a block is no multiple of [`BLOCK_BYTES`], or memory has fewer than may be in flight.
    pub fn create(
        path: &Path,
        blocks: u64,
        block_bytes: usize,
        depth: u32,
        memory: usize,
    ) -> io::Result<Self> {
        assert!(block_bytes.is_multiple_of(BLOCK_BYTES) && memory >= depth as usize);
        let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag of open");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.mode(0o600).custom_flags(direct).open(path)?;
        let bytes = blocks * block_bytes as u64;
        file.set_len(bytes)?;
        allocate(&file, 0, bytes)?;
        let ring = IoUring::new(depth)?;
        Ok(Self {
            file,
            ring,
            memory: Arena::map(memory * block_bytes, 1).map_err(io::Error::other)?,
            idle: (0..memory).collect(),
            depth: depth as usize,
            block_bytes,
        })
    }

    /// Moves these blocks, in any order. `moved` is shown each once it has been, behind the
    /// submission of those that take its place: many end together, and what is done with them must
    /// not keep the disk waiting. So the tier does, with more threads than it needs.
    ///
    /// # Errors
    /// A transfer failed or was short; the others that had begun have ended.
    pub fn run(
        &mut self,
        direction: Direction,
        blocks: impl Iterator<Item = u64>,
        mut moved: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut blocks = blocks.fuse();
        let mut outcome = Ok(());
        let (mut in_flight, mut ended) = (0, Vec::with_capacity(self.depth));
        loop {
            while in_flight < self.depth
                && !self.idle.is_empty()
                && outcome.is_ok()
                && let Some(block) = blocks.next()
            {
                self.begin(direction, block);
                in_flight += 1;
            }
            if !ended.is_empty() {
                // What it may say, the wait says again.
                let _ = self.ring.submit();
                for slot in ended.drain(..) {
                    moved(self.block(slot));
                    self.idle.push_back(slot);
                }
                continue;
            }
            if in_flight == 0 {
                return outcome;
            }
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                eprintln!("io_uring: {error} with transfers in flight; ending the process");
                process::abort();
            }
            for completion in self.ring.completion() {
                in_flight -= 1;
                let slot = usize::try_from(completion.user_data()).expect("a slot of ours");
                match usize::try_from(completion.result()) {
                    Ok(bytes) if bytes == self.block_bytes => {
                        ended.push(slot);
                        continue;
                    }
                    Ok(_) => outcome = Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(_) => outcome = Err(io::Error::from_raw_os_error(-completion.result())),
                }
                self.idle.push_back(slot);
            }
        }
    }

    /// The memory of a slot whose transfer is over.
    fn block(&self, slot: usize) -> &[u8] {
        let block = self
            .memory
            .address(slot * self.block_bytes, self.block_bytes);
        // SAFETY: the memory of the slot lives as long as this value, and its transfer is over; the
        // next one needs `&mut self`, and the slot, which is not idle before the caller is done.
        unsafe { slice::from_raw_parts(block.as_ptr(), self.block_bytes) }
    }

    fn begin(&mut self, direction: Direction, block: u64) {
        let slot = self
            .idle
            .pop_front()
            .expect("more memory than is in flight");
        let fd = types::Fd(self.file.as_raw_fd());
        let at = block * self.block_bytes as u64;
        let length = u32::try_from(self.block_bytes).expect("a block is below 4 GiB");
        let memory = self
            .memory
            .address(slot * self.block_bytes, self.block_bytes);
        let memory = memory.as_ptr();
        let entry = match direction {
            Direction::Read => opcode::Read::new(fd, memory, length).offset(at).build(),
            Direction::Write => opcode::Write::new(fd, memory, length).offset(at).build(),
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: the memory of the slot lives as long as this value and is touched by nobody else
        // until the completion has come, for which `run` waits before it returns.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "the queue holds all that is in flight");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    impl RawDisk {
        fn slot(&mut self, slot: usize) -> &mut [u8] {
            let memory = self.memory.address(slot * BLOCK_BYTES, BLOCK_BYTES);
            // SAFETY: the memory is this value's, zero at first, and nothing is in flight.
            unsafe { slice::from_raw_parts_mut(memory.as_ptr(), BLOCK_BYTES) }
        }
    }

    #[test]
    fn every_block_goes_round_at_any_depth() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        for depth in [1, 3, 64] {
            let path = folder.path().join("raw");
            let mut disk = RawDisk::create(&path, 10, BLOCK_BYTES, depth, 70).expect("direct I/O");
            (0..70).for_each(|slot| disk.slot(slot).fill(9));
            disk.run(Direction::Write, 0..10, |_| {}).expect("written");
            let written = std::fs::read(&path).expect("there");
            assert!(written.len() == 10 * BLOCK_BYTES && written.iter().all(|byte| *byte == 9));
            (0..70).for_each(|slot| disk.slot(slot).fill(0));
            let mut shown = 0;
            disk.run(Direction::Read, (0..10).cycle().take(100), |block| {
                shown += 1;
                assert_eq!(block, [9; BLOCK_BYTES]);
            })
            .expect("read");
            assert_eq!(shown, 100);
            assert!((0..70).all(|slot| disk.slot(slot) == [9; BLOCK_BYTES]));
            let beyond = disk
                .run(Direction::Read, 8..20, |_| {})
                .expect_err("beyond the end");
            assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn blocks_that_came_are_shown_while_those_behind_them_are_under_way() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        for (depth, memory) in [(3, 6), (3, 4), (3, 3)] {
            let path = folder.path().join("raw");
            let mut disk = RawDisk::create(&path, 10, BLOCK_BYTES, depth, memory).expect("a file");
            let (asked, mut shown) = (Cell::new(0), 0);
            let blocks = (0..100).map(|number: u64| {
                asked.set(number + 1);
                number % 10
            });
            let moved = |_: &[u8]| {
                let under_way = asked.get() > shown + u64::from(depth);
                let can_be = shown == 0 && memory > 3;
                assert!(under_way || !can_be, "the disk waits for what is done here");
                shown += 1;
            };
            disk.run(Direction::Read, blocks, moved).expect("read");
            assert_eq!((shown, asked.get()), (100, 100), "memory of {memory}");
        }
    }
}

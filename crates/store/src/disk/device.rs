//! A disk as the tier sees it: a fixed number of bytes, read and written at positions.
//!
//! Implemented by `uring.rs` and `portable.rs`, and by the disks of tests, which inject every fault
//! here and nowhere else. Invariant: positions, lengths and memory are multiples of
//! [`BLOCK_BYTES`]; when [`Disk::run`] returns, nothing of the disk refers to the memory any more.

use std::io;
use std::slice;

/// What positions, lengths and memory addresses are multiples of, bytes.
pub const BLOCK_BYTES: usize = 4_096;

/// A number of bytes that keeps what was written and synced.
pub trait Disk: Send + Sync + 'static {
    /// Bytes that can be addressed. It does not change.
    fn length_bytes(&self) -> u64;

    /// Makes sure that a range can be written later.
    ///
    /// # Errors
    /// `StorageFull` when the system has no room now; anything else is a fault of the disk.
    fn allocate(&self, at: u64, length_bytes: u64) -> io::Result<()>;

    /// Carries out all transfers, in any order, and sets the outcome of each. A transfer that
    /// failed has moved an unknown part of its bytes.
    fn run(&self, transfers: &mut [Transfer<'_>]);

    /// Returns when everything that was written before is safe from a loss of power.
    ///
    /// # Errors
    /// The disk is at fault; what was written since the last sync may be lost.
    fn sync(&self) -> io::Result<()>;
}

/// Where the bytes of a transfer come from or go to.
#[derive(Debug)]
pub enum Bytes<'a> {
    /// Read from the disk into this memory.
    Read(&'a mut [u8]),
    /// Write this memory to the disk.
    Write(&'a [u8]),
}

/// One read or write, with how it ended.
#[derive(Debug)]
pub struct Transfer<'a> {
    /// Position on the disk, bytes.
    pub at: u64,
    /// The memory.
    pub bytes: Bytes<'a>,
    /// How it ended; `Ok` before it began.
    pub outcome: io::Result<()>,
}

impl<'a> Transfer<'a> {
    /// A read that is still to be done.
    #[must_use]
    pub fn read(at: u64, into: &'a mut [u8]) -> Self {
        Self {
            at,
            bytes: Bytes::Read(into),
            outcome: Ok(()),
        }
    }

    /// A write that is still to be done.
    #[must_use]
    pub fn write(at: u64, from: &'a [u8]) -> Self {
        Self {
            at,
            bytes: Bytes::Write(from),
            outcome: Ok(()),
        }
    }

    /// Bytes to move.
    #[must_use]
    pub fn length(&self) -> usize {
        match &self.bytes {
            Bytes::Read(into) => into.len(),
            Bytes::Write(from) => from.len(),
        }
    }
}

/// Reads one range.
pub(crate) fn read(disk: &dyn Disk, at: u64, into: &mut [u8]) -> io::Result<()> {
    let mut transfers = [Transfer::read(at, into)];
    disk.run(&mut transfers);
    let [transfer] = transfers;
    transfer.outcome
}

/// Writes one range.
pub(crate) fn write(disk: &dyn Disk, at: u64, from: &[u8]) -> io::Result<()> {
    let mut transfers = [Transfer::write(at, from)];
    disk.run(&mut transfers);
    let [transfer] = transfers;
    transfer.outcome
}

#[derive(Clone)]
#[repr(align(4096))]
struct Block(#[expect(dead_code, reason = "read and written as plain bytes")] [u8; BLOCK_BYTES]);

const _: () = assert!(size_of::<Block>() == BLOCK_BYTES && align_of::<Block>() == BLOCK_BYTES);

/// Memory of whole blocks, zero at first.
pub(crate) struct Buffer(Vec<Block>);

impl Buffer {
    /// At least `length_bytes`, rounded up to whole blocks.
    pub(crate) fn new(length_bytes: usize) -> Self {
        Self(vec![
            Block([0; BLOCK_BYTES]);
            length_bytes.div_ceil(BLOCK_BYTES)
        ])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a block is exactly its bytes, all initialised, and blocks lie in a row.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * BLOCK_BYTES) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.0.len() * BLOCK_BYTES;
        // SAFETY: as in `bytes`; every value of the bytes is a valid block, and `self` is borrowed.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), length) }
    }
}

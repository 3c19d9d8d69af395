//! The portable engine: positional reads and writes through the page cache, one after the other.
//!
//! Used where the file system has no direct I/O or the system no io_uring, and as the second
//! opinion of the conformance suite.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::device::{Bytes, Disk, Transfer};

/// A file as a disk.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    length_bytes: u64,
}

impl FileDisk {
    /// Uses `file` as it is long now.
    ///
    /// # Errors
    /// Its length cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let length_bytes = file.metadata()?.len();
        Ok(Self { file, length_bytes })
    }
}

impl Disk for FileDisk {
    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn allocate(&self, at: u64, length_bytes: u64) -> io::Result<()> {
        allocate(&self.file, at, length_bytes)
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) {
        for transfer in transfers {
            transfer.outcome = match &mut transfer.bytes {
                Bytes::Read(into) => self.file.read_exact_at(into, transfer.at),
                Bytes::Write(from) => self.file.write_all_at(from, transfer.at),
            };
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Reserves a range of a file; a file system that cannot will say so when it is written.
pub(crate) fn allocate(file: &File, at: u64, length_bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, at, length_bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

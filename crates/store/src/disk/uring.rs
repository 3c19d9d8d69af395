//! The engine of Linux: direct I/O through io_uring, many transfers in flight.
//!
//! Called by the threads of the tier, each with a list of transfers; each call has a ring of its
//! own for as long as it runs. Invariant: the kernel has no transfer of a call left when that call
//! returns, because it may write into the caller's memory until then. If the kernel stops taking
//! part in that, the process ends rather than give the memory away.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process;

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;

use super::device::{BLOCK_BYTES, Bytes, Disk, Transfer};
use super::portable::allocate;

/// Transfers in flight on one ring.
const DEPTH: u32 = 64;
/// Most bytes of one submission; a longer transfer takes several.
const STEP_BYTES: usize = 1 << 30;

/// A file that was opened for direct I/O, as a disk.
pub struct UringDisk {
    file: File,
    length_bytes: u64,
    rings: Mutex<Vec<IoUring>>,
    /// Another open file that carries a lock as long as the disk lives.
    _lock: Option<File>,
}

impl UringDisk {
    /// Uses `file`, opened with `O_DIRECT`, as it is long now.
    ///
    /// # Errors
    /// The system gives no ring, or the length cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let length_bytes = file.metadata()?.len();
        let rings = Mutex::new(vec![IoUring::new(DEPTH)?]);
        Ok(Self {
            file,
            length_bytes,
            rings,
            _lock: None,
        })
    }

    /// Keeps `file` open, and with it the lock that it carries.
    pub(crate) fn with_lock(self, file: File) -> Self {
        Self {
            _lock: Some(file),
            ..self
        }
    }
}

impl Disk for UringDisk {
    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn allocate(&self, at: u64, length_bytes: u64) -> io::Result<()> {
        allocate(&self.file, at, length_bytes)
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) {
        let idle = self.rings.lock().pop();
        match idle.map_or_else(|| IoUring::new(DEPTH), Ok) {
            Ok(mut ring) => {
                Call::new(&self.file, transfers).drive(&mut ring);
                self.rings.lock().push(ring);
            }
            Err(error) => {
                for transfer in transfers {
                    transfer.outcome = Err(io::Error::new(error.kind(), error.to_string()));
                }
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// One call of `run`.
struct Call<'a, 'b> {
    file: &'a File,
    transfers: &'a mut [Transfer<'b>],
    /// Bytes of each that are done.
    done: Vec<usize>,
    /// Those that the kernel is to be given, last first.
    ready: Vec<usize>,
    in_flight: usize,
}

impl<'a, 'b> Call<'a, 'b> {
    fn new(file: &'a File, transfers: &'a mut [Transfer<'b>]) -> Self {
        let ready = (0..transfers.len())
            .rev()
            .filter(|at| transfers[*at].length() > 0);
        Self {
            file,
            done: vec![0; transfers.len()],
            ready: ready.collect(),
            transfers,
            in_flight: 0,
        }
    }

    fn drive(mut self, ring: &mut IoUring) {
        while self.in_flight > 0 || !self.ready.is_empty() {
            while self.in_flight < DEPTH as usize {
                let Some(at) = self.ready.pop() else { break };
                let entry = self.entry(at);
                // SAFETY: the memory of the transfer is borrowed until this call returns, which
                // it does only after the completion of every entry; reads are borrowed mutably.
                let pushed = unsafe { ring.submission().push(&entry) };
                debug_assert!(pushed.is_ok(), "the queue holds all that is in flight");
                self.in_flight += 1;
            }
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    eprintln!("io_uring: {error} with transfers in flight; ending the process");
                    process::abort();
                }
            }
            for completion in ring.completion() {
                self.in_flight -= 1;
                let at = usize::try_from(completion.user_data()).expect("an index of ours");
                self.complete(at, completion.result());
            }
        }
    }

    fn entry(&mut self, at: usize) -> squeue::Entry {
        let (done, transfer) = (self.done[at], &mut self.transfers[at]);
        let fd = types::Fd(self.file.as_raw_fd());
        let position = transfer.at + done as u64;
        let length = |whole: usize| {
            u32::try_from((whole - done).min(STEP_BYTES)).expect("a step is below 4 GiB")
        };
        let entry = match &mut transfer.bytes {
            Bytes::Read(into) => {
                let to = into[done..].as_mut_ptr();
                opcode::Read::new(fd, to, length(into.len()))
                    .offset(position)
                    .build()
            }
            Bytes::Write(from) => opcode::Write::new(fd, from[done..].as_ptr(), length(from.len()))
                .offset(position)
                .build(),
        };
        entry.user_data(at as u64)
    }

    fn complete(&mut self, at: usize, result: i32) {
        let transfer = &mut self.transfers[at];
        let Ok(moved) = usize::try_from(result) else {
            let error = io::Error::from_raw_os_error(-result);
            match is_transient(&error) {
                true => self.ready.push(at),
                false => transfer.outcome = Err(error),
            }
            return;
        };
        let reached = self.done[at] + moved;
        if reached == transfer.length() {
            return;
        }
        // Short: go on from the last whole block, since direct I/O takes nothing else.
        let blocks = reached / BLOCK_BYTES * BLOCK_BYTES;
        if blocks == self.done[at] {
            let kind = match transfer.bytes {
                Bytes::Read(_) => io::ErrorKind::UnexpectedEof,
                Bytes::Write(_) => io::ErrorKind::WriteZero,
            };
            transfer.outcome = Err(kind.into());
            return;
        }
        self.done[at] = blocks;
        self.ready.push(at);
    }
}

fn is_transient(error: &io::Error) -> bool {
    const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    ) || error.raw_os_error() == Some(EBUSY)
}

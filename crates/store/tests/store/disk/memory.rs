//! A disk in memory that remembers every write, so that any moment of its life can be made again,
//! and that fails on demand.
//!
//! Called by the tests beside it, through the trait that real disks implement. Writes of one call
//! are one group: a crash keeps any of them, and one of them torn between two sectors.

use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tessera_store::{BLOCK_BYTES, Bytes, Disk, Transfer};

use crate::sample::Numbers;

const SECTOR_BYTES: usize = 512;

/// Before the first segment.
pub(crate) const HEAD_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Event {
    Writes(Vec<(u64, Vec<u8>)>),
    Sync,
}

/// What goes wrong from now on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Writes fail with EIO.
    pub(crate) write_errors: bool,
    /// Reads fail with EIO.
    pub(crate) read_errors: bool,
    /// Allocation beyond this many bytes fails with ENOSPC.
    pub(crate) room_bytes: Option<u64>,
    /// Writes fail with ENOSPC, as those of a file system that copies on write and is full.
    pub(crate) full: bool,
    /// Syncs fail with EIO.
    pub(crate) sync_errors: bool,
    /// Writes of nothing but zeros, as those that erase a segment, fail with EIO.
    pub(crate) erase_errors: bool,
    /// Reads that touch the block here fail with EIO.
    pub(crate) bad_block: Option<u64>,
    /// Reads and writes move the first half of their blocks and end there.
    pub(crate) short: bool,
    /// Everything fails with ENODEV.
    pub(crate) gone: bool,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    base: Vec<u8>,
    events: Vec<Event>,
    faults: Faults,
    reads: usize,
    held_reads: bool,
    held_writes: bool,
    waiting: usize,
}

pub(crate) struct MemoryDisk {
    length_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// How the end of the process, or of power, comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `kill -9`: what was written before the group is there.
    Process,
    /// Loss of power: of what was written since the last sync, any part is there.
    Power,
}

impl MemoryDisk {
    pub(crate) fn new(segments: u64, segment_bytes: u64) -> Arc<Self> {
        Self::of(vec![0; (HEAD_BYTES + segments * segment_bytes) as usize])
    }

    pub(crate) fn of(bytes: Vec<u8>) -> Arc<Self> {
        let state = State {
            base: bytes.clone(),
            bytes,
            ..State::default()
        };
        Arc::new(Self {
            length_bytes: state.bytes.len() as u64,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn fail(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// What is on the disk now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.state.lock().bytes);
    }

    /// Reads that were carried out.
    pub(crate) fn reads(&self) -> usize {
        self.state.lock().reads
    }

    /// Makes reads wait as long as the answer lives: also that of a test that fails ends.
    pub(crate) fn hold_reads(&self) -> Held<'_> {
        self.state.lock().held_reads = true;
        Held(self)
    }

    /// Makes writes wait, as long as the answer lives.
    pub(crate) fn hold_writes(&self) -> Held<'_> {
        self.state.lock().held_writes = true;
        Held(self)
    }

    /// Returns when a read waits.
    pub(crate) fn until_read_waits(&self) {
        let mut state = self.state.lock();
        while state.waiting == 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Bytes that were written so far.
    pub(crate) fn written(&self) -> u64 {
        let state = self.state.lock();
        let lengths = state.events.iter().map(|event| match event {
            Event::Writes(writes) => writes.iter().map(|(_, bytes)| bytes.len() as u64).sum(),
            Event::Sync => 0,
        });
        lengths.sum()
    }

    /// Groups of writes and syncs so far.
    pub(crate) fn events(&self) -> usize {
        self.state.lock().events.len()
    }

    /// The disk as a crash during event `at` leaves it, chance decided by `numbers`.
    pub(crate) fn image(&self, at: usize, end: End, numbers: &mut Numbers) -> Arc<Self> {
        let state = self.state.lock();
        let mut bytes = state.base.clone();
        let synced = match end {
            End::Process => at,
            End::Power => {
                let mut before = state.events[..at].iter();
                before
                    .rposition(|event| matches!(event, Event::Sync))
                    .unwrap_or(0)
            }
        };
        for (number, event) in state.events.iter().enumerate().take(at + 1) {
            let Event::Writes(writes) = event else {
                continue;
            };
            for (to, written) in writes {
                let whole = number < synced;
                let keep = match (whole, numbers.below(3)) {
                    (true, _) | (false, 0) => written.len(),
                    (false, 1) => 0,
                    (false, _) => {
                        let sectors = (written.len() / SECTOR_BYTES) as u64;
                        numbers.below(sectors + 1) as usize * SECTOR_BYTES
                    }
                };
                let to = *to as usize;
                bytes[to..to + keep].copy_from_slice(&written[..keep]);
            }
        }
        drop(state);
        Self::of(bytes)
    }

    fn check(&self, transfer: &Transfer<'_>) {
        let (at, length) = (transfer.at, transfer.length());
        let address = match &transfer.bytes {
            Bytes::Read(into) => into.as_ptr().addr(),
            Bytes::Write(from) => from.as_ptr().addr(),
        };
        for number in [at as usize, length, address] {
            assert!(number.is_multiple_of(BLOCK_BYTES), "not in whole blocks");
        }
        assert!(at + length as u64 <= self.length_bytes, "beyond the end");
    }
}

/// Reads or writes of a disk that wait.
pub(crate) struct Held<'a>(&'a MemoryDisk);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.held_reads, state.held_writes) = (false, false);
        self.0.changed.notify_all();
    }
}

fn no_device() -> io::Error {
    io::Error::from_raw_os_error(19)
}

fn error() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Disk for MemoryDisk {
    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn allocate(&self, at: u64, length_bytes: u64) -> io::Result<()> {
        let faults = self.state.lock().faults;
        match faults.room_bytes {
            _ if faults.gone => Err(no_device()),
            Some(room) if at + length_bytes > room => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) {
        let mut state = self.state.lock();
        let is_read = |transfer: &Transfer<'_>| matches!(transfer.bytes, Bytes::Read(_));
        if transfers.iter().any(is_read) {
            state.waiting += 1;
            self.changed.notify_all();
            while state.held_reads {
                self.changed.wait(&mut state);
            }
            state.waiting -= 1;
        } else {
            while state.held_writes {
                self.changed.wait(&mut state);
            }
        }
        let mut group = Vec::new();
        for transfer in transfers {
            self.check(transfer);
            let from = transfer.at as usize;
            let span = transfer.at..transfer.at + transfer.length() as u64;
            let is_bad = state.faults.bad_block.is_some_and(|at| span.contains(&at));
            let moved = transfer.length() / BLOCK_BYTES / 2 * BLOCK_BYTES;
            transfer.outcome = match &mut transfer.bytes {
                _ if state.faults.gone => Err(no_device()),
                Bytes::Read(into) if state.faults.short => {
                    into[..moved].copy_from_slice(&state.bytes[from..from + moved]);
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
                Bytes::Write(bytes) if state.faults.short => {
                    state.bytes[from..from + moved].copy_from_slice(&bytes[..moved]);
                    group.push((transfer.at, bytes[..moved].to_vec()));
                    Err(io::ErrorKind::WriteZero.into())
                }
                Bytes::Read(_) if state.faults.read_errors || is_bad => Err(error()),
                Bytes::Write(_) if state.faults.write_errors => Err(error()),
                Bytes::Write(_) if state.faults.full => Err(io::ErrorKind::StorageFull.into()),
                Bytes::Write(bytes)
                    if state.faults.erase_errors && bytes.iter().all(|byte| *byte == 0) =>
                {
                    Err(error())
                }
                Bytes::Read(into) => {
                    into.copy_from_slice(&state.bytes[from..from + into.len()]);
                    state.reads += 1;
                    Ok(())
                }
                Bytes::Write(bytes) => {
                    state.bytes[from..from + bytes.len()].copy_from_slice(bytes);
                    group.push((transfer.at, bytes.to_vec()));
                    Ok(())
                }
            };
        }
        if !group.is_empty() {
            state.events.push(Event::Writes(group));
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.faults.gone {
            return Err(no_device());
        }
        if state.faults.sync_errors {
            return Err(error());
        }
        state.events.push(Event::Sync);
        Ok(())
    }
}

//! The operations of the disk tier, and how it starts and ends.
//!
//! Called by [`Store`](crate::Store). Each operation takes the directory's lock once and leaves the
//! rest to the threads of the disk; who waits is called back by them, without any lock held.
//!
//! Invariants: an object is published in RAM and queued for its disk in one step, so that a removal
//! finds it in both or in neither; a removal is answered when every disk has it; identical reads
//! share one.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use tessera_proto::message::{AcquireItem, Presence};
use tessera_proto::{Instant, LeaseId, ObjectHeader, ObjectId, WriteId};
use thiserror::Error;

use super::device::Disk;
use super::directory::{Directory, Flight, Job, OnLast, Pending, ReadJob, Use};
use super::layout::Layout;
use super::log::Log;
use super::records::{Location, Place, RecordId, write_tag};
use super::recovery::{Found, recover};
use super::stat::{DiskCounters, DiskStat};
use super::superblock::{FormatError, Superblock};
use super::{reader, writer};
use crate::guard::{ReadPin, WriteExtent};
use crate::leases::OwnerId;
use crate::ram::{Published, RamStore};

/// Most disks of one tier: their numbers take eight bits of a record.
const DISKS_MAX: usize = 255;
/// Of all disk bytes, what leases may hold: eviction then always finds something that may leave.
const LEASED_SHARE: u64 = 4;

/// Called once, when the object is safe or will not be.
pub(crate) type Done = Box<dyn FnOnce(Published) + Send>;
/// Called once with what was found.
pub(crate) type Waiter = Box<dyn FnOnce(Fetched) + Send>;

/// When a store is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// When the object is written: it survives the end of the process.
    Through,
    /// When it is written and synced: it survives a loss of power.
    Synced,
    /// When it is in RAM, as long as at most `dirty_bytes_max` wait to be written; beyond that as
    /// for `Through`.
    Back {
        /// Payload bytes that may wait.
        dirty_bytes_max: u64,
    },
}

/// What a tier is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct DiskConfig {
    /// Segments of a disk that is new, bytes; a disk that is not must have the same.
    pub segment_bytes: u64,
    /// When a store is acknowledged.
    pub write: WritePolicy,
    /// Most objects in the index, each at most 64 bytes of memory.
    pub objects_max: u32,
    /// Threads that read, for each disk.
    pub readers: usize,
}

/// How a read ended.
#[derive(Debug)]
pub enum Fetched {
    /// Here it is, verified.
    Found(ReadPin),
    /// It is not here.
    Missing,
    /// It is on disk, and RAM has no room for it now: try again later.
    Busy,
}

/// Why a tier did not start. Nothing was written.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Disk number `disk`, counted from 0, cannot be used.
    #[error("disk {disk}: {source}")]
    Disk {
        /// Which.
        disk: usize,
        /// Why.
        source: FormatError,
    },
    /// Give 1 to 255 disks.
    #[error("{got} disks: give 1 to {DISKS_MAX}")]
    Count {
        /// How many there were.
        got: usize,
    },
    /// The system gives no thread.
    #[error("no thread for a disk: {0}")]
    Thread(io::Error),
}

/// What the threads and the operations share.
pub(crate) struct Shared {
    pub(crate) ram: RamStore,
    pub(crate) write: WritePolicy,
    pub(crate) directory: Mutex<Directory>,
    pub(crate) counters: DiskCounters,
    pub(crate) disks: Vec<Arc<dyn Disk>>,
    /// A job for the writer of a disk.
    pub(crate) work: Vec<Condvar>,
    /// A job for the readers of a disk.
    pub(crate) asked: Vec<Condvar>,
    /// The last read of a segment ended.
    pub(crate) left: Condvar,
}

/// Objects on disks. Dropped, it writes what is queued and ends its threads.
pub struct DiskTier {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// One disk as it was found.
struct Opened {
    superblock: Superblock,
    segments: Vec<Found>,
}

impl DiskTier {
    /// Opens the disks, finds what they hold, and starts their threads. An empty disk is made ours.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        ram: RamStore,
        config: &DiskConfig,
        disks: Vec<Arc<dyn Disk>>,
    ) -> Result<Self, OpenError> {
        if disks.is_empty() || disks.len() > DISKS_MAX {
            return Err(OpenError::Count { got: disks.len() });
        }
        let mut opened = Vec::new();
        for (number, disk) in disks.iter().enumerate() {
            let disk = open_disk(&**disk, config.segment_bytes);
            opened.push(disk.map_err(|source| OpenError::Disk {
                disk: number,
                source,
            })?);
        }
        let layouts = opened.iter().map(|disk| disk.superblock.layout);
        let shared = Shared {
            ram,
            write: config.write,
            directory: Mutex::new(Directory::new(config.objects_max, layouts)),
            counters: DiskCounters::default(),
            work: disks.iter().map(|_| Condvar::new()).collect(),
            asked: disks.iter().map(|_| Condvar::new()).collect(),
            left: Condvar::new(),
            disks,
        };
        let tier = Self {
            shared: Arc::new(shared),
            threads: Mutex::default(),
        };
        for (number, disk) in (0_u8..).zip(opened) {
            tier.start_disk(number, disk, config.readers)?;
        }
        Ok(tier)
    }

    /// Publishes an object in RAM and sends it to its disk. `done` is called when the policy says
    /// that the object is stored, or at once if it is not.
    pub(crate) fn publish(
        &self,
        extent: WriteExtent,
        id: ObjectId,
        header: ObjectHeader,
        done: Done,
    ) {
        let shared = &self.shared;
        let mut directory = shared.directory.lock();
        if directory.records.find(&id).is_some() {
            drop(directory);
            return done(Published::Existed);
        }
        let pin = match shared.ram.publish_pinned(extent, id, header) {
            Ok(pin) => pin,
            Err(published) => {
                drop(directory);
                return done(published);
            }
        };
        let disk = match directory.closing {
            true => None,
            false => directory.disk_for(&header),
        };
        let Some(disk) = disk else {
            drop(directory);
            shared.counters.skipped.add(1);
            return done(Published::Stored);
        };
        let ticket = directory.ticket();
        let write = header.write;
        directory.pending.insert(id, Pending { ticket, write });
        directory.dirty_bytes += header.length_bytes;
        let wait = match shared.write {
            WritePolicy::Back { dirty_bytes_max } => directory.dirty_bytes > dirty_bytes_max,
            WritePolicy::Through | WritePolicy::Synced => true,
        };
        let (job_done, now) = if wait {
            (Some(done), None)
        } else {
            (None, Some(done))
        };
        directory.disks[disk].jobs.push_back(Job::Write {
            ticket,
            pin,
            done: job_done,
        });
        drop(directory);
        shared.work[disk].notify_one();
        if let Some(done) = now {
            done(Published::Stored);
        }
    }

    /// Reads an object into RAM. Who asks for one that is being read waits for that read.
    pub(crate) fn fetch(&self, id: ObjectId, now: Instant, waiter: Waiter) {
        let shared = &self.shared;
        let mut directory = shared.directory.lock();
        if let Some(flight) = directory.flights.get_mut(&id) {
            flight.waiters.push(waiter);
            shared.counters.hits.add(1);
            shared.counters.shared_reads.add(1);
            return;
        }
        let record = match directory.closing {
            true => None,
            false => directory.records.find(&id),
        };
        let Some(record) = record else {
            drop(directory);
            shared.ram.count_miss();
            return waiter(Fetched::Missing);
        };
        shared.counters.hits.add(1);
        directory.records.touch(record);
        let location = directory.records.location(record);
        directory.segment(location.place).readers += 1;
        let ticket = directory.ticket();
        let waiters = vec![waiter];
        let flight = Flight {
            ticket,
            write: location.write,
            waiters,
        };
        directory.flights.insert(id, flight);
        let disk = location.place.disk();
        directory.disks[disk].reads.push_back(ReadJob {
            id,
            ticket,
            location,
            now,
        });
        drop(directory);
        shared.asked[disk].notify_one();
    }

    /// Whether the object is here, or on its way.
    pub(crate) fn contains(&self, id: &ObjectId) -> bool {
        let directory = self.shared.directory.lock();
        directory.records.find(id).is_some() || directory.pending.contains_key(id)
    }

    /// Removes an object from RAM and disks for good, only this write of it if one is named.
    /// `done` is told whether it was there, once no start of this store will find it again.
    pub(crate) fn remove(
        &self,
        id: ObjectId,
        write: Option<WriteId>,
        done: Box<dyn FnOnce(bool) + Send + Sync>,
    ) {
        let shared = &self.shared;
        let mut directory = shared.directory.lock();
        let in_ram = shared.ram.remove(&id, write);
        let record = directory.records.find(&id);
        let record = record.filter(|record| directory.is_write(*record, write));
        let pending = directory.pending.get(&id).copied();
        let pending = pending.filter(|object| write.is_none_or(|write| object.write == write));
        // A read may outlive the record: its segment may have left meanwhile.
        let named = |flight: &Flight| write.is_none_or(|write| flight.write == write_tag(write));
        let flight = match directory.flights.get(&id).is_some_and(named) {
            true => directory.flights.remove(&id),
            false => None,
        };
        let waiters = flight.map_or_else(Vec::new, |flight| flight.waiters);
        if let Some(record) = record {
            directory.kill(record);
        }
        if pending.is_some() {
            directory.pending.remove(&id);
        }
        let on_disk = record.is_some() || pending.is_some();
        let gone = in_ram || on_disk;
        let last = Arc::new(OnLast(Some(Box::new(move || done(gone)))));
        if on_disk {
            shared.counters.removed.add(1);
            for (disk, work) in directory.disks.iter_mut().zip(&shared.work) {
                if !disk.fenced {
                    let done = Arc::clone(&last);
                    disk.jobs.push_back(Job::Removal { id, done });
                    work.notify_one();
                }
            }
        }
        drop(directory);
        drop(last);
        for waiter in waiters {
            waiter(Fetched::Missing);
        }
    }

    /// Leases on what is here of `ids`, for `owner` until `deadline` and up to `bytes_max`, in the
    /// lease `beside` if one is given. Returns the lease, if anything is held, and what was found.
    pub(crate) fn acquire(
        &self,
        (owner, beside, deadline): (OwnerId, Option<LeaseId>, Instant),
        ids: &[ObjectId],
        mut bytes_max: u64,
    ) -> (Option<LeaseId>, Vec<AcquireItem>) {
        let mut directory = self.shared.directory.lock();
        let full = directory.leases.of_owner(owner) >= self.shared.ram.owner_leases_max();
        let all_max = directory.capacity_bytes() / LEASED_SHARE;
        let mut held: HashMap<ObjectId, RecordId> = HashMap::new();
        let mut items = Vec::with_capacity(ids.len());
        for id in ids {
            let record = directory.records.find(id);
            let length_bytes = record.map_or(0, |record| {
                u64::from(directory.records.location(record).length_bytes)
            });
            let presence = match record {
                None => Presence::Missing,
                Some(_) if held.contains_key(id) => Presence::Held,
                Some(_) if full || length_bytes > bytes_max => Presence::Refused,
                Some(record) if directory.hold(record, all_max) => {
                    bytes_max -= length_bytes;
                    held.insert(*id, record);
                    Presence::Held
                }
                Some(_) => Presence::Refused,
            };
            let length_bytes = if presence == Presence::Held {
                length_bytes
            } else {
                0
            };
            items.push(AcquireItem {
                presence,
                length_bytes,
            });
        }
        if held.is_empty() {
            return (beside, items);
        }
        let held = held.into_iter().collect();
        let lease = directory.leases.enter(beside, owner, deadline, held);
        (Some(lease), items)
    }

    /// Whether a lease holds anything here until `now` at least.
    pub(crate) fn is_live(&self, lease: LeaseId, now: Instant) -> bool {
        self.shared.directory.lock().leases.is_live(lease, now)
    }

    /// Gives back what a lease holds here: of these ids, or of all.
    pub(crate) fn release(&self, lease: LeaseId, ids: Option<&[ObjectId]>) -> u64 {
        let mut directory = self.shared.directory.lock();
        let Some(ids) = ids else {
            let ended = directory.leases.end(lease);
            return directory.drop_leases(ended);
        };
        let taken = directory.leases.take(lease, ids);
        taken.iter().for_each(|record| directory.unhold(*record));
        taken.len() as u64
    }

    /// Ends the leases of an owner. Returns how many objects they held here.
    pub(crate) fn release_owner(&self, owner: OwnerId) -> u64 {
        let mut directory = self.shared.directory.lock();
        let ended = directory.leases.end_owner(owner);
        directory.drop_leases(ended)
    }

    /// Ends the leases that are over. Returns how many held nothing in RAM.
    pub(crate) fn expire(&self, now: Instant) -> u64 {
        let mut directory = self.shared.directory.lock();
        let due = directory.leases.end_due(now);
        let alone = due.iter().filter(|lease| lease.alone).count();
        directory.drop_leases(due);
        alone as u64
    }

    /// Numbers of this tier.
    pub(crate) fn stat(&self) -> DiskStat {
        let counters = &self.shared.counters;
        let directory = self.shared.directory.lock();
        DiskStat {
            objects: directory.records.found() as u64,
            bytes: directory.bytes,
            capacity_bytes: directory.capacity_bytes(),
            index_bytes: directory.records.memory_bytes() as u64,
            dirty_bytes: directory.dirty_bytes,
            leased_bytes: directory.leased_bytes,
            recovered: counters.recovered.get(),
            hits: counters.hits.get(),
            shared_reads: counters.shared_reads.get(),
            read_bytes: counters.read_bytes.get(),
            busy: counters.busy.get(),
            stored: counters.stored.get(),
            written_bytes: counters.written_bytes.get(),
            skipped: counters.skipped.get(),
            evictions: counters.evictions.get(),
            reinserted: counters.reinserted.get(),
            reinserted_bytes: counters.reinserted_bytes.get(),
            removed: counters.removed.get(),
            damaged: counters.damaged.get(),
            read_errors: counters.read_errors.get(),
            fenced: counters.fenced.get(),
        }
    }

    /// Writes what is queued, syncs the disks, ends the threads. What is published from now on
    /// stays in RAM; what is asked for is not found.
    pub(crate) fn close(&self) {
        self.shared.directory.lock().closing = true;
        for condition in self.shared.work.iter().chain(&self.shared.asked) {
            condition.notify_all();
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A thread that panicked told so; the others still have to end.
            let _ = thread.join();
        }
    }

    fn start_disk(&self, number: u8, opened: Opened, readers: usize) -> Result<(), OpenError> {
        let disk = Arc::clone(&self.shared.disks[usize::from(number)]);
        let last = opened.segments.last();
        let next = next_sequence(last.map_or(0, |found| found.used.sequence));
        let next = next.map_err(|source| OpenError::Disk {
            disk: usize::from(number),
            source: FormatError::Io(source),
        })?;
        let log = Log::new(disk, opened.superblock, next);
        self.enter_found(number, &opened.segments);
        let newest = opened.segments.into_iter().next_back();
        let newest = newest.filter(|found| found.tail.is_some());
        let mut threads = self.threads.lock();
        let mut spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let builder = thread::Builder::new().name(format!("{name}-{number}"));
            let thread = builder.spawn(body).map_err(OpenError::Thread)?;
            threads.push(thread);
            Ok(())
        };
        let shared = Arc::clone(&self.shared);
        spawn(
            "disk-writer",
            Box::new(move || writer::run(&shared, usize::from(number), log, newest)),
        )?;
        for _ in 0..readers.max(1) {
            let shared = Arc::clone(&self.shared);
            spawn(
                "disk-reader",
                Box::new(move || reader::run(&shared, usize::from(number))),
            )?;
        }
        Ok(())
    }

    fn enter_found(&self, number: u8, segments: &[Found]) {
        let mut directory = self.shared.directory.lock();
        for found in segments {
            let place = Place::new(number, found.used.segment);
            let segment = directory.segment(place);
            segment.used = Use::Sealed;
            segment.sequence = found.used.sequence;
            self.shared.counters.damaged.add(found.damaged);
            for entry in &found.entries {
                let known = directory.records.find(&entry.id);
                let known_disk =
                    known.map(|record| directory.records.location(record).place.disk());
                // Each disk has its own log; what another one holds is not its to say.
                let other = known_disk.is_some_and(|disk| disk != usize::from(number));
                if other {
                    continue;
                }
                if entry.length_bytes == 0 {
                    known.into_iter().for_each(|record| directory.kill(record));
                    continue;
                }
                let location = Location {
                    place,
                    offset: entry.offset,
                    length_bytes: entry.length_bytes,
                    write: write_tag(WriteId(entry.write)),
                };
                directory.enter(&entry.id, location);
            }
        }
        self.shared
            .counters
            .recovered
            .set(directory.records.found() as u64);
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.close();
    }
}

/// A sequence above all that were found, and above any that a loss of power may have hidden: what a
/// lost use of a segment left behind must never pass for part of a new one.
fn next_sequence(last: u64) -> io::Result<u64> {
    let mut jump = [0; 4];
    getrandom::fill(&mut jump).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(last.saturating_add(1 + u64::from(u32::from_le_bytes(jump))))
}

fn open_disk(disk: &dyn Disk, segment_bytes: u64) -> Result<Opened, FormatError> {
    let wanted = Layout::of_disk(disk.length_bytes(), segment_bytes);
    let superblock = match Superblock::find(disk)? {
        Some(found) if found.layout == wanted => found,
        Some(found) => {
            found.check_length(disk)?;
            return Err(FormatError::geometry(found.layout, wanted));
        }
        None => Superblock::create(disk, wanted)?,
    };
    let segments = recover(disk, &superblock)?;
    Ok(Opened {
        superblock,
        segments,
    })
}

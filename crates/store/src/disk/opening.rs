//! How the tier starts: each disk is opened or made, what it holds enters the index, its threads
//! start.
//!
//! Called by the node before it serves. Invariant: a disk of another format or geometry is refused
//! and left as it is.

use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};
use tessera_proto::{ObjectId, WriteId};
use thiserror::Error;

use super::contents::{Contents, Event};
use super::device::Disk;
use super::directory::{Directory, Use};
use super::layout::Layout;
use super::log::Log;
use super::namespaces::NamespaceId;
use super::records::{Location, Place, write_tag};
use super::recovery::{Found, Recovered, recover};
use super::stat::DiskCounters;
use super::superblock::{FormatError, Superblock};
use super::tier::{DiskTier, Shared};
use super::{reader, writer};
use crate::config::TenantLimits;
use crate::ram::RamStore;

/// Most disks of one tier: their numbers take eight bits of a record.
const DISKS_MAX: usize = 255;

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
        /// What is written at all. With the other policies that is everything: what was answered
        /// as written has to be.
        admission: Admission,
    },
}

/// Which objects are written to a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// All.
    #[default]
    All,
    /// Those that are asked for after they were stored, and those that come back soon after they
    /// left memory. All others are in memory only, and are a miss once they have left it.
    SecondTouch,
}

/// What a tier is told at its start.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Segments of a disk that is new, bytes; a disk that is not must have the same.
    pub segment_bytes: u64,
    /// When a store is acknowledged.
    pub write: WritePolicy,
    /// Most objects in the index, each at most 64 bytes of memory.
    pub objects_max: u32,
    /// Threads that read, for each disk.
    pub readers: usize,
    /// What tenants may hold on the disks together, with the same names as in memory.
    pub tenants: TenantLimits,
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

/// One disk as it was found.
struct Opened {
    superblock: Superblock,
    found: Recovered,
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
        let ages = (ram.ages(), config.tenants.clone());
        let shared = Shared {
            ram,
            write: config.write,
            directory: Mutex::new(Directory::new(ages, config.objects_max, layouts)),
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

    fn start_disk(&self, number: u8, opened: Opened, readers: usize) -> Result<(), OpenError> {
        let disk = Arc::clone(&self.shared.disks[usize::from(number)]);
        let Recovered { segments, unread } = opened.found;
        let last = segments.last();
        let next = next_sequence(last.map_or(0, |found| found.used.sequence), unread);
        let next = next.map_err(|source| OpenError::Disk {
            disk: usize::from(number),
            source: FormatError::Io(source),
        })?;
        let log = Log::new(disk, opened.superblock, next);
        self.enter_found(number, &segments, unread > 0);
        let newest = segments.into_iter().next_back();
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

    fn enter_found(&self, number: u8, segments: &[Found], unread: bool) {
        let now_s = self.shared.ram.now_s();
        let mut directory = self.shared.directory.lock();
        if unread {
            directory.note_hidden(usize::from(number), u64::MAX);
        }
        for found in segments {
            let place = Place::new(number, found.used.segment);
            let segment = directory.segment(place);
            segment.used = Use::Sealed;
            segment.sequence = found.used.sequence;
            self.shared.counters.torn.add(found.damaged);
            if found.unread || found.damaged > 0 {
                directory.note_hidden(usize::from(number), found.used.sequence);
            }
            for event in found.contents.events() {
                enter_event(&mut directory, place, &found.contents, event, now_s);
            }
        }
        self.shared.counters.recovered.set(directory.sums.objects);
    }
}

/// Repeats in the index what happened in a segment. Each disk has its own log: what another one
/// holds is not its to say.
fn enter_event(
    directory: &mut Directory,
    place: Place,
    contents: &Contents,
    event: &Event,
    now_s: u32,
) {
    let known = |directory: &mut Directory, id: &ObjectId| {
        let record = directory.find(id)?;
        let disk = directory.records.location(record).place.disk();
        Some((record, disk == place.disk()))
    };
    match event {
        Event::Drop(namespace) => {
            let digest = contents.name(*namespace).digest;
            directory.drop_namespace(digest, Some(place.disk()));
        }
        Event::Removal(id) => {
            if let Some((record, true)) = known(directory, id) {
                directory.kill(record);
            }
        }
        Event::Object(object) => {
            if let Some((_, false)) = known(directory, &object.id) {
                let sequence = directory.segment(place).sequence;
                return directory.note_hidden(place.disk(), sequence);
            }
            let location = Location {
                place,
                offset: object.offset,
                length_bytes: object.length_bytes,
                write: write_tag(WriteId(object.write)),
                // A clock that went back must not keep an object for longer.
                stored_s: object.stored_s.min(now_s),
                namespace: NamespaceId::NONE,
            };
            directory.enter(&object.id, contents.name(object.namespace), location);
        }
    }
}

/// A sequence above all that were found, and above any that a loss of power may have hidden: what a
/// lost use of a segment left behind must never pass for part of a new one. Above those of `unread`
/// heads too, each of which may be a whole step of a start further on.
fn next_sequence(last: u64, unread: u32) -> io::Result<u64> {
    let mut jump = [0; 4];
    getrandom::fill(&mut jump).map_err(|error| io::Error::other(error.to_string()))?;
    let jump = 1 + u64::from(u32::from_le_bytes(jump));
    Ok(last.saturating_add(jump + (u64::from(unread) << u32::BITS)))
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
    let found = recover(disk, &superblock);
    Ok(Opened { superblock, found })
}

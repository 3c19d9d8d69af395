//! What one lock guards: the index, the segments, the queues of each disk, reads in flight, leases.
//!
//! Called by the operations and by the threads of the tier, for microseconds each time; no disk is
//! touched under the lock. The order of locks is directory, then those of the RAM store.
//!
//! Invariants: an object that the tier took over is in `pending` and pinned in RAM until it is in
//! the index; what is removed here is in neither, and a removal is queued behind every write of
//! the object that went before it, a drop behind every write of its namespace; a segment is reused
//! only when nobody reads it. A record whose namespace was dropped or whose time is over stays in
//! the tables until somebody looks for it or its segment leaves: only [`Directory::find`] may be
//! asked whether one is there.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tessera_proto::{Instant, NamespaceDigest, ObjectHeader, ObjectId, TenantTag, WriteId};

use super::contents::NamespaceName;
use super::layout::{HEAD_BYTES, Layout, image_bytes};
use super::leases::{DiskLease, DiskLeases};
use super::namespaces::{Namespaces, Sums};
use super::recording::Recording;
use super::records::{Location, Place, RecordId, Records, write_tag};
use super::tenants::DiskTenants;
use super::tier::{Done, Waiter};
use crate::ages::Ages;
use crate::config::TenantLimits;
use crate::ghost::Ghost;
use crate::guard::ReadPin;

/// What is leased is moved for room as long as it takes one part in so many of a disk.
const LEASED_MOVES: u64 = 2;

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Erased; it can be opened once nobody reads it any more.
    Free,
    /// Being written.
    Open,
    /// Full.
    Sealed,
    /// Being emptied.
    Leaving,
    /// Emptied, and being erased: no lease is given any more on what did not move.
    Erasing,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) used: Use,
    pub(crate) sequence: u64,
    /// Its records, dead ones included.
    pub(crate) head: RecordId,
    /// Reads in flight.
    pub(crate) readers: u32,
    /// The system had no room for it when it was last asked.
    pub(crate) refused: bool,
}

/// What a writer is to do.
pub(crate) enum Job {
    /// Write an object.
    Write { ticket: u64, pin: ReadPin },
    /// Write a removal. The last disk that lets go of `done` answers.
    Removal { id: ObjectId, done: Arc<Recording> },
    /// Write the drop of a namespace, answered in the same way.
    Drop {
        namespace: NamespaceDigest,
        done: Arc<Recording>,
    },
}

impl Job {
    /// Who waits for it, if it removes something.
    pub(crate) fn recording(&self) -> Option<&Recording> {
        match self {
            Self::Write { .. } => None,
            Self::Removal { done, .. } | Self::Drop { done, .. } => Some(done),
        }
    }
}

/// What a reader is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadJob {
    pub(crate) id: ObjectId,
    pub(crate) ticket: u64,
    pub(crate) location: Location,
    pub(crate) now: Instant,
}

/// One disk.
pub(crate) struct DiskState {
    pub(crate) layout: Layout,
    pub(crate) segments: Vec<Segment>,
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) reads: VecDeque<ReadJob>,
    /// The first segment that may hold objects of a tenant who came to be beyond its quota.
    pub(crate) trimmed: HashMap<TenantTag, u64>,
    /// What was leased while its segment was being emptied.
    pub(crate) promised: BTreeSet<RecordId>,
    /// Image bytes under lease, each object once.
    pub(crate) leased_bytes: u64,
    /// The newest use of a segment with objects that left the index but not the disk.
    hidden: Option<u64>,
    /// It failed and is not used any more.
    pub(crate) fenced: bool,
    /// Nobody writes it any more.
    pub(crate) ended: bool,
    /// Its writer keeps removals for which there was no room.
    pub(crate) owes: bool,
    /// There may be room for them now.
    pub(crate) retry: bool,
}

impl DiskState {
    /// Whether leases hold so much of the segments that there are, that emptying the oldest moves
    /// more than it makes room for.
    pub(crate) fn is_held(&self) -> bool {
        let used = self.segments.iter().filter(|one| !one.refused).count() as u64;
        self.leased_bytes * LEASED_MOVES > used * self.layout.segment_bytes
    }

    /// Queues a removal or a drop; says that it will not be recorded if nobody is left to do it.
    pub(crate) fn push_removal(&mut self, job: Job) {
        match job.recording() {
            Some(recording) if self.ended => recording.fail(),
            _ => self.jobs.push_back(job),
        }
    }
}

/// An object on its way to a disk. Whoever takes it out of the directory tells those who wait.
pub(crate) struct Pending {
    pub(crate) ticket: u64,
    pub(crate) write: WriteId,
    pub(crate) namespace: NamespaceDigest,
    pub(crate) disk: usize,
    pub(crate) waiters: Vec<Done>,
}

/// A read on its way from a disk, and who waits for it.
pub(crate) struct Flight {
    pub(crate) ticket: u64,
    /// The write that is read, as its record keeps it.
    pub(crate) write: u32,
    pub(crate) namespace: NamespaceDigest,
    pub(crate) waiters: Vec<Waiter>,
}

/// The state behind the lock.
pub(crate) struct Directory {
    pub(crate) records: Records,
    pub(crate) namespaces: Namespaces,
    pub(crate) tenants: DiskTenants,
    ages: Arc<Ages>,
    /// Objects that were found to be over.
    pub(crate) expired: u64,
    pub(crate) disks: Vec<DiskState>,
    pub(crate) pending: HashMap<ObjectId, Pending>,
    pub(crate) flights: HashMap<ObjectId, Flight>,
    pub(crate) leases: DiskLeases,
    /// What was stored and not written; see `admission.rs`.
    pub(crate) seen: Ghost,
    /// What is found.
    pub(crate) sums: Sums,
    pub(crate) dirty_bytes: u64,
    pub(crate) closing: bool,
    tickets: u64,
}

impl Directory {
    pub(crate) fn new(
        (ages, limits): (Arc<Ages>, TenantLimits),
        records_max: u32,
        layouts: impl Iterator<Item = Layout>,
    ) -> Self {
        let free = Segment {
            used: Use::Free,
            sequence: 0,
            head: RecordId::NONE,
            readers: 0,
            refused: false,
        };
        let disk = |layout: Layout| DiskState {
            layout,
            segments: vec![free; layout.segments as usize],
            jobs: VecDeque::new(),
            reads: VecDeque::new(),
            trimmed: HashMap::new(),
            promised: BTreeSet::new(),
            leased_bytes: 0,
            hidden: None,
            fenced: false,
            ended: false,
            owes: false,
            retry: false,
        };
        Self {
            records: Records::new(records_max),
            namespaces: Namespaces::default(),
            tenants: DiskTenants::new(limits),
            ages,
            expired: 0,
            disks: layouts.map(disk).collect(),
            pending: HashMap::new(),
            flights: HashMap::new(),
            leases: DiskLeases::default(),
            seen: Ghost::new(),
            sums: Sums::default(),
            dirty_bytes: 0,
            closing: false,
            tickets: 0,
        }
    }

    /// Bytes of all segments of the disks that work.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        let works = self.disks.iter().filter(|disk| !disk.fenced);
        works
            .map(|disk| disk.layout.disk_bytes() - HEAD_BYTES)
            .sum()
    }

    /// A number that was never given before.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub(crate) fn segment(&mut self, place: Place) -> &mut Segment {
        &mut self.disks[place.disk()].segments[place.segment() as usize]
    }

    /// The record of an object, if it is found.
    pub(crate) fn find(&mut self, id: &ObjectId) -> Option<RecordId> {
        let record = self.records.find(id)?;
        if self.is_gone(record) {
            self.bury(record);
            return None;
        }
        Some(record)
    }

    /// Kills the record of an object that is gone.
    pub(crate) fn bury(&mut self, record: RecordId) {
        if self.is_dropped(record) {
            return self.kill(record); // The drop is in the log.
        }
        self.expired += 1;
        self.hide(record);
    }

    /// Takes an object out of the index for others.
    pub(crate) fn evict(&mut self, record: RecordId) {
        self.tenants.evicted(self.tenant(record));
        self.hide(record);
    }

    /// Takes an object out of the index whose end the log does not tell.
    fn hide(&mut self, record: RecordId) {
        let place = self.records.location(record).place;
        let sequence = self.segment(place).sequence;
        self.note_hidden(place.disk(), sequence);
        self.kill(record);
    }

    /// Notes that a start may find objects in this use of a segment which are not in the index.
    pub(crate) fn note_hidden(&mut self, disk: usize, sequence: u64) {
        let hidden = &mut self.disks[disk].hidden;
        *hidden = (*hidden).max(Some(sequence));
    }

    /// Whether a start may find an object on a disk that is not in the index.
    pub(crate) fn hides(&self, disk: usize) -> bool {
        let disk = &self.disks[disk];
        if disk.fenced {
            return true;
        }
        let used = disk.segments.iter().filter(|one| one.used != Use::Free);
        let oldest = used.map(|segment| segment.sequence).min();
        let is_there = |hidden| oldest.is_none_or(|oldest| oldest <= hidden);
        disk.hidden.is_some_and(is_there)
    }

    /// Who is charged for the object of a record that is in the tables.
    pub(crate) fn tenant(&self, record: RecordId) -> TenantTag {
        let namespace = self.records.location(record).namespace;
        self.namespaces.name(namespace).tenant
    }

    /// Whether nobody finds the object of a record any more.
    pub(crate) fn is_gone(&self, record: RecordId) -> bool {
        self.records.is_dead(record)
            || self.is_dropped(record)
            || self.is_over(record) && !self.records.is_held(record)
    }

    /// Whether the time of the object of a living record is over: no lease is given on it.
    pub(crate) fn is_over(&self, record: RecordId) -> bool {
        if self.ages.is_endless() {
            return false;
        }
        let stored_s = self.records.location(record).stored_s;
        self.ages.is_over(self.tenant(record), stored_s)
    }

    fn is_dropped(&self, record: RecordId) -> bool {
        let namespace = self.records.location(record).namespace;
        self.namespaces.is_dropped(namespace)
    }

    /// Enters an object that lies at `location` now; an older place of it is forgotten. False if
    /// the index has no room.
    pub(crate) fn enter(&mut self, id: &ObjectId, name: NamespaceName, location: Location) -> bool {
        if let Some(older) = self.records.find(id) {
            self.kill(older);
        }
        let namespace = self.namespaces.enter(location.place.disk(), name);
        let location = Location {
            namespace,
            ..location
        };
        let sums = Sums {
            objects: 1,
            bytes: u64::from(location.length_bytes),
            leased_bytes: 0,
        };
        self.namespaces.add(namespace, &sums);
        let head = self.segment(location.place).head;
        let Some(record) = self.records.enter(id, location, head) else {
            self.namespaces.sub(namespace, &sums);
            return false;
        };
        self.segment(location.place).head = record;
        self.sums.add(&sums);
        self.tenants.add(name.tenant, &sums);
        true
    }

    /// Takes an object out of the index. Its bytes stay until their segment leaves.
    pub(crate) fn kill(&mut self, record: RecordId) {
        let location = self.records.location(record);
        let bytes = u64::from(location.length_bytes);
        let is_held = self.records.is_held(record);
        let sums = Sums {
            objects: 1,
            bytes,
            leased_bytes: if is_held { bytes } else { 0 },
        };
        if !self.is_dropped(record) {
            self.sums.sub(&sums);
            self.tenants.sub(self.tenant(record), &sums);
        }
        self.namespaces.sub(location.namespace, &sums);
        if is_held {
            self.disks[location.place.disk()].leased_bytes -= image_of(&location);
        }
        self.records.kill(record);
    }

    /// Drops a namespace on every disk, or on one: no object of it is found any more. Returns what
    /// that was.
    pub(crate) fn drop_namespace(&mut self, digest: NamespaceDigest, only: Option<usize>) -> Sums {
        let mut dropped = Sums::default();
        for (tenant, sums) in self.namespaces.drop_all(digest, only) {
            self.tenants.sub(tenant, &sums);
            dropped.add(&sums);
        }
        self.sums.sub(&dropped);
        dropped
    }

    /// Hides an object that cannot be read, if it still lies at `location`.
    pub(crate) fn kill_at(&mut self, id: &ObjectId, location: Location) -> bool {
        let found = self.find(id);
        let record = found.filter(|record| self.records.location(*record) == location);
        if let Some(record) = record {
            self.hide(record);
        }
        record.is_some()
    }

    /// Moves a living object to a new place.
    pub(crate) fn relocate(&mut self, record: RecordId, to: Location) {
        self.records.relocate(record, to);
        self.list(record);
    }

    /// Puts a record at the head of the list of its segment.
    pub(crate) fn list(&mut self, record: RecordId) {
        let place = self.records.location(record).place;
        let head = self.segment(place).head;
        self.records.set_next(record, head);
        self.segment(place).head = record;
    }

    /// The records of a segment, dead ones included.
    pub(crate) fn records_of(&self, disk: usize, segment: u32) -> Vec<RecordId> {
        let mut next = self.disks[disk].segments[segment as usize].head;
        let mut records = Vec::new();
        while let Some(record) = next.some() {
            records.push(record);
            next = self.records.next(record);
        }
        records
    }

    /// Whether a record names this write of the object, or any if none is named.
    pub(crate) fn is_write(&self, record: RecordId, write: Option<WriteId>) -> bool {
        write.is_none_or(|write| self.records.location(record).write == write_tag(write))
    }

    /// Ends a read of a segment. True if it was the last.
    pub(crate) fn leave_segment(&mut self, place: Place) -> bool {
        let segment = self.segment(place);
        segment.readers -= 1;
        segment.readers == 0
    }

    /// Takes a hold for a lease on an object that is found, within `bytes_max` for all leases
    /// together.
    pub(crate) fn hold(&mut self, record: RecordId, bytes_max: u64) -> bool {
        let leased = self.lease_of(record);
        let first = !self.records.is_held(record);
        if first && self.sums.leased_bytes + leased.leased_bytes > bytes_max {
            return false;
        }
        let place = self.records.location(record).place;
        let used = self.segment(place).used;
        if used == Use::Erasing {
            return false;
        }
        let held = self.records.hold(record);
        if held && used == Use::Leaving {
            self.disks[place.disk()].promised.insert(record);
        }
        if held && first {
            let location = self.records.location(record);
            self.disks[place.disk()].leased_bytes += image_of(&location);
            let namespace = self.records.location(record).namespace;
            self.namespaces.add(namespace, &leased);
            self.tenants.add(self.tenant(record), &leased);
            self.sums.add(&leased);
        }
        held
    }

    /// What the leases on one object come to.
    fn lease_of(&self, record: RecordId) -> Sums {
        Sums {
            leased_bytes: u64::from(self.records.location(record).length_bytes),
            ..Sums::default()
        }
    }

    /// Gives back the holds of leases that were taken out. Returns how many.
    pub(crate) fn drop_leases(&mut self, leases: impl IntoIterator<Item = DiskLease>) -> u64 {
        let mut dropped = 0;
        for held in leases.into_iter().flat_map(|lease| lease.held) {
            self.unhold(held.record);
            dropped += 1;
        }
        dropped
    }

    /// Gives one hold back.
    pub(crate) fn unhold(&mut self, record: RecordId) {
        if self.records.is_dead(record) {
            self.records.unhold(record);
            return;
        }
        let leased = self.lease_of(record);
        let location = self.records.location(record);
        let namespace = location.namespace;
        if self.records.unhold(record) {
            self.disks[location.place.disk()].leased_bytes -= image_of(&location);
            self.namespaces.sub(namespace, &leased);
            if !self.is_dropped(record) {
                self.sums.sub(&leased);
                self.tenants.sub(self.tenant(record), &leased);
            }
        }
    }

    /// Takes an object out that is on its way under this ticket, if it still is.
    pub(crate) fn take_pending(&mut self, id: &ObjectId, ticket: u64) -> Option<Pending> {
        let found = self.pending.get(id)?;
        match found.ticket == ticket {
            true => self.pending.remove(id),
            false => None,
        }
    }

    /// The disk for a new object: by its id, among those that work and have segments for it. None
    /// also if there are too many namespaces for one more.
    pub(crate) fn disk_for(&self, header: &ObjectHeader) -> Option<usize> {
        let takes = |disk: &DiskState| {
            !disk.fenced && header.length_bytes <= disk.layout.largest_object_bytes()
        };
        let fit: Vec<usize> = (0..self.disks.len())
            .filter(|at| takes(&self.disks[*at]))
            .collect();
        let (word, _) = header.id().0.split_first_chunk().map(|(a, b)| (*a, b))?;
        let count = u64::try_from(fit.len()).ok().filter(|count| *count > 0)?;
        let disk = usize::try_from(u64::from_le_bytes(word) % count)
            .ok()
            .map(|at| fit[at])?;
        let takes = self.namespaces.takes(disk, NamespaceName::of(header));
        takes.then_some(disk)
    }
}

/// Bytes that the image of an object takes.
fn image_of(location: &Location) -> u64 {
    let length = usize::try_from(location.length_bytes).expect("it fits a segment");
    image_bytes(length) as u64
}

//! The one thread that writes a disk: takes what is queued, batch by batch, and makes room for it.
//!
//! Started by the tier, ended by its closing flag when the queue is empty. While one batch is
//! written the next one gathers, so that small objects share a table and large ones the disk's
//! queue. A disk that fails is fenced: what it held is not found any more, and the node lives on.
//!
//! A removal is never given up: one without room on the disk waits, and is ahead of everything else
//! as soon as there may be room. A fenced disk records it by being made empty for any later start.
//!
//! One segment is open and one is free at any time; when the free one is opened, the oldest leaves
//! (see `evict.rs`).

use std::collections::HashSet;
use std::io;
use std::thread;

use super::contents::NamespaceName;
use super::directory::{Directory, Job, Segment, Use};
use super::evict::CREDIT_SEGMENTS;
use super::layout::fills_blocks;
use super::log::{Log, Piece, batch_bytes};
use super::namespaces::NamespaceId;
use super::opening::WritePolicy;
use super::records::{Location, Place, RecordId, write_tag};
use super::recovery::Found;
use super::superblock::Superblock;
use super::table::ENTRIES_MAX;
use super::tier::{Done, Shared};
use crate::ram::Published;

/// Payload bytes after which a batch takes no more objects.
const BATCH_BYTES: u64 = 16 << 20;

/// Writes until the tier closes and the queue is empty.
pub(crate) fn run(shared: &Shared, disk: usize, log: Log, newest: Option<Found>) {
    let _guard = Guard { shared, disk };
    let mut writer = Writer {
        shared,
        disk,
        credit: CREDIT_SEGMENTS * log.superblock().layout.segment_length(),
        log,
        waiters: Vec::new(),
        owed: Vec::new(),
        is_void: false,
        moved: 0,
    };
    let mut healthy = writer.resume(newest);
    writer.trim_all();
    while let Some(jobs) = next_batch(shared, disk) {
        healthy = writer.carry_out(healthy, jobs);
    }
    if !writer.owed.is_empty() {
        healthy = writer.carry_out(healthy, Vec::new());
    }
    if healthy.and_then(|()| writer.log.disk().sync()).is_err() {
        fence(shared, disk);
    }
    writer.owed.iter().for_each(fail);
}

/// Says of a removal that this disk will not record it.
fn fail(job: &Job) {
    if let Some(recording) = job.recording() {
        recording.fail();
    }
}

/// Waits for work, which is none if it is only to try again. None once the tier closes and nothing
/// is left; from then on nothing is queued.
fn next_batch(shared: &Shared, disk: usize) -> Option<Vec<Job>> {
    let mut directory = shared.directory.lock();
    while directory.disks[disk].jobs.is_empty() {
        if directory.closing {
            directory.disks[disk].ended = true;
            return None;
        }
        if std::mem::take(&mut directory.disks[disk].retry) {
            return Some(Vec::new());
        }
        shared.work[disk].wait(&mut directory);
    }
    let jobs = &mut directory.disks[disk].jobs;
    let (mut count, mut bytes) = (0, 0);
    for job in jobs.iter().take(ENTRIES_MAX) {
        let more = match job {
            Job::Write { pin, .. } => pin.len() as u64,
            Job::Removal { .. } | Job::Drop { .. } => 0,
        };
        if count > 0 && bytes + more > BATCH_BYTES {
            break;
        }
        (count, bytes) = (count + 1, bytes + more);
    }
    Some(jobs.drain(..count).collect())
}

/// If the writer panics, which is a bug, its disk is given up and nobody waits for it.
struct Guard<'a> {
    shared: &'a Shared,
    disk: usize,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            fence(self.shared, self.disk);
            let mut directory = self.shared.directory.lock();
            directory.disks[self.disk].ended = true;
            let jobs = std::mem::take(&mut directory.disks[self.disk].jobs);
            let lost = directory
                .pending
                .extract_if(|_, object| object.disk == self.disk)
                .collect::<Vec<_>>();
            drop(directory);
            jobs.iter().for_each(fail);
            drop(jobs);
            for waiter in lost.into_iter().flat_map(|(_, object)| object.waiters) {
                waiter(Published::Stored);
            }
        }
    }
}

/// The thread's own state.
pub(crate) struct Writer<'a> {
    pub(crate) shared: &'a Shared,
    /// The number of its disk.
    pub(crate) disk: usize,
    pub(crate) log: Log,
    /// Image bytes that may be written again for being hot.
    pub(crate) credit: usize,
    /// Whose objects are on disk and who was not told yet.
    waiters: Vec<Done>,
    /// Removals for which there was no room, in their order. Nothing else is written before them.
    owed: Vec<Job>,
    /// The disk failed and was made empty for every start to come.
    is_void: bool,
    /// Image bytes that were moved because they were leased.
    pub(crate) moved: u64,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.owed.iter().for_each(fail);
        }
    }
}

impl Writer<'_> {
    /// Writes what is owed and what was queued since, and lets go of what is over. An error is a
    /// fault of the disk, now or before.
    fn carry_out(&mut self, healthy: io::Result<()>, jobs: Vec<Job>) -> io::Result<()> {
        let mut batch = std::mem::take(&mut self.owed);
        batch.extend(jobs);
        let written = healthy.and_then(|()| self.write(&batch));
        match &written {
            Ok(done) => {
                let late = batch.split_off(*done).into_iter();
                let (owed, skipped) = late.partition(|job| job.recording().is_some());
                self.owed = owed;
                batch.extend::<Vec<_>>(skipped);
            }
            Err(_) => {
                fence(self.shared, self.disk);
                self.void(&batch);
            }
        }
        self.shared.directory.lock().disks[self.disk].owes = !self.owed.is_empty();
        self.answer(batch);
        written.map(|_| ())
    }

    /// Sees to it that a disk which failed brings nothing back of what these jobs remove.
    fn void(&mut self, batch: &[Job]) {
        let removes = batch.iter().any(|job| job.recording().is_some());
        if removes && !self.is_void {
            self.is_void = Superblock::erase(self.log.disk()).is_ok();
        }
        if !self.is_void {
            batch.iter().for_each(fail);
        }
    }

    /// Goes on with the segment that a node before did not seal.
    fn resume(&mut self, newest: Option<Found>) -> io::Result<()> {
        let Some(found) = newest else { return Ok(()) };
        if self.log.resume(&found)? {
            self.segment(&mut self.shared.directory.lock(), found.used.segment)
                .used = Use::Open;
            self.keep_spare(0)?;
        }
        Ok(())
    }

    /// Writes one batch and enters it in the index, in as many pieces as segments make of it.
    /// Returns how many jobs are over: from the first removal on that finds no room they are not.
    /// An error is a fault of the disk.
    fn write(&mut self, batch: &[Job]) -> io::Result<usize> {
        let mut rest = batch;
        let mut attempts = self.log.superblock().layout.segments;
        while !rest.is_empty() {
            let next = rest.iter().take(ENTRIES_MAX);
            let pieces: Vec<Piece<'_>> = next.map(piece).collect();
            if attempts == 0 || !self.make_room(&pieces[..1])? {
                if rest[0].recording().is_some() {
                    break;
                }
                rest = &rest[1..]; // Nobody is told that this one is on disk.
                continue;
            }
            let fit = (1..=pieces.len()).rev();
            let count = fit
                .into_iter()
                .find(|count| self.log.fits(&pieces[..*count], 0));
            let (now, later) = rest.split_at(count.expect("there is room for one"));
            match self.log.append(&pieces[..now.len()]) {
                Ok(offsets) => {
                    let removes = now.iter().any(|job| !matches!(job, Job::Write { .. }));
                    if removes || self.shared.write == WritePolicy::Synced {
                        self.log.disk().sync()?;
                    }
                    self.enter(now, &offsets);
                    rest = later;
                }
                // The file system promised the segment and has no room for it: try another.
                Err(error) if is_full(&error) => {
                    attempts -= 1;
                    self.seal()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(batch.len() - rest.len())
    }

    /// Enters what was written, unless it was removed meanwhile.
    fn enter(&mut self, batch: &[Job], offsets: &[u32]) {
        let segment = self.log.open_segment().expect("a batch was appended to it");
        let counters = &self.shared.counters;
        let mut directory = self.shared.directory.lock();
        let mut beyond = HashSet::new();
        for (job, offset) in batch.iter().zip(offsets) {
            let Job::Write { ticket, pin } = job else {
                continue;
            };
            let (header, id) = (pin.header(), pin.header().id());
            let Some(pending) = directory.take_pending(&id, *ticket) else {
                continue;
            };
            let location = Location {
                place: self.place(segment),
                offset: *offset,
                length_bytes: u32::try_from(header.length_bytes).expect("it fits a segment"),
                write: write_tag(header.write),
                stored_s: pin.stored_s(),
                namespace: NamespaceId::NONE,
            };
            directory.enter(&id, NamespaceName::of(header), location);
            directory.tenants.wrote(header.tenant, header.length_bytes);
            if directory.tenants.is_beyond(header.tenant) {
                beyond.insert(header.tenant);
            }
            counters.stored.add(1);
            counters.written_bytes.add(header.length_bytes);
            self.waiters.extend(pending.waiters);
        }
        drop(directory);
        beyond.into_iter().for_each(|tenant| self.trim(tenant));
    }

    /// Lets go of a batch: those that are still pending did not reach the disk.
    fn answer(&mut self, batch: Vec<Job>) {
        let mut directory = self.shared.directory.lock();
        for job in &batch {
            if let Job::Write { ticket, pin } = job {
                directory.dirty_bytes -= pin.header().length_bytes;
                if let Some(pending) = directory.take_pending(&pin.header().id(), *ticket) {
                    self.shared.counters.skipped.add(1);
                    self.waiters.extend(pending.waiters);
                }
            }
        }
        drop(directory);
        // Who hears that an object is stored may want its memory for the next.
        drop(batch);
        for waiter in self.waiters.drain(..) {
            waiter(Published::Stored);
        }
    }

    /// Sees to it that the pieces fit. False if the disk has no room that could be made, or none
    /// that is worth what would have to be moved for it.
    fn make_room(&mut self, pieces: &[Piece<'_>]) -> io::Result<bool> {
        if self.shared.directory.lock().records.room() < pieces.len() {
            self.evict_oldest(0)?;
        }
        let reserve = batch_bytes(pieces);
        let layout = self.log.superblock().layout;
        let stores = pieces.iter().any(Piece::stores);
        let moved_max = self.moved + self.leases().0 + layout.segment_bytes;
        let mut rounds = 2 * layout.segments;
        while !self.log.fits(pieces, 0) {
            if stores && !self.is_worth_it(moved_max)? {
                return Ok(false);
            }
            let opened = match self.next_free()? {
                Some(segment) => {
                    self.seal()?;
                    self.open(segment, reserve)?
                }
                // The open one stays so: removals may have room in it where objects have none.
                None => false,
            };
            if rounds == 0 || (!opened && !self.evict_oldest(0)?) {
                return Ok(false);
            }
            rounds -= 1;
        }
        Ok(true)
    }

    /// Whether more is moved to make room for objects: what is leased once around, and nothing
    /// while leases hold most of the disk. Else each object that comes to a disk full of leases
    /// would write that disk anew, twice. A removal moves a segment at most, since what is moved
    /// leaves it room.
    fn is_worth_it(&self, moved_max: u64) -> io::Result<bool> {
        let (_, is_held) = self.leases();
        Ok(self.moved <= moved_max && (!is_held || self.has_spare()?))
    }

    /// Image bytes under lease, and whether that is most of the disk.
    fn leases(&self) -> (u64, bool) {
        let directory = self.shared.directory.lock();
        let disk = &directory.disks[self.disk];
        (disk.leased_bytes, disk.is_held())
    }

    /// Whether one segment can be opened and another one is free then, so that none has to leave.
    fn has_spare(&self) -> io::Result<bool> {
        let mut free = 0;
        for (number, _) in self.free_segments() {
            free += u32::from(self.allocate(number)?);
            if free > 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn seal(&mut self) -> io::Result<()> {
        let Some(segment) = self.log.open_segment() else {
            return Ok(());
        };
        let sealed = self.log.seal();
        self.segment(&mut self.shared.directory.lock(), segment)
            .used = Use::Sealed;
        match sealed {
            // Without a footer the segment is scanned at the next start.
            Err(error) if is_full(&error) => Ok(()),
            sealed => sealed,
        }
    }

    /// Opens a free segment, and empties the oldest if it was the last that was free. False if the
    /// system has no room for it.
    fn open(&mut self, segment: u32, reserve: usize) -> io::Result<bool> {
        let sequence = match self.log.open(segment) {
            Err(error) if is_full(&error) => {
                let mut directory = self.shared.directory.lock();
                self.segment(&mut directory, segment).refused = true;
                return Ok(false);
            }
            opened => opened?,
        };
        {
            let mut directory = self.shared.directory.lock();
            let opened = self.segment(&mut directory, segment);
            (opened.used, opened.sequence) = (Use::Open, sequence);
        }
        self.keep_spare(reserve)?;
        Ok(true)
    }

    /// Sees to it that a segment is free to be opened next.
    fn keep_spare(&mut self, reserve: usize) -> io::Result<()> {
        for (number, _) in self.free_segments() {
            if self.allocate(number)? {
                return Ok(());
            }
        }
        self.evict_oldest(reserve)?;
        Ok(())
    }

    /// Asks the system for the room of a segment. False if it has none now.
    fn allocate(&self, segment: u32) -> io::Result<bool> {
        let layout = self.log.superblock().layout;
        let at = layout.segment_at(segment);
        let allocated = self.log.disk().allocate(at, layout.segment_bytes);
        let mut directory = self.shared.directory.lock();
        self.segment(&mut directory, segment).refused = allocated.is_err();
        match allocated {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A free segment that the system has room for. Waits for reads of one that was just emptied.
    fn next_free(&mut self) -> io::Result<Option<u32>> {
        loop {
            let mut free = self.free_segments();
            let busy = free.iter().any(|(_, segment)| segment.readers > 0);
            free.retain(|(_, segment)| segment.readers == 0);
            // Those that were refused may have room by now, but the others come first.
            free.sort_by_key(|(_, segment)| segment.refused);
            for (number, _) in free {
                if self.allocate(number)? {
                    return Ok(Some(number));
                }
            }
            if !busy {
                return Ok(None);
            }
            let mut directory = self.shared.directory.lock();
            let segments = &directory.disks[self.disk].segments;
            let is_free = |segment: &&Segment| segment.used == Use::Free;
            if segments.iter().filter(is_free).all(|free| free.readers > 0) {
                self.shared.left.wait(&mut directory);
            }
        }
    }

    fn free_segments(&self) -> Vec<(u32, Segment)> {
        let directory = self.shared.directory.lock();
        let segments = (0_u32..).zip(directory.disks[self.disk].segments.iter().copied());
        segments
            .filter(|(_, segment)| segment.used == Use::Free)
            .collect()
    }

    pub(crate) fn place(&self, segment: u32) -> Place {
        Place::new(u8::try_from(self.disk).expect("255 at most"), segment)
    }

    pub(crate) fn segment<'d>(
        &self,
        directory: &'d mut Directory,
        segment: u32,
    ) -> &'d mut Segment {
        &mut directory.disks[self.disk].segments[segment as usize]
    }
}

fn piece(job: &Job) -> Piece<'_> {
    match job {
        Job::Removal { id, .. } => Piece::Removal(*id),
        Job::Drop { namespace, .. } => Piece::Drop(*namespace),
        Job::Write { pin, .. } => {
            let image = pin.image();
            Piece::Object {
                header: *pin.header(),
                stored_s: pin.stored_s(),
                bytes: if fills_blocks(pin.len()) { image } else { pin },
            }
        }
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// Gives up a disk that failed: nothing of it is found any more, nothing is sent to it.
fn fence(shared: &Shared, disk: usize) {
    let mut directory = shared.directory.lock();
    if std::mem::replace(&mut directory.disks[disk].fenced, true) {
        return;
    }
    shared.counters.fenced.add(1);
    // Not by the lists of the segments: that of one which was leaving is half another's.
    for record in directory.records.listed_on(disk) {
        if !directory.records.is_dead(record) {
            directory.kill(record);
        }
        directory.records.unlist(record);
    }
    for segment in &mut directory.disks[disk].segments {
        segment.head = RecordId::NONE;
    }
}

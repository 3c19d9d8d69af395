//! The threads that read a disk: take what is asked for, read it into memory of the arena, verify.
//!
//! Started by the tier, ended by its closing flag. An object whose image fills blocks is read
//! straight into the extent that it will have in RAM; a smaller one through a buffer. Invariants:
//! nothing is published that did not verify; nothing is published that was removed while it was
//! read; every waiter is called once.

use tessera_proto::ObjectHeader;

use super::device::{BLOCK_BYTES, Buffer, Transfer};
use super::directory::ReadJob;
use super::layout::{UNIT_BYTES, fills_blocks, image_bytes};
use super::records::Location;
use super::recovery::{header_of, verifies};
use super::tier::{Fetched, Shared, Waiter};
use crate::guard::{ReadPin, WriteExtent};
use crate::ram::ReserveRefusal;

/// Reads that one thread has in flight at once.
const READS: usize = 4;
/// Image bytes after which it takes no more: what it waits for together, it verifies together, and
/// meanwhile only the other threads keep the disk busy.
const READ_BYTES: usize = 2 << 20;

/// The blocks that an image lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Where they begin in the segment, bytes.
    pub(crate) at: u64,
    pub(crate) blocks_bytes: usize,
    /// Where in them the image begins.
    pub(crate) skip: usize,
    pub(crate) image_bytes: usize,
}

impl Span {
    /// The blocks of the object at `location`.
    pub(crate) fn of(location: &Location) -> Self {
        Self::at(location.offset, location.length_bytes)
    }

    /// The blocks of an object of this length, `offset` units into its segment.
    pub(crate) fn at(offset: u32, length_bytes: u32) -> Self {
        let from = offset as usize * UNIT_BYTES;
        let image_bytes = image_bytes(length_bytes as usize);
        let skip = from % BLOCK_BYTES;
        Self {
            at: (from - skip) as u64,
            blocks_bytes: (skip + image_bytes).next_multiple_of(BLOCK_BYTES),
            skip,
            image_bytes,
        }
    }
}

/// Memory for one read.
struct Reading {
    job: ReadJob,
    span: Span,
    extent: WriteExtent,
    /// For an image that does not fill blocks.
    beside: Option<Buffer>,
}

/// Reads until the tier closes and nobody waits.
pub(crate) fn run(shared: &Shared, disk: usize) {
    while let Some(jobs) = next_jobs(shared, disk) {
        let mut readings = Vec::with_capacity(jobs.len());
        for job in jobs {
            match prepare(shared, job) {
                Ok(reading) => readings.push(reading),
                Err(refused) => finish(shared, &job, Err(refused)),
            }
        }
        let outcomes = read(shared, disk, &mut readings);
        for (reading, read) in readings.into_iter().zip(outcomes) {
            let job = reading.job;
            let verified = match read {
                true => verify(shared, reading),
                false => {
                    shared.counters.read_errors.add(1);
                    Err(Unread::Lost)
                }
            };
            finish(shared, &job, verified);
        }
    }
}

/// Why an object that was in the index is not given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// RAM has no room now.
    Busy,
    /// RAM takes no object of its length.
    TooLarge,
    /// Its bytes are gone.
    Lost,
}

/// Waits for reads. None once the tier closes and nothing is left.
fn next_jobs(shared: &Shared, disk: usize) -> Option<Vec<ReadJob>> {
    let mut directory = shared.directory.lock();
    while directory.disks[disk].reads.is_empty() {
        if directory.closing {
            return None;
        }
        shared.asked[disk].wait(&mut directory);
    }
    let reads = &mut directory.disks[disk].reads;
    let (mut count, mut bytes) = (0, 0);
    for job in reads.iter().take(READS) {
        bytes += Span::of(&job.location).blocks_bytes;
        if count > 0 && bytes > READ_BYTES {
            break;
        }
        count += 1;
    }
    let jobs = reads.drain(..count).collect();
    if !reads.is_empty() {
        shared.asked[disk].notify_one();
    }
    Some(jobs)
}

fn prepare(shared: &Shared, job: ReadJob) -> Result<Reading, Unread> {
    let length = u64::from(job.location.length_bytes);
    let extent = shared.ram.reserve(length, job.now);
    let extent = extent.map_err(|refusal| match refusal {
        ReserveRefusal::NoSpace => Unread::Busy,
        ReserveRefusal::TooLarge | ReserveRefusal::Empty => Unread::TooLarge,
    })?;
    let span = Span::of(&job.location);
    let beside = (!fills_blocks(extent.len())).then(|| Buffer::new(span.blocks_bytes));
    Ok(Reading {
        job,
        span,
        extent,
        beside,
    })
}

/// Whether each read succeeded.
fn read(shared: &Shared, disk: usize, readings: &mut [Reading]) -> Vec<bool> {
    let layout = shared.directory.lock().disks[disk].layout;
    let mut transfers = Vec::with_capacity(readings.len());
    for reading in readings {
        let segment = reading.job.location.place.segment();
        let at = layout.segment_at(segment) + reading.span.at;
        let into = match &mut reading.beside {
            Some(buffer) => buffer.bytes_mut(),
            None => reading.extent.image_mut(),
        };
        transfers.push(Transfer::read(at, into));
    }
    shared.disks[disk].run(&mut transfers);
    let ended = transfers.into_iter();
    ended.map(|transfer| transfer.outcome.is_ok()).collect()
}

/// Compares what arrived with what was asked for and with its own header.
fn verify(shared: &Shared, reading: Reading) -> Result<(WriteExtent, ObjectHeader), Unread> {
    let Reading {
        job,
        span,
        mut extent,
        beside,
    } = reading;
    let image = match &beside {
        Some(buffer) => &buffer.bytes()[span.skip..][..span.image_bytes],
        None => extent.image_mut(),
    };
    let header = header_of(image).filter(|header| {
        header.id() == job.id
            && header.length_bytes == u64::from(job.location.length_bytes)
            && verifies(image, header)
    });
    let Some(header) = header else {
        shared.counters.damaged.add(1);
        return Err(Unread::Lost);
    };
    if let Some(buffer) = &beside {
        let length = extent.len();
        extent.copy_from_slice(&buffer.bytes()[span.skip..][..length]);
    }
    shared.counters.read_bytes.add(header.length_bytes);
    Ok((extent, header))
}

/// Publishes what was read, unless it was removed meanwhile, and tells who waits.
fn finish(shared: &Shared, job: &ReadJob, read: Result<(WriteExtent, ObjectHeader), Unread>) {
    let mut directory = shared.directory.lock();
    if directory.leave_segment(job.location.place) {
        shared.left.notify_all();
    }
    let flight = directory.flights.get(&job.id);
    if flight.is_none_or(|flight| flight.ticket != job.ticket) {
        drop(directory); // Removed; its waiters were told.
        return;
    }
    let flight = directory.flights.remove(&job.id);
    let waiters = flight.map_or_else(Vec::new, |flight| flight.waiters);
    let found = match read {
        Ok((extent, header)) => publish(shared, extent, header, job.location.stored_s),
        Err(unread) => {
            if unread == Unread::Lost {
                directory.kill_at(&job.id, job.location);
            }
            Err(unread)
        }
    };
    drop(directory);
    answer(shared, found, waiters);
}

/// The object in RAM. Somebody may have stored it there meanwhile; then that one.
fn publish(
    shared: &Shared,
    extent: WriteExtent,
    header: ObjectHeader,
    stored_s: u32,
) -> Result<ReadPin, Unread> {
    let id = header.id();
    let published = shared.ram.publish_pinned(extent, id, header, stored_s);
    published.or_else(|_| shared.ram.find(&id, false).ok_or(Unread::Busy))
}

/// Tells everyone who waits. All pins are theirs then: who has dropped his finds nothing held.
fn answer(shared: &Shared, found: Result<ReadPin, Unread>, waiters: Vec<Waiter>) {
    let answers: Vec<Fetched> = match found {
        Ok(pin) => share(pin, waiters.len()),
        Err(Unread::Busy) => {
            shared.counters.busy.add(waiters.len() as u64);
            waiters.iter().map(|_| Fetched::Busy).collect()
        }
        Err(Unread::TooLarge | Unread::Lost) => {
            waiters.iter().for_each(|_| shared.ram.count_miss());
            waiters.iter().map(|_| Fetched::Missing).collect()
        }
    };
    for (waiter, answer) in waiters.into_iter().zip(answers) {
        waiter(answer);
    }
}

/// One pin for each of `count`, the given one among them.
fn share(pin: ReadPin, count: usize) -> Vec<Fetched> {
    let again = |pin: Option<ReadPin>| pin.map_or(Fetched::Busy, Fetched::Found);
    let mut shares: Vec<_> = (1..count).map(|_| again(pin.again())).collect();
    shares.push(Fetched::Found(pin));
    shares
}

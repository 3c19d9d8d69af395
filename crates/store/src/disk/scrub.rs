//! The scrub: reads what nobody reads, so that damage is found while a writer can make it good.
//!
//! Driven by the node, step by step, which sets the pace. It follows the disks segment by segment,
//! sealed ones only: what is open was just written. Invariant: a segment is held for one step at a
//! time, so that no writer waits for the scrub longer than for a reader.

use std::sync::Arc;

use tessera_proto::ObjectId;

use super::device::{Buffer, Transfer};
use super::directory::{Directory, Use};
use super::reader::Span;
use super::records::{Location, Place};
use super::recovery::{header_of, verifies};
use super::tier::{DiskTier, Shared};

/// Where a scrub is in its pass over all disks.
pub struct Scrub {
    shared: Arc<Shared>,
    disk: u8,
    segment: u32,
    /// What is still to be read of the segment before, last first.
    left: Vec<ObjectId>,
}

/// What one step of a scrub did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubStep {
    /// It read so many bytes.
    Read(u64),
    /// Every disk was passed; the next step begins again.
    PassEnded,
}

impl DiskTier {
    /// A scrub that begins with the first segment.
    pub(crate) fn scrub(&self) -> Scrub {
        Scrub {
            shared: Arc::clone(&self.shared),
            disk: 0,
            segment: 0,
            left: Vec::new(),
        }
    }
}

impl Scrub {
    /// Reads and verifies objects of one segment, up to `bytes_max` or one that is larger. What is
    /// damaged is not found any more. Waits for the disk.
    pub fn step(&mut self, bytes_max: usize) -> ScrubStep {
        loop {
            if self.left.is_empty() && !self.next_segment() {
                self.disk = 0;
                self.segment = 0;
                self.shared.counters.scrubs.add(1);
                return ScrubStep::PassEnded;
            }
            let place = Place::new(self.disk, self.segment - 1);
            let group = self.hold_group(place, bytes_max);
            if !group.is_empty() {
                return ScrubStep::Read(self.check(place, &group));
            }
        }
    }

    /// Lists the objects of the next sealed segment. False if there is none.
    fn next_segment(&mut self) -> bool {
        let directory = self.shared.directory.lock();
        while let Some(disk) = directory.disks.get(usize::from(self.disk)) {
            while let Some(segment) = disk.segments.get(self.segment as usize) {
                self.segment += 1;
                if segment.used == Use::Sealed && !disk.fenced {
                    let number = usize::from(self.disk);
                    let records = directory.records_of(number, self.segment - 1).into_iter();
                    let alive = records.filter(|record| !directory.is_gone(*record));
                    self.left = alive.map(|record| directory.records.id(record)).collect();
                    return true;
                }
            }
            self.disk += 1;
            self.segment = 0;
        }
        false
    }

    /// Takes the next objects that are still there, and keeps their segment from being reused.
    fn hold_group(&mut self, place: Place, bytes_max: usize) -> Vec<(ObjectId, Location)> {
        let mut directory = self.shared.directory.lock();
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(id) = self.left.last() {
            if let Some(location) = location(&mut directory, id).filter(|at| at.place == place) {
                bytes += Span::of(&location).blocks_bytes;
                if !group.is_empty() && bytes > bytes_max {
                    break;
                }
                group.push((*id, location));
            }
            self.left.pop();
        }
        if !group.is_empty() {
            directory.segment(place).readers += 1;
        }
        group
    }

    /// Reads and verifies a group. Returns the bytes read.
    fn check(&self, place: Place, group: &[(ObjectId, Location)]) -> u64 {
        let layout = self.shared.directory.lock().disks[place.disk()].layout;
        let start = layout.segment_at(place.segment());
        let spans: Vec<_> = group.iter().map(|(_, at)| Span::of(at)).collect();
        let mut buffers: Vec<_> = spans
            .iter()
            .map(|span| Buffer::new(span.blocks_bytes))
            .collect();
        let pairs = spans.iter().zip(&mut buffers);
        let mut transfers: Vec<_> = pairs
            .map(|(span, into)| Transfer::read(start + span.at, into.bytes_mut()))
            .collect();
        self.shared.disks[place.disk()].run(&mut transfers);
        let read: Vec<_> = transfers
            .into_iter()
            .map(|transfer| transfer.outcome.is_ok())
            .collect();
        let mut bad = Vec::new();
        for (((id, at), span), (buffer, read)) in
            group.iter().zip(&spans).zip(buffers.iter().zip(read))
        {
            let image = &buffer.bytes()[span.skip..][..span.image_bytes];
            let header = header_of(image).filter(|header| header.id() == *id);
            if !read {
                self.shared.counters.read_errors.add(1);
            } else if !header.is_some_and(|header| verifies(image, &header)) {
                bad.push((*id, *at));
            }
        }
        self.leave(place, &bad);
        let bytes = spans.iter().map(|span| span.blocks_bytes as u64).sum();
        self.shared.counters.scrubbed_bytes.add(bytes);
        bytes
    }

    fn leave(&self, place: Place, bad: &[(ObjectId, Location)]) {
        let mut directory = self.shared.directory.lock();
        if directory.leave_segment(place) {
            self.shared.left.notify_all();
        }
        for (id, at) in bad {
            if directory.kill_at(id, *at) {
                self.shared.counters.damaged.add(1);
            }
        }
    }
}

fn location(directory: &mut Directory, id: &ObjectId) -> Option<Location> {
    let record = directory.find(id)?;
    Some(directory.records.location(record))
}

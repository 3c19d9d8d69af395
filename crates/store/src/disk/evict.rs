//! How a segment leaves: what is worth keeping is written again, the rest is forgotten.
//!
//! Called by the writer of the disk, when it opens the last free segment. Of the oldest segment
//! all that is leased, and of the rest what was read, half a segment on average, is written again
//! into the open one; then its header is erased, and only then do its objects leave the index.
//! Invariant: segments leave strictly by age, so that a removal or a drop outlives everything that
//! it removed.

use std::cmp::Reverse;
use std::io;

use tessera_proto::ObjectId;

use super::device::{Buffer, Transfer};
use super::directory::Use;
use super::layout::{fills_blocks, image_bytes};
use super::log::Piece;
use super::reader::Span;
use super::records::{Location, RecordId};
use super::recovery::{stamped_header_of, verifies};
use super::table::ENTRIES_MAX;
use super::writer::{Writer, is_full};

/// Image bytes that are moved at once when a segment leaves, unless one object is larger.
const MOVE_BYTES: usize = 8 << 20;

/// Segments of credit for writing again what is hot, so that a hot segment can move whole.
pub(crate) const CREDIT_SEGMENTS: usize = 2;
/// Records that are looked at for one hold of the directory's lock.
pub(crate) const RECORDS_PER_HOLD: usize = 1_024;

/// What of a segment is written again.
struct Keep {
    leased: Vec<RecordId>,
    /// Image bytes of these.
    leased_bytes: usize,
    /// What was read, and what tenants with little have.
    hot: Vec<RecordId>,
}

impl Writer<'_> {
    /// Empties the oldest sealed segment. What is kept of it for being hot leaves room for a batch
    /// of `reserve` bytes. False if there is none.
    pub(crate) fn evict_oldest(&mut self, reserve: usize) -> io::Result<bool> {
        let (victim, records) = {
            let mut directory = self.shared.directory.lock();
            let sealed = (0_u32..).zip(&directory.disks[self.disk].segments);
            let sealed = sealed.filter(|(_, segment)| segment.used == Use::Sealed);
            let oldest = sealed.min_by_key(|(_, segment)| segment.sequence);
            let Some((victim, _)) = oldest else {
                return Ok(false);
            };
            self.segment(&mut directory, victim).used = Use::Leaving;
            (victim, directory.records_of(self.disk, victim))
        };
        let keep = self.worth_keeping(&records);
        self.moved += keep.leased_bytes as u64;
        if !self.reinsert(victim, &keep.leased, 0)? {
            // A lease is a promise: the segment stays, and who wanted its room does without.
            self.stay(victim, &records);
            return Ok(false);
        }
        self.reinsert(victim, &keep.hot, reserve)?;
        while let Some(promised) = self.promised(victim) {
            if !self.reinsert(victim, &promised, 0)? {
                self.stay(victim, &records);
                return Ok(false);
            }
        }
        match self.log.erase(victim) {
            Err(error) if is_full(&error) => {
                self.stay(victim, &records);
                return Ok(false);
            }
            erased => erased?,
        }
        self.forget(victim, &records);
        self.shared.left.notify_all();
        Ok(true)
    }

    /// What was leased of a segment since it is being emptied. Nothing is, once that was nothing.
    fn promised(&self, victim: u32) -> Option<Vec<RecordId>> {
        let place = self.place(victim);
        let mut directory = self.shared.directory.lock();
        let mut promised = std::mem::take(&mut directory.disks[self.disk].promised);
        promised.retain(|record| {
            let there = directory.records.location(*record).place == place;
            there && !directory.is_gone(*record) && directory.records.is_held(*record)
        });
        if promised.is_empty() {
            self.segment(&mut directory, victim).used = Use::Erasing;
            return None;
        }
        Some(promised.into_iter().collect())
    }

    /// What of a segment is written again: all that is leased; and, as far as the credit goes, what
    /// tenants with little have, and then what was read most, or is in RAM now, a read of what is
    /// dear counting for more. Each segment that leaves earns half of one, so that the other half
    /// is there for what is new.
    fn worth_keeping(&mut self, records: &[RecordId]) -> Keep {
        let (mut leased, mut leased_bytes, mut hot) = (Vec::new(), 0, Vec::new());
        let prices = self.shared.ram.prices();
        let cheapest = prices.cheapest();
        for records in records.chunks(RECORDS_PER_HOLD) {
            let directory = self.shared.directory.lock();
            let index = &directory.records;
            let capacity_bytes = directory.capacity_bytes();
            for record in records
                .iter()
                .copied()
                .filter(|record| !directory.is_gone(*record))
            {
                let in_ram = || self.shared.ram.contains(&index.id(record));
                let tenant = directory.tenant(record);
                let little = directory.tenants.holds_little(tenant, capacity_bytes);
                let location = index.location(record);
                let length = image_bytes(location.length_bytes as usize);
                match index.touches(record) {
                    _ if index.is_held(record) => {
                        leased.push(record);
                        leased_bytes += length;
                    }
                    0 if !little && !in_ram() => {}
                    touches => {
                        let namespace = directory.namespaces.name(location.namespace).digest;
                        let worth = touches << prices.class(&namespace).steps_above(cheapest);
                        hot.push(((little, worth), length, record));
                    }
                }
            }
        }
        hot.sort_by_key(|(worth, _, _)| Reverse(*worth));
        let half = self.log.superblock().layout.segment_length() / 2;
        self.credit = (self.credit + half).min(CREDIT_SEGMENTS * 2 * half);
        hot.retain(|(_, bytes, _)| {
            let fits = *bytes <= self.credit;
            self.credit -= if fits { *bytes } else { 0 };
            fits
        });
        let hot = hot.into_iter().map(|(_, _, record)| record).collect();
        Keep {
            leased,
            leased_bytes,
            hot,
        }
    }

    /// Writes objects of a leaving segment again, into the open one, as far as it has room beside
    /// a batch of `reserve` bytes. True if that was all of them.
    fn reinsert(&mut self, victim: u32, keep: &[RecordId], reserve: usize) -> io::Result<bool> {
        let mut rest = keep;
        while !rest.is_empty() {
            if self.log.open_segment().is_none() {
                return Ok(false);
            }
            let locations: Vec<_> = {
                let directory = self.shared.directory.lock();
                let next = rest.iter().take(ENTRIES_MAX);
                next.map(|record| directory.records.location(*record))
                    .collect()
            };
            let count = group(&locations);
            let (now, later) = rest.split_at(count);
            if !self.move_group(victim, now, &locations[..count], reserve)? {
                return Ok(false);
            }
            rest = later;
        }
        Ok(true)
    }

    /// Moves one group of objects. False if the open segment is full.
    fn move_group(
        &mut self,
        victim: u32,
        records: &[RecordId],
        locations: &[Location],
        reserve: usize,
    ) -> io::Result<bool> {
        let start = self.log.superblock().layout.segment_at(victim);
        let spans: Vec<_> = locations.iter().map(Span::of).collect();
        let mut buffer = Buffer::new(spans.iter().map(|span| span.blocks_bytes).sum());
        let read = {
            let mut rest = buffer.bytes_mut();
            let mut transfers = Vec::new();
            for span in &spans {
                let (into, more) = rest.split_at_mut(span.blocks_bytes);
                transfers.push(Transfer::read(start + span.at, into));
                rest = more;
            }
            self.log.disk().run(&mut transfers);
            let ended = transfers.into_iter();
            ended
                .map(|transfer| transfer.outcome.is_ok())
                .collect::<Vec<_>>()
        };
        let mut at = 0;
        let (mut moved, mut pieces) = (Vec::new(), Vec::new());
        let objects = records.iter().zip(locations).zip(spans.iter().zip(read));
        for ((record, location), (span, read)) in objects {
            let image = &buffer.bytes()[at + span.skip..][..span.image_bytes];
            at += span.blocks_bytes;
            let id = {
                let directory = self.shared.directory.lock();
                if directory.is_gone(*record) {
                    continue; // Its removal may be behind this batch already.
                }
                directory.records.id(*record)
            };
            match verified_piece(image).filter(|(found, _)| read && *found == id) {
                Some((_, piece)) => {
                    moved.push((*record, *location));
                    pieces.push(piece);
                }
                None => self.shared.counters.damaged.add(1),
            }
        }
        let all = pieces.len();
        while !pieces.is_empty() && !self.log.fits(&pieces, reserve) {
            pieces.pop();
        }
        if pieces.is_empty() {
            return Ok(all == 0);
        }
        let offsets = self.log.append(&pieces)?;
        self.relocate(&moved, &offsets);
        Ok(pieces.len() == all)
    }

    fn relocate(&self, moved: &[(RecordId, Location)], offsets: &[u32]) {
        let segment = self.log.open_segment().expect("a batch was appended to it");
        let counters = &self.shared.counters;
        let mut directory = self.shared.directory.lock();
        for ((record, from), offset) in moved.iter().zip(offsets) {
            if directory.is_gone(*record) {
                continue; // Removed meanwhile; the removal is still to be written.
            }
            let to = Location {
                place: self.place(segment),
                offset: *offset,
                ..*from
            };
            directory.relocate(*record, to);
            counters.reinserted.add(1);
            counters.reinserted_bytes.add(u64::from(from.length_bytes));
        }
    }

    /// Gives up emptying a segment: what did not move is listed in it again.
    fn stay(&self, victim: u32, records: &[RecordId]) {
        let place = self.place(victim);
        let mut directory = self.shared.directory.lock();
        directory.segment(place).head = RecordId::NONE;
        for record in records {
            let location = directory.records.location(*record);
            if location.place == place {
                directory.list(*record);
            }
        }
        self.segment(&mut directory, victim).used = Use::Sealed;
    }

    /// Takes everything that still lies in an erased segment out of the index.
    fn forget(&self, victim: u32, records: &[RecordId]) {
        let place = self.place(victim);
        for records in records.chunks(RECORDS_PER_HOLD) {
            let mut directory = self.shared.directory.lock();
            for record in records {
                if directory.records.location(*record).place != place {
                    continue; // It moved.
                }
                if !directory.is_gone(*record) {
                    self.shared.counters.evictions.add(1);
                    directory.evict(*record);
                } else if !directory.records.is_dead(*record) {
                    directory.bury(*record);
                }
                directory.records.unlist(*record);
            }
        }
        let mut directory = self.shared.directory.lock();
        let segment = self.segment(&mut directory, victim);
        segment.used = Use::Free;
        segment.head = RecordId::NONE;
    }
}

/// How many of these are moved at once.
fn group(locations: &[Location]) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for location in locations {
        bytes += Span::of(location).blocks_bytes;
        if count > 0 && bytes > MOVE_BYTES {
            break;
        }
        count += 1;
    }
    count
}

/// The object of an image that was read, to be written again; none if it does not verify.
fn verified_piece(image: &[u8]) -> Option<(ObjectId, Piece<'_>)> {
    let (header, stored_s) = stamped_header_of(image)?;
    let length = usize::try_from(header.length_bytes).ok()?;
    if image_bytes(length) != image.len() || !verifies(image, &header) {
        return None;
    }
    let bytes = if fills_blocks(length) {
        image
    } else {
        &image[..length]
    };
    let piece = Piece::Object {
        header,
        stored_s,
        bytes,
    };
    Some((header.id(), piece))
}

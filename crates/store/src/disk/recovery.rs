//! From the bytes of a disk to what each segment stores and removes, in order.
//!
//! Called when a disk is opened, and by the offline check. It only reads. Of a sealed segment it
//! reads the footer; of any other, every block: batches are followed from table to table, and where
//! a table is damaged the scan goes on block by block until it finds the next. What a scan finds is
//! kept only if its bytes give its checksum.

use std::io;

use tessera_proto::{OBJECT_HEADER_BYTES, ObjectHeader, checksum};

use super::contents::{Contents, Event};
use super::device::{BLOCK_BYTES, Buffer, Disk, read};
use super::format::{
    FOOTER_ROW_BYTES, SegmentUse, Trailer, read_footer, read_header, read_trailer,
};
use super::layout::{Layout, SEGMENT_HEAD_BYTES, UNIT_BYTES, fills_blocks, image_bytes};
use super::superblock::Superblock;
use super::table::{Entry, Table};
use crate::stamp::read_stamped;

/// What is found in one segment.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) used: SegmentUse,
    pub(crate) contents: Contents,
    /// Where it can be continued, if it was not sealed.
    pub(crate) tail: Option<Tail>,
    /// Objects of it that did not verify.
    pub(crate) damaged: u64,
    /// Some of it could not be read now, and may be at another start.
    pub(crate) unread: bool,
}

/// What is found on a disk.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// The segments in use, in the order of their sequences.
    pub(crate) segments: Vec<Found>,
    /// Heads that could not be read: their segments count as free, and may not at another start.
    pub(crate) unread: u32,
}

/// The end of a segment that was not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Bytes of the segment that are taken.
    pub(crate) at: usize,
    /// The run that wrote last.
    pub(crate) run: u32,
    /// The number of the next batch.
    pub(crate) next: u32,
}

/// Reads every segment of a disk. What cannot be read is as if it were not there: the rest of the
/// disk may be good.
pub(crate) fn recover(disk: &dyn Disk, superblock: &Superblock) -> Recovered {
    let mut recovered = Recovered::default();
    for segment in 0..superblock.layout.segments {
        match segment_use(disk, superblock, segment) {
            Ok(Some(used)) => {
                let found = read_segment(disk, superblock.layout, used);
                recovered.segments.push(found);
            }
            Ok(None) => {}
            Err(_) => recovered.unread += 1,
        }
    }
    let segments = &mut recovered.segments;
    segments.sort_by_key(|segment| segment.used.sequence);
    recovered
}

/// The use that a segment is in; none if it is free. One good copy of its header is enough.
fn segment_use(
    disk: &dyn Disk,
    superblock: &Superblock,
    segment: u32,
) -> io::Result<Option<SegmentUse>> {
    let mut head = Buffer::new(SEGMENT_HEAD_BYTES);
    let at = superblock.layout.segment_at(segment);
    read(disk, at, head.bytes_mut())?;
    let mut copies = head.bytes().chunks(BLOCK_BYTES);
    Ok(copies.find_map(|copy| read_header(copy, superblock.id, segment)))
}

fn read_segment(disk: &dyn Disk, layout: Layout, used: SegmentUse) -> Found {
    match read_sealed(disk, layout, used) {
        Some(contents) => Found {
            used,
            contents,
            tail: None,
            damaged: 0,
            unread: false,
        },
        None => scan(disk, layout, used),
    }
}

/// What a footer says; none if there is none, or if it is damaged.
pub(crate) fn read_sealed(disk: &dyn Disk, layout: Layout, used: SegmentUse) -> Option<Contents> {
    let start = layout.segment_at(used.segment);
    let last = layout.segment_bytes - BLOCK_BYTES as u64;
    let mut block = Buffer::new(BLOCK_BYTES);
    read(disk, start + last, block.bytes_mut()).ok()?;
    let trailer = read_trailer(block.bytes(), used)?;
    let body_bytes = footer_body_bytes(layout, trailer)?;
    let mut body = Buffer::new(body_bytes);
    read(disk, start + last - body_bytes as u64, body.bytes_mut()).ok()?;
    let contents = read_footer(body.bytes(), trailer)?;
    let inside = |event: &Event| match event {
        Event::Object(object) => is_inside(layout, object.offset, object.length_bytes),
        Event::Removal(_) | Event::Drop(_) => true,
    };
    contents.events().iter().all(inside).then_some(contents)
}

fn footer_body_bytes(layout: Layout, trailer: Trailer) -> Option<usize> {
    let bytes = trailer
        .rows()?
        .checked_mul(FOOTER_ROW_BYTES)?
        .checked_next_multiple_of(BLOCK_BYTES)?;
    (bytes <= layout.segment_length() - SEGMENT_HEAD_BYTES - BLOCK_BYTES).then_some(bytes)
}

/// Whether an image lies in its segment, where its size says that it may.
pub(crate) fn is_inside(layout: Layout, offset: u32, length_bytes: u32) -> bool {
    let image = image_bytes(length_bytes as usize);
    let at = offset as usize * UNIT_BYTES;
    let placed = !fills_blocks(length_bytes as usize) || at.is_multiple_of(BLOCK_BYTES);
    let end = layout.segment_length() - BLOCK_BYTES;
    placed && length_bytes > 0 && at >= SEGMENT_HEAD_BYTES && at + image <= end
}

/// Reads a whole segment and follows its batches.
pub(crate) fn scan(disk: &dyn Disk, layout: Layout, used: SegmentUse) -> Found {
    let mut bytes = Buffer::new(layout.segment_length());
    let all = read_what_can_be_read(disk, layout.segment_at(used.segment), bytes.bytes_mut());
    let bytes = bytes.bytes();
    let mut found = Found {
        used,
        contents: Contents::default(),
        tail: None,
        damaged: 0,
        unread: !all,
    };
    let mut tail = Tail {
        at: SEGMENT_HEAD_BYTES,
        run: 0,
        next: 0,
    };
    let mut at = SEGMENT_HEAD_BYTES;
    while let Some(block) = bytes.get(at..at + BLOCK_BYTES) {
        let table = Table::read(block, used).filter(|table| {
            // What a run left behind that a later one did not see is not part of the log.
            (table.run, table.number) >= (tail.run, tail.next)
        });
        let Some(table) = table else {
            at += BLOCK_BYTES;
            continue;
        };
        for entry in &table.entries {
            match is_whole(layout, bytes, entry) {
                true => found.contents.push(entry),
                false => found.damaged += 1,
            }
        }
        at += table.blocks.max(1) as usize * BLOCK_BYTES;
        tail = Tail {
            at: at.min(bytes.len()),
            run: table.run,
            next: table.number.saturating_add(1),
        };
    }
    found.tail = Some(tail);
    found
}

/// Reads in steps, so that one bad block does not cost the rest: what cannot be read stays zero,
/// and so is no table and verifies as nothing. True if that was all.
fn read_what_can_be_read(disk: &dyn Disk, at: u64, bytes: &mut [u8]) -> bool {
    const STEP_BYTES: usize = 1 << 20;
    let (mut position, mut all) = (at, true);
    for step in bytes.chunks_mut(STEP_BYTES) {
        if read(disk, position, step).is_err() {
            let mut block_at = position;
            for block in step.chunks_mut(BLOCK_BYTES) {
                if read(disk, block_at, block).is_err() {
                    block.fill(0);
                    all = false;
                }
                block_at += BLOCK_BYTES as u64;
            }
        }
        position += step.len() as u64;
    }
    all
}

/// Whether what an entry stores is there: its header and bytes that give its checksum.
fn is_whole(layout: Layout, segment: &[u8], entry: &Entry) -> bool {
    let Entry::Object {
        header,
        stored_s,
        offset,
    } = entry
    else {
        return true;
    };
    let Ok(length_bytes) = u32::try_from(header.length_bytes) else {
        return false;
    };
    if !is_inside(layout, *offset, length_bytes) {
        return false;
    }
    let at = *offset as usize * UNIT_BYTES;
    let image = segment.get(at..at + image_bytes(length_bytes as usize));
    image.is_some_and(|image| {
        stamped_header_of(image) == Some((*header, *stored_s)) && verifies(image, header)
    })
}

/// The header that ends an image.
pub(crate) fn header_of(image: &[u8]) -> Option<ObjectHeader> {
    stamped_header_of(image).map(|(header, _)| header)
}

/// The header that ends an image, and when its object was stored.
pub(crate) fn stamped_header_of(image: &[u8]) -> Option<(ObjectHeader, u32)> {
    let at = image.len().checked_sub(OBJECT_HEADER_BYTES)?;
    read_stamped(&image[at..])
}

/// Whether the payload of an image is what its header says.
pub(crate) fn verifies(image: &[u8], header: &ObjectHeader) -> bool {
    let payload = usize::try_from(header.length_bytes)
        .ok()
        .and_then(|length| image.get(..length));
    payload.is_some_and(|payload| header.check_payload(checksum(payload)).is_ok())
}

//! Segment headers and footers, byte by byte as docs/disk-format.md draws them.
//!
//! Called by the log, which writes them, and by recovery, which believes nothing: a block is what
//! it claims only if magic, format, disk, numbers and check all agree. The check covers the id of
//! the disk, which no client knows, so that no payload can pass for a block of ours.

use tessera_proto::{Checksum, ObjectId, Reader, Writer, checksum};

use super::device::BLOCK_BYTES;

/// The format that this build reads and writes.
pub(crate) const FORMAT: u16 = 1;
/// Bytes of a footer entry.
pub(crate) const FOOTER_ENTRY_BYTES: usize = 32;
/// Bytes of a header, trailer or superblock; the rest of its block is zero.
pub(crate) const HEAD_RECORD_BYTES: usize = 64;
/// Where the check of such a record lies.
pub(crate) const CHECK_AT: usize = 56;

const HEADER_MAGIC: [u8; 4] = *b"TSSG";
const TRAILER_MAGIC: [u8; 4] = *b"TSFT";

const _: () = assert!(4 + 2 + 2 + 16 + 8 + 4 + 20 + 8 == HEAD_RECORD_BYTES);
const _: () = assert!(4 + 2 + 2 + 16 + 8 + 4 + 4 + 8 + 8 + 8 == HEAD_RECORD_BYTES);
const _: () = assert!(16 + 4 + 4 + 8 == FOOTER_ENTRY_BYTES);

/// Names a disk: random, made with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskId(pub(crate) [u8; 16]);

/// One use of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentUse {
    pub(crate) disk: DiskId,
    /// Grows with every segment that is opened on this disk, and by a random step at every start.
    pub(crate) sequence: u64,
    /// Which segment of the disk.
    pub(crate) segment: u32,
}

/// What a footer says of one object or one removal; a removal has neither place nor length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FooterEntry {
    pub(crate) id: ObjectId,
    /// Where the image begins in the segment, units of 256 bytes; 0 for a removal.
    pub(crate) offset: u32,
    /// Bytes of the payload; 0 for a removal.
    pub(crate) length_bytes: u32,
    /// The write; 0 for a removal.
    pub(crate) write: u64,
}

/// What the last block of a sealed segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) entries: u32,
    /// Of the bytes of all entries.
    pub(crate) entries_check: u64,
}

/// The check of a record of `disk`.
pub(crate) fn check(disk: DiskId, parts: &[&[u8]]) -> u64 {
    let mut running = Checksum::new();
    running.update(&disk.0);
    for part in parts {
        running.update(part);
    }
    running.finish()
}

/// Writes the header of a segment: one block.
pub(crate) fn write_header(block: &mut [u8], used: SegmentUse) {
    let mut bytes = opening(HEADER_MAGIC, used);
    Writer::new(&mut bytes).u32(used.segment);
    close(block, bytes, used.disk);
}

/// Reads the header of segment `segment` of `disk`. None if these bytes are not one.
pub(crate) fn read_header(block: &[u8], disk: DiskId, segment: u32) -> Option<SegmentUse> {
    let (sequence, mut reader) = opened(block, HEADER_MAGIC, disk)?;
    let named = reader.u32("segment").ok()?;
    (named == segment).then_some(SegmentUse {
        disk,
        sequence,
        segment,
    })
}

/// Writes the footer: entries from the first block on, the trailer in the last.
pub(crate) fn write_footer(footer: &mut [u8], used: SegmentUse, entries: &[FooterEntry]) {
    let (body, last) = footer.split_at_mut(footer.len() - BLOCK_BYTES);
    let mut bytes = Vec::with_capacity(entries.len() * FOOTER_ENTRY_BYTES);
    let mut writer = Writer::new(&mut bytes);
    for entry in entries {
        writer.bytes(&entry.id.0);
        writer.u32(entry.offset);
        writer.u32(entry.length_bytes);
        writer.u64(entry.write);
    }
    body[..bytes.len()].copy_from_slice(&bytes);
    body[bytes.len()..].fill(0);
    let mut trailer = opening(TRAILER_MAGIC, used);
    let mut writer = Writer::new(&mut trailer);
    writer.u32(u32::try_from(entries.len()).expect("entries fit a segment"));
    writer.u32(used.segment);
    writer.u64(checksum(&bytes));
    close(last, trailer, used.disk);
}

/// Reads the last block of a segment. None if it is not the trailer of this use of it.
pub(crate) fn read_trailer(block: &[u8], used: SegmentUse) -> Option<Trailer> {
    let (sequence, mut reader) = opened(block, TRAILER_MAGIC, used.disk)?;
    let entries = reader.u32("entries").ok()?;
    let segment = reader.u32("segment").ok()?;
    let entries_check = reader.u64("check of the entries").ok()?;
    (sequence == used.sequence && segment == used.segment).then_some(Trailer {
        entries,
        entries_check,
    })
}

/// Reads the entries that `trailer` counts. None if they are damaged.
pub(crate) fn read_footer(body: &[u8], trailer: Trailer) -> Option<Vec<FooterEntry>> {
    let count = usize::try_from(trailer.entries).ok()?;
    let bytes = body.get(..count.checked_mul(FOOTER_ENTRY_BYTES)?)?;
    if checksum(bytes) != trailer.entries_check {
        return None;
    }
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push(FooterEntry {
            id: ObjectId(reader.array("id").ok()?),
            offset: reader.u32("offset").ok()?,
            length_bytes: reader.u32("length").ok()?,
            write: reader.u64("write").ok()?,
        });
    }
    Some(entries)
}

fn opening(magic: [u8; 4], used: SegmentUse) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_RECORD_BYTES);
    let mut writer = Writer::new(&mut bytes);
    writer.bytes(&magic);
    writer.u16(FORMAT);
    writer.u16(0); // flags: none in this format
    writer.bytes(&used.disk.0);
    writer.u64(used.sequence);
    bytes
}

/// Ends a record with its check, in a block that is zero otherwise.
pub(crate) fn close(block: &mut [u8], mut bytes: Vec<u8>, disk: DiskId) {
    bytes.resize(CHECK_AT, 0);
    let check = check(disk, &[&bytes]);
    bytes.extend_from_slice(&check.to_le_bytes());
    block[..HEAD_RECORD_BYTES].copy_from_slice(&bytes);
    block[HEAD_RECORD_BYTES..].fill(0);
}

/// The sequence of a record that is one of `disk`, and a reader behind it.
fn opened(block: &[u8], magic: [u8; 4], disk: DiskId) -> Option<(u64, Reader<'_>)> {
    let (covered, rest) = block.split_at_checked(CHECK_AT)?;
    let said = Reader::new(rest).u64("check").ok()?;
    if said != check(disk, &[covered]) {
        return None;
    }
    let mut reader = Reader::new(covered);
    let known = reader.array("magic").ok()? == magic
        && reader.u16("format").ok()? == FORMAT
        && reader.u16("flags").ok()? == 0
        && reader.array("disk").ok()? == disk.0;
    let sequence = reader.u64("sequence").ok()?;
    known.then_some((sequence, reader))
}

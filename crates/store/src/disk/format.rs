//! Segment headers and footers, byte by byte as docs/disk-format.md draws them.
//!
//! Called by the log, which writes them, and by recovery, which believes nothing: a block is what
//! it claims only if magic, format, disk, numbers and check all agree. The check covers the id of
//! the disk, which no client knows, so that no payload can pass for a block of ours.

use tessera_proto::{Checksum, NamespaceDigest, ObjectId, Reader, TenantTag, Writer, checksum};

use super::contents::{Contents, Event, NamespaceName, StoredObject};
use super::device::BLOCK_BYTES;

/// The format that this build reads and writes.
pub(crate) const FORMAT: u16 = 2;
/// Bytes of a row of a footer: of an event as of a namespace.
pub(crate) const FOOTER_ROW_BYTES: usize = 40;
/// Bytes of a header, trailer or superblock; the rest of its block is zero.
pub(crate) const HEAD_RECORD_BYTES: usize = 64;
/// Where the check of such a record lies.
pub(crate) const CHECK_AT: usize = 56;

const HEADER_MAGIC: [u8; 4] = *b"TSSG";
const TRAILER_MAGIC: [u8; 4] = *b"TSFT";

const _: () = assert!(4 + 2 + 2 + 16 + 8 + 4 + 20 + 8 == HEAD_RECORD_BYTES);
/// The number of no namespace: of a removal.
const NO_NAMESPACE: u32 = u32::MAX;

const _: () = assert!(4 + 2 + 2 + 16 + 8 + 4 + 4 + 8 + 4 + 4 + 8 == HEAD_RECORD_BYTES);
const _: () = assert!(16 + 4 + 4 + 8 + 4 + 4 == FOOTER_ROW_BYTES);
const _: () = assert!(32 + 8 == FOOTER_ROW_BYTES);

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

/// What the last block of a sealed segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) events: u32,
    pub(crate) namespaces: u32,
    /// Of the bytes of all rows.
    pub(crate) rows_check: u64,
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

/// Writes the footer: events from the first block on, then namespaces, the trailer in the last.
pub(crate) fn write_footer(footer: &mut [u8], used: SegmentUse, contents: &Contents) {
    let (body, last) = footer.split_at_mut(footer.len() - BLOCK_BYTES);
    let mut bytes = Vec::with_capacity(contents.rows() * FOOTER_ROW_BYTES);
    let mut writer = Writer::new(&mut bytes);
    for event in contents.events() {
        write_event(&mut writer, event);
    }
    for name in contents.names() {
        writer.bytes(&name.digest.0);
        writer.u64(name.tenant.0);
    }
    body[..bytes.len()].copy_from_slice(&bytes);
    body[bytes.len()..].fill(0);
    let count = |rows: usize| u32::try_from(rows).expect("rows fit a segment");
    let mut trailer = opening(TRAILER_MAGIC, used);
    let mut writer = Writer::new(&mut trailer);
    writer.u32(count(contents.events().len()));
    writer.u32(used.segment);
    writer.u64(checksum(&bytes));
    writer.u32(count(contents.names().len()));
    close(last, trailer, used.disk);
}

fn write_event(writer: &mut Writer<'_>, event: &Event) {
    let nothing = StoredObject {
        id: ObjectId([0; 16]),
        offset: 0,
        length_bytes: 0,
        write: 0,
        stored_s: 0,
        namespace: NO_NAMESPACE,
    };
    let row = match *event {
        Event::Object(object) => object,
        Event::Removal(id) => StoredObject { id, ..nothing },
        Event::Drop(namespace) => StoredObject {
            namespace,
            ..nothing
        },
    };
    writer.bytes(&row.id.0);
    writer.u32(row.offset);
    writer.u32(row.length_bytes);
    writer.u64(row.write);
    writer.u32(row.stored_s);
    writer.u32(row.namespace);
}

/// Reads the last block of a segment. None if it is not the trailer of this use of it.
pub(crate) fn read_trailer(block: &[u8], used: SegmentUse) -> Option<Trailer> {
    let (sequence, mut reader) = opened(block, TRAILER_MAGIC, used.disk)?;
    let events = reader.u32("events").ok()?;
    let segment = reader.u32("segment").ok()?;
    let rows_check = reader.u64("check of the rows").ok()?;
    let namespaces = reader.u32("namespaces").ok()?;
    (sequence == used.sequence && segment == used.segment).then_some(Trailer {
        events,
        namespaces,
        rows_check,
    })
}

/// Reads the rows that `trailer` counts. None if they are damaged.
pub(crate) fn read_footer(body: &[u8], trailer: Trailer) -> Option<Contents> {
    let bytes = body.get(..trailer.rows()?.checked_mul(FOOTER_ROW_BYTES)?)?;
    if checksum(bytes) != trailer.rows_check {
        return None;
    }
    let mut reader = Reader::new(bytes);
    let events = (0..trailer.events).map(|_| read_event(&mut reader));
    let events = events.collect::<Option<_>>()?;
    let names = (0..trailer.namespaces).map(|_| {
        Some(NamespaceName {
            digest: NamespaceDigest(reader.array("namespace").ok()?),
            tenant: TenantTag(reader.u64("tenant").ok()?),
        })
    });
    Contents::of(events, names.collect::<Option<_>>()?)
}

fn read_event(reader: &mut Reader<'_>) -> Option<Event> {
    let row = StoredObject {
        id: ObjectId(reader.array("id").ok()?),
        offset: reader.u32("offset").ok()?,
        length_bytes: reader.u32("length").ok()?,
        write: reader.u64("write").ok()?,
        stored_s: reader.u32("stamp").ok()?,
        namespace: reader.u32("namespace").ok()?,
    };
    Some(match (row.length_bytes, row.namespace) {
        (0, NO_NAMESPACE) => Event::Removal(row.id),
        (0, namespace) => Event::Drop(namespace),
        _ => Event::Object(row),
    })
}

impl Trailer {
    /// Rows of the footer.
    pub(crate) fn rows(&self) -> Option<usize> {
        let events = usize::try_from(self.events).ok()?;
        events.checked_add(usize::try_from(self.namespaces).ok()?)
    }
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

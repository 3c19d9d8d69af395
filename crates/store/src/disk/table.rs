//! The table that opens each batch: what the batch stores and removes, one block.
//!
//! Written by the log together with the images that it names; read by recovery where no footer says
//! the same. It carries the headers of its objects in full, so that a scan can verify them.

use tessera_proto::{NamespaceDigest, OBJECT_HEADER_BYTES, ObjectHeader, ObjectId, Reader, Writer};

use super::device::BLOCK_BYTES;
use super::format::{CHECK_AT, FORMAT, HEAD_RECORD_BYTES, SegmentUse, check};
use crate::stamp::{read_stamped, stamped};

/// Most entries of one batch.
pub(crate) const ENTRIES_MAX: usize = 28;

const MAGIC: [u8; 4] = *b"TSBT";
const ENTRY_BYTES: usize = 144;
const KIND_OBJECT: u8 = 1;
const KIND_REMOVAL: u8 = 2;
const KIND_DROP: u8 = 3;

const _: () = assert!(HEAD_RECORD_BYTES + ENTRIES_MAX * ENTRY_BYTES == BLOCK_BYTES);
const _: () = assert!(1 + 3 + 4 + 8 + OBJECT_HEADER_BYTES == ENTRY_BYTES);

/// What a batch does to one id, or to all of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It stores this object, its image at `offset` in the segment, units of 256 bytes. It came
    /// into the store in second `stored_s` since the start of 1970.
    Object {
        header: ObjectHeader,
        stored_s: u32,
        offset: u32,
    },
    /// It removes whatever was stored under this id before.
    Removal(ObjectId),
    /// It removes whatever was stored in this namespace before.
    Drop(NamespaceDigest),
}

/// One batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// Grows with every start of a node that continued this use of the segment.
    pub(crate) run: u32,
    /// Grows by one with every batch in this use of the segment.
    pub(crate) number: u32,
    /// Blocks of the batch, this one included.
    pub(crate) blocks: u32,
    /// At most [`ENTRIES_MAX`]; none in the mark of a new run.
    pub(crate) entries: Vec<Entry>,
}

impl Table {
    /// Writes the table: one block.
    ///
    /// # Panics
    /// If there are too many entries.
    pub(crate) fn write(&self, block: &mut [u8], used: SegmentUse) {
        let count = u16::try_from(self.entries.len()).expect("28 at most");
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        let mut writer = Writer::new(&mut bytes);
        writer.bytes(&MAGIC);
        writer.u16(FORMAT);
        writer.u16(count);
        writer.bytes(&used.disk.0);
        writer.u64(used.sequence);
        writer.u32(self.run);
        writer.u32(self.number);
        writer.u32(self.blocks);
        writer.bytes(&[0; HEAD_RECORD_BYTES - 44]);
        for entry in &self.entries {
            write_entry(&mut bytes, entry);
        }
        bytes.resize(BLOCK_BYTES, 0);
        let check = check(
            used.disk,
            &[&bytes[..CHECK_AT], &bytes[HEAD_RECORD_BYTES..]],
        );
        bytes[CHECK_AT..HEAD_RECORD_BYTES].copy_from_slice(&check.to_le_bytes());
        block.copy_from_slice(&bytes);
    }

    /// Reads a table of this use of a segment. None if these bytes are not one.
    pub(crate) fn read(block: &[u8], used: SegmentUse) -> Option<Self> {
        if block.get(..MAGIC.len())? != MAGIC || block.len() != BLOCK_BYTES {
            return None; // The common case in a scan, told without a checksum.
        }
        let said = Reader::new(&block[CHECK_AT..]).u64("check").ok()?;
        let covered = [&block[..CHECK_AT], &block[HEAD_RECORD_BYTES..]];
        if said != check(used.disk, &covered) {
            return None;
        }
        let mut reader = Reader::new(&block[MAGIC.len()..CHECK_AT]);
        let format = reader.u16("format").ok()?;
        let count = usize::from(reader.u16("entries").ok()?);
        let disk: [u8; 16] = reader.array("disk").ok()?;
        let sequence = reader.u64("sequence").ok()?;
        let ours = format == FORMAT && disk == used.disk.0 && sequence == used.sequence;
        if !ours || count > ENTRIES_MAX {
            return None;
        }
        let (run, number) = (reader.u32("run").ok()?, reader.u32("number").ok()?);
        let blocks = reader.u32("blocks").ok()?;
        let mut reader = Reader::new(&block[HEAD_RECORD_BYTES..]);
        let entries = (0..count).map(|_| read_entry(&mut reader));
        Some(Self {
            run,
            number,
            blocks,
            entries: entries.collect::<Option<_>>()?,
        })
    }
}

fn write_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    let (kind, offset) = match entry {
        Entry::Object { offset, .. } => (KIND_OBJECT, *offset),
        Entry::Removal(_) => (KIND_REMOVAL, 0),
        Entry::Drop(_) => (KIND_DROP, 0),
    };
    let mut writer = Writer::new(bytes);
    writer.u8(kind);
    writer.bytes(&[0; 3]);
    writer.u32(offset);
    writer.u64(0);
    let end = bytes.len() + OBJECT_HEADER_BYTES;
    match entry {
        Entry::Object {
            header, stored_s, ..
        } => bytes.extend_from_slice(&stamped(header, *stored_s)),
        Entry::Removal(id) => bytes.extend_from_slice(&id.0),
        Entry::Drop(namespace) => bytes.extend_from_slice(&namespace.0),
    }
    bytes.resize(end, 0);
}

fn read_entry(reader: &mut Reader<'_>) -> Option<Entry> {
    let kind = reader.u8("kind").ok()?;
    reader.zeros("kind", 3).ok()?;
    let offset = reader.u32("offset").ok()?;
    reader.zeros("reserved", 8).ok()?;
    let bytes = reader.bytes("entry", OBJECT_HEADER_BYTES).ok()?;
    let mut rest = Reader::new(bytes);
    match kind {
        KIND_OBJECT => read_stamped(bytes).map(|(header, stored_s)| Entry::Object {
            header,
            stored_s,
            offset,
        }),
        KIND_REMOVAL => Some(Entry::Removal(ObjectId(rest.array("id").ok()?))),
        KIND_DROP => Some(Entry::Drop(NamespaceDigest(rest.array("namespace").ok()?))),
        _ => None,
    }
}

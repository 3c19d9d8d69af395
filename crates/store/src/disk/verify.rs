//! The offline check of a disk: every object is read and compared with its checksum.
//!
//! Called by `tessera verify` on a folder that no node uses. It only reads.

use std::io;

use super::contents::{Event, StoredObject};
use super::device::{BLOCK_BYTES, Buffer, Disk, read};
use super::layout::UNIT_BYTES;
use super::reader::Span;
use super::recovery::{Found, header_of, recover, verifies};
use super::superblock::{FormatError, Superblock};

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskReport {
    /// Segments that hold something.
    pub segments: u64,
    /// Of these, segments that were not sealed; a node that was killed leaves one.
    pub unsealed: u64,
    /// Objects whose bytes verify, each write of one counted.
    pub objects: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// Removals.
    pub removals: u64,
    /// Drops of a namespace.
    pub drops: u64,
    /// Objects at the end of the log that are not whole, as the last ones before a crash may be.
    pub torn: u64,
    /// Other objects whose bytes do not verify. A node never gives them out.
    pub damaged: u64,
}

/// Checks a whole disk. None if it is empty.
///
/// # Errors
/// It is no disk of ours, or it cannot be read at all.
pub fn verify(disk: &dyn Disk) -> Result<Option<DiskReport>, FormatError> {
    let Some(superblock) = Superblock::find(disk)? else {
        return Ok(None);
    };
    superblock.check_length(disk)?;
    let mut report = DiskReport::default();
    for found in recover(disk, &superblock).segments {
        report.segments += 1;
        report.unsealed += u64::from(found.tail.is_some());
        report.torn += found.damaged;
        check_segment(disk, &superblock, &found, &mut report)?;
    }
    Ok(Some(report))
}

fn check_segment(
    disk: &dyn Disk,
    superblock: &Superblock,
    found: &Found,
    report: &mut DiskReport,
) -> io::Result<()> {
    let start = superblock.layout.segment_at(found.used.segment);
    for event in found.contents.events() {
        match event {
            Event::Removal(_) => report.removals += 1,
            Event::Drop(_) => report.drops += 1,
            Event::Object(object) if is_good(disk, start, object) => {
                report.objects += 1;
                report.bytes += u64::from(object.length_bytes);
            }
            Event::Object(_) => report.damaged += 1,
        }
    }
    Ok(())
}

fn is_good(disk: &dyn Disk, start: u64, object: &StoredObject) -> bool {
    let span = Span::at(object.offset, object.length_bytes);
    debug_assert!(span.skip.is_multiple_of(UNIT_BYTES) && span.skip < BLOCK_BYTES);
    let mut blocks = Buffer::new(span.blocks_bytes);
    if read(disk, start + span.at, blocks.bytes_mut()).is_err() {
        return false;
    }
    let image = &blocks.bytes()[span.skip..][..span.image_bytes];
    header_of(image).is_some_and(|header| header.id() == object.id && verifies(image, &header))
}

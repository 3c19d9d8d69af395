//! Where things lie: images of objects, and the parts of a segment.
//!
//! Called by everything that computes a position. The image of an object is what the arena holds of
//! it, `payload | padding | object header (128)`: from 64 KiB on it fills whole blocks, so that one
//! transfer without a copy moves it in either direction; a smaller one takes units of 256 bytes.

use tessera_proto::OBJECT_HEADER_BYTES;

use super::device::BLOCK_BYTES;
use super::format::FOOTER_ROW_BYTES;

/// Granularity of positions in a segment, bytes.
pub(crate) const UNIT_BYTES: usize = 256;
/// Images from this size on fill whole blocks, bytes. The arena has the same border.
pub(crate) const BLOCKS_FROM_BYTES: usize = 64 << 10;
/// Before the first segment: superblocks, and room for what formats to come need.
pub(crate) const HEAD_BYTES: u64 = 1 << 20;
/// Two copies of the segment header.
pub(crate) const SEGMENT_HEAD_BYTES: usize = 2 * BLOCK_BYTES;
/// Smallest segment: a few of the largest small images.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// Largest segment: its positions in units and its lengths fit 32 bits.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// One segment is open, one is free, the rest hold objects.
pub(crate) const SEGMENTS_MIN: u32 = 4;
/// Most segments of one disk: their numbers take 24 bits of a record.
pub(crate) const SEGMENTS_MAX: u32 = 1 << 24;

/// Of a segment, what only removals may take.
const REMOVAL_SHARE: usize = 64;

/// Segments that a disk is divided into where nobody says otherwise, if that gives usual sizes.
const SEGMENTS_USUAL: u64 = 16;
/// Largest segment of those.
const SEGMENT_BYTES_USUAL: u64 = 64 << 20;

/// How large a disk that is new is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSize {
    /// Bytes of the whole file; what does not fill a segment is not used.
    pub bytes: u64,
    /// Bytes of a segment, which bounds the largest object.
    pub segment_bytes: u64,
}

impl DiskSize {
    /// A disk of `bytes` in the usual segments: a sixteenth of it each, up to 64 MiB. The same
    /// bytes always give the same segments.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        let share = (bytes / SEGMENTS_USUAL).checked_ilog2().unwrap_or(0);
        let segment_bytes = (1 << share).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_USUAL);
        Self {
            bytes,
            segment_bytes,
        }
    }
}

/// Bytes at the end of a segment of `segment_bytes` that only removals may take: they have room
/// where objects have none.
pub(crate) fn removal_bytes(segment_bytes: usize) -> usize {
    (segment_bytes / REMOVAL_SHARE).next_multiple_of(BLOCK_BYTES)
}

/// Bytes of the image of a payload of `length_bytes`.
pub(crate) fn image_bytes(length_bytes: usize) -> usize {
    let bytes = length_bytes + OBJECT_HEADER_BYTES;
    match fills_blocks(length_bytes) {
        true => bytes.next_multiple_of(BLOCK_BYTES),
        false => bytes.next_multiple_of(UNIT_BYTES),
    }
}

/// Whether the image of a payload of `length_bytes` fills whole blocks.
pub(crate) fn fills_blocks(length_bytes: usize) -> bool {
    length_bytes + OBJECT_HEADER_BYTES >= BLOCKS_FROM_BYTES
}

/// Rows that one more entry of the log may add to the footer: its own, and that of a namespace.
pub(crate) const ROWS_AN_ENTRY: usize = 2;

/// Bytes of a footer of `rows`, trailer included.
pub(crate) fn footer_bytes(rows: usize) -> usize {
    (rows * FOOTER_ROW_BYTES).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES
}

/// Sizes of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) segment_bytes: u64,
    pub(crate) segments: u32,
}

impl Layout {
    /// As many segments of `segment_bytes` as a disk of `disk_bytes` holds.
    pub(crate) fn of_disk(disk_bytes: u64, segment_bytes: u64) -> Self {
        let segments = disk_bytes.saturating_sub(HEAD_BYTES) / segment_bytes.max(1);
        Self {
            segment_bytes,
            segments: u32::try_from(segments).unwrap_or(u32::MAX),
        }
    }

    /// Bytes of a disk with this layout.
    pub(crate) fn disk_bytes(&self) -> u64 {
        HEAD_BYTES + u64::from(self.segments) * self.segment_bytes
    }

    /// Where a segment begins.
    pub(crate) fn segment_at(&self, segment: u32) -> u64 {
        HEAD_BYTES + u64::from(segment) * self.segment_bytes
    }

    /// Bytes of a segment.
    pub(crate) fn segment_length(&self) -> usize {
        usize::try_from(self.segment_bytes).expect("a segment is at most 1 GiB")
    }

    /// Largest payload that a segment takes, bytes.
    pub(crate) fn largest_object_bytes(&self) -> u64 {
        let around =
            SEGMENT_HEAD_BYTES + BLOCK_BYTES + footer_bytes(ROWS_AN_ENTRY) + OBJECT_HEADER_BYTES;
        self.segment_bytes - around as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;

    #[test]
    fn large_images_are_the_extents_of_every_arena() {
        for capacity in [1 << 30, 1 << 40] {
            let geometry = Geometry::of_capacity(capacity);
            for length in [65_408, 65_409, 1 << 20, (1 << 20) + 1, 200_000_001] {
                let units = geometry.need(length as u64).units;
                assert_eq!(geometry.bytes(units), image_bytes(length) as u64);
            }
        }
    }

    #[test]
    fn usual_segments_are_as_many_as_need_be_and_their_size_is_bounded() {
        for (bytes, segment_bytes) in [
            (0, 256 << 10),
            (2 << 20, 256 << 10),
            (256 << 20, 16 << 20),
            ((256 << 20) - 1, 8 << 20),
            (16 << 30, 64 << 20),
            (4 << 40, 64 << 20),
        ] {
            assert_eq!(DiskSize::of(bytes).segment_bytes, segment_bytes, "{bytes}");
        }
    }

    #[test]
    fn largest_object_fits_a_segment_alone_and_one_byte_more_does_not() {
        let layout = Layout {
            segment_bytes: 1 << 20,
            segments: 4,
        };
        let fits = |length: u64| {
            let image = image_bytes(usize::try_from(length).expect("small"));
            SEGMENT_HEAD_BYTES + BLOCK_BYTES + image + footer_bytes(ROWS_AN_ENTRY) <= 1 << 20
        };
        assert!(fits(layout.largest_object_bytes()));
        assert!(!fits(layout.largest_object_bytes() + 1));
    }
}

//! What a disk is: its id, its format, its geometry.
//!
//! Called when a disk is opened. Two copies, in the first two blocks, are written once, when a disk
//! that is empty is made ours, and never again: a disk of another format or geometry is refused.

use std::io;

use tessera_proto::{Reader, Writer};
use thiserror::Error;

use super::device::{BLOCK_BYTES, Buffer, Disk, read, write};
use super::format::{CHECK_AT, DiskId, FORMAT, check, close};
use super::layout::{Layout, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MAX, SEGMENTS_MIN};

const MAGIC: [u8; 8] = *b"TSDISK\r\n";

/// Why a disk cannot be used.
#[derive(Debug, Error)]
pub enum FormatError {
    /// Something else is stored there: name another folder. Nothing was written.
    #[error("this is no data file of Tessera, or its first blocks are damaged: it is left alone")]
    Foreign,
    /// Another version of Tessera made it: use that version, or another folder.
    #[error("data of format {got}, this build reads {FORMAT}: use the version that made it")]
    Version {
        /// The format found.
        got: u16,
    },
    /// The disk was made with other sizes: give those, or another folder.
    #[error(
        "the data folder was made with {got_segments} segments of {got_bytes} bytes ({} bytes in \
         all), and {want_segments} of {want_bytes} were asked for: give the same sizes, or another \
         folder",
        .got_bytes * u64::from(*.got_segments)
    )]
    Geometry {
        /// Segments that it has.
        got_segments: u32,
        /// Bytes of each.
        got_bytes: u64,
        /// Segments that were asked for.
        want_segments: u32,
        /// Bytes of each.
        want_bytes: u64,
    },
    /// The data file is shorter than it says: it was cut. Restore it, or use another folder.
    #[error("the data file has {got} bytes and must have {want}: it was cut and is left alone")]
    Cut {
        /// Its length, bytes.
        got: u64,
        /// What its geometry needs, bytes.
        want: u64,
    },
    /// These sizes make no disk: give segments of 256 KiB to 1 GiB in whole blocks, four or more.
    #[error(
        "{segments} segments of {segment_bytes} bytes: give {SEGMENTS_MIN} or more, each of \
         {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes in whole blocks of {BLOCK_BYTES}"
    )]
    Sizes {
        /// Bytes of a segment.
        segment_bytes: u64,
        /// How many.
        segments: u32,
    },
    /// The disk failed.
    #[error("the disk failed: {0}")]
    Io(#[from] io::Error),
}

impl FormatError {
    pub(crate) fn geometry(got: Layout, want: Layout) -> Self {
        Self::Geometry {
            got_segments: got.segments,
            got_bytes: got.segment_bytes,
            want_segments: want.segments,
            want_bytes: want.segment_bytes,
        }
    }
}

/// What the superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) id: DiskId,
    pub(crate) layout: Layout,
}

impl Superblock {
    /// What the disk says of itself; none if it is empty.
    pub(crate) fn find(disk: &dyn Disk) -> Result<Option<Self>, FormatError> {
        let mut buffer = Buffer::new(2 * BLOCK_BYTES);
        if disk.length_bytes() < buffer.bytes().len() as u64 {
            return Ok(None);
        }
        read(disk, 0, buffer.bytes_mut())?;
        let (first, second) = buffer.bytes().split_at(BLOCK_BYTES);
        match (decode(first), decode(second)) {
            (Ok(found), _) | (_, Ok(found)) => Ok(Some(found)),
            // An empty disk, or one whose making was cut short.
            (Err(_), Err(_)) if buffer.bytes().iter().all(|byte| *byte == 0) => Ok(None),
            (Err(error @ FormatError::Version { .. }), _) | (_, Err(error)) => Err(error),
        }
    }

    /// Makes an empty disk ours.
    pub(crate) fn create(disk: &dyn Disk, layout: Layout) -> Result<Self, FormatError> {
        check_sizes(layout)?;
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
        let made = Self {
            id: DiskId(id),
            layout,
        };
        made.check_length(disk)?;
        let mut block = Buffer::new(BLOCK_BYTES);
        made.encode(block.bytes_mut());
        for copy in [0, BLOCK_BYTES] {
            write(disk, copy as u64, block.bytes())?;
            disk.sync()?;
        }
        Ok(made)
    }

    /// Makes a disk one that is empty for every start to come, whatever its segments hold.
    pub(crate) fn erase(disk: &dyn Disk) -> io::Result<()> {
        write(disk, 0, Buffer::new(2 * BLOCK_BYTES).bytes())?;
        disk.sync()
    }

    /// Refuses a disk that is shorter than it says.
    pub(crate) fn check_length(&self, disk: &dyn Disk) -> Result<(), FormatError> {
        let (got, want) = (disk.length_bytes(), self.layout.disk_bytes());
        match got < want {
            true => Err(FormatError::Cut { got, want }),
            false => Ok(()),
        }
    }

    fn encode(&self, block: &mut [u8]) {
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        let mut writer = Writer::new(&mut bytes);
        writer.bytes(&MAGIC);
        writer.u16(FORMAT);
        writer.u16(0); // flags: none in this format
        writer.count(BLOCK_BYTES);
        writer.bytes(&self.id.0);
        writer.u64(self.layout.segment_bytes);
        writer.u32(self.layout.segments);
        close(block, bytes, self.id);
    }
}

/// Refuses sizes that make no disk.
pub(crate) fn check_sizes(layout: Layout) -> Result<(), FormatError> {
    let good = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&layout.segment_bytes)
        && layout.segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
        && (SEGMENTS_MIN..=SEGMENTS_MAX).contains(&layout.segments);
    match good {
        true => Ok(()),
        false => Err(FormatError::Sizes {
            segment_bytes: layout.segment_bytes,
            segments: layout.segments,
        }),
    }
}

fn decode(block: &[u8]) -> Result<Superblock, FormatError> {
    let foreign = |_| FormatError::Foreign;
    let mut reader = Reader::new(block);
    let magic: [u8; 8] = reader.array("magic").map_err(foreign)?;
    let format = reader.u16("format").map_err(foreign)?;
    if magic != MAGIC {
        return Err(FormatError::Foreign);
    }
    if format != FORMAT {
        return Err(FormatError::Version { got: format });
    }
    let flags = reader.u16("flags").map_err(foreign)?;
    let block_bytes = reader.u32("block").map_err(foreign)?;
    let id = DiskId(reader.array("id").map_err(foreign)?);
    let layout = Layout {
        segment_bytes: reader.u64("segment bytes").map_err(foreign)?,
        segments: reader.u32("segments").map_err(foreign)?,
    };
    let said = Reader::new(&block[CHECK_AT..])
        .u64("check")
        .map_err(foreign)?;
    let good = said == check(id, &[&block[..CHECK_AT]])
        && flags == 0
        && block_bytes as usize == BLOCK_BYTES;
    if !good {
        return Err(FormatError::Foreign);
    }
    check_sizes(layout)?;
    Ok(Superblock { id, layout })
}

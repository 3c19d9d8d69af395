//! The open segment of one disk: append a batch, seal, open the next, erase an old one.
//!
//! Called by the disk's one writer, and by nobody else. Invariants: what is appended lies behind
//! everything appended before, so the order of batches is the order of events; a batch is accepted
//! only if the footer of all entries still fits behind it; a segment is opened only after its old
//! header was erased.

use std::io;
use std::sync::Arc;

use tessera_proto::{NamespaceDigest, ObjectHeader, ObjectId};

use super::contents::Contents;
use super::device::{BLOCK_BYTES, Buffer, Disk, Transfer, write};
use super::format::{SegmentUse, write_footer, write_header};
use super::layout::{
    BLOCKS_FROM_BYTES, ROWS_AN_ENTRY, SEGMENT_HEAD_BYTES, UNIT_BYTES, fills_blocks, footer_bytes,
    image_bytes, removal_bytes,
};
use super::recovery::Found;
use super::superblock::Superblock;
use super::table::{ENTRIES_MAX, Entry, Table};
use crate::stamp::stamped;

/// One thing that a batch does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// Stores an object, which came in second `stored_s`. `bytes` are its whole image if that
    /// fills blocks, else its payload.
    Object {
        header: ObjectHeader,
        stored_s: u32,
        bytes: &'a [u8],
    },
    /// Removes what was stored under this id before.
    Removal(ObjectId),
    /// Removes what was stored in this namespace before.
    Drop(NamespaceDigest),
}

impl Piece<'_> {
    /// Bytes of its payload, if it stores one.
    fn length_bytes(&self) -> Option<usize> {
        match self {
            Self::Object { header, .. } => {
                Some(usize::try_from(header.length_bytes).expect("it is in memory"))
            }
            Self::Removal(_) | Self::Drop(_) => None,
        }
    }

    /// Whether it stores an object.
    pub(crate) fn stores(&self) -> bool {
        matches!(self, Self::Object { .. })
    }

    fn image_bytes(&self) -> usize {
        self.length_bytes().map_or(0, image_bytes)
    }

    fn fills_blocks(&self) -> bool {
        self.length_bytes().is_some_and(fills_blocks)
    }
}

/// What a batch will take.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    /// Of images that do not fill blocks.
    small_bytes: usize,
    /// Of the table and all images.
    bytes: usize,
}

/// The segment that is written.
#[derive(Debug)]
struct Open {
    used: SegmentUse,
    tail: usize,
    run: u32,
    next: u32,
    contents: Contents,
}

/// The log of one disk.
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    superblock: Superblock,
    open: Option<Open>,
    next_sequence: u64,
    /// A table and the small images behind it.
    front: Buffer,
}

impl Log {
    /// A log that has written nothing yet; `next_sequence` is above all in use.
    pub(crate) fn new(disk: Arc<dyn Disk>, superblock: Superblock, next_sequence: u64) -> Self {
        Self {
            disk,
            superblock,
            open: None,
            next_sequence,
            front: Buffer::new(BLOCK_BYTES + ENTRIES_MAX * BLOCKS_FROM_BYTES),
        }
    }

    /// The disk itself.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The number of the open segment.
    pub(crate) fn open_segment(&self) -> Option<u32> {
        self.open.as_ref().map(|open| open.used.segment)
    }

    /// Whether a batch of these pieces fits the open segment, and another of `reserve` bytes, with
    /// the footer behind them. Objects leave room for removals, except one that is alone.
    pub(crate) fn fits(&self, pieces: &[Piece<'_>], reserve: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let others = if reserve > 0 { ENTRIES_MAX } else { 0 };
            let rows = ROWS_AN_ENTRY * (pieces.len() + others);
            let footer = footer_bytes(open.contents.rows() + rows);
            let length = self.superblock.layout.segment_length();
            let is_alone = pieces.len() == 1 && open.tail == SEGMENT_HEAD_BYTES;
            let stores = pieces.iter().any(Piece::stores);
            let kept = match stores && !is_alone {
                true => removal_bytes(length),
                false => 0,
            };
            open.tail + extent(pieces).bytes + reserve + kept + footer <= length
        })
    }

    /// Writes one batch, which must fit. Returns where each image begins, in units.
    ///
    /// # Errors
    /// The disk failed; the batch is not part of the log.
    pub(crate) fn append(&mut self, pieces: &[Piece<'_>]) -> io::Result<Vec<u32>> {
        assert!(self.fits(pieces, 0) && pieces.len() <= ENTRIES_MAX);
        let open = self.open.as_mut().expect("fits only if one is open");
        let extent = extent(pieces);
        let small_blocks = extent.small_bytes.next_multiple_of(BLOCK_BYTES);
        let offsets = place(pieces, open.tail, small_blocks);
        let table = table(open, pieces, &offsets, extent.bytes / BLOCK_BYTES);
        let front = &mut self.front.bytes_mut()[..BLOCK_BYTES + small_blocks];
        table.write(&mut front[..BLOCK_BYTES], open.used);
        copy_small(pieces, &offsets, open.tail, front);
        let start = self.superblock.layout.segment_at(open.used.segment);
        let mut transfers = vec![Transfer::write(start + open.tail as u64, front)];
        for (piece, offset) in pieces.iter().zip(&offsets) {
            if let Piece::Object { bytes, .. } = piece
                && piece.fills_blocks()
            {
                let at = start + u64::from(*offset) * UNIT_BYTES as u64;
                transfers.push(Transfer::write(at, bytes));
            }
        }
        self.disk.run(&mut transfers);
        for transfer in transfers {
            transfer.outcome?;
        }
        open.tail += extent.bytes;
        open.next += 1;
        for entry in &table.entries {
            open.contents.push(entry);
        }
        Ok(offsets)
    }

    /// Ends the open segment with its footer.
    ///
    /// # Errors
    /// The disk failed; the segment is closed all the same, and will be scanned.
    pub(crate) fn seal(&mut self) -> io::Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let mut footer = Buffer::new(footer_bytes(open.contents.rows()));
        write_footer(footer.bytes_mut(), open.used, &open.contents);
        let layout = self.superblock.layout;
        let end = layout.segment_at(open.used.segment) + layout.segment_bytes;
        let at = end - footer.bytes().len() as u64;
        write(&*self.disk, at, footer.bytes())
    }

    /// Begins a new use of an erased segment. Returns its sequence.
    ///
    /// # Errors
    /// The disk failed; nothing is open.
    pub(crate) fn open(&mut self, segment: u32) -> io::Result<u64> {
        debug_assert!(self.open.is_none());
        let used = SegmentUse {
            disk: self.superblock.id,
            sequence: self.next_sequence,
            segment,
        };
        let mut head = Buffer::new(SEGMENT_HEAD_BYTES);
        for copy in head.bytes_mut().chunks_mut(BLOCK_BYTES) {
            write_header(copy, used);
        }
        let at = self.superblock.layout.segment_at(segment);
        write(&*self.disk, at, head.bytes())?;
        self.next_sequence += 1;
        self.open = Some(Open {
            used,
            tail: SEGMENT_HEAD_BYTES,
            run: 0,
            next: 0,
            contents: Contents::default(),
        });
        Ok(used.sequence)
    }

    /// Goes on with a segment that was not sealed, behind a mark that tells this run from the one
    /// before. False if there is no room for the mark.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) fn resume(&mut self, found: &Found) -> io::Result<bool> {
        let Some(tail) = found.tail else {
            return Ok(false);
        };
        self.open = Some(Open {
            used: found.used,
            tail: tail.at,
            run: tail.run.saturating_add(1),
            next: tail.next,
            contents: found.contents.clone(),
        });
        if !self.fits(&[], 0) {
            self.open = None;
            return Ok(false);
        }
        self.append(&[])?;
        Ok(true)
    }

    /// Makes a segment free for good: after this nothing in it will be found at a start.
    ///
    /// # Errors
    /// The disk failed; the segment may be found again.
    pub(crate) fn erase(&self, segment: u32) -> io::Result<()> {
        let head = Buffer::new(SEGMENT_HEAD_BYTES);
        let at = self.superblock.layout.segment_at(segment);
        write(&*self.disk, at, head.bytes())?;
        self.disk.sync()
    }
}

/// Bytes that a batch of these pieces takes.
pub(crate) fn batch_bytes(pieces: &[Piece<'_>]) -> usize {
    extent(pieces).bytes
}

fn extent(pieces: &[Piece<'_>]) -> Extent {
    let bytes_of = |large: bool| {
        let chosen = pieces.iter().filter(|piece| piece.fills_blocks() == large);
        chosen.map(Piece::image_bytes).sum::<usize>()
    };
    let (small_bytes, large_bytes) = (bytes_of(false), bytes_of(true));
    Extent {
        small_bytes,
        bytes: BLOCK_BYTES + small_bytes.next_multiple_of(BLOCK_BYTES) + large_bytes,
    }
}

/// Where each image begins: small ones right behind the table, the others behind those.
fn place(pieces: &[Piece<'_>], tail: usize, small_blocks: usize) -> Vec<u32> {
    let mut small = tail + BLOCK_BYTES;
    let mut large = small + small_blocks;
    let place = |piece: &Piece<'_>| {
        let bytes = piece.image_bytes();
        let next = match piece.fills_blocks() {
            true => &mut large,
            false => &mut small,
        };
        let at = *next;
        *next += bytes;
        match piece {
            Piece::Removal(_) | Piece::Drop(_) => 0,
            Piece::Object { .. } => {
                u32::try_from(at / UNIT_BYTES).expect("a segment is at most 1 GiB")
            }
        }
    };
    pieces.iter().map(place).collect()
}

fn table(open: &Open, pieces: &[Piece<'_>], offsets: &[u32], blocks: usize) -> Table {
    let entry = |(piece, offset): (&Piece<'_>, &u32)| match piece {
        Piece::Object {
            header, stored_s, ..
        } => Entry::Object {
            header: *header,
            stored_s: *stored_s,
            offset: *offset,
        },
        Piece::Removal(id) => Entry::Removal(*id),
        Piece::Drop(namespace) => Entry::Drop(*namespace),
    };
    Table {
        run: open.run,
        number: open.next,
        blocks: u32::try_from(blocks).expect("a segment is at most 1 GiB"),
        entries: pieces.iter().zip(offsets).map(entry).collect(),
    }
}

/// Composes the small images in the blocks behind the table.
fn copy_small(pieces: &[Piece<'_>], offsets: &[u32], tail: usize, front: &mut [u8]) {
    front[BLOCK_BYTES..].fill(0);
    for (piece, offset) in pieces.iter().zip(offsets) {
        let bytes_of_image = piece.image_bytes();
        let Piece::Object {
            header,
            stored_s,
            bytes,
        } = piece
        else {
            continue;
        };
        if piece.fills_blocks() {
            continue;
        }
        let at = *offset as usize * UNIT_BYTES - tail;
        let image = &mut front[at..at + bytes_of_image];
        image[..bytes.len()].copy_from_slice(bytes);
        let encoded = stamped(header, *stored_s);
        let header_at = image.len() - encoded.len();
        image[header_at..].copy_from_slice(&encoded);
    }
}

//! Block memory as connections use it: bytes of pieces out of blocks and into blocks.
//!
//! Called by reader and writer of each connection. The invariants: blocks that may be written are
//! lent for as long as they may; memory that sockets reach is used in place, and all other memory
//! through scratch memory of the one task that copies; what a device was given to write stays lent
//! until its fence, which the machine orders.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tessera_lifecycle::plan::Destination;
use tessera_proto::message::PartStatus;
use tessera_transport::{
    Device, FenceSide, Lent, LentRanges, LinkError, Receiver, Region, Segments,
};
use tokio::time::{Instant, timeout_at};

use super::pieces::Piece;
use crate::driver::{Fences, MemoryFault, answered};
use crate::layout::{Discard, Layout};

/// The block memory of one worker.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) layout: Arc<Layout>,
    pub(super) proof_timeout: Duration,
}

/// Where one piece goes.
#[derive(Debug)]
pub(super) enum Place {
    /// Blocks that a socket writes itself.
    Blocks(Lent),
    /// Blocks of devices, each of which has some of them.
    Devices(Vec<(Arc<dyn Device>, LentRanges)>),
}

/// What a receive left behind.
#[derive(Debug)]
pub(super) struct Received {
    /// How it went.
    pub(super) status: PartStatus,
    /// What devices may still write, until their fence.
    pub(super) written: Vec<LentRanges>,
}

/// Why a task that uses block memory cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Nobody can say that memory is at rest: the worker stops.
    #[error(transparent)]
    Fault(#[from] MemoryFault),
}

/// Host memory of one task, for bytes on their way from or to a device. It only grows.
#[derive(Debug, Default)]
pub(super) struct Scratch(Option<Arc<Region>>);

impl Scratch {
    fn take(&mut self, memory: &Memory, length_bytes: u64) -> io::Result<Lent> {
        let length = usize::try_from(length_bytes).map_err(io::Error::other)?;
        let kept = self.0.take().filter(|kept| kept.length_bytes() >= length);
        let region = match kept {
            Some(region) => region,
            None => memory.allocate(length.next_power_of_two())?,
        };
        let mut segments = Segments::with_capacity(1);
        segments
            .push(&region, 0, length)
            .map_err(io::Error::other)?;
        self.0 = Some(region);
        Lent::new(segments).map_err(io::Error::other)
    }
}

impl Memory {
    fn allocate(&self, length: usize) -> io::Result<Arc<Region>> {
        let region = Region::allocate(length)?;
        for device in self.layout.devices() {
            if let Err(error) = device.pin(&region) {
                tracing::debug!(%error, "copies from and to the device will be slower");
            }
        }
        Ok(region)
    }

    /// Waits until all work so far on the block memory is over.
    pub(super) async fn rest(&self) -> Result<(), MemoryFault> {
        let mut fences = Fences::ask(self.layout.devices(), FenceSide::Before);
        if fences.are_over() {
            return Ok(());
        }
        let limit = self.proof_timeout;
        let over = timeout_at(Instant::now() + limit, fences.over()).await;
        over.unwrap_or_else(|_| Err(fences.silent(limit)))
    }

    /// The bytes of a piece as they are now, behind [`rest`](Self::rest). `None` if a device fails
    /// or there is no such block.
    pub(super) async fn read(
        &self,
        piece: &Piece,
        scratch: &mut Scratch,
    ) -> Result<Option<Segments>, MemoryFault> {
        if self.layout.is_in_place() {
            let blocks = piece.blocks.iter().map(|block| match block {
                Destination::Block(block) => Some(*block),
                Destination::Discard => None,
            });
            let blocks: Option<Vec<u32>> = blocks.collect();
            let layout = &piece.share.layout;
            let bytes = blocks.and_then(|blocks| layout.gather(piece.group, &blocks).ok());
            return Ok(bytes);
        }
        let places = piece.share.layout.ranges(piece.group, &piece.blocks);
        let (Ok(places), Ok(mut lent)) = (places, scratch.take(self, piece.length_bytes)) else {
            return Ok(None);
        };
        for (device, ranges) in places {
            let read = device.read(ranges, lent);
            let (done, back) = answered(&device, self.proof_timeout, read).await?;
            if let Err(error) = done {
                tracing::warn!(%error, "bytes for a peer cannot be read");
                return Ok(None);
            }
            lent = back;
        }
        Ok(Some(lent.into_segments()))
    }

    /// Lends the blocks of all pieces. `None` if a block does not exist, is named twice, or may
    /// still be written by something else.
    pub(super) fn lend(&self, pieces: &[Piece]) -> Option<Vec<Place>> {
        let discarded = |piece: &Piece| {
            let layout = &piece.share.layout;
            layout.discarded_bytes(piece.group, &piece.blocks)
        };
        let total: u64 = pieces.iter().map(discarded).sum();
        let mut discard = match total {
            0 => None,
            total => Some(Discard {
                region: Region::allocate(usize::try_from(total).ok()?).ok()?,
                offset: 0,
            }),
        };
        let mut places = Vec::with_capacity(pieces.len());
        for piece in pieces {
            places.push(self.lend_piece(piece, discard.as_ref())?);
            if let Some(discard) = &mut discard {
                discard.offset += usize::try_from(discarded(piece)).ok()?;
            }
        }
        Some(places)
    }

    fn lend_piece(&self, piece: &Piece, discard: Option<&Discard>) -> Option<Place> {
        let layout = &piece.share.layout;
        if layout.is_in_place() {
            let lent = layout.scatter(piece.group, &piece.blocks, discard);
            let lent = lent.inspect_err(|error| tracing::error!(%error, "blocks cannot be lent"));
            return lent.ok().map(Place::Blocks);
        }
        let places = layout.ranges(piece.group, &piece.blocks).ok()?;
        let lend = |(device, ranges): (Arc<dyn Device>, tessera_transport::DeviceRanges)| {
            let lent = ranges.lend();
            let lent = lent.inspect_err(|error| tracing::error!(%error, "blocks cannot be lent"));
            Some((device, lent.ok()?))
        };
        let places: Option<Vec<_>> = places.into_iter().map(lend).collect();
        places.map(Place::Devices)
    }

    /// Receives the payload of a frame into its place. Over, nothing writes the place any more, but
    /// for what comes back as written; and what is not the payload that was sent is not left there:
    /// zeros are.
    pub(super) async fn receive(
        &self,
        receiver: &mut Receiver,
        place: Place,
        length_bytes: u64,
        checksum: u64,
        deadline: Instant,
        scratch: &mut Scratch,
    ) -> Result<Received, Broken> {
        let outcome = |status| Received {
            status,
            written: Vec::new(),
        };
        let places = match place {
            Place::Blocks(mut lent) => {
                let landed = receiver.payload_scatter(&mut lent, deadline).await;
                let status = landed.map(|landed| judged(landed, checksum));
                if !matches!(status, Ok(PartStatus::Done)) {
                    // An attention kernel may read what it then gives no weight.
                    lent.clear();
                }
                return Ok(outcome(status?));
            }
            Place::Devices(places) => places,
        };
        let Ok(mut lent) = scratch.take(self, length_bytes) else {
            receiver.payload_discard(deadline).await?;
            return Ok(outcome(PartStatus::Device));
        };
        let landed = receiver.payload_scatter(&mut lent, deadline).await?;
        let mut received = outcome(judged(landed, checksum));
        if received.status != PartStatus::Done {
            return Ok(received);
        }
        let mut payload = lent.into_segments();
        for (device, ranges) in places {
            let write = device.write(payload, ranges);
            let (done, back, written) = answered(&device, self.proof_timeout, write).await?;
            received.written.push(written);
            if let Err(error) = done {
                tracing::warn!(%error, "bytes of a peer cannot be written");
                received.status = PartStatus::Device;
                return Ok(received);
            }
            payload = back;
        }
        Ok(received)
    }
}

/// Whether the bytes that landed are those that were sent.
const fn judged(landed: u64, sent: u64) -> PartStatus {
    match landed == sent {
        true => PartStatus::Done,
        false => PartStatus::Corrupt,
    }
}

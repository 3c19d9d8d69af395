//! What a source offers, fixed by checksums: one for each block in each layer.
//!
//! One task a driver makes them, from the moment that a part's bytes are there, long before the
//! other side asks for them; the writers of connections send them with the bytes. The invariants: a
//! piece never goes out with a checksum of what its blocks hold when it is sent; blocks are read
//! only while their transfer is open, and nothing of it is reported while they are.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tessera_lifecycle::peer::{PartId, Side, TransferId};
use tessera_lifecycle::plan::Destination;
use tessera_proto::message::PartName;
use tessera_proto::{Appended, checksum};
use tokio::sync::watch;
use tokio::task::yield_now;

use super::core::{Core, State};
use super::memory::Scratch;
use super::pieces::{self, Piece};
use crate::driver::MemoryFault;
use crate::sentry::Sentry;

/// All that is offered.
#[derive(Debug, Default)]
pub(super) struct Offers {
    parts: BTreeMap<(TransferId, PartId), Arc<Offered>>,
    /// Parts that wait for their checksums.
    waiting: VecDeque<Arc<Offered>>,
    /// The transfer of which a piece is read at this moment.
    reading: Option<TransferId>,
}

impl Offers {
    /// Whether blocks of a transfer are read at this moment.
    pub(super) fn is_reading(&self, transfer: TransferId) -> bool {
        self.reading == Some(transfer)
    }

    /// Whether nothing is read.
    pub(super) const fn is_idle(&self) -> bool {
        self.reading.is_none()
    }

    /// The transfer of which blocks are read at this moment.
    pub(super) const fn reading(&self) -> Option<TransferId> {
        self.reading
    }
}

/// One part that is offered.
#[derive(Debug)]
pub(super) struct Offered {
    transfer: TransferId,
    part: PartId,
    sums: watch::Sender<Sums>,
}

/// The checksums of a part so far.
#[derive(Debug, Default)]
struct Sums {
    /// Of each block of a group, those of its layers, in payload order.
    blocks: BTreeMap<(usize, u32), Vec<u64>>,
    /// There will be no more.
    over: bool,
}

impl Sums {
    fn has(&self, piece: &Piece) -> bool {
        keys(piece).all(|key| self.blocks.contains_key(&key))
    }

    /// The checksum of a piece, layer by layer as its bytes go.
    fn of(&self, layers: &[Appended], piece: &Piece) -> Option<u64> {
        let blocks = keys(piece).map(|key| self.blocks.get(&key));
        let blocks: Vec<_> = blocks.collect::<Option<_>>()?;
        let mut joined = checksum(&[]);
        for (layer, appended) in layers.iter().enumerate() {
            for sums in &blocks {
                joined = appended.join(joined, *sums.get(layer)?);
            }
        }
        Some(joined)
    }
}

/// The blocks of a piece of a source, which has no block to discard.
fn keys(piece: &Piece) -> impl Iterator<Item = (usize, u32)> {
    piece.blocks.iter().filter_map(|block| match block {
        Destination::Block(block) => Some((piece.group, *block)),
        Destination::Discard => None,
    })
}

impl Offered {
    /// The checksum of a piece as it was offered, as soon as it is made. `None` if its blocks could
    /// not be read.
    async fn checksum(&self, layers: &[Appended], piece: &Piece) -> Option<u64> {
        let mut sums = self.sums.subscribe();
        let made = sums.wait_for(|sums| sums.over || sums.has(piece)).await;
        made.ok()?.of(layers, piece)
    }
}

impl Core {
    /// Fixes what parts offer, if this side is their source and their bytes are there. To be called
    /// in the mutation that says so: a connection may ask for them from then on.
    pub(super) fn offer(
        &self,
        state: &mut State,
        transfer: TransferId,
        parts: impl IntoIterator<Item = PartId>,
    ) {
        for part in parts {
            let key = (transfer, part);
            let known = state.offers.parts.contains_key(&key);
            if known || state.root.source(transfer, part).is_none() {
                continue;
            }
            let sums = watch::Sender::default();
            let offered = Arc::new(Offered {
                transfer,
                part,
                sums,
            });
            state.offers.parts.insert(key, Arc::clone(&offered));
            state.offers.waiting.push_back(offered);
            self.offering.notify_one();
        }
    }

    /// The checksum of a piece of a part as it was offered, as soon as it is made. `None` if its
    /// blocks could not be read.
    pub(super) async fn offered_checksum(&self, named: PartName, piece: &Piece) -> Option<u64> {
        let key = (named.transfer, named.at.part);
        let offered = self.with(|state| state.offers.parts.get(&key).cloned())?;
        let appended = piece.share.appended.get(piece.group)?;
        offered.checksum(appended, piece).await
    }

    /// Forgets what is over.
    pub(super) fn forget_offers(state: &mut State) {
        let root = &state.root;
        let open = |(transfer, part): &(_, _)| root.source(*transfer, *part).is_some();
        state.offers.parts.retain(|key, _| open(key));
    }

    /// Takes the right to read blocks of a part, unless it is over.
    fn begin_reading(&self, offered: &Offered) -> bool {
        self.with(|state| {
            let source = state.root.source(offered.transfer, offered.part);
            let may = source.is_some() && !state.closed && state.stopped.is_none();
            state.offers.reading = may.then_some(offered.transfer);
            may
        })
    }
}

/// Makes checksums until the driver ends.
pub(super) async fn run(core: Arc<Core>) {
    let _sentry = Sentry::of_task(core.alarm());
    let mut scratch = Scratch::default();
    while !core.ended.is_set() {
        let next = core.with(|state| state.offers.waiting.pop_front());
        let Some(offered) = next else {
            tokio::select! {
                () = core.ended.waited() => return,
                () = core.offering.notified() => continue,
            }
        };
        let made = sum(&core, &offered, &mut scratch).await;
        offered.sums.send_modify(|sums| sums.over = true);
        if let Err(fault) = made {
            core.stop(fault);
            return;
        }
    }
}

/// One pass over the bytes of a part. What cannot be read has no checksum.
async fn sum(core: &Core, offered: &Offered, scratch: &mut Scratch) -> Result<(), MemoryFault> {
    let (memory, most) = (&core.memory, core.bounds.piece_bytes);
    let blocks = core.with(|state| {
        let source = state.root.source(offered.transfer, offered.part);
        source.map(<[_]>::to_vec)
    });
    let share = core.shares.of(offered.part, Side::Source);
    let cut = blocks.and_then(|blocks| pieces::of_lent(share?, most, &blocks));
    let rested = tokio::select! {
        () = core.ended.waited() => return Ok(()),
        rested = memory.rest() => rested,
    };
    if let Err(fault) = rested {
        tracing::warn!(%fault, "what is offered to a peer cannot be read");
        return Ok(());
    }
    for piece in cut.unwrap_or_default() {
        if !core.begin_reading(offered) {
            return Ok(());
        }
        // A device that does not answer may read for ever, and the mark stays.
        let bytes = memory.read(&piece, scratch).await?;
        let layers = piece.share.layout.layer_bytes(piece.group);
        let lengths = layers.flat_map(|length| std::iter::repeat_n(length, piece.blocks.len()));
        let sums = bytes.map(|bytes| bytes.checksums(lengths));
        core.with(|state| state.offers.reading = None);
        let Some(sums) = sums else {
            return Ok(());
        };
        core.counts.bytes_summed.add(piece.length_bytes);
        offered
            .sums
            .send_modify(|of| of.blocks.extend(by_block(&piece, &sums)));
        yield_now().await;
    }
    Ok(())
}

/// The sums of a piece go by layers, and are kept by blocks.
fn by_block(piece: &Piece, sums: &[u64]) -> impl Iterator<Item = ((usize, u32), Vec<u64>)> {
    let count = piece.blocks.len();
    let of = move |at| sums.iter().skip(at).step_by(count).copied().collect();
    keys(piece).enumerate().map(move |(at, key)| (key, of(at)))
}

//! How the blocks of a part are cut into pieces, alike on both sides.
//!
//! Called before a part is pulled, pushed or served. The invariant: the cut follows from the
//! lender's blocks and sizes that were compared in the handshake, so that both sides know each
//! piece by its number alone.

use std::sync::Arc;

use tessera_lifecycle::peer::{BlockRef, Mode};
use tessera_lifecycle::plan::Destination;

use super::shares::Share;
use crate::layout::Layout;

/// Some blocks of one group that move in one frame.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// What of them moves.
    pub(super) share: Arc<Share>,
    pub(super) group: usize,
    /// Our side of them.
    pub(super) blocks: Vec<Destination>,
    pub(super) length_bytes: u64,
}

/// The pieces of a part of which both sides are known, on the side that moves it. `None` if the
/// sides do not fit each other, or a block would be left without its content.
pub(super) fn of_move(
    share: &Arc<Share>,
    piece_bytes: u64,
    mode: Mode,
    local: &[BlockRef],
    lent: &[BlockRef],
) -> Option<Vec<Piece>> {
    if local.len() != lent.len() {
        return None;
    }
    let mut spots = Vec::with_capacity(lent.len());
    for (own, lent) in local.iter().zip(lent) {
        if own.group != lent.group {
            return None;
        }
        match (mode, own.is_null(), lent.is_null()) {
            (_, true, true) | (Mode::Write, false, true) => {}
            (Mode::Read, false, true) | (Mode::Write, true, false) => return None,
            (Mode::Read, true, false) => spots.push((own.group, Destination::Discard)),
            (_, false, false) => spots.push((own.group, Destination::Block(own.block))),
        }
    }
    cut(share, piece_bytes, &spots)
}

/// The pieces of a part that this side lends. `None` if it has no such group.
pub(super) fn of_lent(
    share: &Arc<Share>,
    piece_bytes: u64,
    lent: &[BlockRef],
) -> Option<Vec<Piece>> {
    let real = lent.iter().filter(|block| !block.is_null());
    let spots = real.map(|block| (block.group, Destination::Block(block.block)));
    cut(share, piece_bytes, &spots.collect::<Vec<_>>())
}

fn cut(share: &Arc<Share>, piece_bytes: u64, spots: &[(u16, Destination)]) -> Option<Vec<Piece>> {
    let layout: &Layout = &share.layout;
    let mut pieces = Vec::new();
    for run in spots.chunk_by(|(left, _), (right, _)| left == right) {
        let group = usize::from(run.first()?.0);
        if group >= layout.groups() {
            return None;
        }
        // A group that is no part of the share has no bytes.
        let most = piece_bytes
            .checked_div(layout.payload_bytes(group, 1))?
            .max(1);
        for some in run.chunks(usize::try_from(most).unwrap_or(usize::MAX)) {
            pieces.push(Piece {
                share: Arc::clone(share),
                group,
                blocks: some.iter().map(|(_, block)| *block).collect(),
                length_bytes: layout.payload_bytes(group, some.len()),
            });
        }
    }
    Some(pieces)
}

/// Payload bytes of all of them.
pub(super) fn length_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.length_bytes).sum()
}

//! A request that came with a ticket, and the blocks that it takes by it.
//!
//! Called by [`HandoverRoot`](super::HandoverRoot). The invariant: every real block of the
//! destination between what the engine has and what it is promised is filled, or the transfer
//! fails; a block that the engine would compute over is never left as it was.

use std::sync::Arc;

use tessera_proto::Instant;
use tessera_proto::peer::BlockRef;
use tessera_proto::ticket::Ticket;

use crate::handover::order::HandoverBlock;
use crate::shape::{GroupKind, Shape};

/// Where a request with a ticket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The ticket is its own, and unused.
    Held,
    /// Another sample of the same prompt has the ticket, or had it; what it brings is in the
    /// engine's own cache then.
    Waits,
    /// The transfer is ordered.
    Taken,
    /// Nothing more comes of it: the request computes what it lacks.
    Spent,
}

/// A request that came with a ticket.
#[derive(Clone, Debug)]
pub(super) struct Taker {
    pub(super) ticket: Arc<Ticket>,
    /// Tokens that the engine has when the transfer has ended well.
    pub(super) limit: u64,
    pub(super) stage: Stage,
    /// Tokens promised at the last lookup, and how many the engine had then.
    pub(super) promised: Option<(u64, u64)>,
    /// From then on prefill may have freed what the ticket names.
    pub(super) expires: Instant,
    /// Others wait for it no longer than this.
    pub(super) until: Instant,
}

/// How many tokens of a prompt of `num_tokens` a ticket can bring: all but the last, which the
/// engine computes to sample from. `None` if it does not fit the shape.
pub(super) fn limit(shape: &Shape, ticket: &Ticket, num_tokens: u64) -> Option<u64> {
    let limit = num_tokens.checked_sub(1)?.min(ticket.tokens);
    // Windows and states are those behind the last token offered, and behind no other.
    let movable = ticket.tokens == limit || is_full(shape);
    let groups = shape.groups().iter();
    let reaches = |table: &Vec<u32>, block_tokens: u64| {
        u64::try_from(table.len()).unwrap_or(u64::MAX) >= limit.div_ceil(block_tokens)
    };
    let whole = ticket.tables.len() == shape.groups().len()
        && groups
            .zip(&ticket.tables)
            .all(|(of, table)| reaches(table, of.block_tokens));
    (limit > 0 && movable && whole).then_some(limit)
}

/// Whether every group keeps every token.
pub(super) fn is_full(shape: &Shape) -> bool {
    shape.groups().iter().all(|of| of.kind == GroupKind::Full)
}

/// The blocks of a ticket with ours for tokens `[computed, limit)`. `None` if the engine has left a
/// block out that it will read.
pub(super) fn pair(
    shape: &Shape,
    ticket: &Ticket,
    tables: &[Vec<u32>],
    computed: u64,
    limit: u64,
) -> Option<Vec<HandoverBlock>> {
    let mut pairs = Vec::new();
    for (group, (spec, lent)) in shape.groups().iter().zip(&ticket.tables).enumerate() {
        let size = spec.block_tokens;
        let (first, end) = (computed / size, limit.div_ceil(size));
        // The oldest token that the next one to be computed needs.
        let oldest = match spec.kind {
            GroupKind::Full => computed,
            GroupKind::Window { tokens } => (limit + 1).saturating_sub(tokens).min(limit - 1),
            GroupKind::State => limit - 1,
        };
        let table = tables.get(group)?;
        for (index, remote) in (0..).zip(lent) {
            let own = usize::try_from(index).ok().and_then(|at| table.get(at));
            let own = own
                .copied()
                .filter(|block| *block != 0 && (first..end).contains(&index));
            if own.is_none() && (oldest.max(computed) / size..end).contains(&index) {
                return None;
            }
            pairs.push(HandoverBlock {
                group: u16::try_from(group).ok()?,
                local: own.unwrap_or(BlockRef::NULL),
                remote: own.map_or(BlockRef::NULL, |_| *remote),
            });
        }
    }
    Some(pairs)
}

/// Blocks of a ticket, none of which is asked for.
pub(super) fn none_of(ticket: &Ticket) -> Vec<HandoverBlock> {
    let none = |block: BlockRef| HandoverBlock {
        group: block.group,
        local: BlockRef::NULL,
        remote: BlockRef::NULL,
    };
    ticket.blocks().map(none).collect()
}

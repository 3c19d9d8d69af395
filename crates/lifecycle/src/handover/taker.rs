//! A request that came with a ticket, and the blocks that it takes by it.
//!
//! Called by [`HandoverRoot`](super::HandoverRoot). The invariant: every real block of the
//! destination between what the engine has and what it is promised is filled, or the transfer
//! fails; a block that the engine would compute over is never left as it was.

use std::ops::Range;
use std::sync::Arc;

use tessera_proto::Instant;
use tessera_proto::peer::BlockRef;
use tessera_proto::ticket::Ticket;

use crate::handover::order::HandoverBlock;
use crate::shape::{GroupKind, GroupSpec, Shape};

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
    /// What prefill lends; with a pass what it is to write, without workers and blocks.
    pub(super) ticket: Arc<Ticket>,
    /// Where prefill takes our ticket, if it is to write.
    pub(super) inbox: Option<String>,
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

/// Which blocks of a group tokens `[computed, limit)` come into, and from which on they must not be
/// missing, both counted from the start of the request.
fn filled(spec: &GroupSpec, computed: u64, limit: u64) -> (Range<u64>, u64) {
    let size = spec.block_tokens;
    // The oldest token that the next one to be computed needs.
    let oldest = match spec.kind {
        GroupKind::Full => computed,
        GroupKind::Window { tokens } => (limit + 1).saturating_sub(tokens).min(limit - 1),
        GroupKind::State => limit - 1,
    };
    let blocks = computed / size..limit.div_ceil(size);
    (blocks, oldest.max(computed) / size)
}

/// Our blocks for tokens `[computed, limit)`, group by group from the start of the request, null
/// where nothing comes. `None` if the engine has left a block out that it will read.
pub(super) fn wanted(
    shape: &Shape,
    tables: &[Vec<u32>],
    computed: u64,
    limit: u64,
) -> Option<Vec<Vec<u32>>> {
    let groups = shape.groups().iter().zip(tables);
    let tables = groups.map(|(spec, table)| {
        let (blocks, needed) = filled(spec, computed, limit);
        let end = blocks.end;
        let own = |index: u64| {
            let own = usize::try_from(index).ok().and_then(|at| table.get(at));
            let own = own
                .copied()
                .filter(|block| *block != 0 && blocks.contains(&index));
            match own {
                None if index >= needed => None,
                own => Some(own.unwrap_or(BlockRef::NULL)),
            }
        };
        (0..end).map(own).collect()
    });
    let tables: Option<Vec<_>> = tables.collect();
    tables.filter(|tables| tables.len() == shape.groups().len())
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
    let own = wanted(shape, tables, computed, limit)?;
    let mut pairs = Vec::new();
    for ((group, lent), own) in (0_u16..).zip(&ticket.tables).zip(&own) {
        for (index, remote) in lent.iter().enumerate() {
            let local = own.get(index).copied().unwrap_or(BlockRef::NULL);
            let remote = match local {
                BlockRef::NULL => BlockRef::NULL,
                _ => *remote,
            };
            pairs.push(HandoverBlock {
                group,
                local,
                remote,
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

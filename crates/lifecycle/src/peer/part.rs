//! One part on one side: who has access, how it went, and whether it is at rest.
//!
//! Called by the transfers. The invariant: outcome and quiescence are separate facts, each set
//! once; only [`Part::rest`] ends access, and it asks for a proof.

use tessera_proto::Incarnation;
use tessera_proto::peer::{Attempt, BlockRef, ConnectionId, PartAttempt, PartId, Proof};

use crate::peer::config::PeerFailure;
use crate::peer::order::{Mode, PartOrder};

/// Who may touch the memory of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// Nobody: offered, or not claimed yet.
    None,
    /// Nobody yet: our claim is on its way.
    Claiming,
    /// Nobody yet: we may post on this connection.
    Granted(ConnectionId),
    /// Somebody: it is claimed by the peer, or posted by us.
    Live,
    /// Nobody ever again.
    Rest(Proof),
}

/// One part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) id: PartId,
    pub(crate) peer: Option<Incarnation>,
    pub(crate) attempt: Attempt,
    pub(crate) local: Vec<BlockRef>,
    pub(crate) remote: Vec<BlockRef>,
    pub(crate) length_bytes: u64,
    pub(crate) ready: bool,
    /// The lender's blocks are known: from the ticket, or from its offer.
    pub(crate) known: bool,
    pub(crate) access: Access,
    /// An operation ended with an error: only a fence of ours proves anything.
    pub(crate) dirty: bool,
    /// Set once. `None` while it is open.
    pub(crate) outcome: Option<Result<(), PeerFailure>>,
    /// The connection on which the peer was told of it: lenders of a WRITE only.
    pub(crate) told: Option<ConnectionId>,
    /// The other side needs our last word on it: a lender may hold a claim of ours, or waits for
    /// bytes; a claimant was told of our offer.
    pub(crate) owed: bool,
    /// READ: a lender that was not asked yet holds what its ticket names until it hears of us.
    pub(crate) awaited: bool,
    /// WRITE: our last word is said, and the lender has not closed the part.
    pub(crate) said: bool,
    /// The lender has asked for an end, and is answered when there is one.
    pub(crate) asked: Option<Asked>,
    pub(crate) retries: u8,
}

/// What the lender has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Asked {
    Drain,
    Fence,
}

impl Part {
    pub(crate) fn new(order: &PartOrder, known: bool) -> Self {
        Self {
            id: order.part,
            peer: order.peer,
            attempt: Attempt(1),
            local: order.local.clone(),
            remote: order.remote.clone(),
            length_bytes: order.length_bytes,
            ready: order.ready,
            known,
            access: Access::None,
            dirty: false,
            outcome: None,
            told: None,
            owed: false,
            awaited: false,
            said: false,
            asked: None,
            retries: 0,
        }
    }

    /// The lender has offered its blocks, and waits for a word.
    pub(crate) fn meet(&mut self, blocks: Vec<BlockRef>) {
        if self.is_untouched() {
            self.remote = blocks;
            self.known = true;
        }
        self.owed = true;
    }

    /// Whether a claim of `blocks` asks for nothing but what this part lends. Who pulls may leave
    /// blocks out, by a null block in their place; who pushes must fill every one.
    pub(crate) fn covers(&self, mode: Mode, blocks: &[BlockRef]) -> bool {
        let left_out = |claimed: &BlockRef, lent: &BlockRef| {
            mode == Mode::Read && claimed.is_null() && claimed.group == lent.group
        };
        let mut pairs = blocks.iter().zip(&self.local);
        let fits = |(claimed, lent)| claimed == lent || left_out(claimed, lent);
        blocks.len() == self.local.len() && pairs.all(fits)
    }

    pub(crate) const fn at(&self) -> PartAttempt {
        PartAttempt {
            part: self.id,
            attempt: self.attempt,
        }
    }

    pub(crate) fn is_with(&self, peer: Incarnation) -> bool {
        self.peer == Some(peer)
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.access, Access::Rest(_))
    }

    /// Whether a word on it is still to be said, or to be heard back.
    pub(crate) const fn is_unsettled(&self) -> bool {
        self.owed || self.awaited || self.said
    }

    pub(crate) fn is_live(&self) -> bool {
        self.access == Access::Live
    }

    /// Whether a claim would be needed before anybody could touch it.
    pub(crate) const fn is_untouched(&self) -> bool {
        matches!(
            self.access,
            Access::None | Access::Claiming | Access::Granted(_)
        )
    }

    /// Notes how it went; the first word counts.
    pub(crate) fn conclude(&mut self, outcome: Result<(), PeerFailure>) {
        self.outcome.get_or_insert(outcome);
    }

    /// Ends all access, on the strength of `proof`.
    pub(crate) const fn rest(&mut self, proof: Proof) {
        self.access = Access::Rest(proof);
        self.dirty = false;
    }

    /// Claims again: nothing of the last claim can touch anything.
    pub(crate) const fn renew(&mut self) {
        self.access = Access::None;
        self.attempt = Attempt(self.attempt.0.saturating_add(1));
    }
}

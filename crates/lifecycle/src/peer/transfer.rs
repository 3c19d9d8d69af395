//! One transfer on one side, and the table of all of them.
//!
//! Called by [`PeerRoot`](super::PeerRoot). The invariant that everything else rests on: an entry
//! leaves the table only as a [`Closed`], and there is a [`Closed`] only of a transfer whose every
//! part has a proof. A release, a report and the end of a claim are made from a [`Closed`] and from
//! nothing else, so that none of them can happen while something is in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use tessera_proto::peer::{BlockRef, PartId, Proof, TransferId};
use tessera_proto::{Incarnation, Instant};

use crate::ids::RequestKey;
use crate::peer::config::PeerFailure;
use crate::peer::order::{Mode, Side, TransferOrder};
use crate::peer::part::{Access, Part};

/// Whether the device has proven what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Device {
    /// Nothing is owed yet.
    Owed,
    /// Asked at that time.
    Asked(Instant),
    /// Proven, or nothing was ever written.
    Proven,
}

/// How far the search for a proof of what a peer may touch has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Search {
    Waiting,
    Aborted(Instant),
    FenceAsked(Instant),
    Fencing,
}

/// One transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transfer {
    pub(crate) request: RequestKey,
    pub(crate) mode: Mode,
    pub(crate) side: Side,
    pub(crate) synchronous: bool,
    /// The failure of a synchronous transfer has been raised.
    pub(crate) raised: bool,
    /// Whether its end is still of use to anybody.
    pub(crate) reported: bool,
    pub(crate) parts: BTreeMap<PartId, Part>,
    /// Set once; the first failure is kept.
    pub(crate) failure: Option<PeerFailure>,
    pub(crate) failed_at: Instant,
    pub(crate) began: Instant,
    pub(crate) timeout_ms: u64,
    pub(crate) deadline: Instant,
    /// Unclaimed parts can be claimed until then; lenders only.
    pub(crate) lease: Instant,
    pub(crate) device: Device,
    /// The device has failed once: what it holds is in doubt.
    pub(crate) doubtful: bool,
    pub(crate) search: Search,
}

impl Transfer {
    pub(crate) fn new(order: &TransferOrder, now: Instant) -> Self {
        let lends = order.side.lends(order.mode);
        let after = |millis| now.after_millis(millis);
        let known = order.mode == Mode::Read || lends;
        let waits = lends && order.side == Side::Source;
        Self {
            request: order.request,
            mode: order.mode,
            side: order.side,
            synchronous: order.synchronous,
            raised: false,
            reported: !order.synchronous,
            parts: order
                .parts
                .iter()
                .map(|part| (part.part, Part::new(part, known || !part.remote.is_empty())))
                .collect(),
            failure: None,
            failed_at: Instant::NEVER,
            began: now,
            timeout_ms: order.timeout_ms,
            deadline: if waits {
                Instant::NEVER
            } else {
                after(order.timeout_ms)
            },
            lease: if lends {
                after(order.lease_ms)
            } else {
                Instant::NEVER
            },
            device: Device::Owed,
            doubtful: false,
            search: Search::Waiting,
        }
    }

    /// It begins: whoever wrote its ticket waits for it.
    pub(crate) fn begin(&mut self) {
        let awaited = self.mode == Mode::Read && !self.lends();
        for part in self.parts.values_mut() {
            part.awaited = awaited;
        }
    }

    pub(crate) const fn lends(&self) -> bool {
        self.side.lends(self.mode)
    }

    /// Whether the ranks of a part fit the two ends.
    pub(crate) fn ranks_fit(&self, part: PartId, own: u16, peer: u16) -> bool {
        let (source, destination) = match self.side {
            Side::Source => (own, peer),
            Side::Destination => (peer, own),
        };
        part.source == source && part.destination == destination
    }

    /// Nothing new is posted or granted from here on. What nobody can touch is at rest at once;
    /// what somebody may touch stays as it is.
    pub(crate) fn fail(&mut self, now: Instant, failure: PeerFailure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
            self.failed_at = now;
        }
        for part in self.parts.values_mut().filter(|part| part.is_untouched()) {
            part.conclude(Err(failure));
            // Of an earlier claim that moved, a fence was the end.
            let moved = part.retries > 0;
            part.rest(if moved {
                Proof::Fenced
            } else {
                Proof::NeverPosted
            });
        }
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.parts.values().all(Part::is_over)
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.is_at_rest()
    }

    /// Whether anything was ever written for it on this side.
    pub(crate) fn wrote(&self) -> bool {
        let posted = |part: &Part| part.access != Access::Rest(Proof::NeverPosted);
        self.side == Side::Destination && self.parts.values().any(posted)
    }

    /// Bytes of the parts for which `wanted` holds.
    pub(crate) fn bytes(&self, wanted: impl Fn(&Part) -> bool) -> u64 {
        let parts = self.parts.values().filter(|part| wanted(part));
        parts.map(|part| part.length_bytes).sum()
    }

    /// Bytes of failed transfers that are not proven to be at rest.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        match self.failure {
            Some(_) => self.bytes(|part| !part.is_over()),
            None => 0,
        }
    }

    /// Whether every proof is there: of each part, and of the device behind what was written.
    fn is_proven(&self) -> bool {
        self.is_at_rest() && (self.device == Device::Proven || !self.wrote())
    }
}

/// A transfer that is over: nothing can touch its memory, here or from there.
#[derive(Debug)]
pub(crate) struct Closed(Transfer);

impl Closed {
    pub(crate) const fn transfer(&self) -> &Transfer {
        &self.0
    }

    /// Each part with its proof.
    pub(crate) fn proofs(&self) -> impl Iterator<Item = (&Part, Proof)> {
        self.0.parts.values().filter_map(|part| match part.access {
            Access::Rest(proof) => Some((part, proof)),
            _ => None,
        })
    }

    /// Blocks without valid content, each once, though several parts may fill it.
    pub(crate) fn invalid_blocks(&self) -> impl Iterator<Item = u32> {
        let doubtful = self.0.doubtful;
        let parts = self.0.parts.values();
        let bad = parts.filter(move |part| doubtful || part.outcome != Some(Ok(())));
        let local = bad.flat_map(|part| &part.local);
        let blocks = local.filter(|at| !at.is_null()).map(|at| at.block);
        blocks.collect::<BTreeSet<_>>().into_iter()
    }

    /// Whether a part without a block has failed: blocks cannot say where content is missing.
    pub(crate) fn is_nameless(&self) -> bool {
        let mut parts = self.0.parts.values();
        parts.any(|part| part.outcome != Some(Ok(())) && is_nameless(&part.local))
    }
}

/// Whether there is no block to name when they have failed.
pub(crate) fn is_nameless(blocks: &[BlockRef]) -> bool {
    blocks.iter().all(|at| at.is_null())
}

/// All open transfers. The only way out is [`Transfers::close`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers {
    open: BTreeMap<TransferId, Transfer>,
    /// Those that were lent out to be changed since the last look. Empty between two mutations.
    changed: BTreeSet<TransferId>,
}

impl Hash for Transfers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.open.hash(state);
    }
}

impl Transfers {
    /// Adds one that is not there yet.
    pub(crate) fn open(&mut self, id: TransferId, transfer: Transfer) {
        self.changed.insert(id);
        self.open.entry(id).or_insert(transfer);
    }

    pub(crate) fn get(&self, id: TransferId) -> Option<&Transfer> {
        self.open.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: TransferId) -> Option<&mut Transfer> {
        let transfer = self.open.get_mut(&id)?;
        self.changed.insert(id);
        Some(transfer)
    }

    /// All of them, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (TransferId, &mut Transfer)> {
        self.touch_all();
        self.open.iter_mut().map(|(id, transfer)| (*id, transfer))
    }

    /// Those of `ids` that are open. They do not count as changed: this is how changes are
    /// followed.
    pub(crate) fn among_mut<'a>(
        &'a mut self,
        ids: &'a BTreeSet<TransferId>,
    ) -> impl Iterator<Item = (TransferId, &'a mut Transfer)> {
        let open = self.open.iter_mut().filter(|(id, _)| ids.contains(id));
        open.map(|(id, transfer)| (*id, transfer))
    }

    /// Has everything looked at again.
    pub(crate) fn touch_all(&mut self) {
        self.changed.extend(self.open.keys());
    }

    /// Those that may have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<TransferId> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TransferId, &Transfer)> {
        self.open.iter().map(|(id, transfer)| (*id, transfer))
    }

    /// Every part that is with `peer`, and its transfer.
    pub(crate) fn parts_with(
        &self,
        peer: Incarnation,
    ) -> impl Iterator<Item = (TransferId, &Transfer, &Part)> {
        self.iter().flat_map(move |(id, transfer)| {
            let parts = transfer.parts.values();
            parts
                .filter(move |part| part.is_with(peer))
                .map(move |part| (id, transfer, part))
        })
    }

    /// Takes out a transfer that is proven to be over; `None`, and no change, if it is not.
    pub(crate) fn close(&mut self, id: TransferId) -> Option<Closed> {
        if !self.open.get(&id)?.is_proven() {
            return None;
        }
        self.open.remove(&id).map(Closed)
    }
}

//! The machine of direct transfers: its state, its orders, and how news reach it.
//!
//! Called by the driver in each worker, one mutation at a time (see the crate's documentation), and
//! [`PeerRoot::collect`] after each. Invariants: memory is reported only behind a proof for every
//! part; outcome and quiescence are set once; nothing is posted without a grant of this connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tessera_proto::peer::{
    BlockRef, ConnectionId, LentPart, Message, PartAttempt, PartId, Proof, TransferId,
};
use tessera_proto::{Incarnation, Instant};

use crate::ids::RequestKey;
use crate::peer::command::{PeerCommand, PeerEvent, PeerResults, StepFailure};
use crate::peer::config::{PeerConfig, PeerCounters, PeerFailure, PeerGauges, PeerStop};
use crate::peer::order::{Side, TransferOrder};
use crate::peer::part::{Access, Part};
use crate::peer::session::Session;
use crate::peer::tickets::Tickets;
use crate::peer::transfer::{Transfer, Transfers, is_nameless};
use crate::shape::LayoutClass;

/// A transfer that is over and waits to be collected.
#[derive(Clone, Debug, Hash)]
pub(super) struct Settled {
    pub(super) transfer: TransferId,
    pub(super) request: RequestKey,
    pub(super) side: Side,
    pub(super) failed: bool,
    pub(super) invalid_blocks: Vec<u32>,
}

/// Blocks that a destination has offered and that no order of ours has met.
#[derive(Clone, Debug, Hash)]
pub(super) struct Offer {
    pub(super) until: Instant,
    pub(super) parts: Vec<LentPart>,
}

/// A claim on what no order of ours has offered yet, or the last word on it.
#[derive(Clone, Debug, Hash)]
pub(super) struct EarlyClaim {
    pub(super) until: Instant,
    pub(super) rank: u16,
    pub(super) parts: Vec<LentPart>,
    pub(super) released: Vec<(PartAttempt, Proof)>,
}

/// The machine of direct transfers of one worker.
#[derive(Clone, Debug)]
pub struct PeerRoot {
    pub(super) config: PeerConfig,
    pub(super) transfers: Transfers,
    pub(super) sessions: BTreeMap<Incarnation, Session>,
    pub(super) offers: BTreeMap<(TransferId, Incarnation), Offer>,
    pub(super) early: BTreeMap<(TransferId, Incarnation), EarlyClaim>,
    /// Our last word is said, and the lender has not taken note of it.
    pub(super) releasing: BTreeSet<(TransferId, Incarnation)>,
    pub(super) tickets: Tickets,
    /// Requests that an external source has failed.
    pub(super) failed_sources: BTreeSet<RequestKey>,
    pub(super) settled: Vec<Settled>,
    /// Synchronous orders that never began, to be raised.
    pub(super) refused: Vec<StepFailure>,
    pub(super) commands: VecDeque<PeerCommand>,
    pub(super) next_fence: u64,
    /// Connections are to be made, or processes forgotten. Never set between two mutations.
    pub(super) stirred: bool,
    pub(super) stopped: Option<PeerStop>,
    pub(super) counters: PeerCounters,
}

impl PeerRoot {
    /// An idle machine.
    #[must_use]
    pub fn new(config: PeerConfig) -> Self {
        Self {
            config,
            transfers: Transfers::default(),
            sessions: BTreeMap::new(),
            offers: BTreeMap::new(),
            early: BTreeMap::new(),
            releasing: BTreeSet::new(),
            tickets: Tickets::default(),
            failed_sources: BTreeSet::new(),
            settled: Vec::new(),
            refused: Vec::new(),
            commands: VecDeque::new(),
            next_fence: 0,
            stirred: false,
            stopped: None,
            counters: PeerCounters::default(),
        }
    }

    /// The next thing to do, or `None` when the machine waits.
    pub fn poll_command(&mut self) -> Option<PeerCommand> {
        self.commands.pop_front()
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> PeerCounters {
        self.counters
    }

    /// Why the worker has stopped, if it has. Then nothing is reported any more.
    #[must_use]
    pub const fn stopped(&self) -> Option<PeerStop> {
        self.stopped
    }

    /// Whether the memory of a transfer may still be touched, or its end is not told yet.
    #[must_use]
    pub fn is_open(&self, transfer: TransferId) -> bool {
        self.transfers.get(transfer).is_some()
    }

    /// Our blocks of a part that a data request of `peer` on `connection` may touch. Asked before
    /// each; `None` if it may touch nothing.
    #[must_use]
    pub fn lent(
        &self,
        peer: Incarnation,
        connection: ConnectionId,
        transfer: TransferId,
        at: PartAttempt,
    ) -> Option<&[BlockRef]> {
        let transfer = self.transfers.get(transfer).filter(|of| of.lends())?;
        let part = transfer.parts.get(&at.part)?;
        let granted = part.is_live() && part.is_with(peer) && part.attempt == at.attempt;
        let current = self.connection(peer) == Some(connection);
        (current && granted && !part.dirty).then_some(part.local.as_slice())
    }

    /// Our blocks of a part that this side is the source of, while the transfer is open and once
    /// their bytes are there: from then until the end they must not change.
    #[must_use]
    pub fn source(&self, transfer: TransferId, part: PartId) -> Option<&[BlockRef]> {
        let transfer = self.transfers.get(transfer);
        let transfer = transfer.filter(|of| of.side == Side::Source)?;
        let part = transfer.parts.get(&part).filter(|part| !part.is_over())?;
        (part.ready || transfer.lends()).then_some(part.local.as_slice())
    }

    /// The connection with a process that counts, if there is one.
    #[must_use]
    pub fn connection(&self, peer: Incarnation) -> Option<ConnectionId> {
        self.sessions.get(&peer)?.connection
    }

    /// Begins a transfer. What cannot begin ends at once, as a failure, and is reported as ever.
    pub fn order(&mut self, now: Instant, order: &TransferOrder) {
        if self.stopped.is_some() {
            return;
        }
        let TransferOrder {
            transfer: id,
            request,
            side,
            ..
        } = *order;
        let open = self.transfers.get(id).map(|transfer| transfer.request);
        let waits = |of: &Transfer| of.request == request && of.side == side && of.reported;
        let again = self.tickets.has(id, request)
            || open == Some(request)
            || self.transfers.iter().any(|(_, transfer)| waits(transfer));
        if again {
            self.counters.repeated_orders += 1;
            return;
        }
        self.counters.transfers += 1;
        if open.is_some() || self.tickets.is_used(id) {
            self.refuse_ticket(order);
            return;
        }
        let mut transfer = Transfer::new(order, now);
        match self.obstacle(now, order) {
            Some(failure) => transfer.fail(now, failure),
            None => transfer.begin(),
        }
        for (part, peer) in order
            .parts
            .iter()
            .filter_map(|part| Some((part, part.peer?)))
        {
            let Some(offer) = self.offers.get(&(id, peer)) else {
                continue;
            };
            let met = offer.parts.iter().find(|of| of.at.part == part.part);
            if let (Some(met), Some(part)) = (met, transfer.parts.get_mut(&part.part)) {
                part.meet(met.blocks.clone());
            }
        }
        self.offers.retain(|(of, _), _| *of != id);
        self.transfers.open(id, transfer);
        self.answer_early(now, |of, _| of == id);
        self.advance(now);
    }

    /// A ticket admits once. Whoever comes with it again fails, and the first is not touched.
    fn refuse_ticket(&mut self, order: &TransferOrder) {
        let failure = PeerFailure::TicketUsed;
        let (transfer, request) = (order.transfer, order.request);
        self.counters.transfers_failed += 1;
        self.remember(transfer, request);
        if order.synchronous {
            self.refused.push(StepFailure {
                transfer,
                request,
                failure,
            });
            return;
        }
        let nameless = order.parts.iter().any(|part| is_nameless(&part.local));
        let named = self.config.class == LayoutClass::Block && !nameless;
        let blocks = order.parts.iter().flat_map(|part| &part.local);
        let blocks = blocks.filter(|at| named && !at.is_null());
        let blocks: BTreeSet<_> = blocks.map(|at| at.block).collect();
        self.settled.push(Settled {
            transfer,
            request,
            side: order.side,
            failed: !named,
            invalid_blocks: blocks.into_iter().collect(),
        });
    }

    pub(super) fn remember(&mut self, transfer: TransferId, request: RequestKey) {
        let limit = self.config.limits.tickets;
        self.tickets.remember(transfer, request, limit);
    }

    /// Why an order cannot begin. Makes room for the processes that it names.
    fn obstacle(&mut self, now: Instant, order: &TransferOrder) -> Option<PeerFailure> {
        let limits = self.config.limits;
        let lends = order.side.lends(order.mode);
        let own = |part: PartId| match order.side {
            Side::Source => part.source,
            Side::Destination => part.destination,
        };
        let distinct: BTreeSet<PartId> = order.parts.iter().map(|part| part.part).collect();
        let malformed = distinct.len() != order.parts.len()
            || !order.fits_messages()
            || order.parts.iter().any(|part| {
                own(part.part) != self.config.rank
                    || part.peer.is_none() && !lends
                    || part.peer == Some(self.config.incarnation)
            });
        if malformed {
            return Some(PeerFailure::Malformed);
        }
        if order.side == Side::Destination && self.failed_sources.contains(&order.request) {
            return Some(PeerFailure::SourceFailed);
        }
        let full = self.transfers.len() + self.releasing.len() >= limits.transfers;
        if full || self.quarantined_bytes() > limits.quarantine_bytes {
            return Some(PeerFailure::NoRoom);
        }
        for peer in order.parts.iter().filter_map(|part| part.peer) {
            if !self.sessions.contains_key(&peer) && self.sessions.len() >= limits.peers {
                return Some(PeerFailure::NoRoom);
            }
            let session = self.sessions.entry(peer);
            session.or_insert_with(|| Session::new(now));
        }
        None
    }

    /// The request is gone. What may be touched stays as it is, and is reported when it is over.
    pub fn cancel(&mut self, now: Instant, transfer: TransferId) {
        if let Some(transfer) = self
            .transfers
            .get_mut(transfer)
            .filter(|of| of.is_pending())
        {
            transfer.fail(now, PeerFailure::Cancelled);
        }
        self.advance(now);
    }

    /// The request has lost its blocks: as [`cancel`](Self::cancel), and reported to nobody. The
    /// caller waits until [`is_open`](Self::is_open) is false before the blocks are used again.
    pub fn preempt(&mut self, now: Instant, id: TransferId) {
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.reported = false;
        }
        self.settled.retain(|settled| settled.transfer != id);
        self.cancel(now, id);
    }

    /// The engine has forgotten the request: its failures count no more.
    pub fn request_ended(&mut self, request: RequestKey) {
        self.failed_sources.remove(&request);
    }

    /// Takes what the driver reports.
    pub fn handle_event(&mut self, now: Instant, event: PeerEvent) {
        if self.stopped.is_some() {
            return;
        }
        match event {
            PeerEvent::Connected {
                peer,
                rank,
                connection,
            } => self.connected(now, peer, rank, connection),
            PeerEvent::Disconnected { peer, connection } => {
                self.disconnected(now, peer, connection);
            }
            PeerEvent::ConnectFailed { peer, failure } => self.connect_failed(now, peer, failure),
            PeerEvent::PeerDead(peer) => self.peer_dead(now, peer),
            PeerEvent::Ready { transfer, part } => self.part_ready(transfer, part),
            PeerEvent::PartFailed {
                transfer,
                at,
                failure,
            } => self.part_failed(now, transfer, at, failure),
            PeerEvent::PartDrained {
                transfer,
                at,
                drain,
            } => self.part_drained(now, transfer, at, drain),
            PeerEvent::Fenced { peer, fence } => self.fenced(now, peer, fence),
            PeerEvent::DeviceFenced(transfer) => self.device_fenced(transfer),
            PeerEvent::DeviceFailed(transfer) => self.device_failed(now, transfer),
        }
        self.advance(now);
    }

    /// Lets time pass: heartbeats, dials, and the search for proofs. It ends no claim; what a clock
    /// may end is ended by [`collect`](Self::collect).
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.stopped.is_some() {
            return;
        }
        self.offers.retain(|_, offer| now <= offer.until);
        self.answer_early(now, |_, claim| now > claim.until);
        if let Some(why) = self.overdue(now) {
            self.stop(why);
            return;
        }
        self.ping(now);
        self.forget_lost(now);
        self.transfers.touch_all();
        self.stirred = true;
        self.advance(now);
    }

    /// What follows from the facts that have changed: last words, fences, offers, claims and posts.
    pub(super) fn advance(&mut self, now: Instant) {
        loop {
            let changed = self.transfers.take_changed();
            if changed.is_empty() {
                break;
            }
            self.say_last_words(&changed);
            self.search_proofs(now, &changed);
            if self.stopped.is_some() {
                return;
            }
            self.tell_peers(now, &changed);
        }
        if std::mem::take(&mut self.stirred) {
            self.tend_sessions(now);
        }
    }

    pub(super) fn send(&mut self, peer: Incarnation, message: Message) {
        let own = self.config.incarnation;
        let session = self.sessions.get_mut(&peer);
        if let Some(frame) = session.and_then(|session| session.send(own, peer, message)) {
            self.commands.push_back(PeerCommand::Send(frame));
        }
    }

    pub(super) fn stop(&mut self, why: PeerStop) {
        self.stopped = Some(why);
        self.settled.clear();
        self.commands.clear();
        self.commands.push_back(PeerCommand::Stop(why));
    }

    /// What is over and was not given before.
    pub fn take_results(&mut self) -> PeerResults {
        let mut results = PeerResults::default();
        for settled in std::mem::take(&mut self.settled) {
            match settled.side {
                Side::Source => results.sent.push(settled.request),
                Side::Destination => {
                    results.received.push(settled.request);
                    if settled.failed {
                        results.failed.push(settled.request);
                    }
                    results.invalid_blocks.extend(settled.invalid_blocks);
                }
            }
        }
        results
    }

    pub(super) fn quarantined_bytes(&self) -> u64 {
        let transfers = self.transfers.iter();
        transfers.map(|(_, of)| of.quarantined_bytes()).sum()
    }

    /// Bytes by state, and since when the oldest transfer is open.
    #[must_use]
    pub fn gauges(&self) -> PeerGauges {
        let sum = |wanted: &dyn Fn(&Transfer) -> u64| {
            let transfers = self.transfers.iter();
            transfers.map(|(_, of)| wanted(of)).sum()
        };
        let offered = |part: &Part| part.access == Access::None;
        let lent = |of: &Transfer| if of.lends() { of.bytes(offered) } else { 0 };
        let claimed = |of: &Transfer| match of.failure {
            None => of.bytes(Part::is_live),
            Some(_) => 0,
        };
        PeerGauges {
            offered_bytes: sum(&lent),
            claimed_bytes: sum(&claimed),
            quarantined_bytes: self.quarantined_bytes(),
            oldest: self.transfers.iter().map(|(_, of)| of.began).min(),
        }
    }
}

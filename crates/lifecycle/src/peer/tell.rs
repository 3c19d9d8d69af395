//! Connections, and what is said on them without being asked: offers, claims, and the posts that a
//! grant allows.
//!
//! Called by [`PeerRoot`] after each mutation. The invariant: what a connection was told, and what
//! it granted, ends with it; a part in any of these states is claimed again under a higher attempt.

use std::collections::{BTreeMap, BTreeSet};

use tessera_proto::limits::LEASE_MS_MAX;
use tessera_proto::peer::{BlockRef, ConnectionId, LentPart, Message, TransferId};
use tessera_proto::{Incarnation, Instant};

use crate::peer::command::{Move, PeerCommand};
use crate::peer::config::{PeerFailure, PeerTimes};
use crate::peer::part::{Access, Part};
use crate::peer::root::{EarlyClaim, PeerRoot};
use crate::peer::session::Session;
use crate::peer::transfer::{Device, Search, Transfer};

impl PeerRoot {
    pub(super) fn connected(
        &mut self,
        now: Instant,
        peer: Incarnation,
        rank: u16,
        connection: ConnectionId,
    ) {
        let full = self.sessions.len() >= self.config.limits.peers;
        if full && !self.sessions.contains_key(&peer) || peer == self.config.incarnation {
            self.counters.stale_connections += 1;
            return;
        }
        let session = self.sessions.entry(peer);
        let session = session.or_insert_with(|| Session::new(now));
        if !session.connect(connection, rank) {
            self.counters.stale_connections += 1;
            return;
        }
        session.ping_at = now.after_millis(self.config.times.ping_ms);
        self.stirred = true;
        let own = self.config.incarnation;
        let again = session.again(own, peer);
        self.forget_grants(peer);
        self.commands
            .extend(again.into_iter().map(PeerCommand::Send));
        let open = self.open_set(peer);
        self.send_open_set(peer, &open);
    }

    pub(super) fn disconnected(
        &mut self,
        now: Instant,
        peer: Incarnation,
        connection: ConnectionId,
    ) {
        let session = self.sessions.get_mut(&peer);
        let current = session.filter(|session| session.connection == Some(connection));
        let Some(session) = current else {
            self.counters.stale_connections += 1;
            return;
        };
        session.dial_at = now;
        self.stirred = true;
        self.lose(now, peer);
    }

    /// Drops the connection with a process. What moves on it goes on as far as it can.
    pub(super) fn lose(&mut self, now: Instant, peer: Incarnation) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.lose(now);
        }
        self.forget_grants(peer);
    }

    fn forget_grants(&mut self, peer: Incarnation) {
        let counts = |claim: &EarlyClaim| !claim.released.is_empty();
        self.early
            .retain(|(_, from), claim| *from != peer || counts(claim));
        for (_, transfer) in self.transfers.iter_mut() {
            for part in transfer
                .parts
                .values_mut()
                .filter(|part| part.is_with(peer))
            {
                part.told = None;
                if matches!(part.access, Access::Claiming | Access::Granted(_)) {
                    part.renew();
                }
            }
        }
    }

    /// No connection for now: what nobody can touch fails, what somebody may touch is kept.
    pub(super) fn connect_failed(&mut self, now: Instant, peer: Incarnation, failure: PeerFailure) {
        let again = now.after_millis(self.config.times.ping_ms);
        let session = self.sessions.get_mut(&peer);
        let Some(session) = session.filter(|session| session.connection.is_none()) else {
            self.counters.stale_connections += 1;
            return;
        };
        (session.dialing, session.dial_at) = (false, again);
        let met = session.was_met();
        self.stirred = true;
        if !met {
            self.give_up_words(peer);
        }
        self.fail_untouched(now, peer, failure);
    }

    /// What was to be said to a process is said no more: it holds nothing of ours, and what it
    /// offers ends with its lease.
    fn give_up_words(&mut self, peer: Incarnation) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.outbox.clear();
        }
        self.releasing.retain(|(_, with)| *with != peer);
        for (_, transfer) in self.transfers.iter_mut() {
            let parts = transfer.parts.values_mut();
            for part in parts.filter(|part| part.is_with(peer)) {
                part.awaited = false;
            }
        }
    }

    /// Gives up what was to be said to those with whom there has been no connection for longer than
    /// any lease, unless a part is open with them. These words hold no memory here. There a lease
    /// has ended what nobody had claimed; a lender of what was claimed asks, and is answered that
    /// nothing is under way, which is so: but for a WRITE that only our own fence has ended, whose
    /// last word is kept.
    pub(super) fn forget_lost(&mut self, now: Instant) {
        let parts = self.transfers.iter().flat_map(|(_, of)| of.parts.values());
        let open: BTreeSet<_> = parts.filter_map(|part| part.peer).collect();
        let lost = self.sessions.iter().filter(|(peer, session)| {
            session.is_lost(now) && !session.has_doubt() && !open.contains(peer)
        });
        for peer in lost.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.give_up_words(peer);
        }
    }

    /// Fails the transfers that wait for a process before anything can move.
    pub(super) fn fail_untouched(&mut self, now: Instant, peer: Incarnation, failure: PeerFailure) {
        for (_, transfer) in self.transfers.iter_mut() {
            let mut parts = transfer.parts.values();
            if parts.any(|part| part.is_with(peer) && part.is_untouched()) {
                transfer.fail(now, failure);
            }
        }
    }

    /// Tells of what has changed: offers to those who may claim, claims to those who lend, posts to
    /// the driver. Dials whom it cannot tell.
    pub(super) fn tell_peers(&mut self, now: Instant, changed: &BTreeSet<TransferId>) {
        let mut news = News::default();
        for (id, of) in self.transfers.among_mut(changed) {
            if of.failure.is_none() {
                of.tell(id, now, &self.sessions, &mut news);
            }
            let open = of.parts.values().filter(|part| !part.is_over());
            news.peers.extend(open.filter_map(|part| part.peer));
        }
        let moves = news.moves.into_iter().map(PeerCommand::Move);
        self.commands.extend(moves);
        for ((peer, transfer), (lease_ms, parts)) in news.offers {
            self.send(
                peer,
                Message::Offer {
                    transfer,
                    lease_ms,
                    parts,
                },
            );
        }
        for ((peer, transfer), parts) in news.claims {
            self.send(peer, Message::Claim { transfer, parts });
        }
        for peer in news.peers {
            self.dial(now, peer);
        }
    }

    fn dial(&mut self, now: Instant, peer: Incarnation) {
        let session = self.sessions.get_mut(&peer);
        if let Some(session) = session.filter(|session| session.may_dial(now)) {
            session.dialing = true;
            self.commands.push_back(PeerCommand::Connect(peer));
        }
    }

    /// Dials everybody with whom something is open, and forgets those with whom nothing is: the
    /// dead, and those that went away.
    pub(super) fn tend_sessions(&mut self, now: Instant) {
        let wanted = self.wanted_peers();
        for peer in &wanted {
            self.dial(now, *peer);
        }
        self.sessions.retain(|peer, session| {
            let busy = session.fence.is_some() || session.connection.is_some();
            busy || wanted.contains(peer)
        });
    }

    /// Whether a process is known to have ended.
    pub(super) fn is_dead(&self, peer: Incarnation) -> bool {
        self.sessions.get(&peer).is_some_and(|session| session.dead)
    }

    /// Processes with which a connection is of use, or a fence is needed.
    pub(super) fn wanted_peers(&self) -> BTreeSet<Incarnation> {
        let parts = self.transfers.iter().flat_map(|(_, of)| of.parts.values());
        let open = parts.filter(|part| !part.is_over() || part.is_unsettled());
        let unsaid = self.sessions.iter().filter(|(_, of)| !of.outbox.is_empty());
        let releasing = self.releasing.iter().map(|(_, peer)| *peer);
        let open = open.filter_map(|part| part.peer).chain(releasing);
        open.chain(unsaid.map(|(peer, _)| *peer)).collect()
    }

    /// When the machine is next due: [`handle_timeout`](Self::handle_timeout), then
    /// [`collect`](Self::collect).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.stopped.is_some() {
            return None;
        }
        let times = self.config.times;
        let transfers = self.transfers.iter().flat_map(|(_, of)| of.due(times));
        let wanted = self.wanted_peers();
        let sessions = self.sessions.iter().flat_map(|(peer, session)| {
            let wants = wanted.contains(peer);
            let stop = session
                .fence
                .map(|fence| fence.since.after_millis(times.stop_ms));
            let ping = session.connection.is_some().then_some(session.ping_at);
            let dials = session.fence.is_none() && !session.dialing && !session.dead;
            let dial = (dials && session.connection.is_none()).then_some(session.dial_at);
            let wanted = ping.or(dial).filter(|_| wants);
            [stop.map(|at| at.after_nanos(1)), wanted]
        });
        let offers = self.offers.values().map(|of| Some(of.until.after_nanos(1)));
        let early = self.early.values();
        let early = early.map(|of| Some(of.until.after_nanos(1)));
        let waiting = offers.chain(early);
        transfers.chain(sessions).chain(waiting).flatten().min()
    }
}

/// What a pass over the transfers has to say.
#[derive(Default)]
struct News {
    offers: BTreeMap<(Incarnation, TransferId), (u64, Vec<LentPart>)>,
    claims: BTreeMap<(Incarnation, TransferId), Vec<LentPart>>,
    moves: Vec<Move>,
    /// Everybody with whom a part is open.
    peers: BTreeSet<Incarnation>,
}

impl Transfer {
    fn tell(
        &mut self,
        transfer: TransferId,
        now: Instant,
        sessions: &BTreeMap<Incarnation, Session>,
        news: &mut News,
    ) {
        let (lends, mode) = (self.lends(), self.mode);
        let lease_ms = self.lease.nanos_since(now) / 1_000_000;
        let lease_ms = lease_ms.min(u64::from(LEASE_MS_MAX));
        for part in self.parts.values_mut() {
            let session = part
                .peer
                .and_then(|peer| Some((peer, sessions.get(&peer)?)));
            let connected = session.and_then(|(peer, of)| Some((peer, of.connection?)));
            let Some((peer, connection)) = connected else {
                continue;
            };
            match part.access {
                Access::None if lends && part.told.is_none() => {
                    part.told = Some(connection);
                    part.owed = true;
                    let offers = news.offers.entry((peer, transfer));
                    let (_, parts) = offers.or_insert_with(|| (lease_ms, Vec::new()));
                    parts.push(part.lent(&part.local));
                }
                Access::None if !lends && part.known => {
                    part.access = Access::Claiming;
                    part.owed = true;
                    let claims = news.claims.entry((peer, transfer)).or_default();
                    claims.push(part.lent(&part.remote));
                }
                Access::Granted(on) if on == connection && part.ready => {
                    part.access = Access::Live;
                    news.moves.push(Move {
                        transfer,
                        at: part.at(),
                        peer,
                        connection,
                        mode,
                        local: part.local.clone(),
                        remote: part.remote.clone(),
                        length_bytes: part.length_bytes,
                    });
                }
                _ => {}
            }
        }
    }
}

impl Part {
    fn lent(&self, blocks: &[BlockRef]) -> LentPart {
        LentPart {
            at: self.at(),
            blocks: blocks.to_vec(),
        }
    }
}

impl Session {
    fn may_dial(&self, now: Instant) -> bool {
        let idle = self.connection.is_none() && self.fence.is_none() && !self.dialing;
        idle && !self.dead && self.dial_at <= now
    }
}

impl Transfer {
    /// When a clock next has a say in it.
    fn due(&self, times: PeerTimes) -> [Option<Instant>; 3] {
        let after = |at: Instant, millis| at.after_millis(millis).after_nanos(1);
        let device = match self.device {
            Device::Asked(at) => Some(after(at, times.stop_ms)),
            _ => None,
        };
        if !self.is_pending() {
            return [device, None, None];
        }
        let lapse = self.lends() && self.parts.values().any(|part| part.access == Access::None);
        let lease = lapse.then_some(self.lease.after_nanos(1));
        let next = match (self.failure, self.search) {
            (None, _) => Some(self.deadline.after_nanos(1)),
            (Some(_), Search::Waiting) => Some(after(self.failed_at, times.drain_ms)),
            (Some(_), Search::Aborted(at)) => Some(after(at, times.abort_ms)),
            (Some(_), Search::FenceAsked(at)) => Some(after(at, times.fence_ms)),
            (Some(_), Search::Fencing) => None,
        };
        [device, lease, next]
    }
}

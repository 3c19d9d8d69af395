//! Connections, and what is said on them without being asked: offers, claims, and the posts that a
//! grant allows.
//!
//! Called by [`PeerRoot`] after each mutation. The invariant: what a connection was told, and what it
//! granted, ends with it; a part in any of these states is claimed again under a higher attempt.

use std::collections::BTreeMap;

use tessera_proto::{Incarnation, Instant};

use crate::peer::command::{Move, PeerCommand};
use crate::peer::config::PeerFailure;
use crate::peer::ids::{ConnectionId, TransferId};
use crate::peer::message::{LentPart, Message};
use crate::peer::part::{Access, Part};
use crate::peer::root::PeerRoot;
use crate::peer::session::Session;
use crate::peer::transfer::Transfer;

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
        let own = self.config.incarnation;
        let again = session.again(own, peer);
        self.forget_grants(peer);
        self.commands
            .extend(again.into_iter().map(PeerCommand::Send));
        let open = self.open_set(peer);
        if !open.is_empty() {
            self.send(peer, Message::OpenSet { open });
        }
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
        self.lose(peer);
    }

    /// Drops the connection with a process. What moves on it goes on as far as it can.
    pub(super) fn lose(&mut self, peer: Incarnation) {
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.lose();
        }
        self.forget_grants(peer);
    }

    fn forget_grants(&mut self, peer: Incarnation) {
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
        self.fail_untouched(now, peer, failure);
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

    /// Dials whom it needs, and tells everybody who is connected.
    pub(super) fn tell_peers(&mut self, now: Instant) {
        let peers: Vec<Incarnation> = self.sessions.keys().copied().collect();
        for peer in peers {
            let wants = self.wants(peer);
            let Some(session) = self.sessions.get_mut(&peer) else {
                continue;
            };
            if let Some(connection) = session.connection {
                self.tell(now, peer, connection);
            } else if wants && session.may_dial(now) {
                session.dialing = true;
                self.commands.push_back(PeerCommand::Connect(peer));
            }
        }
    }

    fn tell(&mut self, now: Instant, peer: Incarnation, connection: ConnectionId) {
        let mut lent: BTreeMap<TransferId, (u64, Vec<LentPart>)> = BTreeMap::new();
        let mut claims: BTreeMap<TransferId, Vec<LentPart>> = BTreeMap::new();
        for (id, of) in self
            .transfers
            .iter_mut()
            .filter(|(_, of)| of.failure.is_none())
        {
            let (lends, mode) = (of.lends(), of.mode);
            let lease_ms = of.lease.nanos_since(now) / 1_000_000;
            let raised = of.synchronous && of.raised;
            let parts = of.parts.values_mut();
            for part in parts.filter(|part| part.is_with(peer) && !raised) {
                match part.access {
                    Access::None if lends && part.told.is_none() => {
                        part.told = Some(connection);
                        part.owed = true;
                        let offers = lent.entry(id).or_insert_with(|| (lease_ms, Vec::new()));
                        offers.1.push(part.lent(&part.local));
                    }
                    Access::None if !lends && part.known => {
                        part.access = Access::Claiming;
                        part.owed = true;
                        let claims = claims.entry(id).or_default();
                        claims.push(part.lent(&part.remote));
                    }
                    Access::Granted(on) if on == connection && part.ready => {
                        part.access = Access::Live;
                        self.commands.push_back(PeerCommand::Move(Move {
                            transfer: id,
                            at: part.at(),
                            peer,
                            connection,
                            mode,
                            local: part.local.clone(),
                            remote: part.remote.clone(),
                            length_bytes: part.length_bytes,
                        }));
                    }
                    _ => {}
                }
            }
        }
        for (transfer, (lease_ms, parts)) in lent {
            self.send(
                peer,
                Message::Offer {
                    transfer,
                    lease_ms,
                    parts,
                },
            );
        }
        for (transfer, parts) in claims {
            self.send(peer, Message::Claim { transfer, parts });
        }
    }

    /// Forgets processes with which nothing is open: the dead, and those that went away.
    pub(super) fn forget_peers(&mut self) {
        let wanted = |peer: Incarnation, session: &Session| {
            let busy = session.fence.is_some() || session.connection.is_some();
            let live = self
                .transfers
                .parts_with(peer)
                .any(|(_, _, part)| !part.is_over());
            busy || live || !session.dead && self.wants(peer)
        };
        let gone: Vec<Incarnation> = self
            .sessions
            .iter()
            .filter(|(peer, session)| !wanted(**peer, session))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in gone {
            self.sessions.remove(&peer);
        }
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
        let sessions = self.sessions.iter().flat_map(|(peer, session)| {
            let wants = self.wants(*peer);
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
        transfers.chain(sessions).chain(offers).flatten().min()
    }
}

impl Part {
    fn lent(&self, blocks: &[crate::peer::ids::BlockRef]) -> LentPart {
        LentPart {
            at: self.at(),
            blocks: blocks.to_vec(),
        }
    }
}

impl Session {
    fn may_dial(&self, now: Instant) -> bool {
        self.fence.is_none() && !self.dialing && !self.dead && self.dial_at <= now
    }
}

impl Transfer {
    /// When a clock next has a say in it.
    fn due(&self, times: crate::peer::config::PeerTimes) -> [Option<Instant>; 3] {
        use crate::peer::transfer::{Device, Search};
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

//! Frames of other processes: which are taken, and what both sides hold open.
//!
//! Called by the driver with whatever came. The invariant: no frame, however late, doubled, foreign
//! or of another process start, does more than move a counter, unless it is the next of its
//! connection.

use tessera_proto::limits::PEER_ENTRIES_MAX;
use tessera_proto::peer::{ConnectionId, Frame, Message, PartAttempt, PartId, Proof, TransferId};
use tessera_proto::{Incarnation, Instant};

use crate::peer::command::PeerCommand;
use crate::peer::part::{Access, Asked};
use crate::peer::root::PeerRoot;
use crate::peer::session::Taken;

impl PeerRoot {
    /// Takes a frame.
    pub fn handle_frame(&mut self, now: Instant, frame: Frame) {
        if self.stopped.is_some() {
            return;
        }
        let session = self.sessions.get_mut(&frame.from);
        let session = session.filter(|session| !session.dead);
        let (Some(session), true) = (session, frame.to == self.config.incarnation) else {
            self.counters.stale_incarnations += 1;
            return;
        };
        if session.connection != Some(frame.connection) {
            self.counters.stale_connections += 1;
            return;
        }
        let rank = session.rank;
        match session.take(&frame) {
            Taken::Deliver => self.deliver(now, frame.from, rank, frame.connection, frame.message),
            Taken::Duplicate => self.counters.duplicate_frames += 1,
            Taken::Early => self.counters.early_frames += 1,
        }
        self.advance(now);
    }

    fn deliver(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        connection: ConnectionId,
        message: Message,
    ) {
        match message {
            Message::Offer {
                transfer,
                lease_ms,
                parts,
            } => self.on_offer(now, from, rank, transfer, lease_ms, parts),
            Message::Claim { transfer, parts } => {
                self.on_claim(now, from, rank, transfer, &parts);
            }
            Message::Grant { transfer, parts } => {
                self.on_grant(from, connection, transfer, &parts);
            }
            Message::Refuse {
                transfer, parts, ..
            } => self.on_refuse(now, from, transfer, &parts),
            Message::DataDone { transfer, at } => {
                self.on_last_word(now, from, rank, transfer, at, Some(Proof::Clean), true);
            }
            Message::PartErr {
                transfer,
                at,
                proof,
            } => self.on_last_word(now, from, rank, transfer, at, proof, false),
            Message::Abort { transfer, parts } => {
                self.on_asked(now, from, transfer, &parts, Asked::Drain);
            }
            Message::AbortAck {
                transfer,
                at,
                proof,
            } => self.on_word(now, from, rank, transfer, at, Some(proof), false),
            Message::Release { transfer, parts } => {
                self.on_release(now, from, rank, transfer, &parts);
            }
            Message::ReleaseAck { transfer, parts } => {
                self.on_release_ack(now, from, transfer, &parts);
            }
            Message::FenceReq { transfer, parts } => {
                self.on_asked(now, from, transfer, &parts, Asked::Fence);
            }
            Message::FenceDone { transfer, at } => {
                self.on_word(now, from, rank, transfer, at, Some(Proof::Fenced), false);
            }
            Message::OpenSet { open } => self.on_open_set(from, open),
            Message::NeverPosted { unknown } => self.on_never_posted(now, from, rank, &unknown),
            Message::Ping { digest } => self.on_ping(from, digest),
            Message::Pong => self.repair(from),
        }
    }

    /// The last word on a part of a WRITE. A lender that knows the part no more has closed it, and
    /// says so again; of one that was never granted there is nothing to be closed.
    #[expect(
        clippy::too_many_arguments,
        reason = "one fact, and who says it of what"
    )]
    fn on_last_word(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        transfer: TransferId,
        at: PartAttempt,
        proof: Option<Proof>,
        whole: bool,
    ) {
        if let Some(proof) = proof.filter(|_| self.is_early(transfer, from)) {
            self.note_early(now, from, rank, transfer, vec![(at, proof)]);
        }
        let part = self
            .transfers
            .get(transfer)
            .and_then(|of| of.parts.get(&at.part));
        let claimed = part.is_some_and(|part| part.is_with(from));
        self.on_word(now, from, rank, transfer, at, proof, whole);
        if !claimed {
            let parts = vec![at.part];
            self.send(from, Message::ReleaseAck { transfer, parts });
        }
    }

    /// What is open with a process: what it may touch, what we have told it of, and what it waits
    /// for.
    pub(super) fn open_set(&self, peer: Incarnation) -> Vec<(TransferId, PartId)> {
        let parts = self.transfers.parts_with(peer);
        let open = parts.filter(|(_, of, part)| match of.lends() {
            true => part.is_live() || part.access == Access::None && part.told.is_some(),
            false => part.is_live() || part.owed,
        });
        open.map(|(id, _, part)| (id, part.id)).collect()
    }

    /// Sends the open set, in as many messages as it needs.
    pub(super) fn send_open_set(&mut self, peer: Incarnation, open: &[(TransferId, PartId)]) {
        for open in open.chunks(PEER_ENTRIES_MAX as usize) {
            let open = open.to_vec();
            self.send(peer, Message::OpenSet { open });
        }
    }

    /// Whether a part is known here, open or on its way out.
    fn knows(&self, from: Incarnation, id: TransferId, part: PartId) -> bool {
        let open = self.transfers.get(id).and_then(|of| of.parts.get(&part));
        open.is_some_and(|part| part.peer.is_none_or(|peer| peer == from))
            || self.releasing.contains(&(id, from))
            || self.offers.contains_key(&(id, from))
            || self.early.contains_key(&(id, from))
    }

    fn on_open_set(&mut self, from: Incarnation, open: Vec<(TransferId, PartId)>) {
        let unknown = open
            .into_iter()
            .filter(|(id, part)| !self.knows(from, *id, *part));
        let unknown: Vec<_> = unknown.collect();
        if !unknown.is_empty() {
            self.send(from, Message::NeverPosted { unknown });
        }
    }

    /// The peer knows nothing of these: a claimant has nothing under way, a lender holds nothing.
    fn on_never_posted(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        unknown: &[(TransferId, PartId)],
    ) {
        for (id, part) in unknown {
            if self.releasing.remove(&(*id, from)) || self.lender_is_done(now, from, *id, *part) {
                continue;
            }
            let lent = self.transfers.get(*id).and_then(|of| of.parts.get(part));
            let Some(at) = lent.map(super::part::Part::at) else {
                self.counters.duplicate_proofs += 1;
                continue;
            };
            self.on_word(now, from, rank, *id, at, Some(Proof::NeverPosted), false);
        }
    }

    fn on_ping(&mut self, from: Incarnation, theirs: u64) {
        self.send(from, Message::Pong);
        let open = self.open_set(from);
        if digest(&open) != theirs {
            self.send_open_set(from, &open);
        }
    }

    /// The answer to a heartbeat says what has come: what has not is sent again.
    fn repair(&mut self, peer: Incarnation) {
        let own = self.config.incarnation;
        if let Some(session) = self.sessions.get(&peer) {
            let again = session.again(own, peer).into_iter();
            self.commands.extend(again.map(PeerCommand::Send));
        }
    }

    /// Heartbeats to every process with something open. They fail nothing.
    pub(super) fn ping(&mut self, now: Instant) {
        let next = now.after_millis(self.config.times.ping_ms);
        for peer in self.wanted_peers() {
            let session = self.sessions.get_mut(&peer);
            let due = session.filter(|of| of.connection.is_some() && of.ping_at <= now);
            let Some(session) = due else {
                continue;
            };
            session.ping_at = next;
            let digest = digest(&self.open_set(peer));
            self.send(peer, Message::Ping { digest });
        }
    }
}

/// A number that equal sets share: FNV-1a over their parts.
fn digest(open: &[(TransferId, PartId)]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut eat = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for (id, part) in open {
        eat(&id.0.to_le_bytes());
        for number in [part.source, part.destination, part.index] {
            eat(&number.to_le_bytes());
        }
    }
    hash
}

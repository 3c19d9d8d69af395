//! The side that moves the bytes: decode in a READ, prefill in a WRITE.
//!
//! Called by [`PeerRoot`] for news of its own operations and for the lender's messages. The
//! invariant: nothing is posted without a grant of the current connection, nor after the first
//! failure of its transfer.

use std::collections::BTreeSet;

use tessera_proto::peer::{
    ConnectionId, LentPart, Message, PartAttempt, PartId, Proof, TransferId,
};
use tessera_proto::{Incarnation, Instant};

use crate::peer::command::Drain;
use crate::peer::config::PeerFailure;
use crate::peer::order::Mode;
use crate::peer::part::{Access, Asked, Part};
use crate::peer::root::{Offer, PeerRoot};
use crate::peer::transfer::Transfer;

impl PeerRoot {
    /// The source's bytes are there.
    pub(super) fn part_ready(&mut self, id: TransferId, part: PartId) {
        let transfer = self.transfers.get_mut(id);
        match transfer.and_then(|of| of.parts.get_mut(&part)) {
            Some(part) => part.ready = true,
            None => self.counters.late_completions += 1,
        }
    }

    /// The part of a claim that is under way, of a transfer that this side moves.
    fn moving(&mut self, id: TransferId, at: PartAttempt) -> Option<(&mut Transfer, PartId)> {
        let transfer = self.transfers.get_mut(id).filter(|of| !of.lends());
        let under_way = |of: &Transfer| {
            let part = of.parts.get(&at.part);
            part.is_some_and(|part| part.is_live() && part.attempt == at.attempt && !part.dirty)
        };
        match transfer.filter(|of| under_way(of)) {
            Some(transfer) => Some((transfer, at.part)),
            None => {
                self.counters.late_completions += 1;
                None
            }
        }
    }

    /// An operation has failed. Others of the part may still run.
    pub(super) fn part_failed(
        &mut self,
        now: Instant,
        id: TransferId,
        at: PartAttempt,
        failure: PeerFailure,
    ) {
        if let Some((transfer, part)) = self.moving(id, at) {
            if let Some(part) = transfer.parts.get_mut(&part) {
                part.conclude(Err(failure));
            }
            transfer.fail(now, failure);
        }
    }

    /// All operations of a part have ended. With an error among them they prove nothing.
    pub(super) fn part_drained(
        &mut self,
        now: Instant,
        id: TransferId,
        at: PartAttempt,
        drain: Drain,
    ) {
        let Some((transfer, part)) = self.moving(id, at) else {
            return;
        };
        let Some(part) = transfer.parts.get_mut(&part) else {
            return;
        };
        match drain {
            Drain::Clean => {
                part.conclude(Ok(()));
                part.rest(Proof::Clean);
            }
            Drain::Dirty => {
                part.conclude(Err(PeerFailure::Transport));
                part.dirty = true;
                transfer.fail(now, PeerFailure::Transport);
            }
        }
    }

    /// A destination lends its blocks: to an order of ours, or to one that is still to come.
    pub(super) fn on_offer(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        id: TransferId,
        lease_ms: u64,
        parts: Vec<LentPart>,
    ) {
        let own = self.config.rank;
        if parts
            .iter()
            .any(|of| (of.at.part.source, of.at.part.destination) != (own, rank))
        {
            self.counters.foreign_messages += 1;
            return;
        }
        if self.releasing.contains(&(id, from)) {
            self.counters.late_completions += 1;
            return;
        }
        if let Some(transfer) = self.transfers.get_mut(id) {
            let foreign = transfer.lends() || transfer.mode == Mode::Read;
            for of in parts {
                match transfer
                    .parts
                    .get_mut(&of.at.part)
                    .filter(|part| part.is_with(from))
                {
                    Some(part) if !foreign => part.meet(of.blocks),
                    _ => self.counters.foreign_messages += 1,
                }
            }
            return;
        }
        let used = self.tickets.is_used(id);
        let full = self.offers.len() >= self.config.limits.offers;
        if used || full && !self.offers.contains_key(&(id, from)) {
            self.counters.declined_offers += 1;
            let unknown = parts.iter().map(|of| (id, of.at.part)).collect();
            self.send(from, Message::NeverPosted { unknown });
            return;
        }
        let until = now.after_millis(lease_ms);
        self.offers.insert((id, from), Offer { until, parts });
    }

    pub(super) fn on_grant(
        &mut self,
        from: Incarnation,
        connection: ConnectionId,
        id: TransferId,
        parts: &[PartAttempt],
    ) {
        let mut transfer = self.transfers.get_mut(id).filter(|of| !of.lends());
        let known = transfer.is_some() || self.releasing.contains(&(id, from));
        for at in parts {
            let part = transfer.as_mut().and_then(|of| of.parts.get_mut(&at.part));
            let waits = |part: &&mut Part| {
                let claiming = part.access == Access::Claiming && part.attempt == at.attempt;
                claiming && part.is_with(from)
            };
            match part.filter(waits) {
                Some(part) => part.access = Access::Granted(connection),
                None => self.counters.late_completions += 1,
            }
        }
        if !known {
            let unknown = parts.iter().map(|at| (id, at.part)).collect();
            self.send(from, Message::NeverPosted { unknown });
        }
    }

    pub(super) fn on_refuse(
        &mut self,
        now: Instant,
        from: Incarnation,
        id: TransferId,
        parts: &[PartAttempt],
    ) {
        for at in parts {
            let transfer = self.transfers.get_mut(id).filter(|of| !of.lends());
            let refused = transfer.filter(|of| {
                let part = of.parts.get(&at.part);
                part.is_some_and(|part| {
                    let claiming = part.access == Access::Claiming && part.attempt == at.attempt;
                    claiming && part.is_with(from)
                })
            });
            let Some(transfer) = refused else {
                self.counters.late_completions += 1;
                continue;
            };
            if let Some(part) = transfer.parts.get_mut(&at.part) {
                (part.owed, part.awaited) = (false, false);
            }
            transfer.fail(now, PeerFailure::Refused);
        }
    }

    /// The lender wants its memory back. Nothing new is posted; what moves ends as it can.
    pub(super) fn on_asked(
        &mut self,
        now: Instant,
        from: Incarnation,
        id: TransferId,
        parts: &[PartId],
        asked: Asked,
    ) {
        let transfer = self.transfers.get_mut(id).filter(|of| !of.lends());
        let Some(transfer) = transfer else {
            if self.releasing.contains(&(id, from)) {
                self.counters.late_completions += 1;
                return;
            }
            let unknown = parts.iter().map(|part| (id, *part)).collect();
            self.send(from, Message::NeverPosted { unknown });
            return;
        };
        for part in parts {
            match transfer
                .parts
                .get_mut(part)
                .filter(|part| part.is_with(from))
            {
                Some(part) => part.asked = part.asked.max(Some(asked)),
                None => self.counters.foreign_messages += 1,
            }
        }
        if transfer
            .parts
            .values()
            .any(|part| part.asked.is_some() && !part.is_over())
        {
            transfer.fail(now, PeerFailure::PeerAborted);
        }
    }

    /// The lender has closed these parts: it waits for no word on them.
    pub(super) fn on_release_ack(
        &mut self,
        now: Instant,
        from: Incarnation,
        id: TransferId,
        parts: &[PartId],
    ) {
        let noted = self.releasing.remove(&(id, from)) | self.offers.remove(&(id, from)).is_some();
        let open = parts
            .iter()
            .filter(|part| self.lender_is_done(now, from, id, **part));
        if open.count() == 0 && !noted {
            self.counters.duplicate_proofs += 1;
        }
    }

    /// The lender holds nothing for a part that we move. False if we do not move it.
    pub(super) fn lender_is_done(
        &mut self,
        now: Instant,
        from: Incarnation,
        id: TransferId,
        part: PartId,
    ) -> bool {
        let transfer = self.transfers.get_mut(id).filter(|of| !of.lends());
        let Some(transfer) = transfer else {
            return false;
        };
        let Some(part) = transfer
            .parts
            .get_mut(&part)
            .filter(|part| part.is_with(from))
        else {
            return false;
        };
        (part.owed, part.awaited, part.said, part.asked) = (false, false, false, None);
        if !part.is_over() {
            transfer.fail(now, PeerFailure::PeerAborted);
        }
        true
    }

    /// Says what lenders wait to hear: how a part of a WRITE has ended, and that what was asked for
    /// is done. The release of a READ is not said here, but when the whole transfer is closed.
    pub(super) fn say_last_words(&mut self, changed: &BTreeSet<TransferId>) {
        let mut words = Vec::new();
        for (transfer, of) in self.transfers.among_mut(changed) {
            if of.lends() {
                continue;
            }
            let write = of.mode == Mode::Write;
            for part in of.parts.values_mut() {
                let (Some(peer), at) = (part.peer, part.at()) else {
                    continue;
                };
                let proof = match part.access {
                    Access::Rest(proof) => Some(proof),
                    _ => None,
                };
                if write && part.owed && (proof.is_some() || part.dirty) {
                    (part.owed, part.said) = (false, true);
                    let whole = part.outcome == Some(Ok(()));
                    words.push((
                        peer,
                        match proof {
                            Some(Proof::Clean) if whole => Message::DataDone { transfer, at },
                            _ => Message::PartErr {
                                transfer,
                                at,
                                proof,
                            },
                        },
                    ));
                }
                if let (Some(proof), Some(asked)) = (proof, part.asked.take_if(|_| proof.is_some()))
                {
                    words.push((
                        peer,
                        match asked {
                            Asked::Fence if proof == Proof::Fenced => {
                                Message::FenceDone { transfer, at }
                            }
                            _ => Message::AbortAck {
                                transfer,
                                at,
                                proof,
                            },
                        },
                    ));
                }
            }
        }
        for (peer, message) in words {
            self.send(peer, message);
        }
    }
}

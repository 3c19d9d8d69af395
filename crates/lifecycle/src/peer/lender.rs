//! The side whose memory is touched: prefill in a READ, decode in a WRITE.
//!
//! Called by [`PeerRoot`] for the claimant's messages. The invariant: a claim is granted in the
//! same mutation that checks lease, ticket, generation and attempt, which may be the one that
//! brings the order that the claim has waited for; a part that was granted is at rest only by a
//! proof that its direction accepts.

use std::collections::BTreeMap;

use tessera_proto::peer::{LentPart, Message, PartAttempt, Proof, Refusal, TransferId};
use tessera_proto::{Incarnation, Instant};

use crate::peer::config::{EARLY_CLAIM_MS, PeerFailure};
use crate::peer::order::{Mode, Side};
use crate::peer::part::{Access, Part};
use crate::peer::root::{EarlyClaim, PeerRoot};

/// Whether a word from the other side proves that the part is at rest on this one. Bytes of a WRITE
/// may land after the sender's fence.
const fn suffices(mode: Mode, proof: Proof) -> bool {
    match proof {
        Proof::NeverPosted | Proof::Clean => true,
        Proof::Fenced => matches!(mode, Mode::Read),
    }
}

impl PeerRoot {
    pub(super) fn on_claim(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        transfer: TransferId,
        claims: &[LentPart],
    ) {
        if self.is_early(transfer, from) {
            let claim = EarlyClaim {
                until: now.after_millis(EARLY_CLAIM_MS),
                rank,
                parts: claims.to_vec(),
                released: Vec::new(),
            };
            self.counters.early_claims += 1;
            self.early.insert((transfer, from), claim);
            return;
        }
        self.answer_claim(now, from, rank, transfer, claims);
    }

    /// Whether a claim, or the last word on it, may be of an order that is still to come.
    pub(super) fn is_early(&self, transfer: TransferId, from: Incarnation) -> bool {
        let known = self.transfers.get(transfer).is_some() || self.tickets.is_used(transfer);
        let room = self.early.len() < self.config.limits.offers;
        !known && (room || self.early.contains_key(&(transfer, from)))
    }

    /// Judges the claims that have waited long enough.
    pub(super) fn answer_early(
        &mut self,
        now: Instant,
        is_due: impl Fn(TransferId, &EarlyClaim) -> bool,
    ) {
        let claims = self.early.iter();
        let due = claims.filter(|((id, _), claim)| is_due(*id, claim));
        let due: Vec<_> = due.map(|(at, _)| *at).collect();
        for (id, from) in due {
            if let Some(claim) = self.early.remove(&(id, from)) {
                self.answer_claim(now, from, claim.rank, id, &claim.parts);
                self.take_words(now, from, claim.rank, id, &claim.released);
            }
        }
    }

    fn answer_claim(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        transfer: TransferId,
        claims: &[LentPart],
    ) {
        let mut granted = Vec::new();
        let mut refused: BTreeMap<Refusal, Vec<PartAttempt>> = BTreeMap::new();
        for claim in claims {
            match self.judge(now, from, rank, transfer, claim) {
                Ok(()) => granted.push(claim.at),
                Err(reason) => refused.entry(reason).or_default().push(claim.at),
            }
        }
        if !granted.is_empty() {
            let parts = granted;
            self.send(from, Message::Grant { transfer, parts });
        }
        for (reason, parts) in refused {
            self.counters.refused_claims += parts.len() as u64;
            self.send(
                from,
                Message::Refuse {
                    transfer,
                    parts,
                    reason,
                },
            );
        }
    }

    /// Grants a claim, or says why not.
    fn judge(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        id: TransferId,
        claim: &LentPart,
    ) -> Result<(), Refusal> {
        let own = self.config.rank;
        let transfer = self.transfers.get_mut(id).filter(|of| of.lends());
        let transfer = transfer.ok_or(Refusal::Unknown)?;
        if !transfer.ranks_fit(claim.at.part, own, rank) {
            self.counters.foreign_messages += 1;
            return Err(Refusal::Unknown);
        }
        let (lapsed, failing) = (now > transfer.lease, transfer.failure.is_some());
        let mode = transfer.mode;
        let part = transfer
            .parts
            .get_mut(&claim.at.part)
            .ok_or(Refusal::Unknown)?;
        if part.peer.is_some_and(|peer| peer != from) {
            return Err(Refusal::Used);
        }
        match part.access {
            Access::None if lapsed || failing => return Err(Refusal::Revoked),
            _ if claim.at.attempt < part.attempt => return Err(Refusal::Stale),
            Access::Live if part.dirty => return Err(Refusal::Revoked),
            Access::Live if failing => {
                // Whoever claims again has nothing under way.
                if claim.at.attempt > part.attempt {
                    part.conclude(Err(PeerFailure::PeerAborted));
                    part.rest(Proof::NeverPosted);
                }
                return Err(Refusal::Revoked);
            }
            Access::None | Access::Live if !part.covers(mode, &claim.blocks) => {
                return Err(Refusal::Stale);
            }
            Access::None | Access::Live => {}
            _ => return Err(Refusal::Revoked),
        }
        part.peer = Some(from);
        part.attempt = claim.at.attempt;
        part.access = Access::Live;
        // Who pushes waits for our note of its last word.
        part.owed |= mode == Mode::Write;
        part.local.clone_from(&claim.blocks);
        if transfer.deadline == Instant::NEVER {
            transfer.deadline = now.after_millis(transfer.timeout_ms);
        }
        Ok(())
    }

    /// Takes the claimant's word on a part: whether its bytes are whole, and the proof, if it has
    /// one. Who has posted nothing may say so of what nobody has claimed: it could claim it as
    /// well.
    #[expect(
        clippy::too_many_arguments,
        reason = "one fact, and who says it of what"
    )]
    pub(super) fn on_word(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        id: TransferId,
        at: PartAttempt,
        proof: Option<Proof>,
        whole: bool,
    ) {
        let own = self.config.rank;
        let Some(transfer) = self.transfers.get_mut(id).filter(|of| of.lends()) else {
            self.counters.duplicate_proofs += 1;
            return;
        };
        let (mode, side) = (transfer.mode, transfer.side);
        let fits = transfer.ranks_fit(at.part, own, rank);
        let part = transfer.parts.get_mut(&at.part);
        let may = |part: &&mut Part| part.peer.is_none_or(|peer| peer == from);
        let Some(part) = part.filter(|part| fits && may(part)) else {
            self.counters.foreign_messages += 1;
            return;
        };
        if at.attempt < part.attempt {
            self.counters.late_completions += 1;
            return;
        }
        let outcome = match whole || side == Side::Source {
            true => Ok(()),
            false => Err(PeerFailure::PeerAborted),
        };
        match part.access {
            Access::None if proof == Some(Proof::NeverPosted) => {
                part.conclude(outcome);
                part.rest(Proof::NeverPosted);
            }
            Access::Live if !part.dirty => {
                part.conclude(outcome);
                match proof.filter(|proof| suffices(mode, *proof)) {
                    Some(proof) => part.rest(proof),
                    None => part.dirty = true,
                }
            }
            Access::None => {
                self.counters.foreign_messages += 1;
                return;
            }
            _ => {
                self.counters.duplicate_proofs += 1;
                return;
            }
        }
        if let Err(failure) = outcome {
            transfer.fail(now, failure);
        }
    }

    /// All of a part that a peer writes is here: this side has seen the end of it, and waits for no
    /// word. What the device that owns the memory still owes is a fact of its own.
    pub(super) fn part_landed(&mut self, id: TransferId, at: PartAttempt) {
        let transfer = self.transfers.get_mut(id);
        let transfer = transfer.filter(|of| of.lends() && of.mode == Mode::Write);
        let part = transfer.and_then(|of| of.parts.get_mut(&at.part));
        let writes = |part: &&mut Part| part.is_live() && !part.dirty;
        match part.filter(|part| writes(part) && part.attempt == at.attempt) {
            Some(part) => {
                part.conclude(Ok(()));
                part.rest(Proof::Clean);
            }
            None => self.counters.late_completions += 1,
        }
    }

    pub(super) fn on_release(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        transfer: TransferId,
        parts: &[(PartAttempt, Proof)],
    ) {
        if self.is_early(transfer, from) {
            self.note_early(now, from, rank, transfer, parts.to_vec());
        } else {
            self.take_words(now, from, rank, transfer, parts);
        }
        let parts = parts.iter().map(|(at, _)| at.part).collect();
        self.send(from, Message::ReleaseAck { transfer, parts });
    }

    /// The last words on what no order has offered yet. They take the place of the claim.
    pub(super) fn note_early(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        transfer: TransferId,
        mut released: Vec<(PartAttempt, Proof)>,
    ) {
        if let Some(before) = self.early.remove(&(transfer, from)) {
            released.extend(before.released);
        }
        let claim = EarlyClaim {
            until: now.after_millis(EARLY_CLAIM_MS),
            rank,
            parts: Vec::new(),
            released,
        };
        self.early.insert((transfer, from), claim);
    }

    fn take_words(
        &mut self,
        now: Instant,
        from: Incarnation,
        rank: u16,
        transfer: TransferId,
        words: &[(PartAttempt, Proof)],
    ) {
        for (at, proof) in words {
            self.on_word(now, from, rank, transfer, *at, Some(*proof), false);
        }
    }
}

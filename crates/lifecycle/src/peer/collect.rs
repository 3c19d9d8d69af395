//! Collecting completions, in two phases: the verdicts of *all* transfers, then the acts.
//!
//! Called by the driver after each mutation and as often as it likes. The invariant: gathering
//! takes `&self`, so that a failure found there changes no table, sends nothing and frees nothing;
//! acting goes through [`Transfers::close`](super::transfer::Transfers::close), which gives a
//! transfer out once, behind a proof for every part, and is the only source of releases and
//! reports.

use std::collections::{BTreeMap, BTreeSet};

use tessera_proto::peer::{Message, PartAttempt, Proof, TransferId};
use tessera_proto::{Incarnation, Instant};

use crate::peer::command::{PeerCommand, StepFailure};
use crate::peer::config::PeerFailure;
use crate::peer::order::{Mode, Side};
use crate::peer::part::{Access, Part};
use crate::peer::root::{PeerRoot, Settled};
use crate::peer::transfer::{Closed, Device, Transfer};
use crate::shape::LayoutClass;

/// What the facts of one transfer call for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: something is under way, or a proof is awaited.
    Wait,
    /// It is too old. It fails; what is under way stays claimed.
    Expire,
    /// Its offer is too old: what nobody has claimed cannot be claimed any more.
    Lapse,
    /// The step that waits for it must not go on.
    Raise(PeerFailure),
    /// All parts are at rest; the device owes its proof.
    AskDevice,
    /// Everything is proven.
    Close,
}

impl Transfer {
    /// The verdict of the facts, whatever their order. Older than a deadline is strictly older.
    pub(crate) fn verdict(&self, now: Instant) -> Verdict {
        let expired = self.is_pending() && now > self.deadline;
        let failure = self.failure.or(expired.then_some(PeerFailure::Deadline));
        match failure {
            Some(failure) if self.synchronous && !self.raised => return Verdict::Raise(failure),
            Some(_) if self.failure.is_none() => return Verdict::Expire,
            _ => {}
        }
        let unclaimed = || self.parts.values().any(|part| part.access == Access::None);
        if self.is_pending() {
            return match self.lends() && now > self.lease && unclaimed() {
                true => Verdict::Lapse,
                false => Verdict::Wait,
            };
        }
        match self.device {
            Device::Owed if self.wrote() => Verdict::AskDevice,
            Device::Asked(_) => Verdict::Wait,
            _ => Verdict::Close,
        }
    }
}

impl PeerRoot {
    /// Makes the facts count: fails what is too old, closes what is over, releases and reports it.
    /// Repeating it changes nothing.
    ///
    /// # Errors
    /// [`StepFailure`] if a transfer that the step waits for has failed: nothing at all was
    /// changed. The step is to be failed, and then named to [`step_failed`](Self::step_failed).
    pub fn collect(&mut self, now: Instant) -> Result<(), StepFailure> {
        loop {
            if self.stopped.is_some() {
                return Ok(());
            }
            let verdicts = self.gather(now)?;
            if verdicts.is_empty() {
                return Ok(());
            }
            for (id, verdict) in verdicts {
                self.act(now, id, verdict);
            }
            self.advance(now);
        }
    }

    /// The verdicts that call for something, of all transfers, or the first that must be raised.
    fn gather(&self, now: Instant) -> Result<Vec<(TransferId, Verdict)>, StepFailure> {
        if let Some(refused) = self.refused.first() {
            return Err(*refused);
        }
        let mut verdicts = Vec::new();
        for (transfer, of) in self.transfers.iter() {
            match of.verdict(now) {
                Verdict::Wait => {}
                Verdict::Raise(failure) => {
                    let request = of.request;
                    return Err(StepFailure {
                        transfer,
                        request,
                        failure,
                    });
                }
                verdict => verdicts.push((transfer, verdict)),
            }
        }
        Ok(verdicts)
    }

    fn act(&mut self, now: Instant, id: TransferId, verdict: Verdict) {
        match verdict {
            Verdict::Wait | Verdict::Raise(_) => {}
            Verdict::Expire => {
                if let Some(transfer) = self.transfers.get_mut(id) {
                    transfer.fail(now, PeerFailure::Deadline);
                }
            }
            Verdict::Lapse => {
                if let Some(transfer) = self.transfers.get_mut(id) {
                    transfer.lapse(now);
                }
            }
            Verdict::AskDevice => {
                if let Some(transfer) = self.transfers.get_mut(id) {
                    transfer.device = Device::Asked(now);
                    self.commands.push_back(PeerCommand::FenceDevice(id));
                }
            }
            Verdict::Close => {
                if let Some(closed) = self.transfers.close(id) {
                    self.stirred = true;
                    self.release(id, &closed);
                    self.settle(id, &closed);
                }
            }
        }
    }

    /// The step of a synchronous transfer has been failed: the transfer ends as a failed one that
    /// is reported to nobody.
    pub fn step_failed(&mut self, now: Instant, id: TransferId) {
        self.refused.retain(|refused| refused.transfer != id);
        if let Some(transfer) = self.transfers.get_mut(id).filter(|of| of.synchronous) {
            transfer.raised = true;
            if transfer.is_pending() {
                transfer.fail(now, PeerFailure::Deadline);
            }
        }
        self.advance(now);
    }

    /// Tells the other side, once, that a transfer is over here.
    fn release(&mut self, transfer: TransferId, closed: &Closed) {
        let of = closed.transfer();
        let mut proofs: BTreeMap<Incarnation, Vec<(PartAttempt, Proof)>> = BTreeMap::new();
        let mut said: BTreeSet<Incarnation> = BTreeSet::new();
        for (part, proof) in closed.proofs() {
            let Some(peer) = part.peer.filter(|peer| !self.is_dead(*peer)) else {
                continue; // Nobody waits for a word.
            };
            if part.owed || part.awaited {
                proofs.entry(peer).or_default().push((part.at(), proof));
            }
            if part.owed && !of.lends() || part.awaited || part.said {
                said.insert(peer);
            }
        }
        self.releasing
            .extend(said.into_iter().map(|peer| (transfer, peer)));
        for (peer, parts) in proofs {
            match (of.mode, of.side) {
                (Mode::Read, Side::Destination) => {
                    self.send(peer, Message::Release { transfer, parts });
                }
                (Mode::Write, Side::Destination) => {
                    let parts = parts.into_iter().map(|(at, _)| at.part).collect();
                    self.send(peer, Message::ReleaseAck { transfer, parts });
                }
                // The source has said its last words part by part, or has answered a release.
                (_, Side::Source) => {}
            }
        }
    }

    fn settle(&mut self, id: TransferId, closed: &Closed) {
        let of = closed.transfer();
        self.remember(id, of.request);
        let failed = of.failure.is_some();
        match failed {
            true => self.counters.transfers_failed += 1,
            false => self.counters.transfers_succeeded += 1,
        }
        let destination = of.side == Side::Destination;
        let gone = of.failure == Some(PeerFailure::Cancelled);
        if failed && destination && !gone {
            self.failed_sources.insert(of.request);
        }
        if !of.reported {
            return;
        }
        let by_block = self.config.class == LayoutClass::Block && !closed.is_nameless();
        let named = by_block && destination && failed;
        let blocks = closed.invalid_blocks().filter(|_| named);
        self.settled.push(Settled {
            transfer: id,
            request: of.request,
            side: of.side,
            failed: failed && destination && !named,
            invalid_blocks: blocks.collect(),
        });
    }
}

impl Transfer {
    /// Nobody can claim any more what nobody has claimed. A destination will not be written then.
    fn lapse(&mut self, now: Instant) {
        if self.side == Side::Destination {
            self.fail(now, PeerFailure::Unclaimed);
            return;
        }
        for part in self.parts.values_mut().filter(|part| part.is_untouched()) {
            part.conclude(Err(PeerFailure::Unclaimed));
            part.rest(Proof::NeverPosted);
        }
        let untouched = |part: &Part| part.access == Access::Rest(Proof::NeverPosted);
        if self.parts.values().all(untouched) {
            self.fail(now, PeerFailure::Unclaimed);
        }
    }
}

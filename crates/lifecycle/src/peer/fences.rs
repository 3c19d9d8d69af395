//! The search for proofs, from the cheapest to the stop of the worker.
//!
//! Called by [`PeerRoot`] after each mutation. The invariant: time decides which proof is sought
//! next and never replaces one. F1 is the end of what was posted; F2 closes our side; F3 takes the
//! peer's access away, also after its death (F4); F5 stops the worker when nothing else ends.

use std::collections::{BTreeMap, BTreeSet};

use tessera_proto::peer::{Message, PartId, Proof, TransferId};
use tessera_proto::{Incarnation, Instant};

use crate::peer::command::{FenceKind, PeerCommand};
use crate::peer::config::{PeerFailure, PeerStop, PeerTimes};
use crate::peer::ids::FenceId;
use crate::peer::order::Mode;
use crate::peer::part::{Asked, Part};
use crate::peer::root::PeerRoot;
use crate::peer::session::Fence;
use crate::peer::transfer::{Device, Search, Transfer};

/// What a pass over the transfers found to be needed.
#[derive(Default)]
struct Needs {
    fences: BTreeMap<Incarnation, FenceKind>,
    words: Vec<(Incarnation, Message)>,
}

impl Needs {
    fn fence(&mut self, peer: Option<Incarnation>, kind: FenceKind) {
        if let Some(peer) = peer {
            let needed = self.fences.entry(peer).or_insert(kind);
            *needed = kind.max(*needed);
        }
    }
}

fn past(now: Instant, at: Instant, millis: u64) -> bool {
    now > at.after_millis(millis)
}

impl PeerRoot {
    /// Seeks the next proof for what has changed, failed, and is not at rest.
    pub(super) fn search_proofs(&mut self, now: Instant, changed: &BTreeSet<TransferId>) {
        let times = self.config.times;
        let mut ids = changed.clone();
        let mut urgent = None;
        let failing = |id: &TransferId| {
            let transfer = self.transfers.get(*id);
            transfer.is_some_and(|of| of.failure.is_some())
        };
        if changed.iter().any(failing) {
            if self.quarantined_bytes() > self.config.limits.quarantine_stop_bytes {
                self.stop(PeerStop::Quarantine);
                return;
            }
            urgent = self.urgent();
            ids.extend(urgent);
        }
        let dead: BTreeSet<Incarnation> = self
            .sessions
            .iter()
            .filter_map(|(peer, session)| session.dead.then_some(*peer))
            .collect();
        let is_dead = |part: &Part| part.peer.is_some_and(|peer| dead.contains(&peer));
        let mut needs = Needs::default();
        for (id, of) in self.transfers.among_mut(&ids) {
            let urgent = urgent == Some(id);
            if of.lends() {
                of.search_lent(now, times, id, urgent, &mut needs);
            }
            let late = of.failure.is_some() && (urgent || past(now, of.failed_at, times.drain_ms));
            if late && !of.lends() {
                of.search = Search::Fencing;
            }
            let kind = match of.lends() {
                true => FenceKind::Revoke,
                false => FenceKind::Close,
            };
            for part in of.parts.values().filter(|part| part.is_live()) {
                let asked = part.asked == Some(Asked::Fence);
                let now = match of.lends() {
                    true => of.search == Search::Fencing,
                    false => late || asked,
                };
                if now || part.dirty || is_dead(part) {
                    needs.fence(part.peer, kind);
                }
            }
        }
        for (peer, message) in needs.words {
            self.send(peer, message);
        }
        for (peer, kind) in needs.fences {
            self.begin_fence(now, peer, kind);
        }
    }

    /// Whether a fence has not ended in the time that it has.
    pub(super) fn overdue(&self, now: Instant) -> Option<PeerStop> {
        let stop_ms = self.config.times.stop_ms;
        let stuck = |fence: Fence| past(now, fence.since, stop_ms);
        if self.sessions.values().any(|of| of.fence.is_some_and(stuck)) {
            return Some(PeerStop::Fence);
        }
        let owes = |of: &Transfer| match of.device {
            Device::Asked(at) => past(now, at, stop_ms),
            _ => false,
        };
        let owed = self.transfers.iter().any(|(_, of)| owes(of));
        owed.then_some(PeerStop::Device)
    }

    /// Above the budget the oldest failure is fenced without waiting for anything cheaper.
    fn urgent(&self) -> Option<TransferId> {
        if self.quarantined_bytes() <= self.config.limits.quarantine_bytes {
            return None;
        }
        let held = self
            .transfers
            .iter()
            .filter(|(_, of)| of.quarantined_bytes() > 0);
        held.min_by_key(|(id, of)| (of.failed_at, *id))
            .map(|(id, _)| id)
    }

    fn begin_fence(&mut self, now: Instant, peer: Incarnation, kind: FenceKind) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        if session.fence.is_some_and(|fence| fence.kind >= kind) {
            return;
        }
        self.next_fence += 1;
        let id = FenceId(self.next_fence);
        let since = session.fence.map_or(now, |fence| fence.since);
        session.fence = Some(Fence { id, kind, since });
        let dead = session.dead;
        self.lose(now, peer);
        match kind {
            FenceKind::Close => self.counters.fences_close += 1,
            FenceKind::Revoke if dead => self.counters.fences_dead += 1,
            FenceKind::Revoke => self.counters.fences_revoke += 1,
        }
        let fence = id;
        self.commands
            .push_back(PeerCommand::Fence { peer, fence, kind });
    }

    /// A fence is complete: it proves what it covers, for the guilty and for those that shared the
    /// connection. The latter are claimed again where that is sound.
    pub(super) fn fenced(&mut self, now: Instant, peer: Incarnation, fence: FenceId) {
        let session = self.sessions.get_mut(&peer);
        let current = session.filter(|of| of.fence.is_some_and(|of| of.id == fence));
        let Some((session, Fence { kind, .. })) = current.and_then(|of| {
            let fence = of.fence.take()?;
            Some((of, fence))
        }) else {
            self.counters.late_completions += 1;
            return;
        };
        session.dial_at = now;
        self.stirred = true;
        let retries = if session.dead {
            0
        } else {
            self.config.limits.retries
        };
        for (_, of) in self.transfers.iter_mut() {
            let proven = !of.lends() || kind == FenceKind::Revoke;
            let again = !of.lends() && of.mode == Mode::Read && of.failure.is_none();
            let live = of
                .parts
                .values_mut()
                .filter(|part| part.is_live() && part.is_with(peer));
            let mut failed = false;
            for part in live.filter(|_| proven) {
                if again && part.retries < retries {
                    part.retries += 1;
                    self.counters.retries += 1;
                    part.renew();
                } else {
                    part.conclude(Err(PeerFailure::Fenced));
                    part.rest(Proof::Fenced);
                    failed = true;
                }
            }
            if failed {
                of.fail(now, PeerFailure::Fenced);
            }
        }
    }

    /// The process is dead: nothing more is said to it, and its access ends behind a fence.
    pub(super) fn peer_dead(&mut self, now: Instant, peer: Incarnation) {
        self.offers.retain(|(_, from), _| *from != peer);
        self.releasing.retain(|(_, with)| *with != peer);
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        session.dead = true;
        self.stirred = true;
        session.outbox.clear();
        self.lose(now, peer);
        self.fail_untouched(now, peer, PeerFailure::PeerDead);
        for (_, of) in self.transfers.iter_mut() {
            let parts = of.parts.values_mut().filter(|part| part.is_with(peer));
            let mut live = false;
            for part in parts {
                (part.owed, part.awaited, part.said, part.asked) = (false, false, false, None);
                live |= part.is_live();
            }
            if live {
                of.fail(now, PeerFailure::PeerDead);
            }
        }
    }

    pub(super) fn device_fenced(&mut self, id: TransferId) {
        let asked = |of: &&mut Transfer| matches!(of.device, Device::Asked(_));
        match self.transfers.get_mut(id).filter(asked) {
            Some(transfer) => transfer.device = Device::Proven,
            None => self.counters.late_completions += 1,
        }
    }

    /// The device proved nothing: the content is in doubt, and the proof is still owed.
    pub(super) fn device_failed(&mut self, now: Instant, id: TransferId) {
        let asked = |of: &&mut Transfer| matches!(of.device, Device::Asked(_));
        match self.transfers.get_mut(id).filter(asked) {
            Some(transfer) => {
                transfer.doubtful = true;
                transfer.fail(now, PeerFailure::Device);
            }
            None => self.counters.late_completions += 1,
        }
    }
}

impl Transfer {
    /// The lender's steps: ask for an end, ask for a fence, then fence.
    fn search_lent(
        &mut self,
        now: Instant,
        times: PeerTimes,
        transfer: TransferId,
        urgent: bool,
        needs: &mut Needs,
    ) {
        let mut live: BTreeMap<Incarnation, Vec<PartId>> = BTreeMap::new();
        for part in self.parts.values().filter(|part| part.is_live()) {
            if let Some(peer) = part.peer {
                live.entry(peer).or_default().push(part.id);
            }
        }
        if self.failure.is_none() || live.is_empty() {
            return;
        }
        self.search = match self.search {
            Search::Waiting | Search::Aborted(_) | Search::FenceAsked(_) if urgent => {
                Search::Fencing
            }
            Search::Waiting if past(now, self.failed_at, times.drain_ms) => {
                needs.words.extend(
                    live.into_iter()
                        .map(|(peer, parts)| (peer, Message::Abort { transfer, parts })),
                );
                Search::Aborted(now)
            }
            Search::Aborted(at) if past(now, at, times.abort_ms) => match self.mode {
                Mode::Write => Search::Fencing,
                Mode::Read => {
                    needs.words.extend(
                        live.into_iter()
                            .map(|(peer, parts)| (peer, Message::FenceReq { transfer, parts })),
                    );
                    Search::FenceAsked(now)
                }
            },
            Search::FenceAsked(at) if past(now, at, times.fence_ms) => Search::Fencing,
            other => other,
        };
    }
}

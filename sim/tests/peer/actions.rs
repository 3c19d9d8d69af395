//! What can happen in a state.

use tessera_lifecycle::peer::Mode;
use tessera_proto::Instant;

use crate::world::{Action, Op, STOP_MS, Stand, State, World};

impl World {
    pub(crate) fn enabled(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        if state.broken.is_none() {
            self.orders(state, &mut actions);
            self.frames(state, &mut actions);
            self.connections(state, &mut actions);
            self.machines(state, &mut actions);
        }
        actions
    }

    /// The engines' part: transfers in the order of their numbers, tickets before they are used.
    fn orders(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (at, worker) in state.workers.iter().enumerate() {
            let next = worker
                .stands
                .iter()
                .position(|stand| *stand == Stand::Absent);
            if let Some(transfer) = next {
                let ticket = state.tickets[transfer].is_some();
                if self.mode(transfer) == Mode::Write || self.is_prefill(at) || ticket {
                    actions.push(Action::Order(at, transfer));
                }
            }
            for (transfer, stand) in worker.stands.iter().enumerate() {
                if matches!(stand, Stand::Open { aborted: false, .. }) {
                    if left.aborts > 0 {
                        actions.push(Action::Abort(at, transfer));
                    }
                    if left.preemptions > 0 && !self.is_prefill(at) {
                        actions.push(Action::Preempt(at, transfer));
                    }
                }
            }
            if left.again > 0 && !self.is_prefill(at) {
                let over = worker.failed.difference(&worker.again);
                actions.extend(over.map(|transfer| Action::Again(at, *transfer)));
            }
            if left.restarts > 0 {
                actions.push(Action::Restart(at));
            }
        }
    }

    fn frames(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (at, (to, frame)) in state.net.iter().enumerate() {
            let mut before = state.net[..at].iter();
            let first = !before.any(|(other, of)| other == to && of.from == frame.from);
            if first || left.early > 0 {
                actions.push(Action::Deliver(at));
            }
            if left.lost > 0 {
                actions.push(Action::Lose(at));
            }
            if left.doubled > 0 {
                actions.push(Action::Double(at));
            }
        }
    }

    fn connections(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (at, worker) in state.workers.iter().enumerate() {
            for peer in &worker.dialing {
                if state.dead.contains(peer) || left.unreachable > 0 {
                    actions.push(Action::GiveUp(at, *peer));
                }
            }
            let unknown = state.dead.difference(&worker.mourned);
            actions.extend(unknown.map(|peer| Action::Mourn(at, *peer)));
        }
        for prefill in 0..self.setup.prefill {
            for decode in self.setup.prefill..state.workers.len() {
                if self.may_connect(state, prefill, decode) {
                    actions.push(Action::Connect(prefill, decode));
                }
                let Some(link) = state.links.get(&(prefill, decode)) else {
                    continue;
                };
                if link.whole {
                    if left.breaks > 0 {
                        actions.push(Action::Break(prefill, decode));
                    }
                    continue;
                }
                let ends = (0..2).filter(|end| link.trusted[*end]);
                actions.extend(ends.map(|end| Action::Notice(prefill, decode, end)));
            }
        }
    }

    /// Somebody dials, and no fence forbids it.
    fn may_connect(&self, state: &State, prefill: usize, decode: usize) -> bool {
        let (one, other) = (&state.workers[prefill], &state.workers[decode]);
        let dials =
            one.dialing.contains(&other.incarnation) || other.dialing.contains(&one.incarnation);
        let fences = |of: &crate::world::Worker, with: &crate::world::Worker| {
            of.fences.iter().any(|(peer, ..)| *peer == with.incarnation)
        };
        let whole = state
            .links
            .get(&(prefill, decode))
            .is_some_and(|link| link.whole);
        dials && !whole && !fences(one, other) && !fences(other, one)
    }

    fn machines(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (at, op) in state.ops.iter().enumerate().filter(|(_, op)| !op.settled) {
            let whole = self.flows(state, op);
            let seen = self.mode(op.transfer) == Mode::Write && !self.setup.unseen;
            if whole && op.reads && op.writes {
                actions.push(match seen {
                    true => Action::Land(at),
                    false => Action::Done(at),
                });
            }
            if whole && op.landed {
                actions.push(Action::Done(at));
            }
            if !whole || left.errors > 0 {
                actions.push(Action::Error(at));
            }
        }
        for (at, worker) in state.workers.iter().enumerate() {
            if !worker.fences.is_empty() {
                actions.push(Action::Fenced(at));
            }
            if !worker.devices.is_empty() {
                actions.push(Action::Proven(at));
                if left.devices > 0 {
                    actions.push(Action::DeviceFails(at));
                }
            }
        }
        if left.ticks > 0 && state.due().is_some() {
            actions.push(Action::Tick);
        }
    }

    /// Whether the connection of an operation is whole.
    pub(crate) fn flows(&self, state: &State, op: &Op) -> bool {
        let link = state.links.get(&self.sides(op.at.part));
        link.is_some_and(|link| link.whole && link.connection == op.connection)
    }
}

impl State {
    /// When a machine is next due, but for the time when it gives a fence up: fences end before.
    pub(crate) fn due(&self) -> Option<Instant> {
        let due = self
            .workers
            .iter()
            .filter_map(|worker| worker.root.poll_timeout())
            .min();
        due.filter(|due| *due < self.now.after_millis(STOP_MS / 2))
    }
}

//! P4: from every state the engine, its ranks and the node can go on fairly, without new faults,
//! until nothing is left.
//!
//! In each state the first of these that changes something happens: an answer, the end of a fetch,
//! the end of a fence, an admission, a step. That is one path; states on paths that have ended
//! before are remembered, so that the whole search pays about one action for each state.

use tessera_lifecycle::scheduler::SchedulerTables;

use crate::world::{Action, EnginePhase, Stand, State, World};

/// No fair path is longer.
const LONGEST: usize = 200;

impl World {
    /// Whether everything ends from here.
    pub(crate) fn ends(&self, state: &State) -> bool {
        if state.broken.is_some() {
            // Another property says what is wrong here.
            return true;
        }
        let mut path = Vec::new();
        let mut here = state.clone();
        while !here.is_quiet() {
            let digest = here.digest();
            if self
                .ending
                .lock()
                .expect("no panic holds it")
                .contains(&digest)
            {
                break;
            }
            path.push(digest);
            let next = self.fair(&here);
            match next {
                Some(next) if path.len() < LONGEST && next.broken.is_none() => here = next,
                Some(next) if next.broken.is_some() => break,
                _ => return false,
            }
        }
        self.ending.lock().expect("no panic holds it").extend(path);
        true
    }

    fn fair(&self, state: &State) -> Option<State> {
        let digest = state.digest();
        let mut changes = self.fair_actions(state).into_iter();
        changes.find_map(|action| {
            let next = self.apply(state, &action);
            (next.broken.is_some() || next.digest() != digest).then_some(next)
        })
    }

    fn fair_actions(&self, state: &State) -> Vec<Action> {
        if !state.questions.is_empty() {
            let (question, reachable) = (0, true);
            return vec![Action::Answer {
                question,
                reachable,
            }];
        }
        for (rank, of) in state.ranks.iter().enumerate() {
            if let Some(fetch) = of.fetches.first() {
                let (at, ok) = (0, self.available(state, fetch));
                return vec![Action::Fetched { rank, at, ok }];
            }
            if let Some((load, phase)) = of.fences.first().copied() {
                return vec![Action::Fenced { rank, load, phase }];
            }
        }
        if state.phase != EnginePhase::Idle {
            return Vec::new();
        }
        let waits = |slot: &usize| state.slots[*slot].stand == Stand::Waiting;
        let waiting = (0..state.slots.len()).filter(waits);
        let admit = waiting.map(|slot| Action::Admit { slot, cached: 0 });
        let step = Action::Step { preempt: None };
        admit.chain([step]).collect()
    }
}

impl State {
    /// Whether nothing is left: no request, no transfer, no lease, no block, no entry.
    fn is_quiet(&self) -> bool {
        let requests = self.slots.iter().all(|slot| slot.stand == Stand::Absent);
        let ranks = self.ranks.iter().all(|rank| rank.root.is_idle());
        let leases = self.node.leases.is_empty();
        let tables = self.root.tables() == SchedulerTables::default();
        let blocks = self
            .slots
            .iter()
            .all(|slot| slot.tables.iter().all(Vec::is_empty));
        requests && ranks && leases && tables && blocks && self.phase == EnginePhase::Idle
    }
}

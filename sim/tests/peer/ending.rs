//! P4: from every state everything ends, on a fair path without new faults.
//!
//! In each state the first of these that changes something happens: a frame, the end of an
//! operation, the end of a fence, news of a connection or of a death, a dial, the passing of time.
//! States on paths that have ended before are remembered.

use crate::world::{Action, Budget, State, World, digest};

/// No fair path is longer.
const LONGEST: usize = 5_000;

impl World {
    /// Whether everything ends from here.
    pub(crate) fn ends(&self, state: &State) -> bool {
        self.finish(state, true).is_ok()
    }

    /// Follows the fair path to its end.
    ///
    /// # Errors
    /// The state that it is stuck in, or that is broken.
    pub(crate) fn finish(&self, state: &State, remember: bool) -> Result<State, Box<State>> {
        if state.broken.is_some() {
            return if remember {
                Ok(state.clone())
            } else {
                Err(Box::new(state.clone()))
            };
        }
        let mut path = Vec::new();
        let mut here = state.clone();
        here.left = Budget::default();
        while !here.is_quiet() {
            let digest = digest(&here);
            if remember
                && self
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
                Some(next) => return Err(Box::new(next)),
                None => return Err(Box::new(here)),
            }
        }
        self.ending.lock().expect("no panic holds it").extend(path);
        Ok(here)
    }

    fn fair(&self, state: &State) -> Option<State> {
        let mut actions = self.enabled(state);
        actions.retain(|action| !matches!(action, Action::Order(..)));
        let rank = |action: &Action| match action {
            Action::Deliver(_) => 0,
            Action::Land(_) | Action::Done(_) => 1,
            Action::Error(_) => 2,
            Action::Fenced(_) => 3,
            Action::Proven(_) => 4,
            Action::Notice(..) => 5,
            Action::Mourn(..) => 6,
            Action::Connect(..) => 7,
            _ => 8,
        };
        actions.sort_by_key(rank);
        if let Some(action) = actions.first() {
            return Some(self.apply(state, action));
        }
        let due = state.due().is_some();
        let mut state = state.clone();
        state.left.ticks = 1;
        due.then(|| self.apply(&state, &Action::Tick))
    }
}

impl State {
    /// What is left, for a message.
    pub(crate) fn what_is_left(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!("{:?} at {:?}\n", self.broken, self.now);
        for (at, worker) in self.workers.iter().enumerate() {
            let (stands, tables) = (&worker.stands, worker.root.tables());
            let (fences, dialing) = (&worker.fences, &worker.dialing);
            let _ = writeln!(
                text,
                "worker {at} {:?}: {stands:?}, {tables:?}, {fences:?}, dials {dialing:?}, due {:?}",
                worker.incarnation,
                worker.root.poll_timeout()
            );
        }
        let _ = write!(text, "{:?}\n{:?}\n{:?}", self.ops, self.net, self.links);
        text
    }

    /// Whether nothing is left: no request, no operation, no entry, no frame.
    pub(crate) fn is_quiet(&self) -> bool {
        let idle = |worker: &crate::world::Worker| {
            let over = worker.stands.iter().all(|stand| !stand.is_open());
            let owed = worker.fences.is_empty() && worker.devices.is_empty();
            over && owed && worker.root.is_idle() && worker.root.tables().offers == 0
        };
        self.workers.iter().all(idle) && self.ops.is_empty() && self.net.is_empty()
    }
}

//! The engines of one kind: who is healthy, who is busy, whose turn it is.
//!
//! `dispatch` takes turns from it, `health` says who is healthy. A turn counts for as long as it is
//! held, so that a request that ends in any way is counted out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::config::{Inbox, Upstream};

/// What an engine does of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Prefill,
    Decode,
}

/// One engine.
#[derive(Debug)]
pub(crate) struct Engine {
    authority: String,
    inbox: Option<Inbox>,
    healthy: AtomicBool,
    turns: AtomicUsize,
}

/// All engines of one kind.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) role: Role,
    engines: Vec<Arc<Engine>>,
    next: AtomicUsize,
}

/// One request's turn at an engine.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Engine>);

impl Pool {
    /// Engines that nobody has heard of yet: not healthy. `inboxes` are theirs, in this order.
    pub(crate) fn new(role: Role, upstreams: &[Upstream], inboxes: &[Inbox]) -> Self {
        let engine = |(index, upstream): (usize, &Upstream)| {
            Arc::new(Engine {
                authority: upstream.authority().to_owned(),
                inbox: inboxes.get(index).cloned(),
                healthy: AtomicBool::new(false),
                turns: AtomicUsize::new(0),
            })
        };
        Self {
            role,
            engines: upstreams.iter().enumerate().map(engine).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// A turn at the healthy engine with the fewest requests that is not among `tried`; of equal
    /// ones each in its turn.
    pub(crate) fn turn(&self, tried: &[Arc<Engine>]) -> Option<Turn> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.engines.len();
        let in_order = (0..count).map(|index| &self.engines[(first + index) % count]);
        in_order
            .filter(|engine| engine.is_healthy())
            .filter(|engine| !tried.iter().any(|other| Arc::ptr_eq(other, engine)))
            .min_by_key(|engine| engine.turns.load(Ordering::Relaxed))
            .map(|engine| Turn::at(Arc::clone(engine)))
    }

    /// All of them.
    pub(crate) fn engines(&self) -> &[Arc<Engine>] {
        &self.engines
    }

    /// How many are healthy.
    pub(crate) fn healthy(&self) -> usize {
        let healthy = self.engines.iter().filter(|engine| engine.is_healthy());
        healthy.count()
    }
}

impl Engine {
    /// `HOST:PORT`.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Where it takes tickets, if that is known.
    pub(crate) fn inbox(&self) -> Option<&Inbox> {
        self.inbox.as_ref()
    }

    /// Whether requests are sent to it.
    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Says whether it is healthy; answers whether that is news.
    pub(crate) fn mark(&self, healthy: bool) -> bool {
        self.healthy.swap(healthy, Ordering::Relaxed) != healthy
    }

    /// Requests that it has of this proxy.
    pub(crate) fn turns(&self) -> usize {
        self.turns.load(Ordering::Relaxed)
    }
}

impl Turn {
    fn at(engine: Arc<Engine>) -> Self {
        engine.turns.fetch_add(1, Ordering::Relaxed);
        Self(engine)
    }

    /// Whose turn it is.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.turns.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize) -> Pool {
        let upstream = |index| format!("http://engine:{index}").parse();
        let upstreams: Result<Vec<_>, _> = (1..=count).map(upstream).collect();
        let pool = Pool::new(Role::Decode, &upstreams.expect("good addresses"), &[]);
        for engine in pool.engines() {
            assert!(engine.mark(true), "nobody is healthy before it was heard");
        }
        pool
    }

    fn names(turns: &[Turn]) -> Vec<&str> {
        let mut names: Vec<_> = turns.iter().map(|turn| turn.engine().authority()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn turns_go_to_whoever_has_the_fewest() {
        let pool = pool(3);
        let mut turns: Vec<_> = (0..3).filter_map(|_| pool.turn(&[])).collect();
        assert_eq!(names(&turns), ["engine:1", "engine:2", "engine:3"]);
        let given_back = turns
            .pop()
            .expect("three turns")
            .engine()
            .authority()
            .to_owned();
        let next = pool.turn(&[]).expect("a turn");
        assert_eq!(next.engine().authority(), given_back);
    }

    #[test]
    fn equal_engines_take_turns() {
        let pool = pool(3);
        let mut seen: Vec<_> = (0..3)
            .map(|_| {
                pool.turn(&[])
                    .expect("a turn")
                    .engine()
                    .authority()
                    .to_owned()
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, ["engine:1", "engine:2", "engine:3"]);
    }

    #[test]
    fn nobody_is_asked_who_is_ill_or_was_asked_before() {
        let pool = pool(2);
        assert!(pool.engines()[0].mark(false));
        let turn = pool.turn(&[]).expect("the other one");
        assert_eq!(turn.engine().authority(), "engine:2");
        assert!(pool.turn(&[Arc::clone(turn.engine())]).is_none());
        assert_eq!((pool.healthy(), turn.engine().turns()), (1, 1));
    }
}

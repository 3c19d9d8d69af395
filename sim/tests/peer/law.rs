//! The properties: what each says, and how a state shows that one is broken.

use tessera_lifecycle::peer::Mode;

use crate::world::{Setup, State, World};

/// A property of `docs/peer.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Law {
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    P7,
    P8,
    P9,
    P10,
    Raise,
    Machines,
}

/// The first thing that went wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Broken {
    pub(crate) law: Law,
    pub(crate) what: String,
}

impl Setup {
    /// Whether only errors of operations can happen, so that each failure has an owner.
    pub(crate) fn is_strict(&self) -> bool {
        let of = self.budget;
        let others = [
            of.ticks,
            of.breaks,
            of.restarts,
            of.aborts,
            of.preemptions,
            of.unreachable,
            of.devices,
            of.lost,
            of.early,
        ];
        !self.mixed && self.mode == Mode::Read && others.iter().all(|of| *of == 0)
    }
}

impl State {
    /// Notes that `law` is broken unless `holds`. The first is kept.
    pub(crate) fn must(&mut self, holds: bool, law: Law, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            let what = what();
            self.broken = Some(Broken { law, what });
        }
    }

    /// What must hold in every state.
    pub(crate) fn check(&mut self, world: &World) {
        for op in self.ops.clone() {
            let (source, destination) = world.sides(op.at.part);
            let over = |at: usize| self.workers[at].stands[op.transfer].is_open();
            let (held, kept) = (over(destination), over(source));
            self.must(!op.writes || held, Law::P1, || {
                format!("{op:?} may write memory that is used again")
            });
            self.must(!op.reads || kept, Law::P2, || {
                format!("{op:?} may read memory that is used again")
            });
        }
        for (at, transfer) in self.unproven.clone() {
            let held = self.workers[at].stands[transfer].is_open();
            self.must(held, Law::P1, || {
                format!("worker {at} uses memory of {transfer} again before its device is done")
            });
        }
        for at in 0..self.workers.len() {
            self.workers[at].root.check_invariants();
            self.check_tables(world, at);
        }
    }

    fn check_tables(&mut self, world: &World, at: usize) {
        let worker = &self.workers[at];
        let open = worker.stands.iter().filter(|stand| stand.is_open()).count();
        let tables = worker.root.tables();
        let peers = match world.is_prefill(at) {
            true => world.setup.decode,
            false => world.setup.prefill,
        } + self.dead.len();
        let parts = usize::from(world.setup.parts).max(1) * world.setup.transfers * peers;
        let bounded = tables.transfers <= open
            && tables.releasing <= world.setup.transfers * peers
            && tables.offers <= world.setup.transfers * world.setup.decode
            && tables.peers <= peers
            && tables.unacknowledged <= 8 * parts + 8
            && tables.failed_sources <= world.setup.transfers
            && tables.tickets <= 4 * world.setup.transfers;
        self.must(bounded, Law::P8, || {
            format!("{tables:?} of worker {at} with {open} open")
        });
    }
}

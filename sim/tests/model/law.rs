//! The properties: what each says, and how a state shows that one is broken.

use stateright::Property;

use crate::world::{State, World};

/// A property of `docs/lifecycle.md`.
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
    P11,
    Leases,
    Lookups,
    Machines,
}

/// The first thing that went wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Broken {
    pub(crate) law: Law,
    pub(crate) what: String,
}

impl State {
    /// Notes that `law` is broken unless `holds`. The first is kept.
    pub(crate) fn must(&mut self, holds: bool, law: Law, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            let what = what();
            self.broken = Some(Broken { law, what });
        }
    }

    fn keeps(&self, law: Law) -> bool {
        self.broken.as_ref().is_none_or(|broken| broken.law != law)
    }
}

/// Every property that is checked in every state.
pub(crate) fn properties() -> Vec<Property<World>> {
    vec![
        Property::always(
            "P1 memory that a part may write belongs to the request that waits for it",
            |_, state: &State| state.keeps(Law::P1),
        ),
        Property::always(
            "P2 what a save copies is what its name says",
            |_, state: &State| state.keeps(Law::P2),
        ),
        Property::always(
            "P3 each rank reports each load once, while the engine holds the request",
            |_, state: &State| state.keeps(Law::P3),
        ),
        Property::always(
            "P4 with fair scheduling and without new faults everything ends, and nothing is left",
            |world: &World, state: &State| state.keeps(Law::P4) && world.ends(state),
        ),
        Property::always(
            "P5 all that a forward reads was computed, or loaded and fenced",
            |_, state: &State| state.keeps(Law::P5),
        ),
        Property::always(
            "P6 a rank reports a failure exactly if a part failed there, time was up, or the load \
             was called off",
            |_, state: &State| state.keeps(Law::P6),
        ),
        Property::always(
            "P7 a completion, an answer or a plan that comes again changes nothing",
            |_, state: &State| state.keeps(Law::P7),
        ),
        Property::always(
            "P8 tables hold no more than the engine's requests and the open questions",
            |_, state: &State| state.keeps(Law::P8),
        ),
        Property::always(
            "P9 a fetch is for a load that is waited for, not called off, under a lease that is \
             still held",
            |_, state: &State| state.keeps(Law::P9),
        ),
        Property::always(
            "P10 after a failed load the request is promised nothing",
            |_, state: &State| state.keeps(Law::P10),
        ),
        Property::always(
            "P11 no block of a load is computed on or shared before every rank has reported it",
            |_, state: &State| state.keeps(Law::P11),
        ),
        Property::always(
            "leases are given back once, and only those that were granted",
            |_, state: &State| state.keeps(Law::Leases),
        ),
        Property::always(
            "lookups are re-callable and leave a token to compute",
            |_, state: &State| state.keeps(Law::Lookups),
        ),
        Property::always("the machines' own invariants hold", |_, state: &State| {
            state.keeps(Law::Machines)
        }),
    ]
}

//! Every order of events in small worlds, over the shipped machines.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};
use tessera_lifecycle::LayoutClass::{self, Block, Request};
use tessera_lifecycle::peer::Mode::{self, Read, Write};

use crate::law::Law;
use crate::reached::Reached::{
    self, Aborted, Again, Broken, Closed, Death, Error, Failed, Landed, Preempted, Raised,
    Restarted, Revoked, Succeeded,
};
use crate::world::{Action, Budget, Setup, State, World};

/// Asks for larger budgets if it is `deep`.
const DEPTH: &str = "TESSERA_MODEL";

impl State {
    fn keeps(&self, law: Law) -> bool {
        self.broken.as_ref().is_none_or(|broken| broken.law != law)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.enabled(state));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.apply(last, &action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "P1 memory that may be written belongs to the request that waits for it",
                |_, state: &State| state.keeps(Law::P1),
            ),
            Property::always(
                "P2 memory that may be read is held for it",
                |_, state: &State| state.keeps(Law::P2),
            ),
            Property::always(
                "P3 each rank reports each request once, while the engine holds it",
                |_, state: &State| state.keeps(Law::P3),
            ),
            Property::always(
                "P4 without new faults, on a fair path, everything ends and nothing is left",
                |world: &World, state: &State| state.keeps(Law::P4) && world.ends(state),
            ),
            Property::always(
                "P5 a request counts only if all its parts have landed",
                |_, state: &State| state.keeps(Law::P5),
            ),
            Property::always(
                "P6 an error of one transfer fails no other",
                |_, state: &State| state.keeps(Law::P6),
            ),
            Property::always(
                "P7 news that come again change nothing",
                |_, state: &State| state.keeps(Law::P7),
            ),
            Property::always(
                "P8 tables are bounded by requests, ranks and peers",
                |_, state: &State| state.keeps(Law::P8),
            ),
            Property::always(
                "P9 what is posted is granted by the process that lends, under this attempt",
                |_, state: &State| state.keeps(Law::P9),
            ),
            Property::always(
                "P10 a request that a source has failed claims nothing again",
                |_, state: &State| state.keeps(Law::P10),
            ),
            Property::always(
                "a failure found while gathering changes nothing",
                |_, state: &State| state.keeps(Law::Raise),
            ),
            Property::always("the machines' own invariants hold", |_, state: &State| {
                state.keeps(Law::Machines)
            }),
        ]
    }
}

/// Visits every state of a world. It must have seen each of `seen`.
fn explore(title: &str, setup: Setup, seen: &[Reached]) {
    let began = Instant::now();
    let checker = World::new(setup)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    eprintln!(
        "{title}: {} states, {} visited, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    if let Some((name, path)) = checker.discoveries().into_iter().next() {
        let last = path.last_state();
        for (_, action) in path.clone().into_vec() {
            eprintln!("  {action:?}");
        }
        let stuck = checker.model().finish(last, false).err();
        let stuck = stuck.as_ref().map_or(last, |state| state);
        panic!(
            "{title}: {name}: {:?}
{}",
            last.broken,
            stuck.what_is_left()
        );
    }
    let world = checker.model();
    let blind: Vec<_> = seen.iter().filter(|what| !world.has_seen(**what)).collect();
    assert!(blind.is_empty(), "{title} never reaches {blind:?}");
}

/// Budgets of one world: those of CI, or those of a run by hand.
fn budget(ci: Budget, deep: Budget) -> Budget {
    match std::env::var(DEPTH).is_ok_and(|depth| depth == "deep") {
        true => deep,
        false => ci,
    }
}

fn setup(mode: Mode, class: LayoutClass, budget: Budget) -> Setup {
    Setup {
        mode,
        mixed: false,
        ticketed: false,
        unseen: false,
        class,
        synchronous: false,
        prefill: 1,
        decode: 1,
        parts: 2,
        transfers: 1,
        quarantine_bytes: 1_000,
        budget,
    }
}

const NONE: Budget = Budget {
    lost: 0,
    doubled: 0,
    early: 0,
    breaks: 0,
    errors: 0,
    ticks: 0,
    aborts: 0,
    preemptions: 0,
    restarts: 0,
    unreachable: 0,
    again: 0,
    devices: 0,
};

macro_rules! budget {
    ($($name:ident: $times:expr),*) => {
        Budget { $($name: $times,)* ..NONE }
    };
}

#[test]
fn reads_whose_operations_fail() {
    let budget = budget(
        budget!(errors: 2, again: 1),
        budget!(errors: 2, again: 1, breaks: 1),
    );
    for class in [Request, Block] {
        let seen = [Succeeded, Failed, Error, Closed, Again];
        explore("READ, errors", setup(Read, class, budget), &seen);
    }
}

#[test]
fn writes_whose_operations_fail() {
    let budget = budget(
        budget!(errors: 2, devices: 1),
        budget!(errors: 2, breaks: 1, devices: 1),
    );
    for class in [Request, Block] {
        let seen = [Succeeded, Failed, Error, Closed, Revoked, Landed];
        explore("WRITE, errors", setup(Write, class, budget), &seen);
    }
}

/// Decode does not see the end of a part without bytes: prefill's word says it.
#[test]
fn writes_whose_end_decode_does_not_see() {
    for (ci, parts) in [
        (budget!(errors: 1, devices: 1), 2),
        (budget!(breaks: 1, ticks: 1), 1),
    ] {
        let deep = Budget {
            breaks: 1,
            errors: ci.errors + 1,
            ..ci
        };
        let mut setup = setup(Write, Request, budget(ci, deep));
        (setup.unseen, setup.parts) = (true, parts);
        explore("WRITE, unseen", setup, &[Succeeded, Failed, Closed]);
    }
}

#[test]
fn reads_that_a_step_waits_for() {
    let budget = budget(
        budget!(errors: 1, ticks: 2),
        budget!(errors: 2, ticks: 4, breaks: 1),
    );
    let mut setup = setup(Read, Request, budget);
    setup.synchronous = true;
    explore(
        "READ, synchronous",
        setup,
        &[Succeeded, Raised, Failed, Closed],
    );
}

#[test]
fn reads_past_their_deadlines() {
    let budget = budget(budget!(ticks: 3), budget!(ticks: 5));
    explore(
        "READ, deadlines",
        setup(Read, Request, budget),
        &[Succeeded, Failed, Closed],
    );
}

#[test]
fn writes_past_their_deadlines() {
    let budget = budget(budget!(ticks: 3), budget!(ticks: 5));
    explore(
        "WRITE, deadlines",
        setup(Write, Request, budget),
        &[Succeeded, Failed, Revoked],
    );
}

#[test]
fn reads_and_writes_over_frames_that_are_lost_doubled_and_early() {
    for mode in [Read, Write] {
        let ci = budget!(lost: 1, doubled: 1, early: 1, ticks: 1);
        let deep = budget!(lost: 2, doubled: 1, early: 2, ticks: 2, errors: 1);
        let mut setup = setup(mode, Request, budget(ci, deep));
        setup.parts = 1;
        explore("frames", setup, &[Succeeded]);
    }
}

#[test]
fn reads_and_writes_over_connections_that_break() {
    for mode in [Read, Write] {
        let budget = budget(
            budget!(breaks: 2, ticks: 1),
            budget!(breaks: 3, ticks: 3, errors: 1),
        );
        let mut setup = setup(mode, Request, budget);
        setup.parts = 1;
        explore("breaks", setup, &[Succeeded, Failed, Broken, Closed]);
    }
}

#[test]
fn requests_of_reads_that_are_given_up() {
    let budget = budget(
        budget!(aborts: 1, preemptions: 1, ticks: 1),
        budget!(aborts: 2, preemptions: 1, ticks: 3, errors: 1, breaks: 1),
    );
    explore(
        "READ, aborts",
        setup(Read, Request, budget),
        &[Aborted, Preempted],
    );
}

#[test]
fn requests_of_writes_that_are_given_up() {
    let budget = budget(
        budget!(aborts: 1, preemptions: 1, ticks: 1),
        budget!(aborts: 2, preemptions: 1, ticks: 3, errors: 1, breaks: 1),
    );
    explore(
        "WRITE, aborts",
        setup(Write, Request, budget),
        &[Aborted, Preempted],
    );
}

#[test]
fn processes_of_reads_and_writes_that_die_and_come_back() {
    for mode in [Read, Write] {
        let ci = budget!(restarts: 1, ticks: 1);
        let deep = budget!(restarts: 2, ticks: 3, errors: 1, unreachable: 1);
        let mut setup = setup(mode, Request, budget(ci, deep));
        setup.parts = 1;
        explore("restarts", setup, &[Restarted, Death, Failed, Revoked]);
    }
}

#[test]
fn a_read_and_a_write_over_one_connection() {
    for mode in [Read, Write] {
        let ci = budget!(errors: 1);
        let deep = budget!(errors: 2, breaks: 1);
        let mut setup = setup(mode, Request, budget(ci, deep));
        (setup.parts, setup.transfers, setup.mixed) = (1, 2, true);
        explore("mixed", setup, &[Succeeded, Failed, Closed, Revoked]);
    }
}

#[test]
fn one_of_each_fault() {
    for mode in [Read, Write] {
        let ci = budget!(breaks: 1, errors: 1, aborts: 1, ticks: 1);
        let deep = budget!(lost: 1, breaks: 1, errors: 1, aborts: 1, restarts: 1, ticks: 2);
        let mut setup = setup(mode, Request, budget(ci, deep));
        setup.parts = 1;
        explore("one of each", setup, &[Succeeded, Failed, Aborted, Broken]);
    }
}

/// Decode's ticket may reach prefill before decode's own workers know of it.
#[test]
fn writes_that_are_claimed_by_a_ticket() {
    let faults = [
        budget!(errors: 1, devices: 1),
        budget!(breaks: 1, ticks: 1),
        budget!(aborts: 1, preemptions: 1),
        budget!(restarts: 1, ticks: 1),
    ];
    for faults in faults {
        let deep = Budget {
            breaks: faults.breaks + 1,
            errors: faults.errors + 1,
            ticks: faults.ticks + 1,
            ..faults
        };
        let mut setup = setup(Write, Request, budget(faults, deep));
        (setup.parts, setup.ticketed) = (1, true);
        explore("WRITE, by ticket", setup, &[Succeeded, Failed]);
    }
}

#[test]
fn two_reads_that_share_a_connection() {
    let budget = budget(budget!(errors: 1), budget!(errors: 2));
    let mut setup = setup(Read, Request, budget);
    setup.parts = 1;
    setup.transfers = 2;
    explore("READ, shared", setup, &[Succeeded, Failed, Closed]);
}

#[test]
fn two_decode_ranks_of_one_prefill_rank() {
    for mode in [Read, Write] {
        let budget = budget(budget!(errors: 1), budget!(errors: 1, breaks: 1, ticks: 2));
        let mut setup = setup(mode, Request, budget);
        setup.parts = 1;
        setup.decode = 2;
        explore("two ranks", setup, &[Succeeded, Failed, Error]);
    }
}

/// Nothing may be in quarantine, so that each failure of what is live is urgent.
fn explore_quarantine(mode: Mode) {
    let budget = budget(budget!(aborts: 2), budget!(aborts: 2, ticks: 2, errors: 1));
    let mut setup = setup(mode, Request, budget);
    (setup.parts, setup.transfers, setup.quarantine_bytes) = (1, 2, 0);
    explore("quarantine", setup, &[Aborted, Failed]);
}

#[test]
fn memory_of_reads_in_quarantine_above_its_budget() {
    explore_quarantine(Read);
}

#[test]
fn memory_of_writes_in_quarantine_above_its_budget() {
    explore_quarantine(Write);
}

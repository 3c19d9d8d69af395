//! Every order of events in small worlds, over the shipped machines.
//!
//! A state holds the real scheduler's and workers' machines of two ranks, two requests of the
//! engine, one node, and what is on its way between them. The checker visits every state that the
//! budgets of a world allow and checks the properties of `docs/lifecycle.md` in each. A property
//! that fails is printed with the shortest way to it. Larger budgets are for runs by hand:
//! `TESSERA_MODEL=deep`.

mod apply;
mod ending;
mod engine;
mod law;
mod node;
mod objects;
mod rank;
mod reached;
mod world;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};
use tessera_client::options::IoMode;

use crate::reached::Reached::{
    self, AbortedParked, Deadline, FailedOnOneRankOnly, FenceFailed, LateAnswer, LeaseOver,
    LoadFailed, LoadSucceeded, NameReused, Preempted, QuarantinedLookup, Recomputed, Saved,
};
use crate::world::{Budget, Policy, Setup, World};

/// Asks for larger budgets if it is `deep`.
const DEPTH: &str = "TESSERA_MODEL";

fn is_deep() -> bool {
    std::env::var(DEPTH).is_ok_and(|depth| depth == "deep")
}

/// Visits every state of a world. It must have seen each of `seen`.
fn explore(title: &str, setup: Setup, seen: &[Reached]) {
    let began = Instant::now();
    let world = World::new(setup);
    let counts = std::sync::Arc::clone(&world.reached);
    let checker = world
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
        panic!("{title}: {name}: {:?} in {last:#?}", last.broken);
    }
    let world = checker.model();
    assert!(std::sync::Arc::ptr_eq(&counts, &world.reached));
    let unseen = world.unseen();
    let blind: Vec<_> = seen.iter().filter(|what| unseen.contains(what)).collect();
    assert!(blind.is_empty(), "{title} never reaches {blind:?}");
}

/// Budgets of one world: those of CI, or those of a run by hand.
fn budget(ci: Budget, deep: Budget) -> Budget {
    if is_deep() { deep } else { ci }
}

fn setup(hybrid: bool, io: IoMode, policy: Policy, budget: Budget) -> Setup {
    Setup {
        hybrid,
        io,
        policy,
        prompts: if hybrid { vec![3, 3] } else { vec![5, 3] },
        slow_fences: is_deep(),
        in_flight: 2,
        preempts_parked: false,
        budget,
    }
}

const NONE: Budget = Budget {
    faults: 0,
    aborts: 0,
    preemptions: 0,
    restarts: 0,
    evictions: 0,
    ticks: 0,
    again: 0,
    cached: 0,
    failed_fences: 0,
};

macro_rules! budget {
    ($($name:ident: $times:expr),*) => {
        Budget { $($name: $times,)* ..NONE }
    };
}

#[test]
fn request_level_loads_with_faults() {
    let budget = budget(budget!(faults: 1), budget!(faults: 2, evictions: 1));
    let setup = setup(true, IoMode::Async, Policy::Recompute, budget);
    let seen = [
        LoadSucceeded,
        LoadFailed,
        Recomputed,
        QuarantinedLookup,
        Saved,
    ];
    explore("request-level, faults", setup, &seen);
}

#[test]
fn request_level_loads_with_aborts() {
    let budget = budget(budget!(aborts: 1), budget!(aborts: 2, again: 1, faults: 1));
    let setup = setup(true, IoMode::Async, Policy::Fail, budget);
    explore("request-level, aborts", setup, &[AbortedParked]);
}

#[test]
fn request_level_loads_under_a_name_that_comes_again() {
    let ci = budget!(aborts: 1, again: 1, faults: 1);
    let budget = budget(ci, budget!(aborts: 2, again: 2, faults: 1));
    let mut setup = setup(true, IoMode::Async, Policy::Fail, budget);
    setup.prompts = vec![3];
    setup.slow_fences = true;
    let seen = [AbortedParked, NameReused, FailedOnOneRankOnly];
    explore("request-level, names that come again", setup, &seen);
}

#[test]
fn request_level_loads_with_deadlines() {
    let ci = budget!(ticks: 3, aborts: 1, evictions: 1);
    let budget = budget(ci, budget!(ticks: 4, faults: 2, aborts: 1, evictions: 1));
    let mut setup = setup(true, IoMode::Async, Policy::Recompute, budget);
    setup.prompts = vec![3];
    explore("request-level, deadlines", setup, &[Deadline, LateAnswer]);
}

#[test]
fn request_level_loads_with_preemption_and_a_restart() {
    let ci = budget!(preemptions: 1, restarts: 1, faults: 1);
    let budget = budget(
        ci,
        budget!(preemptions: 2, restarts: 2, aborts: 1, faults: 2),
    );
    let mut setup = setup(true, IoMode::Async, Policy::Recompute, budget);
    setup.prompts = vec![5];
    explore(
        "request-level, preemption",
        setup,
        &[Preempted, LeaseOver, Saved],
    );
}

#[test]
fn request_level_loads_that_are_preempted_while_parked() {
    let budget = budget(budget!(preemptions: 2), budget!(preemptions: 2, faults: 1));
    let mut setup = setup(true, IoMode::Async, Policy::Recompute, budget);
    setup.preempts_parked = true;
    setup.slow_fences = true;
    setup.prompts = vec![3];
    explore("request-level, preempted while parked", setup, &[Preempted]);
}

#[test]
fn request_level_loads_on_the_model_thread() {
    let ci = budget!(faults: 1, aborts: 1, evictions: 1);
    let budget = budget(ci, budget!(faults: 2, aborts: 1, ticks: 1, again: 1));
    let setup = setup(true, IoMode::Serial, Policy::Recompute, budget);
    explore(
        "request-level, serialized",
        setup,
        &[LoadFailed, AbortedParked],
    );
}

#[test]
fn request_level_loads_whose_fences_fail() {
    let ci = budget!(failed_fences: 2, aborts: 1);
    let budget = budget(
        ci,
        budget!(failed_fences: 3, aborts: 1, faults: 1, ticks: 1),
    );
    let mut setup = setup(true, IoMode::Async, Policy::Recompute, budget);
    setup.prompts = vec![3];
    setup.slow_fences = true;
    let seen = [FenceFailed, FailedOnOneRankOnly, AbortedParked];
    explore("request-level, failed fences", setup, &seen);
}

#[test]
fn block_level_loads_whose_fences_fail() {
    for io in [IoMode::Async, IoMode::Serial] {
        let ci = budget!(failed_fences: 1);
        let budget = budget(ci, budget!(failed_fences: 2, faults: 1, cached: 1));
        let mut setup = setup(false, io, Policy::Recompute, budget);
        setup.prompts = vec![5];
        setup.slow_fences = true;
        explore(
            "block-level, failed fences",
            setup,
            &[FenceFailed, LoadFailed],
        );
    }
}

#[test]
fn block_level_loads_with_faults() {
    let budget = budget(budget!(faults: 1), budget!(faults: 2, cached: 1));
    let setup = setup(false, IoMode::Async, Policy::Recompute, budget);
    explore(
        "block-level, faults",
        setup,
        &[LoadFailed, FailedOnOneRankOnly],
    );
}

#[test]
fn block_level_loads_with_aborts_and_deadlines() {
    let ci = budget!(aborts: 1, ticks: 2, cached: 1);
    let budget = budget(
        ci,
        budget!(aborts: 1, again: 1, faults: 1, ticks: 2, cached: 1),
    );
    let mut setup = setup(false, IoMode::Async, Policy::Fail, budget);
    setup.prompts = vec![5];
    explore(
        "block-level, aborts and deadlines",
        setup,
        &[AbortedParked, Deadline],
    );
}

#[test]
fn block_level_loads_on_the_model_thread() {
    let ci = budget!(faults: 1, preemptions: 1);
    let budget = budget(
        ci,
        budget!(faults: 2, preemptions: 1, restarts: 1, cached: 1),
    );
    let setup = setup(false, IoMode::Serial, Policy::Recompute, budget);
    explore(
        "block-level, serialized",
        setup,
        &[LoadFailed, FailedOnOneRankOnly, Preempted, Saved],
    );
}

#[test]
fn block_level_loads_on_the_model_thread_that_fail_their_request() {
    let ci = budget!(ticks: 1);
    let budget = budget(ci, budget!(faults: 1, ticks: 1, again: 1));
    let setup = setup(false, IoMode::Serial, Policy::Fail, budget);
    explore(
        "block-level, serialized, failing",
        setup,
        &[LoadFailed, Deadline],
    );
}

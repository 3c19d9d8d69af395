//! Histories with a name: what a peer's death, a partition or an abort does at each stage.

use tessera_lifecycle::LayoutClass::Request;
use tessera_lifecycle::peer::Mode::{self, Read, Write};
use tessera_proto::Instant;

use crate::reached::Reached;
use crate::world::{Action, Budget, Setup, State, World};

/// The longest history of one transfer without faults.
const LONGEST: usize = 60;

fn world(mode: Mode, budget: Budget) -> World {
    World::new(Setup {
        mode,
        mixed: false,
        ticketed: false,
        unseen: false,
        class: Request,
        synchronous: false,
        prefill: 1,
        decode: 1,
        parts: 2,
        transfers: 1,
        quarantine_bytes: 1_000,
        budget,
    })
}

/// What happens next when nothing goes wrong.
fn plain(world: &World, state: &State) -> Option<Action> {
    let actions = world.enabled(state).into_iter();
    let mut plain = actions.filter(|action| {
        matches!(
            action,
            Action::Order(..)
                | Action::Deliver(_)
                | Action::Connect(..)
                | Action::Land(_)
                | Action::Done(_)
                | Action::Proven(_)
        )
    });
    plain.next()
}

/// At every stage of a transfer `disturb` happens, and everything ends soundly. Gives the number of
/// stages at which it could happen.
fn at_every_stage(mode: Mode, budget: Budget, disturb: impl Fn(&Action) -> bool) -> usize {
    let world = world(mode, budget);
    let mut state = world.initial();
    let mut stages = 0;
    for _ in 0..LONGEST {
        let actions = world.enabled(&state).into_iter();
        for action in actions.filter(|action| disturb(action)) {
            stages += 1;
            let next = world.apply(&state, &action);
            if let Err(stuck) = world.finish(&next, false) {
                panic!("{action:?} at stage {stages}: {}", stuck.what_is_left());
            }
        }
        let Some(action) = plain(&world, &state) else {
            return stages;
        };
        state = world.apply(&state, &action);
        assert_eq!(state.broken, None);
    }
    panic!("a plain transfer does not end in {LONGEST} events");
}

/// The messages of one transfer of two parts without faults.
fn messages(mode: Mode) -> Vec<String> {
    let world = world(mode, Budget::default());
    let mut state = world.initial();
    let mut messages = Vec::new();
    while let Some(action) = plain(&world, &state) {
        if let Action::Deliver(at) = &action {
            let message = format!("{:?}", state.net[*at].1.message);
            let name = message.split([' ', '{']).next().unwrap_or_default();
            messages.push(name.to_owned());
        }
        state = world.apply(&state, &action);
        assert_eq!(state.broken, None);
    }
    assert!(state.is_quiet());
    assert!(world.has_seen(Reached::Succeeded));
    messages
}

#[test]
fn a_read_takes_one_round_trip_before_the_data_and_one_after_it() {
    assert_eq!(messages(Read), ["Claim", "Grant", "Release", "ReleaseAck"]);
}

#[test]
fn a_write_takes_no_message_of_a_part_beside_the_answers_to_its_bytes() {
    assert_eq!(messages(Write), ["Offer", "Claim", "Grant", "ReleaseAck"]);
}

#[test]
fn a_peer_that_is_killed_and_restarted_at_each_stage_ends_soundly() {
    let budget = Budget {
        restarts: 1,
        ..Budget::default()
    };
    for mode in [Read, Write] {
        let restart = |action: &Action| matches!(action, Action::Restart(_));
        assert!(at_every_stage(mode, budget, restart) >= 20);
    }
}

#[test]
fn an_abort_on_either_side_at_each_stage_ends_soundly() {
    let budget = Budget {
        aborts: 1,
        ..Budget::default()
    };
    for mode in [Read, Write] {
        for side in [0, 1] {
            let abort = |action: &Action| matches!(action, Action::Abort(at, _) if *at == side);
            assert!(at_every_stage(mode, budget, abort) >= 5);
        }
    }
}

#[test]
fn a_preemption_of_decode_at_each_stage_ends_soundly() {
    let budget = Budget {
        preemptions: 1,
        ..Budget::default()
    };
    for mode in [Read, Write] {
        let preempt = |action: &Action| matches!(action, Action::Preempt(..));
        assert!(at_every_stage(mode, budget, preempt) >= 5);
    }
}

#[test]
fn a_connection_that_breaks_at_each_stage_ends_soundly() {
    let budget = Budget {
        breaks: 1,
        ..Budget::default()
    };
    for mode in [Read, Write] {
        let breaks = |action: &Action| matches!(action, Action::Break(..));
        assert!(at_every_stage(mode, budget, breaks) >= 6);
    }
}

#[test]
fn each_message_may_be_lost_doubled_or_early() {
    let budget = Budget {
        lost: 1,
        doubled: 1,
        early: 1,
        ..Budget::default()
    };
    for mode in [Read, Write] {
        let spoil = |action: &Action| matches!(action, Action::Lose(_) | Action::Double(_));
        assert!(at_every_stage(mode, budget, spoil) >= 8);
    }
}

/// A partition of any length, in one direction or in both: time passes, and nothing that is
/// claimed comes free before it is proven to be at rest.
#[test]
fn a_partition_of_any_length_frees_nothing_that_may_be_touched() {
    for mode in [Read, Write] {
        for ticks in [1, 3, 30] {
            let budget = Budget {
                breaks: 1,
                ticks,
                ..Budget::default()
            };
            let world = world(mode, budget);
            let mut state = world.initial();
            while state.ops.len() < 2 {
                let action = plain(&world, &state).expect("operations begin");
                state = world.apply(&state, &action);
            }
            state = world.apply(&state, &Action::Break(0, 1));
            for _ in 0..ticks {
                // Nobody notices, and nothing ends.
                state = world.apply(&state, &Action::Tick);
                assert_eq!(state.broken, None);
            }
            let open = state
                .workers
                .iter()
                .filter(|of| of.stands[0].is_open())
                .count();
            assert_eq!(open, 2, "{mode:?} after {ticks} ticks");
            assert!(world.finish(&state, false).is_ok());
        }
    }
}

/// Frames to whom a partition swallows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deaf {
    Prefill,
    Decode,
    Both,
}

impl Deaf {
    const fn hears_not(self, to: usize) -> bool {
        matches!(
            (self, to),
            (Self::Both, _) | (Self::Prefill, 0) | (Self::Decode, 1)
        )
    }
}

/// Time passes to `until`, in as many steps as there are clocks; what the partition lets through
/// comes, and fences end where `fences` says so. No operation ends.
fn partitioned(world: &World, mut state: State, until: Instant, deaf: Deaf, fences: bool) -> State {
    let all_clocks = state.now.after_millis(200);
    loop {
        state.net.retain(|(to, _)| !deaf.hears_not(*to));
        let mut actions = world.enabled(&state).into_iter();
        let next = actions.find(|action| match action {
            Action::Deliver(_) => true,
            Action::Fenced(_) | Action::Proven(_) => fences,
            _ => false,
        });
        let action = match next {
            Some(action) => action,
            None if state.due().is_some_and(|due| due <= until) => {
                // Every clock has had its say; the rest are heartbeats, looked at late.
                if state.now > all_clocks {
                    state.now = until;
                }
                state.left.ticks = 1;
                Action::Tick
            }
            None => break,
        };
        state = world.apply(&state, &action);
        assert_eq!(state.broken, None, "{action:?}");
    }
    state.now = state.now.max(until);
    state
}

/// The stages of a transfer at which nothing has gone wrong.
fn stages(world: &World) -> Vec<State> {
    let mut stages = vec![world.initial()];
    while let Some(action) = stages.last().and_then(|state| plain(world, state)) {
        let next = world.apply(stages.last().expect("the first"), &action);
        stages.push(next);
    }
    stages
}

fn partition(seconds: u64) {
    let budget = Budget {
        ticks: 1,
        ..Budget::default()
    };
    let held = |state: &State| {
        let ops = state.ops.iter();
        ops.filter(|op| op.reads || op.writes).count()
    };
    for mode in [Read, Write] {
        let world = world(mode, budget);
        for (stage, state) in stages(&world).into_iter().enumerate() {
            for deaf in [Deaf::Prefill, Deaf::Decode, Deaf::Both] {
                for fences in [false, true] {
                    let until = state.now.after_millis(seconds * 1_000);
                    let after = partitioned(&world, state.clone(), until, deaf, fences);
                    assert!(fences || held(&after) >= held(&state));
                    if let Err(stuck) = world.finish(&after, false) {
                        let what = stuck.what_is_left();
                        panic!("{mode:?} at stage {stage}, deaf {deaf:?}: {what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_partition_of_1_s_in_one_or_both_directions_at_each_stage_ends_soundly() {
    partition(1);
}

#[test]
fn a_partition_of_31_s_in_one_or_both_directions_at_each_stage_ends_soundly() {
    partition(31);
}

#[test]
fn a_partition_of_61_s_in_one_or_both_directions_at_each_stage_ends_soundly() {
    partition(61);
}

//! Whatever the engine and the nodes do, in whatever order: the machine's invariants hold, a
//! promise is never more than what is held, and in the end no lease is left.

use proptest::prelude::*;

use super::scene::{CHUNK, Scene, config, new_request, next_step};
use crate::scheduler::{SchedulerEvent, StepInput};
use crate::shape::GroupKind;

#[derive(Clone, Debug)]
enum Op {
    Lookup(usize, u64, u64),
    Answer(prop::sample::Index),
    Allocate(usize, u64),
    Step(usize, u64, bool),
    Preempt(usize),
    Finish(usize),
    Output(usize, bool),
    Rank(u64, u32, bool),
    Invalid(u32),
    Lose(prop::sample::Index),
    Time(u64),
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let name = || 0..NAMES.len();
    let index = any::<prop::sample::Index>;
    let op = prop_oneof![
        6 => (name(), 0_u64..60, 0_u64..5).prop_map(|(at, tokens, chunks)| {
            Op::Lookup(at, tokens, (chunks * CHUNK).min(tokens))
        }),
        5 => index().prop_map(Op::Answer),
        4 => (name(), 0_u64..60).prop_map(|(at, tokens)| Op::Allocate(at, tokens)),
        4 => (name(), 0_u64..40, any::<bool>()).prop_map(|(at, n, new)| Op::Step(at, n, new)),
        1 => name().prop_map(Op::Preempt),
        2 => name().prop_map(Op::Finish),
        3 => (name(), any::<bool>()).prop_map(|(at, failed)| Op::Output(at, failed)),
        2 => (0_u64..9, 0_u32..4, any::<bool>()).prop_map(|(key, rank, f)| Op::Rank(key, rank, f)),
        1 => (1_u32..9).prop_map(Op::Invalid),
        1 => index().prop_map(Op::Lose),
        1 => (0_u64..40_000).prop_map(Op::Time),
    ];
    prop::collection::vec(op, 0..120)
}

fn apply(scene: &mut Scene, op: &Op) {
    match op {
        Op::Lookup(at, tokens, computed) => {
            let answer = scene.lookup(NAMES[*at], *tokens, *computed);
            if let Some(external) = answer.tokens {
                let end = computed + external;
                assert!(external == 0 || (end < *tokens && end % CHUNK == 0));
                assert!(answer.parks() == (external > 0));
                assert!(
                    external == 0 || scene.leased() > 0,
                    "a promise without a lease"
                );
            }
        }
        Op::Answer(at) if !scene.asked.is_empty() => {
            let at = at.index(scene.asked.len());
            scene.asked.swap(0, at);
            scene.answer();
        }
        Op::Allocate(at, tokens) => {
            let _ = scene.allocated(NAMES[*at], *tokens);
        }
        Op::Step(at, tokens, new) => {
            let groups = scene.root.config.shape.groups().len();
            let request = match new {
                true => new_request(NAMES[*at], groups, (*tokens / 2, *tokens + 1)),
                false => next_step(NAMES[*at], *tokens, 1),
            };
            let plan = scene.schedule(&[request]);
            for save in &plan.saves {
                assert!(!save.blocks.contains(&0) && !save.blocks.is_empty());
            }
        }
        Op::Preempt(at) => {
            scene.step(&StepInput {
                preempted: vec![NAMES[*at].into()],
                ..StepInput::default()
            });
        }
        Op::Finish(at) => scene.finish(NAMES[*at]),
        Op::Output(at, failed) => {
            let name = [NAMES[*at]];
            let failed = if *failed { &name[..] } else { &[] };
            scene.output(&name, failed, &[]);
        }
        Op::Rank(key, rank, failed) => {
            let load = crate::LoadId {
                request: crate::RequestKey(*key),
                attempt: crate::Attempt(1),
            };
            let (rank, failed) = (*rank, *failed);
            let event = SchedulerEvent::RankFinished { load, rank, failed };
            scene.root.handle_event(scene.now, event);
            scene.drain();
        }
        Op::Invalid(block) => scene.output(&[], &[], &[*block]),
        Op::Lose(at) => {
            if let Some(asked) = scene.asked.first() {
                scene.missing.insert(asked.ids[at.index(asked.ids.len())]);
            }
        }
        Op::Time(millis) => {
            scene.later(*millis);
            scene.root.handle_timeout(scene.now);
            scene.drain();
        }
        Op::Answer(_) => {}
    }
}

proptest! {
    #[test]
    fn no_lease_is_left_whatever_happens(
        ops in ops(), layout in 0_usize..3, tp in 1_u32..4,
    ) {
        let window = GroupKind::Window { tokens: 6 };
        let layouts: [&[GroupKind]; 3] = [
            &[GroupKind::Full], &[GroupKind::Full, window, GroupKind::State], &[window],
        ];
        let mut scene = Scene::new(config(layouts[layout], tp));
        for op in &ops {
            apply(&mut scene, op);
        }
        // Every request ends, every load is reported, every question is answered.
        for name in NAMES {
            scene.finish(name);
        }
        while !scene.asked.is_empty() {
            scene.answer();
        }
        scene.step(&StepInput::default());
        for _ in 0..ops.len() {
            scene.output(&NAMES, &[], &[]);
        }
        prop_assert_eq!(scene.leased(), 0);
        let counters = scene.root.counters();
        prop_assert_eq!(counters.loads, counters.loads_succeeded + counters.loads_failed);
    }
}

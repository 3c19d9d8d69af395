//! Whatever is told to the machine, in whatever order: its invariants hold, and every load that was
//! ordered is reported exactly once when everything has come back.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::scene::{Scene, full, hybrid, id, order, save};
use crate::shape::Rank;
use crate::worker::{LoadFailure, SaveOutcome, WorkerEvent, WorkerLimits};

#[derive(Clone, Debug)]
enum Op {
    Load,
    Cancel(u64),
    Preempt(u64),
    Fence(prop::sample::Index),
    FenceFailed(prop::sample::Index),
    Fetched(prop::sample::Index, bool),
    Stale(u64, u32),
    Save,
    Saved,
    Time(u64),
    Collect,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let index = any::<prop::sample::Index>;
    let op = prop_oneof![
        4 => Just(Op::Load),
        1 => (1_u64..30).prop_map(Op::Cancel),
        1 => (1_u64..30).prop_map(Op::Preempt),
        6 => index().prop_map(Op::Fence),
        1 => index().prop_map(Op::FenceFailed),
        6 => (index(), any::<bool>()).prop_map(|(at, fails)| Op::Fetched(at, fails)),
        1 => (1_u64..30, 0_u32..4).prop_map(|(load, part)| Op::Stale(load, part)),
        2 => Just(Op::Save),
        1 => Just(Op::Saved),
        1 => (0_u64..300).prop_map(Op::Time),
        2 => Just(Op::Collect),
    ];
    prop::collection::vec(op, 0..120)
}

/// What the outside knows: how often each load was reported.
#[derive(Default)]
struct Naive {
    reported: BTreeMap<String, u32>,
    preempted: Vec<String>,
}

impl Naive {
    fn collect(&mut self, scene: &mut Scene) {
        let (finished, failed, invalid) = scene.collect();
        if scene.root.config.shape.groups().len() > 1 {
            assert!(
                invalid.is_empty(),
                "request-level layouts never name blocks"
            );
        }
        for name in &failed {
            assert!(finished.contains(name), "{name} failed and is not finished");
        }
        for name in finished {
            *self
                .reported
                .get_mut(&name)
                .expect("a load that was ordered") += 1;
        }
    }
}

fn apply(scene: &mut Scene, naive: &mut Naive, op: &Op) {
    match op {
        Op::Load => {
            let request = u64::try_from(naive.reported.len()).unwrap() + 1;
            naive.reported.insert(format!("r{request}"), 0);
            scene.load(request);
        }
        Op::Cancel(request) => {
            let mut plan = scene.plan();
            plan.cancels = vec![id(*request)];
            scene.begin(&plan);
        }
        Op::Preempt(request) => {
            let name = format!("r{request}");
            if naive.reported.get(&name) == Some(&0) {
                naive.preempted.push(name);
            }
            scene.root.preempt(&[id(*request)]);
            scene.drain();
        }
        Op::Fence(at) if !scene.fences.is_empty() => {
            let (load, phase) = scene.fences.remove(at.index(scene.fences.len()));
            scene.event(WorkerEvent::Fenced { load, phase });
        }
        Op::FenceFailed(at) if !scene.fences.is_empty() => {
            let (load, phase) = scene.fences[at.index(scene.fences.len())];
            scene.event(WorkerEvent::FenceFailed { load, phase });
        }
        Op::Fetched(at, fails) if !scene.fetches.is_empty() => {
            let fetch = scene.fetches.remove(at.index(scene.fetches.len()));
            let (load, part) = (fetch.load, fetch.part);
            let result = if *fails {
                Err(LoadFailure::Miss)
            } else {
                Ok(())
            };
            scene.event(WorkerEvent::Fetched { load, part, result });
        }
        Op::Stale(request, part) => {
            // News of a part that is not under way, if it is not.
            let (load, part) = (id(*request), *part);
            let known = |fetch: &crate::worker::Fetch| fetch.load == load && fetch.part == part;
            if !scene.fetches.iter().any(known) {
                let result = Ok(());
                scene.event(WorkerEvent::Fetched { load, part, result });
            }
        }
        Op::Save => {
            let mut plan = scene.plan();
            plan.saves = vec![save(0, &[1, 2])];
            scene.begin(&plan);
            scene.root.end_step();
            scene.drain();
        }
        Op::Saved => {
            if let Some(save) = scene.saves.pop() {
                let (save, outcome) = (save.save, SaveOutcome::Stored);
                scene.event(WorkerEvent::Saved { save, outcome });
            }
        }
        Op::Time(millis) => {
            scene.now = scene.now.after_millis(*millis);
            scene.root.handle_timeout(scene.now);
            scene.drain();
        }
        Op::Collect => naive.collect(scene),
        Op::Fence(_) | Op::FenceFailed(_) | Op::Fetched(..) => {}
    }
}

proptest! {
    #[test]
    fn every_load_is_reported_once_whatever_happens(ops in ops(), request_level in any::<bool>()) {
        let kinds = if request_level { hybrid() } else { full() };
        let limits = WorkerLimits { queued: 9, in_flight: 2, saves: 2 };
        let mut scene = Scene::with(&kinds, Rank::default(), 1, limits);
        let mut naive = Naive::default();
        for op in &ops {
            apply(&mut scene, &mut naive, op);
        }
        // Everything comes back.
        while !scene.fences.is_empty() || !scene.fetches.is_empty() || !scene.saves.is_empty() {
            scene.fence();
            if !scene.fetches.is_empty() {
                scene.fetched(Ok(()));
            }
            apply(&mut scene, &mut naive, &Op::Saved);
        }
        naive.collect(&mut scene);
        prop_assert!(scene.root.is_idle());
        for (name, count) in &naive.reported {
            let expected = u32::from(!naive.preempted.contains(name));
            prop_assert_eq!(*count, expected, "{} is reported {} times", name, count);
        }
        let counters = scene.root.counters();
        let ended = counters.loads_succeeded + counters.loads_failed.iter().sum::<u64>();
        prop_assert_eq!(counters.loads, ended);
        naive.collect(&mut scene);
    }
}

#[test]
fn an_order_for_a_load_that_is_under_way_is_not_a_second_load() {
    let mut scene = Scene::new(&hybrid());
    let mut plan = scene.plan();
    plan.loads = vec![order(1, 2), order(1, 2)];
    scene.begin(&plan);
    scene.fence();
    assert_eq!((scene.fetches.len(), scene.root.counters().loads), (3, 1));
}

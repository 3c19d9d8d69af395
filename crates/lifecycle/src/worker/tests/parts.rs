//! Which objects a load fetches under which lease, what it names when it cannot, and the bounds.

use super::scene::{Scene, full, hybrid, order, save};
use crate::metadata::LeaseOrder;
use crate::shape::Rank;
use crate::worker::{Fetch, LoadFailure, SaveOutcome, WorkerEvent, WorkerLimits};

fn rank(tp: u32) -> Rank {
    Rank {
        tp,
        ..Rank::default()
    }
}

#[test]
fn each_rank_fetches_its_objects_under_the_leases_of_its_own_shards() {
    // Two chunks on two ranks, and behind them the state, which both ranks hold alike.
    for (tp, expected) in [(0, [10, 12, 14]), (1, [11, 13, 14])] {
        let mut scene = Scene::with(&hybrid(), rank(tp), 2, WorkerLimits::default());
        let mut leased = order(1, 2);
        let lease = |lease| LeaseOrder {
            node: 0,
            incarnation: 1,
            lease,
        };
        leased.leases = (10..15).map(lease).collect();
        leased.lease_of = (0..5).collect();
        let mut plan = scene.plan();
        plan.loads = vec![leased];
        scene.begin(&plan);
        scene.fence();
        let fetches = scene.fetches.iter();
        let leases: Vec<_> = fetches
            .map(|fetch| fetch.lease.unwrap().lease.get())
            .collect();
        assert_eq!(leases, expected, "rank {tp}");
    }
}

#[test]
fn a_load_behind_computed_tokens_is_the_rest_of_the_whole_one() {
    let mut whole = Scene::new(&hybrid());
    whole.load(1);
    whole.fence();
    let mut scene = Scene::new(&hybrid());
    let mut rest = order(1, 2);
    (rest.computed, rest.hashes) = (8, rest.hashes.split_off(1));
    let mut plan = scene.plan();
    plan.loads = vec![rest];
    scene.begin(&plan);
    scene.fence();
    let what = |fetch: &Fetch| (fetch.group, fetch.key, fetch.destinations.clone());
    let whole: Vec<_> = whole.fetches.iter().map(what).collect();
    let rest: Vec<_> = scene.fetches.iter().map(what).collect();
    assert_eq!(rest, whole[1..]);
}

#[test]
fn l03_a_block_level_load_that_cannot_begin_names_the_blocks_between_the_token_counts() {
    let mut scene = Scene::new(&full());
    let mut bad = order(1, 1);
    (bad.computed, bad.tables) = (4, vec![vec![1, 0, 3, 4, 5]]);
    let mut plan = scene.plan();
    plan.loads = vec![bad];
    scene.begin(&plan);
    scene.fence();
    scene.fence();
    assert_eq!(scene.collect(), (vec!["r1".into()], vec![], vec![3, 4]));
}

#[test]
fn a_load_that_fills_the_queue_is_taken_and_the_next_is_not() {
    let limits = WorkerLimits {
        queued: 6,
        ..WorkerLimits::default()
    };
    let mut scene = Scene::with(&hybrid(), Rank::default(), 1, limits);
    for request in 1..=3 {
        scene.load(request);
    }
    scene.fence();
    assert_eq!(scene.fetches.len(), 6);
    assert_eq!(scene.failed(LoadFailure::QueueFull), 0, "not over yet");
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.fence();
    assert_eq!(scene.collect().1, ["r3"]);
    assert_eq!(scene.failed(LoadFailure::QueueFull), 1);
}

#[test]
fn objects_that_came_and_orders_that_came_again_are_counted() {
    let mut scene = Scene::new(&full());
    let mut plan = scene.plan();
    plan.loads = vec![order(1, 1); 3];
    assert!(!scene.root.is_any_loading());
    scene.begin(&plan);
    assert!(scene.root.is_any_loading());
    scene.fence();
    scene.fetched(Ok(()));
    scene.fetched(Err(LoadFailure::Miss));
    scene.load(2);
    scene.fence();
    scene.fetched(Ok(()));
    let counters = scene.root.counters();
    assert_eq!((counters.objects_loaded, counters.loads), (2, 2));
    assert_eq!(counters.late_completions, 2);
}

#[test]
fn saves_of_one_step_end_each_by_its_own_name() {
    let mut scene = Scene::new(&full());
    let mut plan = scene.plan();
    plan.saves = vec![save(0, &[1, 2]), save(0, &[3, 4])];
    scene.begin(&plan);
    scene.root.end_step();
    scene.drain();
    for saved in std::mem::take(&mut scene.saves) {
        assert!(!scene.root.is_idle());
        let (save, outcome) = (saved.save, SaveOutcome::Stored);
        scene.event(WorkerEvent::Saved { save, outcome });
    }
    assert!(scene.root.is_idle());
    let counters = scene.root.counters();
    assert_eq!((counters.saves_stored, counters.late_completions), (2, 0));
}

#[test]
fn saves_of_groups_that_the_shape_lacks_are_skipped_and_counted() {
    let mut scene = Scene::new(&hybrid());
    let mut plan = scene.plan();
    plan.saves = vec![save(2, &[1]), save(1, &[2]), save(9, &[3])];
    scene.begin(&plan);
    scene.root.end_step();
    scene.drain();
    assert_eq!(scene.saves.len(), 1);
    assert_eq!(scene.root.counters().saves_skipped, 2);
}

#[test]
fn l15_what_a_step_will_save_is_asked_for_when_it_begins_by_the_rank_that_saves() {
    for (tp, objects) in [(0, 2), (1, 1)] {
        let mut scene = Scene::with(&hybrid(), rank(tp), 2, WorkerLimits::default());
        let empty = scene.plan();
        scene.begin(&empty);
        let mut plan = scene.plan();
        plan.saves = vec![save(0, &[1, 2]), save(1, &[2]), save(9, &[1])];
        scene.begin(&plan);
        scene.begin(&plan);
        let asked = scene.probes.concat();
        assert_eq!((scene.probes.len(), asked.len()), (1, objects), "rank {tp}");
        scene.root.end_step();
        scene.drain();
        let saved: Vec<_> = scene.saves.iter().map(|save| save.key).collect();
        assert_eq!(asked, saved, "rank {tp}");
        assert_eq!(scene.probes.len(), 1, "rank {tp}");
    }
}

#[test]
fn a_probe_asks_for_no_more_than_can_be_saved() {
    let limits = WorkerLimits {
        saves: 2,
        ..WorkerLimits::default()
    };
    let mut scene = Scene::with(&full(), rank(0), 1, limits);
    let mut plan = scene.plan();
    plan.saves = vec![save(0, &[1, 2]); 5];
    scene.begin(&plan);
    assert_eq!(scene.probes.concat().len(), 2);
}

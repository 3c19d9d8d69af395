//! The edges: the last instant of a promise, the last rank of a load, the first of its blocks.

use tessera_proto::{Incarnation, Instant, LeaseId};

use super::scene::{Scene, config};
use crate::LoadId;
use crate::scheduler::{Found, Held, LookupAnswer, NodeIndex, SchedulerEvent, StepInput};
use crate::shape::GroupKind;

fn report(scene: &mut Scene, load: LoadId, rank: u32, failed: bool) {
    let event = SchedulerEvent::RankFinished { load, rank, failed };
    scene.root.handle_event(scene.now, event);
    scene.drain();
}

#[test]
fn l16_a_promise_stands_to_its_last_instant_and_is_given_back_at_the_next() {
    let mut scene = Scene::full();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.now = scene.now.after_nanos(1);
    assert_eq!(scene.promised("b", 33, 0), Some(32));
    let due = scene.root.poll_timeout().unwrap();
    scene.now = Instant(due.0 - 1);
    scene.root.handle_timeout(scene.now);
    scene.drain();
    assert_eq!(scene.leased(), 8);
    assert_eq!(scene.lookup("a", 33, 0).tokens, Some(32));
    scene.now = due;
    scene.root.handle_timeout(due);
    scene.drain();
    assert_eq!(scene.leased(), 4, "that of b has one instant left");
    assert_eq!(scene.root.poll_timeout(), Some(due.after_nanos(1)));
    assert_eq!(scene.lookup("b", 33, 0).tokens, Some(32));
}

#[test]
fn a_question_that_was_too_small_is_put_again_and_its_first_answer_is_given_back() {
    let mut scene = Scene::full();
    assert_eq!(scene.lookup("a", 33, 16), LookupAnswer::UNDECIDED);
    scene.later(99);
    // The engine has lost a cached chunk, and gained another before the answer.
    for computed in [8, 8, 24] {
        assert_eq!(scene.lookup("a", 33, computed), LookupAnswer::UNDECIDED);
    }
    assert_eq!(scene.asked.len(), 2);
    scene.answer();
    assert_eq!((scene.leased(), scene.root.counters().late_lookups), (0, 1));
    scene.answer();
    assert_eq!(scene.lookup("a", 33, 8).tokens, Some(24));
    assert_eq!(scene.leased(), 3);
}

#[test]
fn an_answer_that_comes_again_is_late_and_gives_nothing_back() {
    let mut scene = Scene::full();
    scene.lookup("a", 33, 0);
    let lookup = scene.asked[0].lookup;
    scene.answer();
    for late in 1..=2 {
        let event = SchedulerEvent::Acquired {
            lookup,
            found: vec![Found::Missing; 4],
            lease_ms: 30_000,
        };
        scene.root.handle_event(scene.now, event);
        scene.drain();
        assert_eq!(scene.root.counters().late_lookups, late);
    }
    assert_eq!(scene.lookup("a", 33, 0).tokens, Some(32));
    assert_eq!(scene.leased(), 4);
}

#[test]
fn a_refusal_stands_until_the_request_has_another_state() {
    let mut scene = Scene::full();
    scene.lookup("a", 33, 0);
    let ids = scene.asked[0].ids.clone();
    scene.missing.extend(ids);
    scene.answer();
    scene.missing.clear();
    assert_eq!(scene.lookup("a", 33, 0), LookupAnswer::ZERO);
    assert!(scene.asked.is_empty());
    assert_eq!(scene.promised("a", 33, 8), Some(24));
}

#[test]
fn an_allocation_without_external_tokens_leaves_an_open_question_open() {
    let mut scene = Scene::full();
    assert_eq!(scene.lookup("a", 33, 0), LookupAnswer::UNDECIDED);
    scene.allocated("a", 0).unwrap();
    scene.answer();
    assert_eq!(scene.lookup("a", 33, 0).tokens, Some(32));
    assert!(scene.asked.is_empty());
}

#[test]
fn a_token_more_than_is_left_of_a_promise_stops_the_step() {
    for (external, fits) in [(16, true), (17, false)] {
        let mut scene = Scene::full();
        assert_eq!(scene.promised("a", 33, 0), Some(32));
        assert_eq!(scene.lookup("a", 33, 16).tokens, Some(16));
        assert_eq!(scene.allocated("a", external).is_ok(), fits);
        assert_eq!(scene.leased(), if fits { 4 } else { 0 });
    }
}

#[test]
fn l16_every_object_is_given_back_once_under_its_own_lease() {
    let mut scene = Scene::full();
    scene.lookup("a", 33, 0);
    let asked = scene.asked.remove(0);
    let held = |index: usize| Held {
        node: NodeIndex(0),
        incarnation: Incarnation(9),
        lease: LeaseId::new([71, 72][index % 2]).unwrap(),
    };
    for (index, id) in asked.ids.iter().enumerate() {
        let objects = scene.ledger.entry(held(index).lease.get()).or_default();
        objects.insert(*id);
    }
    let found = (0..4).map(|index| Found::Held(held(index))).collect();
    let (lookup, lease_ms) = (asked.lookup, 30_000);
    let event = SchedulerEvent::Acquired {
        lookup,
        found,
        lease_ms,
    };
    scene.root.handle_event(scene.now, event);
    assert_eq!(scene.lookup("a", 33, 0).tokens, Some(32));
    scene.allocated("a", 32).unwrap();
    let order = &scene.step(&StepInput::default()).loads[0];
    assert_eq!(order.leases.len(), 2);
    for index in 0..4 {
        assert_eq!(order.lease(index), Some(held(index)));
    }
    scene.output(&["a"], &[], &[]);
    assert_eq!(scene.leased(), 0);
}

#[test]
fn l11_the_load_of_a_finished_request_ends_with_its_last_rank_as_well() {
    let mut scene = Scene::new(config(&[GroupKind::Full, GroupKind::Full], 2));
    let (first, second) = (scene.load("a", 17), scene.load("b", 33));
    scene.finish("a");
    scene.finish("b");
    report(&mut scene, second, 0, true);
    report(&mut scene, second, 0, false);
    report(&mut scene, second, 2, false);
    assert_eq!(scene.root.counters().late_completions, 2);
    assert_eq!(scene.leased(), 24, "a rank may still read under the leases");
    report(&mut scene, second, 1, false);
    assert_eq!((scene.leased(), scene.root.counters().loads_failed), (8, 1));
    report(&mut scene, second, 1, false);
    assert_eq!(scene.root.counters().late_completions, 3);
    report(&mut scene, first, 1, false);
    report(&mut scene, first, 0, false);
    let counters = scene.root.counters();
    assert_eq!((scene.leased(), counters.loads_succeeded), (0, 1));
}

#[test]
fn l11_the_end_of_a_load_is_not_that_of_an_older_one_of_another_name() {
    let mut scene = Scene::full();
    scene.load("a", 33);
    scene.load("b", 17);
    scene.finish("a");
    scene.output(&["b"], &["b"], &[]);
    assert_eq!((scene.leased(), scene.root.counters().loads_failed), (4, 1));
    scene.output(&["a"], &[], &[]);
    let counters = scene.root.counters();
    assert_eq!((scene.leased(), counters.loads_succeeded), (0, 1));
}

#[test]
fn l03_bad_blocks_fail_the_load_of_a_finished_request_as_well() {
    let mut scene = Scene::full();
    scene.load("a", 33);
    scene.finish("a");
    scene.output(&[], &[], &[3]);
    scene.output(&["a"], &[], &[9]);
    let counters = scene.root.counters();
    assert_eq!((counters.loads_failed, counters.loads_succeeded), (1, 0));
}

#[test]
fn l03_only_the_blocks_between_the_token_counts_are_those_of_a_load() {
    for (block, failed) in [(1, 0), (4, 0), (5, 1), (8, 1), (9, 0)] {
        let mut scene = Scene::full();
        assert_eq!(scene.promised("a", 33, 0), Some(32));
        assert_eq!(scene.lookup("a", 33, 16).tokens, Some(16));
        scene.allocated("a", 16).unwrap();
        scene.step(&StepInput::default());
        scene.output(&["a"], &[], &[block]);
        assert_eq!(scene.root.counters().loads_failed, failed, "block {block}");
    }
}

//! One named case for each rule of the worker's half.

use super::scene::{Scene, TIMEOUT_MS, full, hybrid, id, order, save};
use crate::metadata::LoadOrder;
use crate::plan::Destination;
use crate::shape::Rank;
use crate::worker::{LoadFailure, Phase, SaveOutcome, WorkerEvent, WorkerLimits};

fn report(request: u64) -> String {
    format!("r{request}")
}

#[test]
fn a_load_fences_moves_fences_and_is_reported_once() {
    let mut scene = Scene::new(&hybrid());
    let load = scene.load(1);
    assert_eq!(
        (scene.fences.as_slice(), scene.fetches.len()),
        (&[(load, Phase::Before)][..], 0)
    );
    scene.fence();
    let to: Vec<_> = scene
        .fetches
        .iter()
        .map(|fetch| fetch.destinations.clone())
        .collect();
    let block = Destination::Block;
    let expected = [
        vec![block(1), block(2)],
        vec![block(3), block(4)],
        vec![block(4)],
    ];
    assert_eq!(to, expected);
    assert!(scene.fetches.iter().all(|fetch| fetch.lease.is_some()));
    for _ in 0..3 {
        scene.assert_silent();
        scene.fetched(Ok(()));
    }
    assert_eq!(scene.fences, [(load, Phase::After)]);
    scene.assert_silent();
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(1)], vec![], vec![]));
    scene.assert_silent();
    assert!(scene.root.is_idle());
}

#[test]
fn l04_with_the_device_held_back_nothing_is_published_even_when_the_io_failed() {
    for failure in LoadFailure::ALL {
        let mut scene = Scene::new(&hybrid());
        scene.load(1);
        scene.fence();
        while !scene.fetches.is_empty() {
            scene.fetched(Err(failure));
        }
        scene
            .root
            .handle_timeout(scene.now.after_millis(10 * TIMEOUT_MS));
        scene.root.close();
        scene.drain();
        scene.assert_silent();
        assert_eq!(scene.fences.len(), 1, "one fence behind the last write");
        scene.fence();
        assert_eq!(scene.collect(), (vec![report(1)], vec![report(1)], vec![]));
        assert_eq!(
            scene.failed(failure),
            1,
            "the first failure is kept: {failure}"
        );
    }
}

#[test]
fn the_first_failure_of_a_request_level_load_stops_the_rest_and_waits_for_what_is_under_way() {
    let limits = WorkerLimits {
        in_flight: 3,
        ..WorkerLimits::default()
    };
    let mut scene = Scene::with(&hybrid(), Rank::default(), 1, limits);
    scene.load(1);
    scene.fence();
    assert_eq!(scene.fetches.len(), 2);
    scene.fetched(Err(LoadFailure::Miss));
    assert_eq!(
        (scene.fetches.len(), scene.fences.len()),
        (1, 0),
        "one still writes"
    );
    scene.fetched(Ok(()));
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(1)], vec![report(1)], vec![]));
}

#[test]
fn a_block_level_load_goes_on_after_a_failure_and_names_its_blocks() {
    let mut scene = Scene::new(&full());
    scene.load(1);
    scene.fence();
    scene.fetched(Err(LoadFailure::Corrupt));
    scene.fetched(Ok(()));
    scene.fence();
    assert!(
        scene.root.take_invalid_blocks().is_empty(),
        "never before the request is reported"
    );
    assert_eq!(scene.collect(), (vec![report(1)], vec![], vec![1, 2]));
    scene.assert_silent();
}

#[test]
fn l03_a_block_level_load_without_a_block_to_name_fails_its_request() {
    let mut scene = Scene::new(&full());
    let mut unnamed = order(1, 1);
    unnamed.tables = vec![vec![]];
    let mut plan = scene.plan();
    plan.loads.push(unnamed);
    scene.begin(&plan);
    scene.fence();
    scene.assert_silent();
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(1)], vec![report(1)], vec![]));
    assert_eq!(scene.failed(LoadFailure::Unallocated), 1);
    scene.assert_silent();
}

#[test]
fn a_deadline_fails_the_load_and_never_ends_its_claim() {
    let limits = WorkerLimits {
        in_flight: 1,
        ..WorkerLimits::default()
    };
    let mut scene = Scene::with(&hybrid(), Rank::default(), 1, limits);
    scene.load(1);
    scene.fence();
    let due = scene.root.poll_timeout().unwrap();
    assert_eq!(due, scene.now.after_millis(TIMEOUT_MS));
    scene.root.handle_timeout(due);
    scene.drain();
    assert_eq!(scene.root.poll_timeout(), None);
    scene.assert_silent();
    assert!(scene.fences.is_empty(), "a part is still under way");
    scene.fetched(Ok(()));
    assert!(scene.fetches.is_empty(), "nothing more is fetched");
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(1)], vec![report(1)], vec![]));
    assert_eq!(scene.failed(LoadFailure::Deadline), 1);
}

#[test]
fn a_deadline_fails_the_loads_that_are_due_and_no_other() {
    let limits = WorkerLimits {
        in_flight: 1,
        ..WorkerLimits::default()
    };
    let mut scene = Scene::with(&hybrid(), Rank::default(), 1, limits);
    scene.load(1);
    let first = scene.root.poll_timeout().unwrap();
    scene.now = scene.now.after_millis(100);
    scene.load(2);
    scene.fence();
    scene.root.handle_timeout(scene.now);
    assert_eq!(scene.root.poll_timeout(), Some(first), "nothing is due yet");
    scene.root.handle_timeout(first);
    let second = first.after_millis(100);
    assert_eq!(scene.root.poll_timeout(), Some(second));
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.fence();
    let both = vec![report(1), report(2)];
    assert_eq!(scene.collect(), (both, vec![report(1)], vec![]));
}

#[test]
fn a_deadline_that_finds_every_block_fetched_fails_nothing_that_blocks_name() {
    let mut scene = Scene::new(&full());
    scene.load(1);
    scene.fence();
    let due = scene.root.poll_timeout().unwrap();
    scene.fetched(Ok(()));
    scene.root.handle_timeout(due);
    scene.drain();
    assert_eq!(scene.root.poll_timeout(), None);
    scene.fetched(Ok(()));
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(1)], vec![], vec![]));
    assert_eq!(scene.root.counters().loads_succeeded, 1);
}

#[test]
fn l05_a_cancel_fails_a_load_only_if_something_was_left_to_fetch() {
    for (in_flight, failed) in [(8, false), (1, true)] {
        let limits = WorkerLimits {
            in_flight,
            ..WorkerLimits::default()
        };
        let mut scene = Scene::with(&hybrid(), Rank::default(), 1, limits);
        let load = scene.load(1);
        scene.fence();
        let mut plan = scene.plan();
        plan.cancels = vec![load, id(99)];
        scene.begin(&plan);
        scene.assert_silent();
        while !scene.fetches.is_empty() {
            scene.fetched(Ok(()));
        }
        scene.fence();
        let failures = if failed { vec![report(1)] } else { vec![] };
        assert_eq!(scene.collect(), (vec![report(1)], failures, vec![]));
    }
}

#[test]
fn l05_a_cancel_between_the_last_part_and_its_fence_changes_nothing() {
    let mut scene = Scene::new(&hybrid());
    let load = scene.load(1);
    scene.fence();
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    let mut plan = scene.plan();
    plan.cancels = vec![load];
    scene.begin(&plan);
    scene.assert_silent();
    assert_eq!(scene.fences, [(load, Phase::After)], "asked once");
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(1)], vec![], vec![]));
}

#[test]
fn l06_loads_take_turns_and_end_in_any_order() {
    let limits = WorkerLimits {
        in_flight: 2,
        ..WorkerLimits::default()
    };
    let mut scene = Scene::with(&hybrid(), Rank::default(), 1, limits);
    let mut plan = scene.plan();
    plan.loads = vec![order(1, 2), order(2, 2)];
    scene.begin(&plan);
    scene.fence();
    let loads: Vec<_> = scene.fetches.iter().map(|fetch| fetch.load).collect();
    assert_eq!(loads, [id(1), id(2)], "one part each");
    // The first load's part never comes back; the second goes on alone.
    let stuck = scene.fetches.remove(0);
    for _ in 0..3 {
        let at = scene.fetches.iter().position(|fetch| fetch.load == id(2));
        let fetch = scene.fetches.remove(at.expect("the second load goes on"));
        scene.event(WorkerEvent::Fetched {
            load: fetch.load,
            part: fetch.part,
            result: Ok(()),
        });
    }
    scene.fence();
    assert_eq!(scene.collect().0, [report(2)]);
    scene.event(WorkerEvent::Fetched {
        load: stuck.load,
        part: stuck.part,
        result: Ok(()),
    });
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.fence();
    assert_eq!(scene.collect().0, [report(1)]);
}

#[test]
fn l08_a_plan_that_comes_again_is_not_executed_again() {
    let mut scene = Scene::new(&full());
    let mut plan = scene.plan();
    plan.loads = vec![order(1, 1)];
    plan.saves = vec![save(0, &[1, 2])];
    for _ in 0..3 {
        scene.begin(&plan);
    }
    scene.root.end_step();
    scene.root.end_step();
    scene.drain();
    scene.fence();
    assert_eq!((scene.fetches.len(), scene.saves.len()), (2, 1));
    assert_eq!(scene.root.counters().repeated_plans, 2);
}

#[test]
fn late_duplicate_and_unknown_news_only_count() {
    let mut scene = Scene::new(&hybrid());
    let load = scene.load(1);
    let news = [
        WorkerEvent::Fenced {
            load: id(9),
            phase: Phase::Before,
        },
        WorkerEvent::Fenced {
            load,
            phase: Phase::After,
        },
        WorkerEvent::Fetched {
            load,
            part: 0,
            result: Ok(()),
        },
        WorkerEvent::Fetched {
            load: id(9),
            part: 0,
            result: Err(LoadFailure::Miss),
        },
        WorkerEvent::Saved {
            save: crate::SaveId(4),
            outcome: SaveOutcome::Stored,
        },
    ];
    for event in news {
        scene.event(event);
    }
    assert_eq!(scene.root.counters().late_completions, 5);
    scene.fence();
    let first = scene.fetches[0].clone();
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.event(WorkerEvent::Fetched {
        load,
        part: first.part,
        result: Err(LoadFailure::Miss),
    });
    scene.fence();
    assert_eq!(
        scene.collect(),
        (vec![report(1)], vec![], vec![]),
        "the outcome stays"
    );
    assert_eq!(scene.root.counters().late_completions, 6);
}

#[test]
fn l02_orders_that_cannot_be_executed_fail_by_request() {
    type Change = fn(&mut LoadOrder);
    let malformed: [Change; 8] = [
        |order| order.computed = 16,
        |order| (order.computed, order.hashes) = (16, vec![]),
        |order| order.limit = 17,
        |order| order.boundary = 20,
        |order| order.boundary = u64::MAX / 8 * 8,
        |order| order.hashes.clear(),
        |order| order.tables.clear(),
        |order| order.tables.push(vec![]),
    ];
    let unallocated: [Change; 2] = [
        |order| order.tables[0][2] = 0,
        |order| order.tables[1].truncate(3),
    ];
    let malformed = malformed.map(|change| (change, LoadFailure::Malformed));
    let unallocated = unallocated.map(|change| (change, LoadFailure::Unallocated));
    for (change, failure) in malformed.into_iter().chain(unallocated) {
        let mut scene = Scene::new(&hybrid());
        let mut bad = order(1, 2);
        change(&mut bad);
        let mut plan = scene.plan();
        plan.loads = vec![bad, order(2, 2)];
        scene.begin(&plan);
        scene.fence();
        scene.fence();
        assert_eq!(scene.collect(), (vec![report(1)], vec![report(1)], vec![]));
        assert_eq!(scene.failed(failure), 1);
        assert_eq!(scene.fetches.len(), 3, "the other load is untouched");
    }
}

#[test]
fn l02_a_full_and_a_closed_queue_fail_the_load_and_report_it() {
    let limits = WorkerLimits {
        queued: 4,
        in_flight: 1,
        saves: 1,
    };
    let mut scene = Scene::with(&hybrid(), Rank::default(), 1, limits);
    scene.load(1);
    scene.load(2);
    scene.fence();
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(2)], vec![report(2)], vec![]));
    assert_eq!(scene.failed(LoadFailure::QueueFull), 1);
    scene.root.close();
    scene.drain();
    scene.fetched(Ok(()));
    scene.load(3);
    scene.fence();
    scene.fence();
    let (mut finished, mut failed, _) = scene.collect();
    finished.sort();
    failed.sort();
    assert_eq!((finished.len(), failed), (2, vec![report(1), report(3)]));
    assert_eq!(scene.failed(LoadFailure::QueueClosed), 2);
}

#[test]
fn a_rank_with_nothing_to_move_reports_as_well() {
    let mut scene = Scene::new(&[crate::GroupKind::Window { tokens: 1 }]);
    scene.load(1);
    scene.fence();
    scene.fence();
    assert_eq!(scene.collect(), (vec![report(1)], vec![], vec![]));
}

#[test]
fn a_preempted_load_ends_and_is_reported_to_nobody() {
    let mut scene = Scene::new(&hybrid());
    let load = scene.load(1);
    scene.fence();
    scene.root.preempt(&[load]);
    scene.drain();
    assert!(scene.root.is_loading(load));
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.fence();
    assert!(!scene.root.is_loading(load));
    scene.assert_silent();
    // Over, and not collected yet: the same.
    let load = scene.load(2);
    scene.fence();
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.fence();
    scene.root.preempt(&[load]);
    scene.assert_silent();
}

#[test]
fn a_new_scheduler_is_not_told_of_the_old_ones_loads() {
    let mut scene = Scene::new(&hybrid());
    scene.load(1);
    scene.fence();
    let mut plan = scene.plan();
    plan.incarnation = 4;
    plan.step = 1;
    plan.loads = vec![order(2, 2)];
    scene.begin(&plan);
    scene.fence();
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.fence();
    assert_eq!(scene.collect().0, [report(2)]);
}

#[test]
fn saves_are_handed_out_when_the_step_ends_to_the_rank_that_saves() {
    for (tp, groups) in [(0, vec![0, 1]), (1, vec![0])] {
        let rank = Rank {
            tp,
            ..Rank::default()
        };
        let mut scene = Scene::with(&hybrid(), rank, 2, WorkerLimits::default());
        let mut plan = scene.plan();
        plan.saves = vec![save(0, &[1, 2]), save(1, &[2]), save(9, &[1])];
        scene.begin(&plan);
        assert!(scene.saves.is_empty(), "not before the step has computed");
        scene.root.end_step();
        scene.drain();
        let saved: Vec<_> = scene.saves.iter().map(|save| save.group).collect();
        assert_eq!(saved, groups, "rank {tp}");
    }
}

#[test]
fn saves_over_the_bound_are_skipped_and_counted() {
    let limits = WorkerLimits {
        saves: 1,
        ..WorkerLimits::default()
    };
    let mut scene = Scene::with(&full(), Rank::default(), 1, limits);
    for outcome in [
        SaveOutcome::Stored,
        SaveOutcome::Existed,
        SaveOutcome::StagingFull,
        SaveOutcome::Refused,
    ] {
        let mut plan = scene.plan();
        plan.saves = vec![save(0, &[1, 2]), save(0, &[3, 4])];
        scene.begin(&plan);
        scene.root.end_step();
        scene.drain();
        let save = scene.saves.pop().unwrap().save;
        assert!(!scene.root.is_idle());
        scene.event(WorkerEvent::Saved { save, outcome });
    }
    let counters = scene.root.counters();
    assert_eq!((counters.saves, counters.saves_skipped), (4, 5));
    let ends = [
        counters.saves_stored,
        counters.saves_existed,
        counters.saves_refused,
    ];
    assert_eq!((ends, scene.root.is_idle()), ([1, 1, 1], true));
}

//! One named case for each rule of the scheduler's half.

use super::scene::{CHUNK, Scene, config, new_request};
use crate::plan::Destination;
use crate::scheduler::{LookupAnswer, SchedulerEvent, StepInput};
use crate::shape::GroupKind;

#[test]
fn l01_whatever_is_to_be_loaded_parks_its_request_in_every_layout() {
    let window = GroupKind::Window { tokens: 6 };
    let layouts: [&[GroupKind]; 4] = [
        &[GroupKind::Full],
        &[GroupKind::Full, window, GroupKind::State],
        &[window],
        &[GroupKind::State],
    ];
    for kinds in layouts {
        let mut scene = Scene::new(config(kinds, 1));
        let answer = scene.lookup("a", CHUNK, 0);
        assert_eq!(answer, LookupAnswer::ZERO, "one chunk and no tail");
        assert!(!answer.parks(), "{kinds:?}");
        let answer = scene.lookup("a", CHUNK + 1, 0);
        assert_eq!(answer, LookupAnswer::UNDECIDED);
        assert!(!answer.parks(), "{kinds:?}");
        scene.answer();
        let answer = scene.lookup("a", CHUNK + 1, 0);
        assert_eq!((answer.tokens, answer.parks()), (Some(CHUNK), true));
        let mut config = config(kinds, 1);
        config.loads = false;
        assert_eq!(Scene::new(config).lookup("a", 100, 0), LookupAnswer::ZERO);
    }
}

#[test]
fn s2_a_hit_is_the_whole_chunks_before_the_last_token() {
    for tokens in 1..40 {
        let mut scene = Scene::hybrid();
        assert_eq!(
            scene.promised("a", tokens, 0),
            Some((tokens - 1) / CHUNK * CHUNK)
        );
    }
}

#[test]
fn a_lookup_is_decided_by_its_deadline_and_its_late_answer_is_given_back() {
    let mut scene = Scene::full();
    assert_eq!(scene.lookup("a", 33, 0).tokens, None);
    scene.later(99);
    assert_eq!(scene.lookup("a", 33, 0).tokens, None);
    scene.later(1);
    assert_eq!(scene.lookup("a", 33, 0), LookupAnswer::ZERO);
    assert_eq!(
        scene.lookup("a", 33, 0),
        LookupAnswer::ZERO,
        "and stays decided"
    );
    scene.answer();
    assert_eq!((scene.leased(), scene.root.counters().late_lookups), (0, 1));
    assert_eq!(scene.lookup("a", 33, 0), LookupAnswer::ZERO);
}

#[test]
fn an_answer_after_the_deadline_is_no_promise_even_if_nobody_asked_meanwhile() {
    let mut scene = Scene::full();
    scene.lookup("a", 33, 0);
    scene.later(100);
    scene.answer();
    assert_eq!(scene.lookup("a", 33, 0), LookupAnswer::ZERO);
    assert_eq!(scene.leased(), 0);
}

#[test]
fn l16_a_lookup_is_re_callable_and_leases_only_what_its_boundary_needs() {
    let mut scene = Scene::hybrid();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    // Full: 4 chunks. Window of 6: tokens 27..32, one chunk. State: one.
    assert_eq!(scene.leased(), 6);
    assert_eq!(scene.lookup("a", 33, 0).tokens, Some(32));
    // The engine has cached more by itself since: less is to load, the boundary is the same.
    assert_eq!(scene.lookup("a", 33, 16).tokens, Some(16));
    assert!(scene.asked.is_empty());
    scene.allocated("a", 16).unwrap();
    let plan = scene.step(&StepInput::default());
    let order = &plan.loads[0];
    assert_eq!((order.computed, order.limit, order.boundary), (16, 32, 32));
    assert_eq!((order.hashes.len(), order.lease_of.len()), (2, 4));
    assert!((0..4).all(|object| order.lease(object).is_some()));
}

#[test]
fn l16_one_missing_object_of_any_rank_or_group_shortens_the_promise() {
    // Which object is missing, in the order of the question: full 0..4, window, state.
    let expected = [0, 8, 16, 24, 32, 32, 32, 24, 32, 32, 32, 24];
    for (object, tokens) in expected.into_iter().enumerate() {
        let mut scene = Scene::hybrid();
        scene.lookup("a", 33, 0);
        scene.missing.insert(scene.asked[0].ids[object]);
        scene.answer();
        assert_eq!(
            scene.lookup("a", 33, 0).tokens,
            Some(tokens),
            "object {object}"
        );
        if tokens == 0 {
            assert_eq!(scene.leased(), 0);
        }
    }
    for rank in 0..4 {
        let mut scene = Scene::new(config(&[GroupKind::Full], 4));
        scene.lookup("a", 33, 0);
        let second_chunk = 4 + rank;
        scene.missing.insert(scene.asked[0].ids[second_chunk]);
        scene.answer();
        assert_eq!(scene.lookup("a", 33, 0).tokens, Some(8), "rank {rank}");
    }
}

#[test]
fn l16_a_promise_ends_before_its_lease_no_longer_outlasts_a_load() {
    let mut scene = Scene::full();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.later(24_900);
    assert_eq!(scene.lookup("a", 33, 0).tokens, Some(32));
    scene.later(200);
    assert_eq!(scene.lookup("a", 33, 0).tokens, None, "asked again");
    assert_eq!(scene.leased(), 0);
    scene.answer();
    scene.later(25_100);
    let due = scene.root.poll_timeout().expect("a promise that ends");
    assert!(due < scene.now);
    scene.root.handle_timeout(scene.now);
    scene.drain();
    assert_eq!((scene.leased(), scene.root.poll_timeout()), (0, None));
}

#[test]
fn an_untaken_promise_is_given_back_on_every_path() {
    type End = fn(&mut Scene);
    let ends: [(&str, End); 5] = [
        ("finish", |scene| scene.finish("a")),
        ("no external tokens", |scene| {
            scene.allocated("a", 0).unwrap();
        }),
        ("preemption", |scene| {
            scene.step(&StepInput {
                preempted: vec!["a".into()],
                ..StepInput::default()
            });
        }),
        ("finished in a step", |scene| {
            scene.step(&StepInput {
                finished: vec!["a".into()],
                ..StepInput::default()
            });
        }),
        ("covered by the engine", |scene| {
            assert_eq!(scene.lookup("a", 33, 32), LookupAnswer::ZERO);
        }),
    ];
    for (name, end) in ends {
        let mut scene = Scene::hybrid();
        assert_eq!(scene.promised("a", 33, 0), Some(32));
        end(&mut scene);
        assert_eq!(scene.leased(), 0, "{name}");
    }
}

#[test]
fn memory_for_tokens_that_were_not_promised_stops_the_step() {
    let mut scene = Scene::full();
    let error = scene.allocated("a", 8).unwrap_err();
    assert_eq!((error.external_tokens, error.promised), (8, 0));
    assert_eq!(scene.promised("a", 17, 0), Some(16));
    assert!(scene.allocated("a", 24).is_err());
    assert_eq!(scene.leased(), 0);
}

#[test]
fn l16_a_shortened_promise_is_checked_again() {
    // A single full group can be cut anywhere: the last chunk is loaded in part.
    let mut scene = Scene::full();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.allocated("a", 20).unwrap();
    let order = &scene.step(&StepInput::default()).loads[0];
    assert_eq!(
        (order.limit, order.boundary, order.hashes.len()),
        (20, 24, 3)
    );
    let shape = scene.root.config.shape.clone();
    let last = crate::plan::Piece { group: 0, chunk: 2 };
    let to = crate::plan::destinations(&shape, last, order.span(), &order.tables[0]);
    assert_eq!(to, Ok(vec![Destination::Block(5), Destination::Discard]));
    // A state exists at the promised boundary only: anything shorter must fail, and not load.
    for (tokens, fits) in [(24, false), (28, false), (32, true)] {
        let mut scene = Scene::hybrid();
        assert_eq!(scene.promised("a", 33, 0), Some(32));
        scene.allocated("a", tokens).unwrap();
        let order = &scene.step(&StepInput::default()).loads[0];
        assert!(order.tables.iter().all(|table| table.is_empty() != fits));
    }
}

#[test]
fn the_second_allocation_of_a_load_changes_nothing() {
    let mut scene = Scene::hybrid();
    scene.load("a", 33);
    let leased = scene.leased();
    scene.allocated("a", 0).unwrap();
    assert_eq!((scene.leased(), leased), (6, 6));
    scene.output(&["a"], &[], &[]);
    assert_eq!(scene.leased(), 0);
    scene.allocated("a", 0).unwrap();
    assert_eq!(scene.root.counters().loads_succeeded, 1);
}

#[test]
fn l09_a_failed_hit_is_quarantined_until_the_request_ends() {
    let mut scene = Scene::hybrid();
    scene.load("a", 33);
    scene.output(&["a"], &["a"], &[]);
    assert_eq!(scene.leased(), 0);
    assert_eq!(
        scene.lookup("a", 33, 0),
        LookupAnswer::ZERO,
        "though the store has it"
    );
    scene.allocated("a", 0).unwrap();
    scene.schedule(&[new_request("a", 3, (0, 16))]);
    scene.step(&StepInput {
        preempted: vec!["a".into()],
        ..StepInput::default()
    });
    assert_eq!(
        scene.lookup("a", 33, 0),
        LookupAnswer::ZERO,
        "survives preemption"
    );
    assert!(scene.asked.is_empty());
    scene.finish("a");
    assert_eq!(
        scene.promised("a", 33, 0),
        Some(32),
        "ends with the request"
    );
}

#[test]
fn l09_a_late_failure_changes_nothing_for_a_finished_or_replaced_request() {
    let mut scene = Scene::hybrid();
    scene.load("a", 33);
    scene.output(&["a"], &[], &[]);
    scene.output(&["a"], &["a"], &[]);
    assert_eq!(scene.root.counters().late_completions, 1);
    scene.finish("a");
    // The same string, another request.
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.output(&["a"], &["a"], &[]);
    assert_eq!(scene.lookup("a", 33, 0).tokens, Some(32));
    assert_eq!(scene.root.counters().late_completions, 2);
}

#[test]
fn news_that_come_before_a_load_was_ordered_are_not_its_own() {
    let mut scene = Scene::full();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.allocated("a", 32).unwrap();
    let load = crate::LoadId {
        request: crate::RequestKey(1),
        attempt: crate::Attempt(1),
    };
    let (rank, failed) = (0, true);
    let early = SchedulerEvent::RankFinished { load, rank, failed };
    scene.root.handle_event(scene.now, early);
    scene.output(&["a"], &["a"], &[1, 2]);
    assert_eq!(
        (scene.leased(), scene.root.counters().late_completions),
        (4, 2)
    );
    assert_eq!(scene.step(&StepInput::default()).loads[0].load, load);
    scene.output(&["a"], &[], &[]);
    let counters = scene.root.counters();
    assert_eq!(
        (
            scene.leased(),
            counters.loads_succeeded,
            counters.loads_failed
        ),
        (0, 1, 0)
    );
}

#[test]
fn l05_an_abort_while_parked_keeps_the_leases_until_the_receive_is_over() {
    let mut scene = Scene::hybrid();
    let load = scene.load("a", 33);
    scene.finish("a");
    assert_eq!(scene.leased(), 6);
    let plan = scene.step(&StepInput::default());
    assert_eq!(plan.cancels, [load]);
    // The string comes back before the old load has ended.
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.allocated("a", 32).unwrap();
    let again = scene.step(&StepInput::default()).loads[0].load;
    assert_ne!(again.request, load.request);
    scene.output(&["a"], &["a"], &[]);
    assert_eq!(scene.leased(), 6, "the old one ended, the new one did not");
    scene.output(&["a"], &[], &[]);
    assert_eq!(scene.leased(), 0);
    assert_eq!(scene.root.counters().loads_succeeded, 1);
}

#[test]
fn the_end_of_an_old_request_never_ends_a_new_one_of_its_name() {
    let mut scene = Scene::hybrid();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.finish("a");
    // The new request is looked up and allocated in the step whose list still names the old one.
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.allocated("a", 32).unwrap();
    let plan = scene.step(&StepInput {
        finished: vec!["a".into()],
        ..StepInput::default()
    });
    assert_eq!((plan.loads.len(), plan.cancels.len()), (1, 0));
    scene.output(&["a"], &[], &[]);
    // A request that nobody reported finished ends with the list.
    let plan = scene.step(&StepInput {
        finished: vec!["a".into()],
        ..StepInput::default()
    });
    assert!(plan.is_empty());
    assert_eq!(scene.root.known_hashes("a"), 0);
}

#[test]
fn an_abort_between_allocation_and_plan_orders_the_load_and_calls_it_off() {
    let mut scene = Scene::hybrid();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.allocated("a", 32).unwrap();
    scene.finish("a");
    let plan = scene.step(&StepInput::default());
    assert_eq!(
        plan.cancels,
        [plan.loads[0].load],
        "every rank must report it"
    );
}

#[test]
fn l11_a_load_ends_when_the_last_rank_has_reported() {
    let mut scene = Scene::new(config(&[GroupKind::Full, GroupKind::Full], 3));
    let load = scene.load("a", 17);
    let leased = scene.leased();
    let report = |scene: &mut Scene, rank, failed| {
        let event = SchedulerEvent::RankFinished { load, rank, failed };
        scene.root.handle_event(scene.now, event);
        scene.drain();
    };
    report(&mut scene, 0, true);
    report(&mut scene, 0, false);
    report(&mut scene, 3, false);
    report(&mut scene, 2, false);
    assert_eq!(
        (scene.leased(), leased),
        (12, 12),
        "rank 1 may still read under the leases"
    );
    assert_eq!(scene.root.counters().late_completions, 2);
    report(&mut scene, 1, false);
    assert_eq!((scene.leased(), scene.root.counters().loads_failed), (0, 1));
    assert_eq!(scene.lookup("a", 17, 0), LookupAnswer::ZERO);
    report(&mut scene, 1, false);
    assert_eq!(scene.root.counters().late_completions, 3);
}

#[test]
fn l11_a_third_request_is_untouched_by_the_failures_of_two() {
    let mut scene = Scene::hybrid();
    for request in ["a", "b", "c"] {
        scene.load(request, 33);
    }
    scene.output(&["a", "b", "c"], &["a", "b"], &[]);
    assert_eq!(scene.leased(), 0);
    for (request, quarantined) in [("a", true), ("b", true), ("c", false)] {
        let zero = scene.lookup(request, 33, 0) == LookupAnswer::ZERO;
        assert_eq!(zero, quarantined, "{request}");
    }
}

#[test]
fn l03_bad_blocks_fail_a_block_level_load_and_only_the_last_rank_ends_it() {
    let mut scene = Scene::full();
    scene.load("a", 33);
    scene.output(&[], &[], &[3]);
    for _ in 0..5 {
        // However many steps go by without news of it.
        scene.step(&StepInput::default());
    }
    assert_eq!((scene.leased(), scene.root.counters().loads_failed), (4, 0));
    scene.output(&["a"], &[], &[]);
    assert_eq!((scene.leased(), scene.root.counters().loads_failed), (0, 1));
    assert_eq!(scene.lookup("a", 33, 0), LookupAnswer::ZERO, "quarantined");
}

#[test]
fn l12_equal_block_numbers_of_other_groups_never_fail_a_load() {
    let mut scene = Scene::hybrid();
    scene.load("a", 33);
    scene.output(&[], &[], &[1, 2, 3]);
    scene.output(&["a"], &[], &[]);
    assert_eq!(scene.root.counters().loads_failed, 0);
    let mut scene = Scene::full();
    scene.load("a", 33);
    scene.output(&["a"], &[], &[1, 2, 3]);
    assert_eq!(scene.root.counters().loads_failed, 1);
}

#[test]
fn a_preempted_load_ends_unreported_and_without_leases() {
    let mut scene = Scene::hybrid();
    let load = scene.load("a", 33);
    let plan = scene.step(&StepInput {
        preempted: vec!["a".into()],
        ..StepInput::default()
    });
    assert_eq!((plan.preempted, scene.leased()), (vec![load], 0));
}

#[test]
fn a_request_beyond_the_table_is_neither_promised_nor_saved() {
    let mut config = config(&[GroupKind::Full], 1);
    config.limits.requests = 1;
    let mut scene = Scene::new(config);
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    assert_eq!(scene.lookup("b", 33, 0), LookupAnswer::ZERO);
    assert!(
        scene
            .schedule(&[new_request("b", 1, (0, 16))])
            .saves
            .is_empty()
    );
    assert_eq!(scene.root.counters().requests_refused, 2);
    scene.finish("a");
    assert_eq!(scene.promised("b", 33, 0), Some(32));
}

#[test]
fn a_long_prompt_is_looked_up_as_far_as_one_question_goes() {
    let mut config = config(&[GroupKind::Full, GroupKind::State], 2);
    config.limits.lookup_objects = 11;
    let mut scene = Scene::new(config);
    assert_eq!(scene.promised("a", 65, 0), Some(16));
    assert_eq!(scene.promised("b", 65, 32), Some(16));
}

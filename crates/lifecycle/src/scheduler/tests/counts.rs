//! What is counted, each more than once, and news of loads that are not there.

use super::scene::Scene;
use crate::scheduler::{LookupAnswer, SchedulerCounters, SchedulerEvent, StepInput};
use crate::{Attempt, LoadId, RequestKey};

#[test]
fn every_end_of_a_lookup_is_counted() {
    let mut scene = Scene::full();
    for name in ["a", "b"] {
        assert_eq!(scene.promised(name, 33, 0), Some(32));
        scene.lookup(name, 33, 0);
    }
    for name in ["c", "d"] {
        scene.lookup(name, 33, 0);
        let ids = scene.asked[0].ids.clone();
        scene.missing.extend(ids);
        scene.answer();
    }
    for name in ["e", "f"] {
        scene.lookup(name, 33, 0);
        scene.later(100);
        assert_eq!(scene.lookup(name, 33, 0), LookupAnswer::ZERO);
        scene.answer();
    }
    for name in ["g", "h"] {
        scene.lookup(name, 33, 0);
        scene.later(100);
        scene.answer();
    }
    for name in ["i", "j"] {
        scene.load(name, 33);
        scene.output(&[name], &[name], &[]);
        assert_eq!(scene.lookup(name, 33, 0), LookupAnswer::ZERO);
    }
    let expected = SchedulerCounters {
        lookups: 10,
        hits: 4,
        misses: 2,
        lookups_expired: 4,
        lookups_quarantined: 2,
        late_lookups: 2,
        hit_tokens: 64,
        loads: 2,
        loads_failed: 2,
        ..SchedulerCounters::default()
    };
    assert_eq!(scene.root.counters(), expected);
}

#[test]
fn every_end_of_a_load_is_counted() {
    let mut scene = Scene::full();
    for name in ["a", "b"] {
        scene.load(name, 33);
        scene.output(&[name], &[], &[]);
    }
    for name in ["c", "d"] {
        scene.load(name, 33);
        scene.finish(name);
    }
    for name in ["e", "f"] {
        scene.load(name, 33);
        scene.step(&StepInput {
            preempted: vec![name.into()],
            ..StepInput::default()
        });
    }
    let counters = scene.root.counters();
    assert_eq!((counters.loads, counters.loads_cancelled), (6, 4));
    assert_eq!(counters.loads_succeeded, 4);
}

#[test]
fn news_of_a_load_that_is_not_there_are_late_and_change_nothing() {
    let mut scene = Scene::full();
    let load = scene.load("a", 33);
    let ended = scene.load("b", 33);
    scene.output(&["b"], &[], &[]);
    let request = RequestKey(99);
    let attempt = Attempt(9);
    let strangers = [
        LoadId { request, ..load },
        LoadId { attempt, ..load },
        ended,
    ];
    for (load, late) in strangers.into_iter().zip([2, 4, 6]) {
        for _ in 0..2 {
            let (rank, failed) = (0, true);
            let event = SchedulerEvent::RankFinished { load, rank, failed };
            scene.root.handle_event(scene.now, event);
            scene.drain();
        }
        assert_eq!(scene.root.counters().late_completions, late);
    }
    assert_eq!(scene.leased(), 4);
    scene.output(&["a"], &[], &[]);
    let counters = scene.root.counters();
    assert_eq!((counters.loads_succeeded, counters.loads_failed), (2, 0));
}

#[test]
fn tables_say_what_is_known_asked_draining_and_unsent() {
    let mut scene = Scene::full();
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(scene.promised(name, 33, 0), Some(32));
        scene.allocated(name, 32).unwrap();
    }
    scene.finish("a");
    scene.finish("b");
    scene.lookup("f", 33, 0);
    let tables = scene.root.tables();
    assert_eq!((tables.requests, tables.questions), (4, 1));
    assert_eq!(
        (tables.draining, tables.unsent),
        (2, 5 + 2),
        "five orders, two of them called off"
    );
}

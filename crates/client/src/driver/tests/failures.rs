//! Every way in which a load can fail: one outcome, then silence.

use std::sync::atomic::Ordering;

use tessera_lifecycle::worker::LoadFailure;

use super::engine::{Engine, config};
use super::fake::{Fake, Fault, eventually};
use crate::driver::{DriverError, SchedulerDriver};

const TOKENS: u64 = 33;

fn saved(layout: &str, tp: u32) -> Fake {
    let nodes = Fake::new();
    let engine = Engine::new(&config(layout, "async", tp), &nodes);
    engine.workers.iter().for_each(|worker| worker.fill(5));
    engine.compute("first", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    nodes
}

const FAULTS: [(Fault, LoadFailure); 9] = [
    (Fault::Missing, LoadFailure::Miss),
    (Fault::LeaseOver, LoadFailure::LeaseOver),
    (Fault::Length, LoadFailure::Length),
    (Fault::Corrupt, LoadFailure::Corrupt),
    (Fault::Busy, LoadFailure::Busy),
    (Fault::Unreachable, LoadFailure::Unreachable),
    (Fault::Partial, LoadFailure::Unreachable),
    (Fault::Silence, LoadFailure::Deadline),
    (Fault::Panic, LoadFailure::Abnormal),
];

/// An engine with nothing but this fault; only silence has to be waited for.
fn faulty(layout: &str, io: &str, nodes: &Fake, fault: Fault) -> Engine {
    let mut config = config(layout, io, 1);
    if fault == Fault::Silence {
        config.options.load_timeout = std::time::Duration::from_millis(100);
    }
    let engine = Engine::new(&config, nodes);
    *engine.workers[0].remote.fault.lock() = fault;
    engine
}

fn failures(engine: &Engine, failure: LoadFailure) -> u64 {
    let counters = engine.workers[0].driver.metrics().machine;
    let kind = LoadFailure::ALL.iter().position(|kind| *kind == failure);
    counters.loads_failed[kind.unwrap()]
}

#[test]
fn l02_every_failure_of_a_request_level_load_is_one_failed_request_and_no_block() {
    let nodes = saved("hybrid", 1);
    for io in ["async", "serial"] {
        for (fault, failure) in FAULTS {
            let engine = faulty("hybrid", io, &nodes, fault);
            let worker = &engine.workers[0];
            engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
            let outcome = worker.outcome("r");
            assert_eq!(
                outcome,
                (vec!["r".into()], vec!["r".into()], vec![]),
                "{io} {fault:?}"
            );
            worker.assert_nothing_more();
            assert_eq!(failures(&engine, failure), 1, "{io} {fault:?}");
            assert_eq!(
                worker.driver.metrics().staging_bytes_used,
                0,
                "{io} {fault:?}"
            );
            let ended = worker.remote.shutdowns.load(Ordering::Relaxed) > 0;
            assert_eq!(
                ended,
                fault == Fault::Panic,
                "{io} {fault:?}: rest is proven"
            );
            engine.scheduler.worker_output(&["r"], &["r"], &[]).unwrap();
            assert_eq!(engine.lookup("r", TOKENS, 0).tokens, Some(0), "quarantined");
            eventually("leases end", || nodes.leased() == 0);
        }
    }
}

#[test]
fn l02_a_failed_load_leaves_none_of_its_bytes_in_a_block() {
    let nodes = saved("hybrid", 1);
    for io in ["async", "serial"] {
        for (fault, _) in FAULTS {
            let engine = faulty("hybrid", io, &nodes, fault);
            let worker = &engine.workers[0];
            worker.fill(99);
            let before = worker.block(0, 20);
            engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
            worker.outcome("r");
            for block in 20..24 {
                let after = worker.block(0, block);
                let is_clear = after.iter().all(|byte| *byte == 0);
                assert!(is_clear, "{io} {fault:?}: {after:?} was {before:?}");
            }
        }
    }
}

#[test]
fn l02_every_failure_of_a_block_level_load_names_its_blocks_once() {
    let nodes = saved("full", 1);
    let blocks: Vec<u32> = (20..28).collect();
    for io in ["async", "serial"] {
        for (fault, failure) in FAULTS {
            let engine = faulty("full", io, &nodes, fault);
            let worker = &engine.workers[0];
            engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
            let outcome = worker.outcome("r");
            assert_eq!(
                outcome,
                (vec!["r".into()], vec![], blocks.clone()),
                "{io} {fault:?}"
            );
            worker.assert_nothing_more();
            assert_eq!(failures(&engine, failure), 1, "{io} {fault:?}");
        }
    }
}

#[test]
fn l03_a_serialized_block_level_failure_is_reported_in_its_own_step_with_its_blocks() {
    let nodes = saved("full", 1);
    for (fault, _) in FAULTS {
        let engine = faulty("full", "serial", &nodes, fault);
        let worker = &engine.workers[0];
        let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
        worker.driver.begin_step(&plan).unwrap();
        let results = worker.driver.poll().unwrap();
        assert_eq!(results.finished_recving, ["r"], "{fault:?}");
        assert!(results.failed_recving.is_empty(), "{fault:?}");
        let invalid = worker.driver.take_invalid_blocks().unwrap();
        assert_eq!(invalid, (20..28).collect::<Vec<u32>>(), "{fault:?}");
        worker.assert_nothing_more();
        let scheduler = &engine.scheduler;
        scheduler.worker_output(&["r"], &[], &invalid).unwrap();
        assert_eq!(
            engine.lookup("r", TOKENS, 0).tokens,
            Some(0),
            "{fault:?}: quarantined"
        );
    }
}

#[test]
fn l02_memory_that_was_not_allocated_fails_by_request_or_by_the_blocks_that_there_are() {
    let nodes = saved("hybrid", 1);
    for io in ["async", "serial"] {
        let engine = Engine::new(&config("hybrid", io, 1), &nodes);
        let mut tables = engine.tables(20, 32);
        tables[2] = vec![0, 0, 0, 0];
        engine.execute(&engine.order("r", &tables, TOKENS));
        let outcome = engine.workers[0].outcome("r");
        assert_eq!(
            outcome,
            (vec!["r".into()], vec!["r".into()], vec![]),
            "{io}"
        );
        assert_eq!(failures(&engine, LoadFailure::Unallocated), 1);
        // A block id beyond the memory is no memory either.
        let far = engine.tables(60, 32);
        engine.execute(&engine.order("far", &far, TOKENS));
        assert_eq!(engine.workers[0].outcome("far").1, ["far"], "{io}");
    }
    let nodes = saved("full", 1);
    for io in ["async", "serial"] {
        let engine = Engine::new(&config("full", io, 1), &nodes);
        engine.execute(&engine.order("r", &[vec![20, 21, 0, 23, 24, 25, 26, 27]], TOKENS));
        let outcome = engine.workers[0].outcome("r");
        assert_eq!(outcome.2, [20, 21, 23, 24, 25, 26, 27], "all that there is");
        engine.execute(&engine.order("none", &[vec![]], TOKENS));
        let outcome = engine.workers[0].outcome("none");
        assert_eq!(
            outcome,
            (vec!["none".into()], vec!["none".into()], vec![]),
            "{io}: no block to name"
        );
    }
}

#[test]
fn one_object_gone_from_a_block_level_load_costs_its_own_blocks_only() {
    let nodes = saved("full", 1);
    let engine = Engine::new(&config("full", "async", 1), &nodes);
    let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
    nodes.lose_one();
    engine.execute(&plan);
    let (finished, failed, invalid) = engine.workers[0].outcome("r");
    assert_eq!((finished, failed), (vec!["r".to_owned()], vec![]));
    let [first, second] = invalid[..] else {
        panic!("one chunk has two blocks: {invalid:?}");
    };
    assert!(first % 2 == 0 && second == first + 1, "{invalid:?}");
}

#[test]
fn l11_a_rank_that_fails_early_and_a_slow_one_report_once_each() {
    let nodes = saved("hybrid", 2);
    let engine = Engine::new(&config("hybrid", "async", 2), &nodes);
    *engine.workers[0].remote.fault.lock() = Fault::Unreachable;
    let gate = engine.workers[1].remote.hold();
    engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
    assert_eq!(engine.workers[0].outcome("r").1, ["r"]);
    engine.workers[1].assert_nothing_more();
    assert!(nodes.leased() > 0, "the slow rank still reads");
    gate.add_permits(100);
    assert_eq!(
        engine.workers[1].outcome("r"),
        (vec!["r".into()], vec![], vec![])
    );
    engine.scheduler.worker_output(&["r"], &["r"], &[]).unwrap();
    eventually("leases end", || nodes.leased() == 0);
}

#[test]
fn a_damaged_plan_is_an_error_and_not_a_panic() {
    let nodes = Fake::new();
    let engine = Engine::new(&config("full", "async", 1), &nodes);
    for bytes in [&[][..], &[9, 9], &[2, 255, 255, 255]] {
        let error = engine.workers[0].driver.begin_step(bytes);
        assert!(matches!(error, Err(DriverError::Plan(_))), "{bytes:?}");
        assert!(engine.workers[0].driver.preempt(bytes).is_err());
    }
}

#[test]
fn an_allocation_without_a_promise_stops_the_step() {
    let nodes = Fake::new();
    let config = config("full", "async", 1);
    let scheduler = SchedulerDriver::start_with(&config, |_| Ok(nodes)).unwrap();
    let error = scheduler.allocated("r", &[vec![1, 2]], 8).unwrap_err();
    assert!(error.to_string().contains("8 external tokens"), "{error}");
}

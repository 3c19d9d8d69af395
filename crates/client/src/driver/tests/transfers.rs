//! Bytes from one engine to another, for every layout, mode and number of ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_lifecycle::scheduler::StepInput;

use super::engine::{Engine, config};
use super::fake::{Fake, eventually};
use crate::driver::DriverError;

const TOKENS: u64 = 33;

/// An engine that has saved a prompt, and the nodes that hold it.
fn saved(layout: &str, tp: u32) -> (Engine, Fake) {
    let nodes = Fake::new();
    let engine = Engine::new(&config(layout, "async", tp), &nodes);
    for (rank, worker) in engine.workers.iter().enumerate() {
        worker.fill(u8::try_from(rank * 64 + 5).unwrap());
    }
    // Two steps, so that a state exists at 16 and at 32 tokens.
    let tables = engine.tables(1, TOKENS - 1);
    engine.compute("first", &tables, 16);
    engine.compute("second", &tables, TOKENS - 1);
    engine.wait_for_saves();
    (engine, nodes)
}

#[test]
fn what_one_engine_saves_another_loads_byte_for_byte() {
    for (layout, io, tp) in [
        ("full", "async", 1),
        ("full", "serial", 1),
        ("full", "async", 2),
        ("full", "serial", 2),
        ("hybrid", "async", 1),
        ("hybrid", "serial", 1),
        ("hybrid", "async", 2),
        ("hybrid", "serial", 2),
    ] {
        let case = format!("{layout} {io} tp {tp}");
        let (source, nodes) = saved(layout, tp);
        let engine = Engine::new(&config(layout, io, tp), &nodes);
        let tables = engine.tables(20, TOKENS - 1);
        engine.workers.iter().for_each(|worker| worker.fill(99));
        let before: Vec<_> = engine
            .workers
            .iter()
            .map(|worker| worker.memory())
            .collect();
        let plan = engine.order("r", &tables, TOKENS);
        engine.execute(&plan);
        for (worker, from) in engine.workers.iter().zip(&source.workers) {
            assert_eq!(
                worker.outcome("r"),
                (vec!["r".into()], vec![], vec![]),
                "{case}"
            );
            worker.assert_nothing_more();
            let mut needed = vec![(0, 0..8)];
            if layout == "hybrid" {
                // Tokens 27..32 of the window, and the state at 32.
                needed.extend([(1, 6..8), (2, 3..4)]);
            }
            for (group, blocks) in needed {
                for index in blocks {
                    let (to, at) = (20 + index, 1 + index);
                    assert_eq!(
                        worker.block(group, to),
                        from.block(group, at),
                        "{case} {index}"
                    );
                }
            }
        }
        // Nothing but the needed blocks was touched, holes included.
        let written = if layout == "hybrid" { 8 + 2 + 1 } else { 8 };
        for (worker, before) in engine.workers.iter().zip(before) {
            let changed: usize = worker
                .memory()
                .iter()
                .zip(before)
                .map(|(now, before)| {
                    let blocks = now.chunks(128).zip(before.chunks(128));
                    blocks.filter(|(now, before)| now != before).count()
                })
                .sum();
            assert_eq!(changed, 2 * written, "{case}: two layers");
        }
        engine.scheduler.worker_output(&["r"], &[], &[]).unwrap();
        eventually("leases end", || nodes.leased() == 0);
    }
}

#[test]
fn blocks_that_the_engine_has_are_not_written() {
    let (_source, nodes) = saved("full", 1);
    let engine = Engine::new(&config("full", "async", 1), &nodes);
    let worker = &engine.workers[0];
    worker.fill(99);
    let tables = engine.tables(20, TOKENS - 1);
    let (kept, half) = (worker.block(0, 20), worker.block(0, 22));
    // Twelve tokens are there: the chunk of tokens 8..16 is loaded for its second half only.
    assert_eq!(engine.lookup("r", TOKENS, 12).tokens, Some(20));
    engine.scheduler.allocated("r", &tables, 20).unwrap();
    engine.execute(&engine.plan(&StepInput::default()));
    assert_eq!(worker.outcome("r").1, Vec::<String>::new());
    assert_eq!((worker.block(0, 20), worker.block(0, 22)), (kept, half));
    assert_ne!(worker.block(0, 23), worker.block(0, 22));
}

#[test]
fn l06_waiting_for_one_receive_never_waits_for_another() {
    let (_source, nodes) = saved("hybrid", 1);
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let worker = &engine.workers[0];
    let gate = worker.remote.hold();
    let slow = engine.order("slow", &engine.tables(1, 32), TOKENS);
    engine.execute(&slow);
    eventually("the slow one is under way", || {
        worker.remote.fetches.load(Ordering::Relaxed) >= 6
    });
    *worker.remote.gate.lock() = None;
    let quick = engine.order("quick", &engine.tables(20, 32), TOKENS);
    engine.execute(&quick);
    assert_eq!(worker.outcome("quick").0, ["quick"]);
    gate.add_permits(100);
    assert_eq!(
        worker.outcome("slow"),
        (vec!["slow".into()], vec![], vec![])
    );
}

#[test]
fn l08_the_same_plan_twice_is_executed_once() {
    let (_source, nodes) = saved("full", 1);
    let engine = Engine::new(&config("full", "async", 1), &nodes);
    let worker = &engine.workers[0];
    let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
    engine.execute(&plan);
    engine.execute(&plan);
    assert_eq!(worker.outcome("r").0, ["r"]);
    engine.execute(&plan);
    worker.assert_nothing_more();
    assert_eq!(worker.remote.fetches.load(Ordering::Relaxed), 4);
    assert_eq!(worker.driver.metrics().machine.repeated_plans, 2);
}

#[test]
fn l05_a_cancelled_load_is_over_when_its_io_is() {
    let (_source, nodes) = saved("hybrid", 1);
    let mut config = config("hybrid", "async", 1);
    // One load may have half of it in flight.
    config.options.max_loads = 4;
    let engine = Engine::new(&config, &nodes);
    let worker = &engine.workers[0];
    let gate = worker.remote.hold();
    engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
    eventually("two are under way", || {
        worker.remote.fetches.load(Ordering::Relaxed) == 2
    });
    assert_eq!(engine.scheduler.finished("r", None), Ok(None));
    engine.execute(&engine.plan(&StepInput::default()));
    worker.assert_nothing_more();
    assert!(nodes.leased() > 0, "what is under way keeps its leases");
    gate.add_permits(100);
    assert_eq!(
        worker.outcome("r"),
        (vec!["r".into()], vec!["r".into()], vec![])
    );
    assert_eq!(
        worker.remote.fetches.load(Ordering::Relaxed),
        2,
        "nothing more was fetched"
    );
    engine.scheduler.worker_output(&["r"], &["r"], &[]).unwrap();
    eventually("leases end", || nodes.leased() == 0);
}

#[test]
fn a_preemption_waits_for_the_preempted_only() {
    let (_source, nodes) = saved("hybrid", 1);
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let worker = &engine.workers[0];
    let other_gate = worker.remote.hold();
    engine.execute(&engine.order("other", &engine.tables(1, 32), TOKENS));
    eventually("one is held", || {
        worker.remote.fetches.load(Ordering::Relaxed) == 6
    });
    let gate = worker.remote.hold();
    engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
    eventually("both are held", || {
        worker.remote.fetches.load(Ordering::Relaxed) == 12
    });
    let input = StepInput {
        preempted: vec!["r".into()],
        ..StepInput::default()
    };
    let plan = engine.plan(&input);
    let opened = AtomicBool::new(false);
    let returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            worker.driver.preempt(&plan).unwrap();
            assert!(opened.load(Ordering::SeqCst), "its I/O was still under way");
            returned.store(true, Ordering::SeqCst);
        });
        // Time enough for a fence that does not wait to be seen.
        let limit = Instant::now() + Duration::from_millis(100);
        eventually("it waits", || {
            returned.load(Ordering::SeqCst) || Instant::now() > limit
        });
        opened.store(true, Ordering::SeqCst);
        gate.add_permits(100);
    });
    assert_eq!(worker.driver.metrics().machine.loads_succeeded, 1);
    worker.assert_nothing_more();
    other_gate.add_permits(100);
    assert_eq!(
        worker.outcome("other").0,
        ["other"],
        "the preempted one is never reported"
    );
}

#[test]
fn l13_shutdown_joins_what_is_under_way_keeps_its_outcome_and_closes_once() {
    let (_source, nodes) = saved("hybrid", 1);
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let worker = &engine.workers[0];
    let gate = worker.remote.hold();
    let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
    engine.execute(&plan);
    let results = std::thread::scope(|scope| {
        let joined = scope.spawn(|| worker.driver.shutdown());
        gate.add_permits(100);
        joined.join().unwrap()
    });
    assert_eq!(results.finished_recving, ["r"]);
    assert_eq!(worker.driver.shutdown(), Default::default());
    assert_eq!(worker.remote.shutdowns.load(Ordering::Relaxed), 1);
    assert_eq!(worker.driver.begin_step(&plan), Err(DriverError::Closed));
    assert_eq!(worker.driver.end_step(), Err(DriverError::Closed));
    assert_eq!(worker.driver.poll(), Err(DriverError::Closed));
    engine.scheduler.shutdown();
    engine.scheduler.shutdown();
    assert_eq!(
        engine.scheduler.finished("r", None),
        Err(DriverError::Closed)
    );
    assert!(engine.scheduler.lookup("r", 9, 0, &[], true).is_err());
    assert_eq!(
        engine.scheduler.metrics().machine.loads,
        1,
        "metrics never fail"
    );
}

#[test]
fn a_deaf_node_costs_a_lookup_its_deadline_and_a_step_no_more_than_its_budget() {
    let (_source, nodes) = saved("full", 1);
    let mut config = config("full", "async", 1);
    config.options.lookup_timeout = Duration::from_millis(300);
    let engine = Engine::new(&config, &nodes);
    *engine.scheduler.remote().deaf.lock() = true;
    let hashes = super::engine::hashes(TOKENS);
    let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
    for request in (0..40).map(|index| format!("r{index}")) {
        let answer = engine.scheduler.lookup(&request, TOKENS, 0, &hashes, true);
        assert_eq!(answer.unwrap().tokens, None, "{request}");
    }
    let waited = engine.scheduler.metrics().lookup_wait_ns;
    assert!(
        waited < 60_000_000,
        "one budget for all, not one for each: {waited}"
    );
    assert_eq!(engine.lookup("r0", TOKENS, 0).tokens, Some(0));
    *engine.scheduler.remote().deaf.lock() = false;
    assert_eq!(
        engine.lookup("d", TOKENS, 0).tokens,
        Some(32),
        "it comes back by itself"
    );
}

#[test]
fn three_ranks_report_each_request_once_each() {
    let (_source, nodes) = saved("full", 1);
    let engine = Engine::new(&config("full", "async", 1), &nodes);
    let worker = &engine.workers[0];
    let names = ["a", "b", "c", "d"];
    for (index, name) in names.into_iter().enumerate() {
        let first = u32::try_from(1 + index * 8).unwrap();
        engine.execute(&engine.order(name, &engine.tables(first, 32), TOKENS));
    }
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    eventually("all are reported", || {
        let mut seen = seen.lock();
        seen.extend(worker.driver.poll().unwrap().finished_recving);
        seen.len() >= names.len()
    });
    let mut seen = seen.lock().clone();
    seen.sort();
    assert_eq!(seen, names);
    worker.assert_nothing_more();
}

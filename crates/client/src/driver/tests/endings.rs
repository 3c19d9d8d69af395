//! Loads that nobody wants any more: aborted, preempted, or met by shutdown. Memory comes back, or
//! the worker stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_lifecycle::StepPlan;
use tessera_lifecycle::scheduler::StepInput;
use tessera_lifecycle::worker::LoadFailure;
use tessera_transport::{FenceSide, SimDevice};

use super::engine::{Engine, Worker, config};
use super::fake::{Fake, Fault, eventually};
use crate::driver::{DriverError, EngineConfig, MemoryFault};

const TOKENS: u64 = 33;
const SHORT: Duration = Duration::from_millis(50);

fn saved() -> Fake {
    let nodes = Fake::new();
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    engine.workers[0].fill(5);
    engine.compute("first", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    nodes
}

fn load(engine: &Engine, request: &str, first: u32) {
    engine.execute(&engine.order(request, &engine.tables(first, 32), TOKENS));
}

fn abort(engine: &Engine, request: &str) {
    assert_eq!(engine.scheduler.finished(request, None), Ok(None));
    engine.execute(&engine.plan(&StepInput::default()));
}

fn preemption(engine: &Engine, request: &str) -> Vec<u8> {
    let input = StepInput {
        preempted: vec![request.into()],
        ..StepInput::default()
    };
    engine.plan(&input)
}

fn fetches(worker: &Worker) -> usize {
    worker.remote.fetches.load(Ordering::Relaxed)
}

fn cancelled(worker: &Worker) -> u64 {
    let counters = worker.driver.metrics().machine;
    let kind = |kind: &LoadFailure| *kind == LoadFailure::Cancelled;
    counters.loads_failed[LoadFailure::ALL.iter().position(kind).unwrap()]
}

fn failed() -> (Vec<String>, Vec<String>, Vec<u32>) {
    (vec!["r".into()], vec!["r".into()], vec![])
}

/// An engine without patience.
fn hasty() -> EngineConfig {
    let mut config = config("hybrid", "async", 1);
    config.options.preempt_timeout = SHORT;
    config.options.proof_timeout = SHORT;
    config
}

#[test]
fn l05_an_abort_while_queued_fetches_nothing_and_is_over_at_once() {
    let nodes = saved();
    let mut config = config("hybrid", "async", 1);
    config.options.max_loads = 1;
    let engine = Engine::new(&config, &nodes);
    let worker = &engine.workers[0];
    let gate = worker.remote.hold();
    load(&engine, "other", 1);
    eventually("it moves", || fetches(worker) == 1);
    load(&engine, "r", 20);
    worker.assert_nothing_more();
    abort(&engine, "r");
    assert_eq!(worker.outcome("r"), failed());
    assert_eq!(fetches(worker), 1, "nothing was fetched for it");
    gate.add_permits(100);
    let other = (vec!["other".into()], vec![], vec![]);
    assert_eq!(worker.outcome("other"), other);
}

#[test]
fn l05_an_abort_while_active_keeps_the_memory_until_the_io_is_over() {
    let nodes = saved();
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let worker = &engine.workers[0];
    let gate = worker.remote.hold();
    load(&engine, "r", 20);
    eventually("all of it moves", || fetches(worker) == 6);
    abort(&engine, "r");
    for _ in 0..100 {
        worker.assert_nothing_more();
    }
    gate.add_permits(100);
    let done = (vec!["r".into()], vec![], vec![]);
    assert_eq!(worker.outcome("r"), done, "nothing was left to fetch");
    assert_eq!(cancelled(worker), 0);
}

#[test]
fn l05_an_abort_while_fenced_keeps_the_memory_until_the_fence() {
    let nodes = saved();
    for side in [FenceSide::Before, FenceSide::After] {
        let device = SimDevice::start(1).unwrap();
        let devices = [Some(Arc::clone(&device))];
        let engine = Engine::on(&config("hybrid", "async", 1), &nodes, &devices);
        let worker = &engine.workers[0];
        if side == FenceSide::After {
            *worker.remote.fault.lock() = Fault::Unreachable;
            let gate = worker.remote.hold();
            load(&engine, "r", 20);
            eventually("it moves", || fetches(worker) > 0);
            device.hold();
            gate.add_permits(100);
        } else {
            device.hold();
            load(&engine, "r", 20);
        }
        eventually("it is asked", || device.fences(side).0 == 1);
        abort(&engine, "r");
        for _ in 0..100 {
            worker.assert_nothing_more();
        }
        device.release();
        assert_eq!(worker.outcome("r"), failed(), "{side:?}");
        assert_eq!(device.fences(FenceSide::After), (1, 1), "{side:?}");
        let moved = fetches(worker) > 0;
        assert_eq!(moved, side == FenceSide::After, "nothing is fetched later");
    }
}

#[test]
fn l05_blocks_that_another_load_still_has_are_lent_to_nobody_else() {
    let nodes = saved();
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let worker = &engine.workers[0];
    let gate = worker.remote.hold();
    load(&engine, "first", 20);
    eventually("it moves", || fetches(worker) == 6);
    load(&engine, "r", 20);
    assert_eq!(worker.outcome("r"), failed());
    assert_eq!(fetches(worker), 6, "nothing was fetched into them");
    gate.add_permits(100);
    let done = (vec!["first".into()], vec![], vec![]);
    assert_eq!(worker.outcome("first"), done);
    engine
        .scheduler
        .worker_output(&["first", "r"], &["r"], &[])
        .unwrap();
    load(&engine, "next", 20);
    let next = (vec!["next".into()], vec![], vec![]);
    assert_eq!(worker.outcome("next"), next);
}

#[test]
fn l15_a_preemption_past_its_time_calls_back_the_memory_of_the_preempted_only() {
    let nodes = saved();
    let mut config = config("hybrid", "async", 1);
    config.options.preempt_timeout = SHORT;
    let engine = Engine::new(&config, &nodes);
    let worker = &engine.workers[0];
    let other = worker.remote.hold();
    load(&engine, "other", 1);
    eventually("one is held", || fetches(worker) == 6);
    let _never = worker.remote.hold();
    load(&engine, "r", 20);
    eventually("both are held", || fetches(worker) == 12);
    worker.driver.preempt(&preemption(&engine, "r")).unwrap();
    assert_eq!(cancelled(worker), 1);
    worker.assert_nothing_more();
    other.add_permits(100);
    let done = (vec!["other".into()], vec![], vec![]);
    assert_eq!(worker.outcome("other"), done, "nobody else is called back");
    worker.assert_nothing_more();
    eventually("leases end", || nodes.leased() == 5 + 1);
}

#[test]
fn l15_a_preemption_that_gets_no_memory_back_stops_the_worker() {
    let nodes = saved();
    let engine = Engine::new(&hasty(), &nodes);
    let worker = &engine.workers[0];
    *worker.remote.fault.lock() = Fault::Stuck;
    load(&engine, "r", 20);
    let plan = preemption(&engine, "r");
    let fault = MemoryFault::Transfer { limit: SHORT };
    let stopped = Err(DriverError::Memory(fault));
    assert_eq!(worker.driver.preempt(&plan), stopped);
    assert_eq!(worker.driver.begin_step(&plan), stopped);
    assert!(worker.driver.is_stopped());
    let memory = worker.regions();
    drop(engine);
    assert!(memory.iter().all(|region| region.upgrade().is_some()));
}

#[test]
fn l15_a_preemption_whose_device_owes_its_fence_stops_the_worker() {
    let nodes = saved();
    let device = SimDevice::start(2).unwrap();
    let engine = Engine::on(&hasty(), &nodes, &[Some(Arc::clone(&device))]);
    let worker = &engine.workers[0];
    device.hold();
    load(&engine, "r", 20);
    let preempted = worker.driver.preempt(&preemption(&engine, "r"));
    let silent = matches!(
        preempted,
        Err(DriverError::Memory(MemoryFault::Silent { .. }))
    );
    assert!(silent, "{preempted:?}");
    device.kill();
}

#[test]
fn l15_a_preemption_waits_for_no_save() {
    let nodes = Fake::new();
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let worker = &engine.workers[0];
    worker.fill(5);
    let gate = worker.remote.hold();
    engine.compute("r", &engine.tables(1, 32), 32);
    // Nothing of the request is loading, so its workers need not even be told; and if they are,
    // they wait for nothing.
    let input = StepInput {
        preempted: vec!["r".into()],
        ..StepInput::default()
    };
    assert_eq!(engine.scheduler.step(&input).unwrap(), None);
    let plan = StepPlan::default().encode();
    worker.driver.preempt(&plan).unwrap();
    worker.fill(200);
    assert!(!worker.driver.is_idle(), "its copies are still stored");
    gate.add_permits(100);
    engine.wait_for_saves();
    assert_eq!(nodes.objects(), 9);
}

#[test]
fn l02_a_transfer_that_never_ends_stops_the_worker_and_publishes_nothing() {
    let nodes = saved();
    for io in ["async", "serial"] {
        let mut config = config("hybrid", io, 1);
        config.options.load_timeout = SHORT;
        config.options.proof_timeout = SHORT;
        let engine = Engine::new(&config, &nodes);
        let worker = &engine.workers[0];
        *worker.remote.fault.lock() = Fault::Stuck;
        let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
        let begun = worker.driver.begin_step(&plan);
        assert_eq!(begun.is_err(), io == "serial", "{begun:?}");
        eventually("it stops", || match worker.driver.poll() {
            Ok(results) => {
                assert!(results.finished_recving.is_empty(), "nothing is published");
                false
            }
            Err(error) => matches!(error, DriverError::Memory(MemoryFault::Transfer { .. })),
        });
        assert_eq!(worker.driver.shutdown(), Default::default());
    }
}

#[test]
fn l13_shutdown_calls_back_what_does_not_end_and_reports_it_once() {
    let nodes = saved();
    let mut config = config("hybrid", "async", 1);
    config.options.save_timeout = SHORT;
    let engine = Engine::new(&config, &nodes);
    let worker = &engine.workers[0];
    let _never = worker.remote.hold();
    load(&engine, "r", 20);
    eventually("it moves", || fetches(worker) == 6);
    let results = worker.driver.shutdown();
    let (finished, failed) = (results.finished_recving, results.failed_recving);
    assert_eq!((finished, failed), (vec!["r".into()], vec!["r".into()]));
    assert_eq!(cancelled(worker), 1, "it did not end by its own deadline");
    assert_eq!(worker.driver.shutdown(), Default::default());
    assert_eq!(worker.remote.shutdowns.load(Ordering::Relaxed), 1);
    assert!(!worker.driver.is_stopped());
}

/// An engine that has ended a step while its device still copies out of its blocks.
fn copying(proof_timeout: Duration) -> (Engine, Arc<SimDevice>) {
    let device = SimDevice::start(9).unwrap();
    let mut config = config("hybrid", "async", 1);
    config.options.save_timeout = SHORT;
    config.options.proof_timeout = proof_timeout;
    let engine = Engine::on(&config, &Fake::new(), &[Some(Arc::clone(&device))]);
    device.hold_behind(FenceSide::Before);
    engine.compute("r", &engine.tables(1, 32), 32);
    assert!(engine.workers[0].driver.metrics().staging_bytes_used > 0);
    (engine, device)
}

#[test]
fn l13_shutdown_waits_for_what_a_device_reads_in_blocks() {
    let (engine, device) = copying(Duration::from_secs(600));
    let driver = &engine.workers[0].driver;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| driver.shutdown());
        eventually("it is closed", || driver.poll() == Err(DriverError::Closed));
        device.release();
        waiting.join().unwrap();
    });
    assert_eq!(driver.metrics().staging_bytes_used, 0);
    assert!(!driver.is_stopped());
}

#[test]
fn l13_shutdown_gives_up_no_block_that_a_device_reads_for_ever() {
    let (engine, device) = copying(20 * SHORT);
    let driver = &engine.workers[0].driver;
    driver.shutdown();
    assert!(driver.is_stopped());
    device.release();
}

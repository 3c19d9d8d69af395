//! Panics in the worker's own tasks and hooks: nobody can say where the memory is that they had, so
//! the worker stops, and gives none of it to anybody.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_lifecycle::scheduler::StepInput;
use tessera_transport::{FenceSide, SimDevice};

use super::engine::{Engine, Worker, config};
use super::fake::{Fake, Fault, eventually};
use super::log;
use crate::driver::{DriverError, MemoryFault};

const TOKENS: u64 = 33;
/// Bytes of the largest object.
const OBJECT: u64 = 384;

fn saved() -> Fake {
    let nodes = Fake::new();
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    engine.workers[0].fill(5);
    engine.compute("first", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    nodes
}

fn on(device: &Arc<SimDevice>, nodes: &Fake) -> Engine {
    let devices = [Some(Arc::clone(device))];
    Engine::on(&config("hybrid", "async", 1), nodes, &devices)
}

fn device() -> Arc<SimDevice> {
    SimDevice::start(1).unwrap()
}

/// The worker stops, publishes nothing, and keeps its block memory for ever.
fn assert_stops(engine: Engine) {
    let worker = &engine.workers[0];
    eventually("it stops", || match worker.driver.poll() {
        Ok(results) => {
            assert!(results.finished_recving.is_empty(), "it is published");
            false
        }
        Err(error) => error == DriverError::Memory(MemoryFault::Panicked),
    });
    assert!(worker.driver.is_stopped());
    assert_eq!(worker.driver.shutdown(), Default::default());
    let memory = worker.regions();
    drop(engine);
    assert!(memory.iter().all(|region| region.upgrade().is_some()));
}

/// A hook that unwinds into the engine.
fn assert_panics<T>(hook: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(hook)).is_err());
}

fn staging(worker: &Worker) -> u64 {
    worker.driver.metrics().staging_bytes_used
}

#[test]
fn l02_a_panic_while_a_load_lands_stops_the_worker() {
    let nodes = saved();
    for io in ["async", "serial"] {
        let device = device();
        let devices = [Some(Arc::clone(&device))];
        let engine = Engine::on(&config("hybrid", io, 1), &nodes, &devices);
        let worker = &engine.workers[0];
        let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
        device.break_copies(1);
        let begun = worker.driver.begin_step(&plan);
        assert_eq!(begun.is_err(), io == "serial", "{begun:?}");
        eventually("it stops", || worker.driver.is_stopped());
        eventually("the others are over", || staging(worker) <= OBJECT);
        assert!(staging(worker) > 0, "the device may read it still");
        assert_stops(engine);
    }
}

#[test]
fn l02_a_panic_of_the_fetch_and_of_its_proof_stops_the_worker() {
    let nodes = saved();
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let remote = &engine.workers[0].remote;
    *remote.fault.lock() = Fault::Panic;
    remote.broken_shutdowns.store(1, Ordering::Relaxed);
    engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
    assert_stops(engine);
}

#[test]
fn l02_a_panic_behind_the_fence_of_a_load_stops_the_worker() {
    let nodes = saved();
    let device = device();
    let engine = on(&device, &nodes);
    let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
    device.fail_fences(FenceSide::After, 1);
    let gate = engine.workers[0].remote.hold();
    *engine.workers[0].remote.fault.lock() = Fault::Unreachable;
    engine.execute(&plan);
    let fetches = &engine.workers[0].remote.fetches;
    eventually("it moves", || fetches.load(Ordering::Relaxed) > 0);
    device.hold();
    gate.add_permits(100);
    eventually("it is asked", || device.fences(FenceSide::After).0 == 1);
    device.break_fences(FenceSide::After, 1);
    device.release();
    assert_stops(engine);
}

#[test]
fn l02_a_panic_of_a_fence_inside_a_hook_stops_the_worker() {
    let nodes = saved();
    for (io, side) in [
        ("async", FenceSide::Before),
        ("serial", FenceSide::Before),
        ("serial", FenceSide::After),
    ] {
        let device = device();
        let devices = [Some(Arc::clone(&device))];
        let engine = Engine::on(&config("hybrid", io, 1), &nodes, &devices);
        let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
        device.break_fences(side, 1);
        assert_panics(|| engine.workers[0].driver.begin_step(&plan));
        assert_stops(engine);
    }
}

/// An engine whose only fetch at a time never ends, and a load that is queued behind it. The fence
/// behind that load panics in whichever hook calls the load off.
fn queued(load_timeout: Duration) -> Engine {
    let device = device();
    device.answer_promptly();
    let mut config = config("hybrid", "async", 1);
    config.options.max_loads = 1;
    config.options.load_timeout = load_timeout;
    let devices = [Some(Arc::clone(&device))];
    let engine = Engine::on(&config, &saved(), &devices);
    let remote = &engine.workers[0].remote;
    *remote.fault.lock() = Fault::Stuck;
    engine.execute(&engine.order("other", &engine.tables(1, 32), TOKENS));
    eventually("it moves", || remote.fetches.load(Ordering::Relaxed) == 1);
    engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
    device.break_fences(FenceSide::After, 1);
    engine
}

/// Calls `hook` until the deadline of the queued load lets it panic.
fn assert_stops_in<T>(hook: impl Fn(&Worker) -> T) {
    let engine = queued(Duration::from_millis(20));
    let worker = &engine.workers[0];
    eventually("the hook panics", || {
        catch_unwind(AssertUnwindSafe(|| hook(worker))).is_err()
    });
    assert!(worker.driver.is_stopped());
    assert_stops(engine);
}

#[test]
fn a_panic_inside_a_collection_stops_the_worker() {
    assert_stops_in(|worker| worker.driver.poll().map(drop));
}

#[test]
fn a_panic_inside_the_question_for_rest_stops_the_worker() {
    assert_stops_in(|worker| worker.driver.is_idle());
}

#[test]
fn a_panic_inside_a_preemption_stops_the_worker() {
    let engine = queued(Duration::from_secs(20));
    let plan = engine.plan(&StepInput {
        preempted: vec!["r".into()],
        ..StepInput::default()
    });
    assert_panics(|| engine.workers[0].driver.preempt(&plan));
    assert!(engine.workers[0].driver.is_stopped());
    assert_stops(engine);
}

#[test]
fn a_panic_of_the_fence_before_a_save_stops_the_worker() {
    let nodes = Fake::new();
    let device = device();
    let engine = on(&device, &nodes);
    device.break_fences(FenceSide::Before, 1);
    assert_panics(|| engine.compute("r", &engine.tables(1, 32), 32));
    assert_eq!(nodes.objects(), 0);
    assert_stops(engine);
}

#[test]
fn a_panic_inside_shutdown_keeps_the_block_memory() {
    let engine = Engine::new(&config("hybrid", "async", 1), &Fake::new());
    let worker = &engine.workers[0];
    worker.remote.broken_shutdowns.store(1, Ordering::Relaxed);
    assert_panics(|| worker.driver.shutdown());
    assert!(worker.driver.is_stopped());
    let memory = worker.regions();
    drop(engine);
    assert!(memory.iter().all(|region| region.upgrade().is_some()));
}

#[test]
fn a_shutdown_while_the_engine_unwinds_stops_no_worker() {
    let engine = Engine::new(&config("hybrid", "async", 1), &Fake::new());
    let memory = engine.workers[0].regions();
    assert_panics(move || {
        let _dropped = engine;
        panic!("injected: the engine fails");
    });
    assert!(memory.iter().all(|region| region.upgrade().is_none()));
}

#[test]
fn a_panic_of_a_store_and_of_its_proof_stops_the_worker() {
    let engine = Engine::new(&config("hybrid", "async", 1), &Fake::new());
    let worker = &engine.workers[0];
    *worker.remote.fault.lock() = Fault::Panic;
    worker.remote.broken_shutdowns.store(1, Ordering::Relaxed);
    engine.compute("r", &engine.tables(1, 8), 8);
    eventually("it stops", || worker.driver.is_stopped());
    assert!(staging(worker) > 0, "it may be read still");
    assert_stops(engine);
}

#[test]
fn a_panic_of_a_copy_out_of_a_device_stops_the_worker() {
    let nodes = Fake::new();
    let device = device();
    let engine = on(&device, &nodes);
    let worker = &engine.workers[0];
    device.break_copies(1);
    engine.compute("r", &engine.tables(1, 32), 32);
    eventually("it stops", || worker.driver.is_stopped());
    eventually("the others are stored", || nodes.objects() == 8);
    eventually("one slot is kept", || {
        (1..=OBJECT).contains(&staging(worker))
    });
    assert_stops(engine);
}

#[test]
fn a_panic_of_the_fetch_asks_for_no_memory_of_a_device_again() {
    log::keep();
    let nodes = saved();
    let device = device();
    let engine = on(&device, &nodes);
    let worker = &engine.workers[0];
    *worker.remote.fault.lock() = Fault::Panic;
    engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
    let failed = (vec!["r".into()], vec!["r".into()], vec![]);
    assert_eq!(worker.outcome("r"), failed);
    assert!(!worker.driver.is_stopped());
    // Other tests say the same of memory that is theirs.
    let is_own = |error: &String| {
        let address = error.split(" at 0x").nth(1)?.split(' ').next()?;
        let address = usize::from_str_radix(address, 16).ok()?;
        let regions = worker.regions();
        let mut regions = regions.iter().filter_map(std::sync::Weak::upgrade);
        let inside = regions.any(|region| {
            let start = region.base().addr();
            (start..start + region.length_bytes()).contains(&address)
        });
        inside.then_some(())
    };
    let errors = log::errors();
    let own: Vec<_> = errors.iter().filter(|it| is_own(it).is_some()).collect();
    assert!(own.is_empty(), "{own:?}");
}

//! Fences: on a device whose writes show late, each of them is needed; and a device that owes one
//! publishes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tessera_lifecycle::scheduler::StepInput;
use tessera_lifecycle::worker::LoadFailure;
use tessera_transport::{Completion, Device as _, FenceSide, SimDevice};

use super::engine::{Engine, Worker, config};
use super::fake::{Fake, Fault, eventually};
use crate::driver::{DriverError, MemoryFault};

const TOKENS: u64 = 33;
const SEEDS: std::ops::Range<u64> = 0..4;
/// Every layout class on every thread that executes loads.
const CELLS: [(&str, &str); 4] = [
    ("hybrid", "async"),
    ("hybrid", "serial"),
    ("full", "async"),
    ("full", "serial"),
];

fn device(seed: u64) -> Arc<SimDevice> {
    SimDevice::start(seed).unwrap()
}

/// An engine on one device.
fn engine(layout: &str, io: &str, nodes: &Fake, device: &Arc<SimDevice>) -> Engine {
    Engine::on(&config(layout, io, 1), nodes, &[Some(Arc::clone(device))])
}

/// Nodes that hold a prompt, and the engine that computed it on host memory.
fn saved(layout: &str) -> (Engine, Fake) {
    let nodes = Fake::new();
    let engine = Engine::new(&config(layout, "async", 1), &nodes);
    compute(&engine);
    (engine, nodes)
}

fn compute(engine: &Engine) {
    engine.workers[0].fill(5);
    engine.compute("first", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
}

fn load(engine: &Engine) {
    engine.execute(&engine.order("r", &engine.tables(20, 32), TOKENS));
}

fn wait<T>(mut completion: Completion<T>) {
    while completion.now().is_none() {
        std::thread::yield_now();
    }
}

fn is_loaded(from: &Worker, to: &Worker, layout: &str) -> bool {
    let mut needed = vec![(0, 0..8)];
    if layout == "hybrid" {
        needed.extend([(1, 6..8), (2, 3..4)]);
    }
    needed.into_iter().all(|(group, blocks)| {
        let mut blocks = blocks.into_iter();
        blocks.all(|index| to.block(group, 20 + index) == from.block(group, 1 + index))
    })
}

fn ok() -> (Vec<String>, Vec<String>, Vec<u32>) {
    (vec!["r".into()], vec![], vec![])
}

fn failed() -> (Vec<String>, Vec<String>, Vec<u32>) {
    (vec!["r".into()], vec!["r".into()], vec![])
}

#[test]
fn l04_a_load_is_reported_only_when_its_bytes_show_on_the_device() {
    for layout in ["full", "hybrid"] {
        let (source, nodes) = saved(layout);
        for (io, seed) in SEEDS.flat_map(|seed| [("async", seed), ("serial", seed)]) {
            let (one, two) = (Some(device(seed)), Some(device(seed + 100)));
            for devices in [vec![one.clone()], vec![one.clone(), two], vec![one, None]] {
                let engine = Engine::on(&config(layout, io, 1), &nodes, &devices);
                let worker = &engine.workers[0];
                load(&engine);
                assert_eq!(worker.outcome("r"), ok(), "{layout} {io} seed {seed}");
                worker.assert_nothing_more();
                let loaded = is_loaded(&source.workers[0], worker, layout);
                assert!(loaded, "{layout} {io} seed {seed}");
                assert_eq!(worker.driver.metrics().staging_bytes_used, 0);
            }
        }
    }
}

#[test]
fn l04_blocks_behind_a_fence_that_was_over_at_once_are_free_again() {
    let (source, nodes) = saved("hybrid");
    for io in ["async", "serial"] {
        let device = device(1);
        device.answer_promptly();
        let engine = engine("hybrid", io, &nodes, &device);
        let worker = &engine.workers[0];
        for request in ["first", "next"] {
            engine.execute(&engine.order(request, &engine.tables(20, 32), TOKENS));
            let (finished, failed, _) = worker.outcome(request);
            assert_eq!((finished.len(), failed.len()), (1, 0), "{io} {request}");
        }
        assert!(is_loaded(&source.workers[0], worker, "hybrid"));
    }
}

#[test]
fn l04_a_load_begins_only_when_earlier_work_on_the_device_is_over() {
    let (source, nodes) = saved("hybrid");
    for (io, seed) in SEEDS.flat_map(|seed| [("async", seed), ("serial", seed)]) {
        let device = device(seed);
        let engine = engine("hybrid", io, &nodes, &device);
        let worker = &engine.workers[0];
        // A step that was launched before writes all blocks, some time.
        worker.fill(77);
        load(&engine);
        assert_eq!(worker.outcome("r"), ok());
        wait(device.fence(FenceSide::Before));
        let loaded = is_loaded(&source.workers[0], worker, "hybrid");
        assert!(loaded, "{io} seed {seed}: written over by earlier work");
    }
}

#[test]
fn l04_a_save_is_what_the_step_computed_however_late_it_shows() {
    let (source, _) = saved("hybrid");
    for seed in SEEDS {
        let nodes = Fake::new();
        for devices in [vec![Some(device(seed))], vec![None, Some(device(seed))]] {
            nodes.clear();
            let writer = Engine::on(&config("hybrid", "async", 1), &nodes, &devices);
            compute(&writer);
            assert_eq!(nodes.objects(), 9, "seed {seed}");
            assert_eq!(writer.workers[0].driver.metrics().staging_bytes_used, 0);
            let reader = Engine::new(&config("hybrid", "async", 1), &nodes);
            load(&reader);
            assert_eq!(reader.workers[0].outcome("r"), ok());
            let same = is_loaded(&source.workers[0], &reader.workers[0], "hybrid");
            assert!(same, "seed {seed}: saved before it was computed");
        }
    }
}

#[test]
fn l04_with_the_device_held_back_nothing_is_published_even_when_the_io_raised() {
    let (_source, nodes) = saved("hybrid");
    for fault in [Fault::None, Fault::Partial, Fault::Corrupt, Fault::Panic] {
        let device = device(1);
        let engine = engine("hybrid", "async", &nodes, &device);
        let worker = &engine.workers[0];
        *worker.remote.fault.lock() = fault;
        let gate = worker.remote.hold();
        load(&engine);
        eventually("it moves", || {
            worker.remote.fetches.load(Ordering::Relaxed) > 0
        });
        device.hold();
        gate.add_permits(100);
        if fault != Fault::None {
            eventually("the I/O is over", || device.fences(FenceSide::After).0 == 1);
        }
        for _ in 0..100 {
            worker.assert_nothing_more();
        }
        assert_eq!(device.fences(FenceSide::After).1, 0, "{fault:?}");
        device.release();
        let expected = if fault == Fault::None { ok() } else { failed() };
        assert_eq!(worker.outcome("r"), expected, "{fault:?}");
        worker.assert_nothing_more();
    }
}

#[test]
fn l04_a_serialized_load_returns_behind_both_fences() {
    let (source, nodes) = saved("hybrid");
    let device = device(2);
    let engine = engine("hybrid", "serial", &nodes, &device);
    let worker = &engine.workers[0];
    let released = AtomicBool::new(false);
    device.hold();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            load(&engine);
            assert!(released.load(Ordering::SeqCst), "its device was held");
        });
        eventually("it is asked", || device.fences(FenceSide::Before).0 == 1);
        assert_eq!(worker.remote.fetches.load(Ordering::Relaxed), 0);
        released.store(true, Ordering::SeqCst);
        device.release();
    });
    assert_eq!(device.fences(FenceSide::After), (1, 1));
    assert_eq!(worker.outcome("r"), ok());
    assert!(is_loaded(&source.workers[0], worker, "hybrid"));
}

#[test]
fn l07_a_serialized_load_is_over_when_its_hook_returns_also_after_the_forward() {
    let (source, nodes) = saved("hybrid");
    for seed in SEEDS {
        let device = device(seed);
        let engine = engine("hybrid", "serial", &nodes, &device);
        let worker = &engine.workers[0];
        let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
        // The runner has launched the step's forward, which writes blocks of other requests and,
        // for all that a device knows, reads these.
        worker.fill(77);
        worker.driver.begin_step(&plan).unwrap();
        assert_eq!(device.fences(FenceSide::Before), (1, 1));
        assert_eq!(device.fences(FenceSide::After), (1, 1));
        let metrics = worker.driver.metrics().machine;
        assert_eq!(metrics.loads_succeeded, 1, "over when the hook returns");
        worker.driver.end_step().unwrap();
        assert_eq!(worker.outcome("r"), ok(), "reported in the same step");
        assert!(is_loaded(&source.workers[0], worker, "hybrid"), "{seed}");
    }
}

#[test]
fn l04_the_fence_is_that_of_every_device_that_owns_the_memory_and_of_no_other() {
    let (_source, nodes) = saved("hybrid");
    let (one, two, other) = (device(1), device(2), device(3));
    let devices = [Some(Arc::clone(&one)), Some(Arc::clone(&two))];
    let engine = Engine::on(&config("hybrid", "async", 1), &nodes, &devices);
    let worker = &engine.workers[0];
    *worker.remote.fault.lock() = Fault::Unreachable;
    let gate = worker.remote.hold();
    load(&engine);
    eventually("it moves", || {
        worker.remote.fetches.load(Ordering::Relaxed) > 0
    });
    for held in [&one, &two] {
        assert_eq!(held.fences(FenceSide::Before), (1, 1));
    }
    // The other device, and a thread of another device, change nothing.
    other.hold();
    two.hold();
    gate.add_permits(100);
    eventually("it is asked", || two.fences(FenceSide::After).0 == 1);
    eventually("one answers", || one.fences(FenceSide::After).1 == 1);
    for _ in 0..100 {
        worker.assert_nothing_more();
    }
    two.release();
    assert_eq!(worker.outcome("r"), failed());
    assert_eq!(
        other.fences(FenceSide::Before).0 + other.fences(FenceSide::After).0,
        0
    );
}

fn failures(worker: &Worker) -> u64 {
    let counters = worker.driver.metrics().machine;
    let device = |kind: &LoadFailure| *kind == LoadFailure::Device;
    counters.loads_failed[LoadFailure::ALL.iter().position(device).unwrap()]
}

#[test]
fn l04_a_failed_fence_fails_the_load_which_is_over_behind_the_next_one() {
    for (layout, io) in CELLS {
        let (_source, nodes) = saved(layout);
        for side in [FenceSide::Before, FenceSide::After] {
            let device = device(4);
            let engine = engine(layout, io, &nodes, &device);
            let worker = &engine.workers[0];
            device.fail_fences(side, 3);
            load(&engine);
            let blocks = if layout == "full" {
                (20..28).collect()
            } else {
                vec![]
            };
            let requests = if layout == "full" {
                vec![]
            } else {
                vec!["r".to_owned()]
            };
            let expected = (vec!["r".to_owned()], requests, blocks);
            assert_eq!(worker.outcome("r"), expected, "{layout} {io} {side:?}");
            worker.assert_nothing_more();
            assert_eq!(failures(worker), 1);
            assert_eq!(device.fences(side), (4, 1), "asked until the proof");
            assert_eq!(device.fences(FenceSide::After).1, 1);
            let fetched = worker.remote.fetches.load(Ordering::Relaxed) > 0;
            assert_eq!(fetched, side == FenceSide::After);
        }
    }
}

#[test]
fn l04_a_failed_copy_to_the_device_fails_the_load_behind_its_fence() {
    let (_source, nodes) = saved("hybrid");
    let device = device(4);
    let engine = engine("hybrid", "async", &nodes, &device);
    device.fail_copies(1);
    load(&engine);
    assert_eq!(engine.workers[0].outcome("r"), failed());
    assert_eq!(
        (
            failures(&engine.workers[0]),
            device.fences(FenceSide::After)
        ),
        (1, (1, 1))
    );
}

#[test]
fn l04_a_device_that_never_proves_stops_the_worker_and_publishes_nothing() {
    let (_source, nodes) = saved("hybrid");
    let silent: fn(&SimDevice) = |device| device.hold();
    let dead: fn(&SimDevice) = |device| device.kill();
    let failing: fn(&SimDevice) = |device| device.fail_fences(FenceSide::After, u32::MAX);
    for (io, inject) in [
        ("async", silent),
        ("async", dead),
        ("async", failing),
        ("serial", silent),
        ("serial", failing),
    ] {
        let device = device(5);
        let mut config = config("hybrid", io, 1);
        config.options.proof_timeout = Duration::from_millis(200);
        let engine = Engine::on(&config, &nodes, &[Some(Arc::clone(&device))]);
        let worker = &engine.workers[0];
        let plan = engine.order("r", &engine.tables(20, 32), TOKENS);
        inject(&device);
        let begun = worker.driver.begin_step(&plan);
        assert_eq!(begun.is_err(), io == "serial");
        let polled = parking_lot::Mutex::new(None);
        eventually("it stops", || match worker.driver.poll() {
            Ok(results) => {
                assert!(results.finished_recving.is_empty(), "nothing is published");
                false
            }
            Err(error) => {
                *polled.lock() = Some(error);
                true
            }
        });
        let Some(DriverError::Memory(fault)) = polled.into_inner() else {
            panic!("another error");
        };
        let fails = matches!(fault, MemoryFault::Failing { .. });
        assert_eq!(fails, std::ptr::fn_addr_eq(inject, failing), "{fault}");
        assert!(worker.driver.is_stopped());
        let stopped = |result: Result<(), DriverError>| {
            assert!(matches!(result, Err(DriverError::Memory(_))), "{result:?}");
        };
        stopped(worker.driver.begin_step(&plan));
        stopped(worker.driver.preempt(&plan));
        stopped(worker.driver.end_step());
        assert_eq!(
            worker.driver.shutdown(),
            Default::default(),
            "nothing is published"
        );
        device.release();
    }
}

#[test]
fn l04_memory_of_a_stopped_worker_is_never_freed() {
    let (_source, nodes) = saved("hybrid");
    let device = device(6);
    let mut config = config("hybrid", "async", 1);
    config.options.proof_timeout = Duration::from_millis(50);
    let engine = Engine::on(&config, &nodes, &[Some(Arc::clone(&device))]);
    let memory = engine.workers[0].regions();
    device.hold();
    load(&engine);
    eventually("it stops", || engine.workers[0].driver.is_stopped());
    drop(engine);
    device.kill();
    assert!(memory.iter().all(|region| region.upgrade().is_some()));
}

#[test]
fn l04_a_step_whose_device_owes_its_fence_saves_nothing_and_goes_on() {
    let nodes = Fake::new();
    let device = device(7);
    let mut config = config("hybrid", "async", 1);
    config.options.save_timeout = Duration::from_millis(100);
    let engine = Engine::on(&config, &nodes, &[Some(Arc::clone(&device))]);
    let worker = &engine.workers[0];
    let skipped = || worker.driver.metrics().machine.saves_skipped;
    worker.fill(5);
    device.fail_fences(FenceSide::Before, 1);
    engine.compute("failing", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    assert_eq!((nodes.objects(), skipped()), (0, 9));
    device.hold();
    engine.compute("held", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    assert_eq!((nodes.objects(), skipped()), (0, 18));
    device.release();
    device.fail_copies(1);
    engine.compute("copy", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    assert_eq!((nodes.objects(), skipped()), (8, 19));
    assert_eq!(worker.driver.metrics().staging_bytes_used, 0);
}

#[test]
fn l15_a_preemption_waits_for_the_fence_of_the_preempted() {
    let (_source, nodes) = saved("hybrid");
    let device = device(8);
    let engine = engine("hybrid", "async", &nodes, &device);
    let worker = &engine.workers[0];
    device.hold();
    load(&engine);
    let input = StepInput {
        preempted: vec!["r".into()],
        ..StepInput::default()
    };
    let plan = engine.plan(&input);
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            worker.driver.preempt(&plan).unwrap();
            assert!(released.load(Ordering::SeqCst), "its fence was owed");
        });
        eventually("it is asked", || device.fences(FenceSide::Before).0 == 1);
        released.store(true, Ordering::SeqCst);
        device.release();
    });
    worker.assert_nothing_more();
    assert_eq!(device.fences(FenceSide::After), (1, 1));
}

#[test]
fn l04_memory_behind_a_fence_that_fails_is_lent_to_nobody_else() {
    let (_source, nodes) = saved("hybrid");
    let device = device(9);
    let engine = engine("hybrid", "async", &nodes, &device);
    let worker = &engine.workers[0];
    device.fail_fences(FenceSide::After, u32::MAX);
    engine.execute(&engine.order("first", &engine.tables(20, 32), TOKENS));
    eventually("its fence fails", || device.fences(FenceSide::After).0 >= 2);
    let fetches = worker.remote.fetches.load(Ordering::Relaxed);
    load(&engine);
    let asked = device.fences(FenceSide::After).0;
    eventually("both have failed", || {
        device.fences(FenceSide::After).0 > asked + 4
    });
    worker.assert_nothing_more();
    device.fail_fences(FenceSide::After, 0);
    let over = parking_lot::Mutex::new(Vec::new());
    eventually("both are over", || {
        let results = worker.driver.poll().unwrap();
        over.lock().extend(results.failed_recving);
        over.lock().len() == 2
    });
    let again = worker.remote.fetches.load(Ordering::Relaxed);
    assert_eq!(again, fetches, "its blocks are the first one's");
    // When both are over, the blocks are free again.
    engine
        .scheduler
        .worker_output(&["first", "r"], &["first", "r"], &[])
        .unwrap();
    engine.execute(&engine.order("next", &engine.tables(20, 32), TOKENS));
    assert_eq!(
        worker.outcome("next"),
        (vec!["next".into()], vec![], vec![])
    );
}

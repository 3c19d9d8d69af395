//! Saves are copies of what the step completed, and never in the way.

use tessera_lifecycle::scheduler::StepInput;
use tessera_proto::TenantTag;

use super::engine::{Engine, config};
use super::fake::Fake;

#[test]
fn l15_a_save_is_what_the_block_held_when_the_step_ended() {
    let nodes = Fake::new();
    let engine = Engine::new(&config("hybrid", "async", 1), &nodes);
    let worker = &engine.workers[0];
    worker.fill(5);
    let gate = worker.remote.hold();
    engine.compute("r", &engine.tables(1, 32), 32);
    let expected = worker.block(2, 4);
    // The engine goes on at once: the next step overwrites everything.
    worker.fill(200);
    assert!(!worker.driver.is_idle());
    gate.add_permits(100);
    engine.wait_for_saves();
    // Four chunks in full, four window tails, one state.
    assert_eq!(nodes.objects(), 9);
    // Layers are stored by name; `b2` was registered before `a2`.
    let state = [&expected[96..], &expected[..96]].concat();
    assert!(nodes.payloads().contains(&state));
    assert_eq!(worker.driver.metrics().staging_bytes_used, 0);
}

#[test]
fn a_full_staging_skips_and_counts_and_serves_again() {
    let nodes = Fake::new();
    let mut config = config("full", "async", 1);
    config.options.staging_bytes = 2 * 384 + 10;
    let engine = Engine::new(&config, &nodes);
    let worker = &engine.workers[0];
    let gate = worker.remote.hold();
    engine.compute("r", &engine.tables(1, 32), 32);
    let counters = worker.driver.metrics().machine;
    assert_eq!((counters.saves, counters.saves_skipped), (4, 2));
    gate.add_permits(100);
    engine.wait_for_saves();
    assert_eq!(nodes.objects(), 2);
    engine.compute("s", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    let counters = worker.driver.metrics().machine;
    assert!(
        counters.saves_stored + counters.saves_existed > 2,
        "{counters:?}"
    );
}

#[test]
fn a_step_that_completes_many_chunks_says_what_they_cost_and_one_that_completes_few_does_not() {
    let nodes = Fake::new();
    let engine = Engine::new(&config("full", "async", 1), &nodes);
    let remote = &engine.workers[0].remote;
    engine.compute("few", &engine.tables(1, 24), 24);
    engine.wait_for_saves();
    assert_eq!((nodes.objects(), *remote.price.lock()), (3, None));
    engine.compute("many", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    assert!(remote.price.lock().is_some());
}

#[test]
fn a_replicated_group_is_saved_by_one_rank_and_loaded_by_all() {
    let nodes = Fake::new();
    let mut config = config("hybrid", "async", 2);
    config.groups[2].replicated.tp = true;
    let engine = Engine::new(&config, &nodes);
    engine.workers.iter().for_each(|worker| worker.fill(5));
    engine.compute("r", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    let saves = |rank: usize| engine.workers[rank].driver.metrics().machine.saves;
    assert_eq!((saves(0), saves(1), nodes.objects()), (9, 8, 17));
    let reader = Engine::new(&config, &nodes);
    reader.execute(&reader.order("r", &reader.tables(20, 32), 33));
    for (rank, worker) in reader.workers.iter().enumerate() {
        assert_eq!(worker.outcome("r").1, Vec::<String>::new(), "rank {rank}");
        assert_eq!(
            worker.block(2, 23),
            engine.workers[0].block(2, 4),
            "rank {rank}"
        );
    }
}

#[test]
fn two_models_with_the_same_prompt_never_share_an_object() {
    let nodes = Fake::new();
    let engine = Engine::new(&config("full", "async", 1), &nodes);
    engine.compute("r", &engine.tables(1, 32), 32);
    engine.wait_for_saves();
    assert_eq!(engine.lookup("s", 33, 0).tokens, Some(32));
    let changes: [fn(&mut crate::driver::EngineConfig); 6] = [
        |config| config.namespace.model = "n".into(),
        |config| config.namespace.revision = "2".into(),
        |config| config.namespace.dtype = "bfloat16".into(),
        |config| config.namespace.weights = vec![1],
        |config| config.options.tenant = "other".into(),
        |config| config.namespace.layout_fingerprint[31] ^= 1,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut config = config("full", "async", 1);
        change(&mut config);
        let other = Engine::new(&config, &nodes);
        assert_eq!(other.lookup("r", 33, 0).tokens, Some(0), "change {index}");
    }
}

#[test]
fn what_is_saved_says_whose_it_is() {
    for tenant in ["", "team-a"] {
        let nodes = Fake::new();
        let mut config = config("full", "async", 1);
        config.options.tenant = tenant.into();
        let engine = Engine::new(&config, &nodes);
        engine.compute("r", &engine.tables(1, 32), 32);
        engine.wait_for_saves();
        let tenants = nodes.tenants();
        assert!(!tenants.is_empty());
        assert!(tenants.iter().all(|tag| *tag == TenantTag::of(tenant)));
    }
}

#[test]
fn an_engine_that_may_not_save_or_load_does_neither() {
    let nodes = Fake::new();
    let mut config = config("full", "async", 1);
    config.can_save = false;
    let reader = Engine::new(&config, &nodes);
    reader.compute("r", &reader.tables(1, 32), 32);
    reader.wait_for_saves();
    assert_eq!(nodes.objects(), 0);
    config.can_save = true;
    config.can_load = false;
    let writer = Engine::new(&config, &nodes);
    writer.compute("r", &writer.tables(1, 32), 32);
    writer.wait_for_saves();
    assert_eq!(nodes.objects(), 4);
    assert_eq!(writer.lookup("s", 33, 0).tokens, Some(0));
    nodes.clear();
    assert_eq!(writer.scheduler.step(&StepInput::default()).unwrap(), None);
}

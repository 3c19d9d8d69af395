//! Handovers between engines that must not be taken for one another, and blocks that are not what
//! was promised.

use std::time::Duration;

use super::fake::eventually;
use super::handover::{Pair, TOKENS, engine, key_in, peers, with_prompt};
use crate::driver::{EngineConfig, StepInput};

type Change = fn(&mut EngineConfig);

/// What the handshake sees beyond shape and model.
const DIFFERENT: [(&str, Change); 3] = [
    ("weights", |config| config.namespace.weights = vec![1, 2]),
    ("layout", |config| {
        config.namespace.layout_fingerprint = [7; 32];
    }),
    ("tenant", |config| {
        config.options.tenant = "somebody else".to_owned();
    }),
];

#[test]
fn engines_of_another_namespace_fill_no_block_of_each_other() {
    for (what, change) in DIFFERENT {
        let folder = tempfile::tempdir().unwrap();
        let mut config = peers("full", 1, &key_in(folder.path()));
        config.options.peer_timeout = Duration::from_secs(60);
        let mut other = config.clone();
        change(&mut other);
        assert_ne!(config.namespace().unwrap(), other.namespace().unwrap());
        let pair = Pair {
            prefill: engine(&config),
            decode: engine(&other),
            offered: TOKENS,
        };
        let worker = &pair.decode.workers[0];
        let before = worker.memory();
        pair.admit("d", &pair.offer("p", &pair.prefill.tables(5, TOKENS)));
        let to = pair.decode.tables(20, TOKENS - 1);
        pair.take("d", &to, 4);
        let in_doubt = (vec!["d".to_owned()], vec![], to[0][1..].to_vec());
        assert_eq!(worker.outcome("d"), in_doubt, "{what}");
        assert_eq!(worker.memory(), before, "{what}");
        // Decode knows by the answer; prefill counts on its own thread, a little later maybe.
        eventually("prefill counts the engine that it refused", || {
            pair.prefill.workers[0]
                .driver
                .metrics()
                .peers
                .refused_mismatch
                == 1
        });
    }
}

#[test]
fn a_block_that_the_engine_left_out_fails_the_request_where_blocks_cannot_say_so() {
    let pair = Pair::new("full", 1);
    let mut to = pair.decode.tables(20, TOKENS - 1);
    to[0][1] = 0;
    let before = pair.decode.workers[0].memory();
    pair.admit("d", &pair.offer("p", &pair.prefill.tables(5, TOKENS)));
    pair.take("d", &to, 0);
    let failed = (vec!["d".to_owned()], vec!["d".to_owned()], vec![]);
    assert_eq!(pair.decode.workers[0].outcome("d"), failed);
    assert_eq!(pair.decode.workers[0].memory(), before);
}

#[test]
fn a_ticket_that_was_used_leaves_only_what_decode_lacks_in_doubt() {
    let pair = Pair::new("full", 1);
    let tables = pair.prefill.tables(5, TOKENS);
    let ticket = pair.offer("p", &tables);
    // Somebody else was faster.
    pair.admit("thief", &ticket);
    pair.decode.scheduler.finished("thief", None).unwrap();
    pair.decode
        .execute(&pair.decode.plan(&StepInput::default()));
    pair.assert_sent("p");
    pair.admit("d", &ticket);
    let to = pair.decode.tables(20, TOKENS - 1);
    pair.take("d", &to, 4);
    let in_doubt = (vec!["d".to_owned()], vec![], to[0][1..].to_vec());
    assert_eq!(pair.decode.workers[0].outcome("d"), in_doubt);
}

#[test]
fn what_another_scheduler_ordered_is_another_request() {
    let pair = Pair::new("full", 1);
    let first = pair.finish("p1", &pair.prefill.tables(5, TOKENS));
    let second = pair.finish("p2", &pair.prefill.tables(10, TOKENS));
    pair.admit("a", &first);
    pair.take("a", &pair.decode.tables(20, TOKENS - 1), 0);
    // The scheduler starts again, and what it ordered is still under way.
    let folder = tempfile::tempdir().unwrap();
    let again = engine(&peers("full", 1, &key_in(folder.path())));
    with_prompt(TOKENS, |prompt| again.scheduler.admit("b", &second, prompt))
        .unwrap()
        .unwrap();
    let to = pair.decode.tables(40, TOKENS - 1);
    let promised = again.lookup("b", TOKENS, 0).tokens.unwrap();
    again.scheduler.allocated("b", &to, promised).unwrap();
    let worker = &pair.decode.workers[0];
    let plan = again.plan(&StepInput::default());
    worker.driver.begin_step(&plan).unwrap();
    worker.driver.end_step().unwrap();
    pair.tell();
    let received = parking_lot::Mutex::new(Vec::new());
    eventually("both are received", || {
        let results = worker.driver.poll().unwrap();
        assert!(results.failed_recving.is_empty());
        let mut received = received.lock();
        received.extend(results.finished_recving);
        received.sort();
        *received == ["a", "b"]
    });
    assert_eq!(
        worker.block(0, to[0][0]),
        pair.prefill.workers[0].block(0, 10)
    );
}

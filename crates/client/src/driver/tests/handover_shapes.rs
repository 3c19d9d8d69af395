//! Engines of unequal tensor parallel size: prompts cut by heads on their way from one to the
//! other, in both modes.

use std::time::Duration;

use tessera_lifecycle::{GroupKind, GroupSpec};
use tessera_proto::ticket::TicketKey;

use super::engine::{Engine, HEADS, Worker};
use super::fake::eventually;
use super::handover::{Pair, TOKENS, engine, key_in, peers, with_nulls, with_prompt};
use crate::driver::{EngineConfig, Finished, Refused, StepInput};
use crate::peer::mint_pass;

const LAYOUTS: [&str; 3] = ["full", "windowed", "shared"];
const SIZES: [(u32, u32); 4] = [(2, 1), (1, 2), (4, 2), (2, 4)];
const LONG: Duration = Duration::from_secs(600);

/// The group of the layout "shared" of which all ranks hold the same.
const SHARED: usize = 1;

fn sized(mut config: EngineConfig, tp: u32, peer_tp: u32) -> EngineConfig {
    config.topology.tp = tp;
    config.options.peer_tp_size = u64::from(peer_tp);
    config.options.peer_timeout = LONG;
    let cut = |group: &GroupSpec| !group.replicated.tp && group.kind != GroupKind::State;
    let heads = config
        .groups
        .iter()
        .map(|group| cut(group).then_some(HEADS));
    config.heads = heads.collect();
    config
}

fn pair(layout: &str, (prefill, decode): (u32, u32)) -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let config = peers(layout, 1, &key_in(folder.path()));
    let mut source = sized(config.clone(), prefill, decode);
    let destination = engine(&sized(config, decode, prefill));
    source.options.peer_inbox = Some(("127.0.0.1".to_owned(), 0));
    let source = engine(&source);
    let offered = TOKENS - source.scheduler.left_to_decode();
    for (seed, worker) in (1..).zip(&source.workers) {
        worker.fill(seed);
    }
    let workers = destination.workers.iter();
    workers.for_each(|worker| worker.fill(99));
    Pair {
        prefill: source,
        decode: destination,
        offered,
    }
}

/// The bytes of one head of the whole model; of what all ranks hold, those of the rank that gives.
fn head(engine: &Engine, group: usize, block: u32, head: u32) -> Vec<u8> {
    let each = HEADS / u32::try_from(engine.workers.len()).unwrap();
    let worker = &engine.workers[usize::try_from(head / each).unwrap()];
    worker.head(group, block, head % each)
}

fn assert_same(layout: &str, pair: &Pair, from: &[Vec<u32>], to: &[Vec<u32>]) {
    for (group, (from, to)) in from.iter().zip(to).enumerate() {
        for (from, to) in from.iter().zip(to).filter(|(_, to)| **to != 0) {
            if (layout, group) == ("shared", SHARED) {
                for (rank, taker) in pair.decode.workers.iter().enumerate() {
                    let giver = &pair.prefill.workers[rank % pair.prefill.workers.len()];
                    assert_eq!(giver.block(group, *from), taker.block(group, *to));
                }
                continue;
            }
            for at in 0..HEADS {
                let source = head(&pair.prefill, group, *from, at);
                let target = head(&pair.decode, group, *to, at);
                assert_eq!(source, target, "{layout}, group {group}, head {at}");
            }
        }
    }
}

fn received() -> (Vec<String>, Vec<String>, Vec<u32>) {
    (vec!["d".to_owned()], vec![], vec![])
}

fn is_held(worker: &Worker) -> bool {
    worker.driver.poll().unwrap().finished_sending.is_empty() && !worker.driver.is_idle()
}

#[test]
fn a_prompt_that_decode_pulls_is_cut_by_heads() {
    for (layout, sizes) in LAYOUTS
        .iter()
        .flat_map(|of| SIZES.map(|sizes| (*of, sizes)))
    {
        let pair = pair(layout, sizes);
        let from = with_nulls(pair.prefill.tables(5, pair.offered));
        let to = with_nulls(pair.decode.tables(20, TOKENS - 1));
        let before: Vec<_> = pair.decode.workers.iter().map(Worker::memory).collect();
        pair.admit("d", &pair.offer("p", &from));
        pair.take("d", &to, 0);
        for worker in &pair.decode.workers {
            assert_eq!(worker.outcome("d"), received(), "{layout} {sizes:?}");
            worker.assert_nothing_more();
        }
        pair.assert_sent("p");
        assert_same(layout, &pair, &from, &to);
        assert_untouched(&pair, &before, &to);
    }
}

/// No block of decode has changed but those of `to`.
fn assert_untouched(pair: &Pair, before: &[Vec<Vec<u8>>], to: &[Vec<u32>]) {
    for (worker, before) in pair.decode.workers.iter().zip(before) {
        for (layer, (now, before)) in worker.memory().iter().zip(before).enumerate() {
            let blocks = now.chunks(128).zip(before.chunks(128)).enumerate();
            let touched = |(block, (now, before)): (usize, (&[u8], &[u8]))| {
                (now != before).then(|| u32::try_from(block).unwrap())
            };
            let touched: Vec<_> = blocks.filter_map(touched).collect();
            let given: Vec<_> = to[layer / 2]
                .iter()
                .copied()
                .filter(|at| *at != 0)
                .collect();
            assert_eq!(touched, given, "layer {layer}");
        }
    }
}

#[test]
fn a_prompt_that_prefill_writes_is_cut_by_heads() {
    for (layout, sizes) in LAYOUTS
        .iter()
        .flat_map(|of| SIZES.map(|sizes| (*of, sizes)))
    {
        let pair = pair(layout, sizes);
        let from = with_nulls(pair.prefill.tables(5, pair.offered));
        let to = with_nulls(pair.decode.tables(20, TOKENS - 1));
        let inbox = pair.prefill.scheduler.inbox().unwrap().to_string();
        let pass = mint_pass(&TicketKey::new(&[b'k'; 32]).unwrap(), &inbox, LONG).unwrap();
        assert_eq!(pair.prefill.scheduler.promise("p", &pass).unwrap(), Ok(()));
        let kept = with_prompt(pair.offered, |prompt| {
            let finished = Finished {
                prompt,
                computed_tokens: pair.offered,
                tables: &from,
            };
            pair.prefill.scheduler.computed("p", Some(finished))
        });
        assert!(kept.unwrap());
        let expected = with_prompt(TOKENS, |prompt| {
            pair.decode.scheduler.expect("d", &pass, prompt)
        });
        assert_eq!(expected.unwrap(), Ok(()));
        pair.take("d", &to, 0);
        eventually("prefill orders what is written", || {
            let plan = pair.prefill.scheduler.step(&StepInput::default()).unwrap();
            plan.inspect(|plan| pair.prefill.execute(plan)).is_some()
        });
        for worker in &pair.decode.workers {
            assert_eq!(worker.outcome("d"), received(), "{layout} {sizes:?}");
        }
        pair.assert_sent("p");
        assert_same(layout, &pair, &from, &to);
    }
}

#[test]
fn prefill_releases_only_what_every_rank_of_decode_has_released() {
    let pair = pair("full", (1, 2));
    let from = pair.prefill.tables(5, pair.offered);
    let to = pair.decode.tables(20, TOKENS - 1);
    pair.admit("d", &pair.offer("p", &from));
    let promised = pair.decode.lookup("d", TOKENS, 0).tokens.unwrap();
    pair.decode.scheduler.allocated("d", &to, promised).unwrap();
    let plan = pair.decode.plan(&StepInput::default());
    let [first, second] = &pair.decode.workers[..] else {
        panic!("decode has two ranks");
    };
    first.driver.begin_step(&plan).unwrap();
    assert_eq!(first.outcome("d"), received());
    eventually("the first rank has released", || first.driver.is_idle());
    assert!(is_held(&pair.prefill.workers[0]), "the second has not come");
    second.driver.begin_step(&plan).unwrap();
    assert_eq!(second.outcome("d"), received());
    pair.assert_sent("p");
    assert_same("full", &pair, &from, &to);
}

#[test]
fn each_rank_of_prefill_releases_its_part_and_decode_reports_when_all_have_come() {
    let pair = pair("full", (2, 1));
    let from = pair.prefill.tables(5, pair.offered);
    let to = pair.decode.tables(20, TOKENS - 1);
    pair.admit("d", &pair.finish("p", &from));
    pair.take("d", &to, 0);
    // The second rank of prefill hears of it later.
    let plan = pair.prefill.plan(&StepInput::default());
    let [first, second] = &pair.prefill.workers[..] else {
        panic!("prefill has two ranks");
    };
    first.driver.begin_step(&plan).unwrap();
    let taker = &pair.decode.workers[0];
    eventually("the second part is asked for", || {
        second.driver.metrics().peers.machine.early_claims == 1
    });
    eventually("the first part has come", || {
        taker.driver.metrics().peers.bytes_received > 0
    });
    taker.assert_nothing_more();
    assert!(is_held(first), "the transfer is not over");
    second.driver.begin_step(&plan).unwrap();
    assert_eq!(taker.outcome("d"), received());
    pair.assert_sent("p");
    assert_same("full", &pair, &from, &to);
}

#[test]
fn a_damaged_part_of_one_rank_fails_the_request_and_frees_all_ranks() {
    for layout in LAYOUTS {
        let pair = pair(layout, (2, 1));
        let from = with_nulls(pair.prefill.tables(5, pair.offered));
        let to = with_nulls(pair.decode.tables(20, TOKENS - 1));
        let ticket = pair.offer("p", &from);
        let spoilt = &pair.prefill.workers[1];
        eventually("what is offered is fixed", || {
            let metrics = spoilt.driver.metrics().peers;
            metrics.bytes_summed == metrics.gauges.offered_bytes
        });
        spoilt.fill(77);
        pair.admit("d", &ticket);
        pair.take("d", &to, 0);
        let (failed, blocks) = match layout {
            "full" => (vec![], to[0].clone()),
            _ => (vec!["d".to_owned()], vec![]),
        };
        let outcome = pair.decode.workers[0].outcome("d");
        assert_eq!(outcome, (vec!["d".to_owned()], failed, blocks), "{layout}");
        pair.decode.workers[0].assert_nothing_more();
        let peers = pair.decode.workers[0].driver.metrics().peers;
        assert!(peers.integrity_failures > 0);
        pair.assert_sent("p");
    }
}

#[test]
fn a_rank_of_which_nothing_is_needed_is_free_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = peers("full", 1, &key_in(folder.path()));
    config.groups[0].replicated.tp = true;
    let prefill = engine(&sized(config.clone(), 2, 1));
    let decode = engine(&sized(config, 1, 2));
    let pair = Pair {
        prefill,
        decode,
        offered: TOKENS,
    };
    let from = pair.prefill.tables(5, TOKENS);
    pair.admit("d", &pair.offer("p", &from));
    let [first, second] = &pair.prefill.workers[..] else {
        panic!("prefill has two ranks");
    };
    assert_eq!(second.driver.poll().unwrap().finished_sending, ["p"]);
    assert!(second.driver.is_idle());
    assert!(is_held(first));
    let to = pair.decode.tables(20, TOKENS - 1);
    pair.take("d", &to, 0);
    assert_eq!(pair.decode.workers[0].outcome("d"), received());
    eventually("the first is free", || {
        first.driver.poll().unwrap().finished_sending == ["p"]
    });
    assert_eq!(
        first.block(0, from[0][0]),
        pair.decode.workers[0].block(0, to[0][0])
    );
}

#[test]
fn a_ticket_that_is_given_back_frees_all_ranks() {
    for sizes in SIZES {
        let pair = pair("windowed", sizes);
        let from = with_nulls(pair.prefill.tables(5, pair.offered));
        pair.admit("d", &pair.offer("p", &from));
        pair.decode.scheduler.finished("d", None).unwrap();
        pair.decode
            .execute(&pair.decode.plan(&StepInput::default()));
        pair.assert_sent("p");
    }
}

#[test]
fn a_state_fails_the_request_in_the_handshake_and_nothing_moves() {
    let pair = pair("hybrid", (2, 1));
    let worker = &pair.decode.workers[0];
    let before = worker.memory();
    let from = with_nulls(pair.prefill.tables(5, pair.offered));
    pair.admit("d", &pair.offer("p", &from));
    pair.take("d", &with_nulls(pair.decode.tables(20, TOKENS - 1)), 0);
    // Its patience would be ten minutes.
    let failed = (vec!["d".to_owned()], vec!["d".to_owned()], vec![]);
    assert_eq!(worker.outcome("d"), failed);
    assert_eq!(worker.memory(), before);
    for giver in &pair.prefill.workers {
        eventually("prefill counts the engine that it refused", || {
            giver.driver.metrics().peers.refused_mismatch == 1
        });
        assert_eq!(giver.driver.metrics().peers.bytes_sent, 0);
    }
}

#[test]
fn a_ticket_of_ranks_that_were_not_expected_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = peers("full", 1, &key_in(folder.path()));
    let pair = Pair {
        prefill: engine(&sized(config.clone(), 2, 1)),
        decode: engine(&sized(config, 1, 4)),
        offered: TOKENS,
    };
    let ticket = pair.offer("p", &pair.prefill.tables(5, TOKENS));
    let admitted = with_prompt(TOKENS, |prompt| {
        pair.decode.scheduler.admit("d", &ticket, prompt)
    });
    assert_eq!(admitted.unwrap(), Err(Refused::Shape));
}

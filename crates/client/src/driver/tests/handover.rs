//! Two engines, each with a scheduler and its workers: prompts that go from one to the other, over
//! sockets, into block memory.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tessera_lifecycle::StepPlan;
use tessera_proto::ticket::{Prompt, TicketWorker};

use super::engine::{Engine, config, hashes};
use super::fake::{Fake, eventually};
use crate::driver::{EngineConfig, Finished, Refused, StepInput};

/// Tokens of the prompt as decode has it.
pub(super) const TOKENS: u64 = 12;

pub(super) struct Pair {
    pub(super) prefill: Engine,
    pub(super) decode: Engine,
    /// Tokens that prefill computes of the prompt.
    pub(super) offered: u64,
}

pub(super) fn peers(layout: &str, tp: u32, key: &Path) -> EngineConfig {
    let mut config = config(layout, "async", tp);
    config.options.peer_listen = Some(("127.0.0.1".to_owned(), 0));
    config.options.peer_key_file = key.to_str().unwrap().to_owned();
    config.options.peer_lease = Duration::from_secs(600);
    config
}

/// A file with the key of both engines.
pub(super) fn key_in(folder: &Path) -> PathBuf {
    let key = folder.join("key");
    std::fs::write(&key, [b'k'; 32]).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    key
}

pub(super) fn engine(config: &EngineConfig) -> Engine {
    let engine = Engine::new(config, &Fake::new());
    let place = |worker: &super::engine::Worker| worker.driver.peer_place().unwrap();
    let mut places: Vec<_> = engine.workers.iter().map(place).collect();
    places.sort_by_key(|place| place.rank);
    let worker = |place: crate::driver::PeerPlace| TicketWorker {
        incarnation: place.incarnation,
        address: place.address,
    };
    engine
        .scheduler
        .meet(places.into_iter().map(worker).collect())
        .unwrap();
    engine
}

pub(super) fn with_prompt<R>(tokens: u64, use_it: impl FnOnce(Prompt<'_>) -> R) -> R {
    let hashes = hashes(tokens);
    let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
    let tokens: Vec<u32> = (0..u32::try_from(tokens).unwrap()).collect();
    use_it(Prompt {
        tokens: &tokens,
        hashes: &hashes,
        hash_tokens: 4,
        others: &[],
    })
}

impl Pair {
    pub(super) fn new(layout: &str, tp: u32) -> Self {
        Self::patient(layout, tp, Duration::from_secs(20))
    }

    /// Decode waits no longer than `patience` for a prompt.
    fn patient(layout: &str, tp: u32, patience: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = peers(layout, tp, &key_in(folder.path()));
        config.options.peer_timeout = patience;
        let pair = Self {
            prefill: engine(&config),
            decode: engine(&config),
            offered: TOKENS - if layout == "full" { 0 } else { 1 },
        };
        assert_eq!(
            pair.prefill.scheduler.left_to_decode(),
            TOKENS - pair.offered
        );
        for (seed, worker) in (1..).zip(&pair.prefill.workers) {
            worker.fill(seed);
        }
        pair.decode
            .workers
            .iter()
            .for_each(|worker| worker.fill(99));
        pair
    }

    /// Prefill has computed the prompt into `tables`: the ticket.
    pub(super) fn finish(&self, name: &str, tables: &[Vec<u32>]) -> String {
        let ticket = with_prompt(self.offered, |prompt| {
            let finished = Finished {
                prompt,
                computed_tokens: self.offered,
                tables,
            };
            self.prefill.scheduler.finished(name, Some(finished))
        });
        ticket.unwrap().unwrap()
    }

    /// Prefill's workers learn of its offers.
    pub(super) fn tell(&self) {
        self.prefill
            .execute(&self.prefill.plan(&StepInput::default()));
    }

    pub(super) fn offer(&self, name: &str, tables: &[Vec<u32>]) -> String {
        let ticket = self.finish(name, tables);
        self.tell();
        ticket
    }

    pub(super) fn admit(&self, name: &str, ticket: &str) {
        let admitted = with_prompt(TOKENS, |prompt| {
            self.decode.scheduler.admit(name, ticket, prompt)
        });
        assert_eq!(admitted.unwrap(), Ok(()));
    }

    /// Decode takes the prompt into `tables`, beyond what it has.
    pub(super) fn take(&self, name: &str, tables: &[Vec<u32>], computed: u64) {
        let promised = self.decode.lookup(name, TOKENS, computed).tokens;
        assert_eq!(promised, Some(TOKENS - 1 - computed));
        let promised = promised.unwrap();
        self.decode
            .scheduler
            .allocated(name, tables, promised)
            .unwrap();
        self.decode
            .execute(&self.decode.plan(&StepInput::default()));
    }

    /// Waits until every rank of prefill has reported the request as sent, and no other.
    pub(super) fn assert_sent(&self, name: &str) {
        for worker in &self.prefill.workers {
            let sent = parking_lot::Mutex::new(Vec::new());
            eventually("prefill's blocks are free", || {
                sent.lock()
                    .extend(worker.driver.poll().unwrap().finished_sending);
                !sent.lock().is_empty()
            });
            eventually("nothing is open", || worker.driver.is_idle());
            sent.lock()
                .extend(worker.driver.poll().unwrap().finished_sending);
            assert_eq!(*sent.lock(), [name]);
        }
    }

    fn assert_held(&self) {
        for worker in &self.prefill.workers {
            assert_eq!(
                worker.driver.poll().unwrap().finished_sending,
                Vec::<String>::new()
            );
            assert!(!worker.driver.is_idle());
        }
    }
}

/// Tables as vLLM has them at the first allocation: null where a window or a state needs nothing.
pub(super) fn with_nulls(mut tables: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    for (group, table) in tables.iter_mut().enumerate().skip(1) {
        let kept = if group == 1 { 2 } else { 1 };
        let nulls = table.len().saturating_sub(kept);
        table[..nulls].fill(0);
    }
    tables
}

#[test]
fn a_prompt_goes_from_blocks_to_blocks_on_every_rank_and_both_report_it_once() {
    for (layout, tp) in [("full", 1), ("hybrid", 1), ("hybrid", 2)] {
        let pair = Pair::new(layout, tp);
        let from = with_nulls(pair.prefill.tables(5, pair.offered));
        let to = with_nulls(pair.decode.tables(20, TOKENS - 1));
        pair.admit("d", &pair.offer("p", &from));
        pair.assert_held();
        pair.take("d", &to, 0);
        for worker in &pair.decode.workers {
            assert_eq!(worker.outcome("d"), (vec!["d".to_owned()], vec![], vec![]));
            worker.assert_nothing_more();
        }
        pair.assert_sent("p");
        for (giver, taker) in pair.prefill.workers.iter().zip(&pair.decode.workers) {
            for (group, (from, to)) in from.iter().zip(&to).enumerate() {
                for (from, to) in from.iter().zip(to).filter(|(_, to)| **to != 0) {
                    assert_eq!(giver.block(group, *from), taker.block(group, *to));
                }
            }
        }
        pair.decode
            .scheduler
            .worker_output(&["d"], &[], &[])
            .unwrap();
        let counters = pair.decode.scheduler.metrics();
        assert_eq!(
            counters.machine.late_completions, 0,
            "the cache knows nothing of it"
        );
        assert_eq!(
            (counters.handover.takes, counters.handover.tokens_taken),
            (1, TOKENS - 1)
        );
    }
}

#[test]
fn a_prompt_that_decode_asks_for_before_prefills_workers_know_of_it_is_given() {
    let pair = Pair::new("hybrid", 1);
    pair.admit(
        "d",
        &pair.finish("p", &with_nulls(pair.prefill.tables(5, pair.offered))),
    );
    pair.take("d", &with_nulls(pair.decode.tables(20, TOKENS - 1)), 0);
    let giver = &pair.prefill.workers[0].driver;
    eventually("decode asks", || {
        giver.metrics().peers.machine.early_claims == 1
    });
    pair.tell();
    let outcome = pair.decode.workers[0].outcome("d");
    assert_eq!(outcome, (vec!["d".to_owned()], vec![], vec![]));
    pair.assert_sent("p");
}

#[test]
fn what_decode_has_itself_stays_as_it_is() {
    let pair = Pair::new("full", 1);
    let to = pair.decode.tables(20, TOKENS);
    let before = pair.decode.workers[0].block(0, to[0][0]);
    pair.admit("d", &pair.offer("p", &pair.prefill.tables(5, TOKENS)));
    pair.take("d", &to, 4);
    pair.decode.workers[0].outcome("d");
    assert_eq!(pair.decode.workers[0].block(0, to[0][0]), before);
    let bytes = pair.decode.workers[0].driver.metrics().peers.bytes_received;
    assert_eq!(
        bytes,
        pair.decode.workers[0].driver.object_bytes(0),
        "two blocks of three"
    );
    pair.assert_sent("p");
}

#[test]
fn a_ticket_that_is_given_back_frees_prefill_and_moves_nothing() {
    let pair = Pair::new("hybrid", 1);
    let before = pair.decode.workers[0].memory();
    pair.admit(
        "d",
        &pair.offer("p", &with_nulls(pair.prefill.tables(5, pair.offered))),
    );
    pair.decode.scheduler.finished("d", None).unwrap();
    pair.decode
        .execute(&pair.decode.plan(&StepInput::default()));
    pair.assert_sent("p");
    let worker = &pair.decode.workers[0];
    eventually("nothing is open", || {
        worker.assert_nothing_more();
        worker.driver.is_idle()
    });
    assert_eq!(worker.memory(), before);
    assert_eq!(worker.driver.metrics().peers.bytes_received, 0);
}

#[test]
fn a_request_that_is_gone_while_it_waits_is_reported_all_the_same() {
    let pair = Pair::new("hybrid", 1);
    pair.admit(
        "d",
        &pair.offer("p", &with_nulls(pair.prefill.tables(5, pair.offered))),
    );
    pair.take("d", &with_nulls(pair.decode.tables(20, TOKENS - 1)), 0);
    pair.decode.scheduler.finished("d", None).unwrap();
    pair.decode
        .execute(&pair.decode.plan(&StepInput::default()));
    let worker = &pair.decode.workers[0];
    worker.outcome("d");
    worker.assert_nothing_more();
    pair.decode
        .scheduler
        .worker_output(&["d"], &[], &[])
        .unwrap();
    assert_eq!(pair.decode.scheduler.metrics().machine.late_completions, 0);
}

#[test]
fn a_prompt_that_prefill_no_longer_has_fails_as_its_layout_says() {
    for layout in ["full", "hybrid"] {
        let pair = Pair::patient(layout, 1, Duration::from_millis(500));
        let to = with_nulls(pair.decode.tables(20, TOKENS - 1));
        pair.admit(
            "d",
            &pair.offer("p", &with_nulls(pair.prefill.tables(5, pair.offered))),
        );
        // Its worker ends, and everything that it held with it.
        let Pair {
            prefill, decode, ..
        } = pair;
        drop(prefill);
        let promised = decode.lookup("d", TOKENS, 0).tokens.unwrap();
        decode.scheduler.allocated("d", &to, promised).unwrap();
        decode.execute(&decode.plan(&StepInput::default()));
        let worker = &decode.workers[0];
        let outcome = worker.outcome("d");
        let (failed, blocks) = match layout {
            "full" => (vec![], to[0].clone()),
            _ => (vec!["d".to_owned()], vec![]),
        };
        assert_eq!(outcome, (vec!["d".to_owned()], failed, blocks));
        worker.assert_nothing_more();
        assert_eq!(worker.driver.metrics().peers.machine.transfers_failed, 1);
    }
}

#[test]
fn engines_without_a_listener_have_no_place_and_take_nothing() {
    let engine = Engine::new(&config("full", "async", 1), &Fake::new());
    assert_eq!(engine.workers[0].driver.peer_place(), None);
    assert_eq!(engine.scheduler.left_to_decode(), 0);
    let admitted = with_prompt(TOKENS, |prompt| engine.scheduler.admit("d", "00", prompt));
    assert_eq!(admitted.unwrap(), Err(Refused::Role));
}

#[test]
fn a_plan_that_comes_again_orders_nothing_again() {
    let pair = Pair::new("full", 1);
    let to = pair.decode.tables(20, TOKENS - 1);
    pair.admit("d", &pair.offer("p", &pair.prefill.tables(5, TOKENS)));
    let promised = pair.decode.lookup("d", TOKENS, 0).tokens.unwrap();
    pair.decode.scheduler.allocated("d", &to, promised).unwrap();
    let plan = pair.decode.plan(&StepInput::default());
    pair.decode.execute(&plan);
    pair.decode.execute(&plan);
    let worker = &pair.decode.workers[0];
    assert_eq!(worker.outcome("d"), (vec!["d".to_owned()], vec![], vec![]));
    // Nor when it is over, nor as an earlier one.
    pair.decode.execute(&plan);
    let mut later = StepPlan::decode(&plan).unwrap();
    later.handovers.clear();
    later.step += 1;
    pair.decode.execute(&later.encode());
    pair.decode.execute(&plan);
    worker.assert_nothing_more();
    let counters = worker.driver.metrics().peers.machine;
    assert_eq!((counters.transfers, counters.repeated_orders), (1, 0));
    pair.assert_sent("p");
}

#[test]
fn plans_of_another_scheduler_are_counted_anew() {
    let pair = Pair::new("full", 1);
    let to = pair.decode.tables(20, TOKENS - 1);
    pair.admit("d", &pair.offer("p", &pair.prefill.tables(5, TOKENS)));
    let promised = pair.decode.lookup("d", TOKENS, 0).tokens.unwrap();
    pair.decode.scheduler.allocated("d", &to, promised).unwrap();
    let plan = pair.decode.plan(&StepInput::default());
    let mut another = StepPlan::decode(&plan).unwrap();
    another.handovers.clear();
    (another.incarnation, another.step) = (!another.incarnation, u64::MAX);
    pair.decode.execute(&another.encode());
    pair.decode.execute(&plan);
    let outcome = pair.decode.workers[0].outcome("d");
    assert_eq!(outcome, (vec!["d".to_owned()], vec![], vec![]));
}

#[test]
fn what_is_called_off_before_it_was_given_moves_nothing_and_frees_prefill() {
    let pair = Pair::new("hybrid", 1);
    let before = pair.decode.workers[0].memory();
    let from = with_nulls(pair.prefill.tables(5, pair.offered));
    pair.admit("d", &pair.finish("p", &from));
    pair.take("d", &with_nulls(pair.decode.tables(20, TOKENS - 1)), 0);
    let (giver, taker) = (&pair.prefill.workers[0], &pair.decode.workers[0]);
    eventually("decode asks", || {
        giver.driver.metrics().peers.machine.early_claims == 1
    });
    pair.decode.scheduler.finished("d", None).unwrap();
    pair.decode
        .execute(&pair.decode.plan(&StepInput::default()));
    // Prefill has not said a word, and the patience of decode is long.
    let called_off = (vec!["d".to_owned()], vec!["d".to_owned()], vec![]);
    assert_eq!(taker.outcome("d"), called_off);
    pair.tell();
    pair.assert_sent("p");
    assert_eq!(taker.memory(), before);
    assert_eq!(taker.driver.metrics().peers.bytes_received, 0);
    taker.assert_nothing_more();
}

#[test]
fn of_two_requests_each_is_reported_under_its_own_name_and_only_one_has_failed() {
    let pair = Pair::patient("hybrid", 1, Duration::from_millis(1_500));
    let from = with_nulls(pair.prefill.tables(5, pair.offered));
    pair.admit("good", &pair.offer("p", &from));
    // A block that the engine left out: what is ordered fits no offer.
    let mut short = with_nulls(pair.decode.tables(20, TOKENS - 1));
    short[0][0] = 0;
    let to = with_nulls(pair.decode.tables(30, TOKENS - 1));
    pair.admit("bad", &pair.offer("q", &from));
    pair.take("bad", &short, 0);
    pair.take("good", &to, 0);
    let worker = &pair.decode.workers[0];
    let names = parking_lot::Mutex::new((Vec::new(), Vec::new()));
    eventually("both are reported", || {
        let results = worker.driver.poll().unwrap();
        let mut all = names.lock();
        all.0.extend(results.finished_recving);
        all.1.extend(results.failed_recving);
        all.0.len() == 2
    });
    let (mut received, failed) = names.into_inner();
    received.sort();
    assert_eq!(
        (received, failed),
        (vec!["bad".into(), "good".into()], vec!["bad".to_owned()])
    );
    worker.assert_nothing_more();
}

#[test]
fn ranks_listen_one_behind_the_other_from_the_port_that_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = peers("full", 2, &key_in(folder.path()));
    // A loopback address that nobody else listens on.
    let process = std::process::id().to_le_bytes();
    let host = format!("127.{}.{}.77", process[1] | 1, process[0]);
    let probe = std::net::TcpListener::bind((host.as_str(), 0)).unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    config.options.peer_listen = Some((host.clone(), port));
    let engine = engine(&config);
    let mut places: Vec<_> = engine
        .workers
        .iter()
        .map(|worker| worker.driver.peer_place().unwrap())
        .map(|place| (place.rank, place.address))
        .collect();
    places.sort();
    let expected = [0, 1].map(|rank| (rank, format!("{host}:{}", port + rank)));
    assert_eq!(places, expected);
}

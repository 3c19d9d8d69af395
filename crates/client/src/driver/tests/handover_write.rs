//! Two engines that get a request at the same time: prefill writes the prompt into decode's blocks,
//! whichever of them is first.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use tessera_proto::ticket::{Lender, Ticket, TicketKey};

use super::fake::eventually;
use super::handover::{Pair, TOKENS, engine, key_in, peers, with_nulls, with_prompt};
use crate::driver::{Finished, Refused, StepInput};
use crate::peer::mint_pass;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn key() -> TicketKey {
    TicketKey::new(&[b'k'; 32]).unwrap()
}

/// A pair whose prefill engine writes, and the pass of one request.
struct Write {
    pair: Pair,
    pass: String,
}

impl Write {
    fn new(layout: &str, tp: u32) -> Self {
        Self::patient(layout, tp, LONG, LONG)
    }

    /// What is written waits for `lease`, and then for `patience`.
    fn patient(layout: &str, tp: u32, lease: Duration, patience: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = peers(layout, tp, &key_in(folder.path()));
        config.options.peer_lease = lease;
        config.options.peer_timeout = patience;
        let decode = engine(&config);
        config.options.peer_inbox = Some(("127.0.0.1".to_owned(), 0));
        let prefill = engine(&config);
        let inbox = prefill.scheduler.inbox().unwrap().to_string();
        let offered = TOKENS - prefill.scheduler.left_to_decode();
        for (seed, worker) in (1..).zip(&prefill.workers) {
            worker.fill(seed);
        }
        decode.workers.iter().for_each(|worker| worker.fill(99));
        Self {
            pair: Pair {
                prefill,
                decode,
                offered,
            },
            pass: mint_pass(&key(), &inbox, LONG).unwrap(),
        }
    }

    fn from(&self) -> Vec<Vec<u32>> {
        with_nulls(self.pair.prefill.tables(5, self.pair.offered))
    }

    fn to(&self) -> Vec<Vec<u32>> {
        with_nulls(self.pair.decode.tables(20, TOKENS - 1))
    }

    fn promise(&self) {
        let promised = self.pair.prefill.scheduler.promise("p", &self.pass);
        assert_eq!(promised.unwrap(), Ok(()));
    }

    /// Prefill has computed the prompt, and keeps it.
    fn finish(&self) {
        let offered = self.pair.offered;
        let tables = self.from();
        let kept = with_prompt(offered, |prompt| {
            let finished = Finished {
                prompt,
                computed_tokens: offered,
                tables: &tables,
            };
            self.pair.prefill.scheduler.computed("p", Some(finished))
        });
        assert!(kept.unwrap());
    }

    fn expect(&self) {
        let expected = with_prompt(TOKENS, |prompt| {
            self.pair.decode.scheduler.expect("d", &self.pass, prompt)
        });
        assert_eq!(expected.unwrap(), Ok(()));
    }

    /// Decode has blocks for the request, and lends them.
    fn lend(&self) {
        self.expect();
        self.pair.take("d", &self.to(), 0);
    }

    /// Prefill goes on with empty steps until its workers have an order.
    fn write(&self) {
        eventually("prefill orders what is written", || {
            step(&self.pair.prefill)
        });
    }

    fn assert_rested(&self) {
        for engine in [&self.pair.prefill, &self.pair.decode] {
            for worker in &engine.workers {
                eventually("nothing is open", || worker.driver.is_idle());
                worker.assert_nothing_more();
            }
        }
    }

    /// Decode reports a failure, as its layout says.
    fn assert_failed(&self, layout: &str) {
        let worker = &self.pair.decode.workers[0];
        let outcome = worker.outcome("d");
        let (failed, blocks) = match layout {
            "full" => (vec![], self.to()[0].clone()),
            _ => (vec!["d".to_owned()], vec![]),
        };
        assert_eq!(outcome, (vec!["d".to_owned()], failed, blocks));
        worker.assert_nothing_more();
    }
}

/// Whether the engine's workers had something to do in its next step.
fn step(engine: &super::engine::Engine) -> bool {
    let plan = engine.scheduler.step(&StepInput::default()).unwrap();
    plan.inspect(|plan| engine.execute(plan)).is_some()
}

#[test]
fn a_prompt_is_written_into_blocks_on_every_rank_whoever_is_first() {
    for (layout, tp) in [("full", 1), ("hybrid", 1), ("hybrid", 2)] {
        for prefill_first in [true, false] {
            let write = Write::new(layout, tp);
            let pair = &write.pair;
            write.promise();
            if prefill_first {
                write.finish();
                assert!(!step(&pair.prefill), "nobody has come");
                write.lend();
            } else {
                write.lend();
                write.finish();
            }
            assert!(pair.prefill.scheduler.is_sending());
            write.write();
            for worker in &pair.decode.workers {
                assert_eq!(worker.outcome("d"), (vec!["d".to_owned()], vec![], vec![]));
            }
            pair.assert_sent("p");
            write.assert_rested();
            pair.prefill.scheduler.sent(&["p"]).unwrap();
            assert!(!pair.prefill.scheduler.is_sending());
            for (giver, taker) in pair.prefill.workers.iter().zip(&pair.decode.workers) {
                for (group, (from, to)) in write.from().iter().zip(&write.to()).enumerate() {
                    for (from, to) in from.iter().zip(to).filter(|(_, to)| **to != 0) {
                        assert_eq!(giver.block(group, *from), taker.block(group, *to));
                    }
                }
            }
            let decode = pair.decode.scheduler.metrics();
            assert_eq!(decode.handover.takes, 1);
            assert_eq!(pair.prefill.scheduler.metrics().handover.writes, 1);
        }
    }
}

#[test]
fn prefill_that_claims_before_decodes_workers_know_is_granted_with_their_order() {
    let write = Write::new("hybrid", 1);
    let pair = &write.pair;
    write.promise();
    write.finish();
    write.expect();
    let promised = pair.decode.lookup("d", TOKENS, 0).tokens.unwrap();
    let tables = write.to();
    pair.decode
        .scheduler
        .allocated("d", &tables, promised)
        .unwrap();
    write.write();
    let taker = &pair.decode.workers[0].driver;
    eventually("prefill claims", || {
        taker.metrics().peers.machine.early_claims == 1
    });
    assert!(step(&pair.decode));
    let outcome = pair.decode.workers[0].outcome("d");
    assert_eq!(outcome, (vec!["d".to_owned()], vec![], vec![]));
    pair.assert_sent("p");
    write.assert_rested();
}

#[test]
fn a_prompt_that_decode_does_not_want_is_given_back_and_nothing_moves() {
    let write = Write::new("hybrid", 1);
    let before = write.pair.decode.workers[0].memory();
    write.promise();
    write.finish();
    write.expect();
    write.pair.decode.scheduler.finished("d", None).unwrap();
    write.write();
    write.pair.assert_sent("p");
    write.assert_rested();
    assert_eq!(write.pair.decode.workers[0].memory(), before);
    assert!(!step(&write.pair.decode));
}

#[test]
fn a_prompt_that_nobody_comes_for_is_given_back_after_its_lease() {
    let write = Write::patient("full", 1, Duration::from_millis(50), LONG);
    write.promise();
    write.finish();
    write.write();
    write.pair.assert_sent("p");
    write.assert_rested();
    let counters = write.pair.prefill.scheduler.metrics().handover;
    assert_eq!((counters.writes, counters.writes_refused), (0, 1));
}

#[test]
fn decode_that_gives_up_while_it_waits_is_not_written_and_frees_both() {
    let write = Write::new("hybrid", 1);
    let pair = &write.pair;
    let before = pair.decode.workers[0].memory();
    write.promise();
    write.lend();
    pair.decode.scheduler.finished("d", None).unwrap();
    assert!(step(&pair.decode));
    pair.decode.workers[0].outcome("d");
    // Prefill knows nothing of that, and is refused when it claims.
    write.finish();
    write.write();
    pair.assert_sent("p");
    write.assert_rested();
    assert_eq!(pair.decode.workers[0].memory(), before);
    let refused = pair.decode.workers[0].driver.metrics().peers.machine;
    assert_eq!(refused.refused_claims, 1);
}

#[test]
fn prefill_that_loses_its_request_fails_decode_at_once() {
    for layout in ["full", "hybrid"] {
        let write = Write::new(layout, 1);
        write.promise();
        write.lend();
        assert!(!write.pair.prefill.scheduler.computed("p", None).unwrap());
        eventually("decode hears of it", || step(&write.pair.decode));
        write.assert_failed(layout);
        write.assert_rested();
        assert!(!step(&write.pair.prefill));
    }
}

#[test]
fn prefill_that_dies_before_it_writes_fails_decode_in_bounded_time() {
    for layout in ["full", "hybrid"] {
        let write = Write::new(layout, 1);
        write.promise();
        write.lend();
        let Write { pair, pass } = write;
        let Pair {
            prefill,
            decode,
            offered,
        } = pair;
        drop(prefill);
        eventually("decode finds nobody", || step(&decode));
        let prefill = engine(&peers(
            layout,
            1,
            &key_in(tempfile::tempdir().unwrap().path()),
        ));
        let pair = Pair {
            prefill,
            decode,
            offered,
        };
        Write { pair, pass }.assert_failed(layout);
    }
}

#[test]
fn a_prompt_that_comes_too_late_is_computed_and_never_written() {
    let short = Duration::from_millis(100);
    let write = Write::patient("full", 1, short, short);
    let pair = &write.pair;
    let before = pair.decode.workers[0].memory();
    write.promise();
    write.lend();
    write.assert_failed("full");
    // The pass is still good, and the ticket as well.
    write.finish();
    write.write();
    pair.assert_sent("p");
    write.assert_rested();
    assert_eq!(pair.decode.workers[0].memory(), before);
}

#[test]
fn whatever_comes_to_the_inbox_harms_nobody() {
    let write = Write::new("full", 1);
    let inbox = write.pair.prefill.scheduler.inbox().unwrap().to_string();
    let end = |noise: &[u8]| {
        let mut raw = TcpStream::connect(&inbox).unwrap();
        // The other side may have closed already.
        let _ = raw.write_all(noise);
        let _ = raw.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = raw.read_to_end(&mut answer);
        answer
    };
    assert!(end(&[0x5a; 300]).is_empty());
    assert!(end(b"TSRA").is_empty());
    // Signed with another key, and with the right one for another use.
    let ticket = Ticket {
        transfer: crate::peer::TransferId(1),
        expires_unix_ms: u64::MAX,
        prompt: [0; 32],
        tokens: 1,
        generation: crate::peer::Generation(1),
        workers: Vec::new(),
        tables: Vec::new(),
    };
    let foreign = TicketKey::new(&[b'x'; 32]).unwrap();
    for text in [
        ticket.seal_by(Lender::Decode, &foreign),
        ticket.seal(&key()),
    ] {
        let mut body = Vec::new();
        tessera_proto::message::PeerTicket { ticket: text }.encode(&mut body);
        let header = tessera_proto::FrameHeader {
            kind: tessera_proto::Kind::PeerTicket,
            request: 0,
            deadline_ms: 0,
            body_bytes: u32::try_from(body.len()).unwrap(),
            payload_bytes: 0,
        };
        let answer = end(&[&header.encode()[..], &body].concat());
        let header = tessera_proto::FrameHeader::decode(answer.first_chunk().unwrap()).unwrap();
        assert_eq!(header.kind, tessera_proto::Kind::Refused);
    }
    let counters = write.pair.prefill.scheduler.metrics().handover;
    assert_eq!(counters.tickets_refused, 2);
    write.promise();
    write.lend();
    write.finish();
    write.write();
    write.pair.decode.workers[0].outcome("d");
    write.pair.assert_sent("p");
}

#[test]
fn engines_without_an_inbox_write_nothing_and_dial_nobody() {
    let write = Write::new("full", 1);
    // Decode has none.
    let promised = write.pair.decode.scheduler.promise("p", &write.pass);
    assert_eq!(promised.unwrap(), Err(Refused::Role));
    // What no holder of the key has signed is no address.
    let foreign = TicketKey::new(&[b'x'; 32]).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let victim = listener.local_addr().unwrap().to_string();
    let forged = mint_pass(&foreign, &victim, LONG).unwrap();
    let expected = with_prompt(TOKENS, |prompt| {
        write.pair.decode.scheduler.expect("d", &forged, prompt)
    });
    assert!(matches!(expected.unwrap(), Err(Refused::Ticket(_))));
    let promised = write.pair.decode.lookup("d", TOKENS, 0).tokens;
    assert_eq!(promised, Some(0));
}

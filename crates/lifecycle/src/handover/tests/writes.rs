//! Prompts that prefill writes: requests that come to both engines with one pass, and the ticket
//! with which they meet.

use tessera_proto::Instant;
use tessera_proto::peer::TransferId;
use tessera_proto::ticket::{Lender, Pass, Ticket, TicketError, TicketKey};

use super::scene::{
    FULL, HYBRID, LEASE_MS, NULL, START, TIMEOUT_MS, Text, none, only, pairs, root,
};
use crate::handover::{Answer, HandoverOrder, HandoverRoot, Letter, Offered, Refused};
use crate::ids::RequestKey;
use crate::peer::{Mode, Side};
use crate::scheduler::LookupAnswer;

const UNIX_MS: u64 = super::scene::UNIX_MS;
const TRANSFER: TransferId = TransferId(9);
const INBOX: &str = "127.0.0.1:4100";

fn key() -> TicketKey {
    TicketKey::new(&[1; 32]).unwrap()
}

fn pass() -> String {
    let pass = Pass {
        transfer: TRANSFER,
        expires_unix_ms: UNIX_MS + LEASE_MS,
        inbox: INBOX.to_owned(),
    };
    pass.seal(&key())
}

fn expect(root: &mut HandoverRoot, name: &str, text: &Text) -> Result<(), Refused> {
    let expected = text.with(|prompt| root.expect((START, UNIX_MS), name, &pass(), prompt));
    root.check_invariants();
    expected
}

/// Decode has a request with the pass, and lends `tables` for it: its ticket.
fn lend(decode: &mut HandoverRoot, text: &Text, tables: &[Vec<u32>]) -> (HandoverOrder, Letter) {
    expect(decode, "d", text).unwrap();
    let promised = decode.lookup(START, "d", 0, true).unwrap().tokens.unwrap();
    assert_eq!(decode.allocated("d", tables, promised), Ok(true));
    (only(decode), letter(decode))
}

fn letter(decode: &mut HandoverRoot) -> Letter {
    let mut letters = decode.take_letters();
    assert_eq!(letters.len(), 1);
    letters.remove(0)
}

fn opened(letter: &Letter) -> Ticket {
    Ticket::open_by(Lender::Decode, &letter.ticket, &key(), UNIX_MS).unwrap()
}

fn bring(prefill: &mut HandoverRoot, letter: &Letter) -> Result<TransferId, Refused> {
    let brought = prefill.brought((START, UNIX_MS), &letter.ticket);
    prefill.check_invariants();
    brought
}

/// Prefill has computed the prompt into `tables`: whether it keeps them.
fn finish(prefill: &mut HandoverRoot, at: Instant, text: &Text, tables: &[Vec<u32>]) -> bool {
    let kept = text.with(|prompt| {
        let offered = Offered {
            request: "p",
            transfer: TRANSFER,
            prompt,
            computed_tokens: u64::try_from(prompt.tokens.len()).unwrap(),
            tables,
        };
        prefill.computed(at, "p", Some(&offered))
    });
    prefill.check_invariants();
    kept
}

fn promised(kinds: &[crate::shape::GroupKind]) -> HandoverRoot {
    let mut prefill = root(kinds, 1);
    prefill.promise(UNIX_MS, "p", &pass()).unwrap();
    prefill.check_invariants();
    prefill
}

fn assert_given_back(order: &HandoverOrder) {
    assert_eq!(order.request.as_deref(), Some("p"));
    let given = order.on(0, RequestKey(1), |_| 9);
    assert_eq!(
        (given.side, given.parts.len()),
        (Side::Source, 0),
        "over at once"
    );
}

#[test]
fn decode_lends_what_it_lacks_and_prefill_writes_it_whoever_is_first() {
    for prefill_first in [true, false] {
        let (long, short) = (Text::new(1, 12), Text::new(1, 11));
        let (mut prefill, mut decode) = (promised(HYBRID), root(HYBRID, 1));
        let own = [vec![7, 8, 9], vec![0, 10, 11], vec![0, 0, 12]];
        let (lent, letter) = lend(&mut decode, &long, &own);
        assert_eq!((letter.transfer, letter.inbox.as_str()), (TRANSFER, INBOX));
        let lender = lent.on(0, RequestKey(1), |_| 9);
        assert_eq!((lender.mode, lender.side), (Mode::Write, Side::Destination));
        assert_eq!(lender.parts[0].peer, None, "whoever has the ticket claims");
        assert_eq!(
            (lender.lease_ms, lender.timeout_ms),
            (LEASE_MS, LEASE_MS + TIMEOUT_MS)
        );
        let tables = [vec![1, 2, 3], vec![0, 4, 5], vec![0, 0, 6]];
        if prefill_first {
            assert!(finish(&mut prefill, START, &short, &tables));
            none(&mut prefill);
            assert!(prefill.take_answers().is_empty());
            bring(&mut prefill, &letter).unwrap();
        } else {
            bring(&mut prefill, &letter).unwrap();
            none(&mut prefill);
            assert!(finish(&mut prefill, START, &short, &tables));
        }
        assert_eq!(prefill.take_answers(), [(TRANSFER, Answer::Claimed)]);
        let order = only(&mut prefill);
        assert_eq!(order.request.as_deref(), Some("p"));
        assert_eq!(pairs(&order, 0), [(1, 7), (2, 8), (3, 9)]);
        assert_eq!(pairs(&order, 1), [(NULL, NULL), (4, 10), (5, 11)]);
        assert_eq!(pairs(&order, 2), [(NULL, NULL), (NULL, NULL), (6, 12)]);
        let writer = order.on(0, RequestKey(1), |_| 9);
        assert_eq!((writer.mode, writer.side), (Mode::Write, Side::Source));
        assert_eq!(writer.parts[0].remote, lender.parts[0].local);
        assert_eq!(writer.parts[0].length_bytes, lender.parts[0].length_bytes);
        assert_eq!(writer.parts[0].peer.map(|peer| peer.0), Some(101));
        assert_eq!(order.worker(0).unwrap().1, "127.0.0.1:4000");
        assert!(prefill.is_sending(), "the engine goes on");
        prefill.sent("p");
        assert!(!prefill.is_sending());
        assert!(decode.received("d"));
        // A ticket that comes again has the same answer, and is written once.
        bring(&mut prefill, &letter).unwrap();
        assert_eq!(prefill.take_answers(), [(TRANSFER, Answer::Claimed)]);
        none(&mut prefill);
    }
}

#[test]
fn what_decode_has_itself_is_not_written() {
    let mut decode = root(FULL, 1);
    expect(&mut decode, "d", &Text::new(1, 12)).unwrap();
    let tokens = decode.lookup(START, "d", 4, true).unwrap().tokens;
    assert_eq!(tokens, Some(7));
    decode.allocated("d", &[vec![7, 8, 9]], 7).unwrap();
    let ticket = opened(&letter(&mut decode));
    assert_eq!(
        (ticket.tokens, &ticket.tables[..]),
        (11, &[vec![NULL, 8, 9]][..])
    );
    let mut prefill = promised(FULL);
    prefill
        .brought((START, UNIX_MS), &ticket.seal_by(Lender::Decode, &key()))
        .unwrap();
    assert!(finish(
        &mut prefill,
        START,
        &Text::new(1, 12),
        &[vec![1, 2, 3]]
    ));
    assert_eq!(
        pairs(&only(&mut prefill), 0),
        [(NULL, NULL), (2, 8), (3, 9)]
    );
}

#[test]
fn a_prompt_that_decode_does_not_wait_for_is_given_back_at_once() {
    // Nothing can be loaded; it was gone before it began; it has all tokens itself.
    let ways: [fn(&mut HandoverRoot); 3] = [
        |decode| {
            assert_eq!(decode.lookup(START, "d", 0, false), None);
            assert_eq!(decode.allocated("d", &[vec![7, 8, 9]], 0), Ok(false));
        },
        |decode| decode.finished("d"),
        |decode| {
            assert_eq!(decode.lookup(START, "d", 11, true), None);
            assert_eq!(decode.allocated("d", &[vec![7, 8, 9]], 0), Ok(false));
        },
    ];
    for way in ways {
        let text = Text::new(1, 12);
        let (mut prefill, mut decode) = (promised(FULL), root(FULL, 1));
        expect(&mut decode, "d", &text).unwrap();
        way(&mut decode);
        none(&mut decode);
        let letter = letter(&mut decode);
        assert!(opened(&letter).blocks().next().is_none());
        assert!(finish(&mut prefill, START, &text, &[vec![1, 2, 3]]));
        bring(&mut prefill, &letter).unwrap();
        assert_given_back(&only(&mut prefill));
        assert_eq!(prefill.take_answers(), [(TRANSFER, Answer::Claimed)]);
        decode.not_brought(TRANSFER);
        none(&mut decode);
    }
}

#[test]
fn a_prompt_is_kept_until_its_lease_has_passed_and_not_longer() {
    let text = Text::new(1, 12);
    let mut prefill = promised(FULL);
    assert!(finish(&mut prefill, START, &text, &[vec![1, 2, 3]]));
    let end = START.after_millis(LEASE_MS);
    for (at, kept) in [
        (Instant(end.0 - 1), true),
        (end, true),
        (end.after_nanos(1), false),
    ] {
        prefill.expire(at);
        prefill.check_invariants();
        if kept {
            none(&mut prefill);
        }
        assert!(prefill.is_sending(), "until all workers have said so");
    }
    assert_given_back(&only(&mut prefill));
    // A ticket that comes after that is refused at once.
    let (_, letter) = lend(&mut root(FULL, 1), &text, &[vec![7, 8, 9]]);
    bring(&mut prefill, &letter).unwrap();
    assert_eq!(prefill.take_answers(), [(TRANSFER, Answer::Refused)]);
    none(&mut prefill);
    // And at last the pass is forgotten.
    prefill.expire(end.after_millis(LEASE_MS + 1));
    assert_eq!(prefill.promise(UNIX_MS, "again", &pass()), Ok(()));
}

#[test]
fn a_ticket_waits_for_its_prompt_until_it_expires_and_not_longer() {
    let text = Text::new(1, 12);
    let (_, letter) = lend(&mut root(FULL, 1), &text, &[vec![7, 8, 9]]);
    let end = START.after_millis(LEASE_MS);
    // Its request is computed too slowly, or has not come at all.
    for mut prefill in [promised(FULL), root(FULL, 1)] {
        bring(&mut prefill, &letter).unwrap();
        prefill.expire(end);
        assert!(prefill.take_answers().is_empty(), "at its end it is good");
        prefill.expire(end.after_nanos(1));
        prefill.check_invariants();
        assert_eq!(prefill.take_answers(), [(TRANSFER, Answer::Refused)]);
        // Nobody waits for what is computed then.
        assert!(!finish(
            &mut prefill,
            end.after_nanos(1),
            &text,
            &[vec![1, 2, 3]]
        ));
        assert!(!prefill.is_sending());
        none(&mut prefill);
    }
}

#[test]
fn a_request_that_prefill_loses_refuses_the_ticket() {
    let text = Text::new(1, 12);
    let (_, letter) = lend(&mut root(FULL, 1), &text, &[vec![7, 8, 9]]);
    for first in [true, false] {
        let mut prefill = promised(FULL);
        if first {
            bring(&mut prefill, &letter).unwrap();
        }
        assert!(!prefill.computed(START, "p", None), "nothing is kept");
        if !first {
            bring(&mut prefill, &letter).unwrap();
        }
        assert_eq!(prefill.take_answers(), [(TRANSFER, Answer::Refused)]);
        none(&mut prefill);
        assert!(!prefill.is_sending());
    }
}

#[test]
fn what_does_not_fit_is_refused_and_given_back() {
    let text = Text::new(1, 12);
    let own = [vec![7, 8, 9]];
    let (_, good) = lend(&mut root(FULL, 1), &text, &own);
    let (_, other) = lend(&mut root(FULL, 1), &Text::new(2, 12), &own);
    let cases = [
        (&other, vec![1, 2, 3]),
        // Blocks that prefill does not have.
        (&good, vec![1, 0, 3]),
        (&good, vec![1, 2]),
    ];
    for (letter, table) in cases {
        let mut prefill = promised(FULL);
        assert!(finish(&mut prefill, START, &text, &[table]));
        bring(&mut prefill, letter).unwrap();
        assert_eq!(prefill.take_answers(), [(TRANSFER, Answer::Refused)]);
        assert_given_back(&only(&mut prefill));
        assert_eq!(prefill.counters().writes_refused, 1);
    }
}

#[test]
fn a_ticket_that_is_not_brought_fails_the_transfer_and_no_other() {
    let text = Text::new(1, 12);
    let mut decode = root(FULL, 1);
    let (order, _) = lend(&mut decode, &text, &[vec![7, 8, 9]]);
    decode.not_brought(TransferId(8));
    none(&mut decode);
    decode.not_brought(TRANSFER);
    assert_eq!(decode.take_orders(), (Vec::new(), vec![order.transfer]));
    assert!(decode.received("d"));
    decode.not_brought(TRANSFER);
    none(&mut decode);
}

#[test]
fn an_engine_that_left_out_a_block_it_will_read_computes() {
    let mut decode = root(FULL, 1);
    expect(&mut decode, "d", &Text::new(1, 12)).unwrap();
    decode.lookup(START, "d", 0, true);
    decode.allocated("d", &[vec![7, 0, 9]], 11).unwrap();
    let (orders, cancels) = decode.take_orders();
    assert_eq!((orders.len(), cancels), (1, vec![TRANSFER.0]));
    assert!(opened(&letter(&mut decode)).blocks().next().is_none());
}

#[test]
fn passes_that_are_not_good_are_refused_on_either_side() {
    let text = Text::new(1, 12);
    let now = (START, UNIX_MS + LEASE_MS + 1);
    let late = Err(Refused::Ticket(TicketError::Expired(1)));
    let mut foreign = root(FULL, 2);
    let forged = Err(Refused::Ticket(TicketError::Signature));
    assert_eq!(foreign.promise(UNIX_MS, "p", &pass()), forged);
    assert_eq!(expect(&mut foreign, "d", &text), forged);
    let (_, letter) = lend(&mut root(FULL, 1), &text, &[vec![7, 8, 9]]);
    let brought = foreign.brought((START, UNIX_MS), &letter.ticket);
    assert_eq!(brought.map(|_| ()), forged);
    let mut engine = root(FULL, 1);
    assert_eq!(engine.promise(now.1, "p", &pass()), late);
    let expected = text.with(|prompt| engine.expect(now, "d", &pass(), prompt));
    assert_eq!(expected, late);
    assert_eq!(engine.counters().tickets_refused, 2);
    (engine.config.offers, engine.config.takes) = (false, false);
    let role = Err(Refused::Role);
    assert_eq!(engine.promise(UNIX_MS, "p", &pass()), role);
    assert!(engine.take_letters().is_empty(), "nobody is vouched for");
    assert_eq!(expect(&mut engine, "d", &text), role);
    let back = opened(&self::letter(&mut engine));
    assert!(back.blocks().next().is_none(), "prefill need not wait");
    assert_eq!(bring(&mut engine, &letter).map(|_| ()), role);
}

#[test]
fn a_pass_admits_one_request_of_prefill_and_one_ticket() {
    let text = Text::new(1, 12);
    let mut prefill = promised(FULL);
    let again = prefill.promise(UNIX_MS, "other", &pass());
    assert_eq!(again, Err(Refused::Used));
    let (_, first) = lend(&mut root(FULL, 1), &text, &[vec![7, 8, 9]]);
    let (_, second) = lend(&mut root(FULL, 1), &text, &[vec![17, 18, 19]]);
    bring(&mut prefill, &first).unwrap();
    assert_eq!(bring(&mut prefill, &second), Err(Refused::Used));
    assert!(!finish_other(&mut prefill), "it came with no pass");
    assert!(finish(&mut prefill, START, &text, &[vec![1, 2, 3]]));
    assert_eq!(pairs(&only(&mut prefill), 0), [(1, 7), (2, 8), (3, 9)]);
}

fn finish_other(prefill: &mut HandoverRoot) -> bool {
    prefill.computed(START, "other", None)
}

#[test]
fn of_samples_with_one_pass_one_lends_and_the_others_wait() {
    let text = Text::new(1, 12);
    let mut decode = root(FULL, 1);
    for name in ["one", "two"] {
        expect(&mut decode, name, &text).unwrap();
    }
    let undecided = Some(LookupAnswer::UNDECIDED);
    assert_eq!(decode.lookup(START, "two", 0, true), undecided);
    // The first is gone before it began: the second takes its place, and nothing was written.
    decode.finished("one");
    assert!(decode.take_letters().is_empty());
    let tokens = decode.lookup(START, "two", 0, true).unwrap().tokens;
    assert_eq!(tokens, Some(11));
    decode.allocated("two", &[vec![7, 8, 9]], 11).unwrap();
    assert_eq!(opened(&letter(&mut decode)).tables, [[7, 8, 9]]);
    assert_eq!(only(&mut decode).request.as_deref(), Some("two"));
}

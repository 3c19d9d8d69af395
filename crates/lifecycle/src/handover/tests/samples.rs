//! Several samples of one prompt, which come with one ticket: one of them takes it or gives it
//! back, once.

use tessera_proto::peer::TransferId;
use tessera_proto::ticket::{Ticket, TicketKey};

use super::scene::{FULL, LEASE_MS, START, TIMEOUT_MS, Text, admit, none, offer, only, root};
use crate::handover::HandoverRoot;
use crate::scheduler::LookupAnswer;

const TABLE: [u32; 3] = [21, 22, 23];

/// A ticket for ten tokens.
fn ticket(transfer: u128) -> String {
    let sealed = offer(&mut root(FULL, 1), &Text::new(1, 10), &[vec![11, 12, 13]]).unwrap();
    let key = TicketKey::new(&[1; 32]).unwrap();
    let ticket = Ticket::open(&sealed, &key, 0).unwrap();
    let transfer = TransferId(transfer);
    Ticket { transfer, ..ticket }.seal(&key)
}

/// A decode engine to which these requests have come with their tickets.
fn decode(requests: &[(&str, u128)]) -> HandoverRoot {
    let mut decode = root(FULL, 1);
    for (name, transfer) in requests {
        come(&mut decode, name, *transfer);
    }
    decode
}

fn come(decode: &mut HandoverRoot, name: &str, transfer: u128) {
    admit(decode, name, &ticket(transfer), &Text::new(1, 10)).unwrap();
}

fn lookup(decode: &mut HandoverRoot, name: &str) -> Option<LookupAnswer> {
    decode.check_invariants();
    decode.lookup(START, name, 0, true)
}

fn tokens(count: u64) -> Option<LookupAnswer> {
    let tokens = Some(count);
    Some(LookupAnswer { tokens })
}

fn take(decode: &mut HandoverRoot, name: &str) {
    assert_eq!(lookup(decode, name), tokens(9));
    assert_eq!(decode.allocated(name, &[TABLE.to_vec()], 9), Ok(true));
    assert_eq!(only(decode).request.as_deref(), Some(name));
}

/// That a request computes, and orders nothing to its end.
fn assert_computes(decode: &mut HandoverRoot, name: &str) {
    assert_eq!(lookup(decode, name), None);
    assert_eq!(decode.allocated(name, &[TABLE.to_vec()], 0), Ok(false));
    assert!(!decode.is_taking(name));
    assert!(!decode.received(name));
    decode.finished(name);
    none(decode);
}

#[test]
fn a_sample_that_comes_when_the_ticket_is_spent_computes() {
    // What it brought is in the engine's own cache; a second order with it could only fail.
    let mut taken = decode(&[("d", 1)]);
    take(&mut taken, "d");
    assert!(taken.received("d"));
    come(&mut taken, "e", 1);
    assert_computes(&mut taken, "e");

    let mut declined = decode(&[("d", 1)]);
    assert_eq!(declined.allocated("d", &[TABLE.to_vec()], 0), Ok(false));
    assert_eq!(only(&mut declined).request, None);
    come(&mut declined, "e", 1);
    assert_computes(&mut declined, "e");
}

#[test]
fn a_ticket_goes_from_sample_to_sample_until_the_last_one_gives_it_back() {
    let mut decode = decode(&[("d", 1), ("e", 1), ("f", 1), ("g", 2), ("h", 2)]);
    for (gone, heir, waits) in [("d", "e", "f"), ("e", "f", "h")] {
        decode.finished(gone);
        none(&mut decode);
        assert_eq!(lookup(&mut decode, heir), tokens(9));
        assert_eq!(lookup(&mut decode, waits), Some(LookupAnswer::UNDECIDED));
    }
    decode.finished("f");
    let given = only(&mut decode);
    assert_eq!((given.request, given.transfer), (None, 1));
    // Those of another ticket go on.
    assert_eq!(lookup(&mut decode, "h"), Some(LookupAnswer::UNDECIDED));
    take(&mut decode, "g");
    assert_eq!(decode.counters().declined, 1);
}

#[test]
fn a_sample_that_is_gone_while_it_waits_gives_nothing_back() {
    let mut decode = decode(&[("d", 1), ("e", 1)]);
    decode.finished("e");
    none(&mut decode);
    take(&mut decode, "d");
}

#[test]
fn a_ticket_whose_taker_is_gone_is_not_taken_again() {
    let mut decode = decode(&[("d", 1), ("e", 1), ("f", 1)]);
    take(&mut decode, "d");
    decode.finished("d");
    assert_eq!(decode.take_orders(), (Vec::new(), vec![1]));
    assert_computes(&mut decode, "e");
    come(&mut decode, "g", 1);
    assert_computes(&mut decode, "g");
    assert!(decode.is_taking("d"));
    assert!(decode.received("d"));
    assert_computes(&mut decode, "f");
}

#[test]
fn a_ticket_that_was_given_back_is_waited_for_by_nobody() {
    let mut decode = decode(&[("d", 1), ("e", 1)]);
    assert_eq!(decode.allocated("d", &[TABLE.to_vec()], 0), Ok(false));
    assert_eq!(only(&mut decode).request, None);
    assert_computes(&mut decode, "e");
    decode.finished("d");
    none(&mut decode);
}

#[test]
fn a_sample_that_cannot_load_or_has_all_itself_waits_for_nobody() {
    let mut decode = decode(&[("d", 1), ("e", 1)]);
    assert_eq!(decode.lookup(START, "e", 0, false), None);
    assert_eq!(decode.lookup(START, "e", 9, true), None);
    let undecided = Some(LookupAnswer::UNDECIDED);
    assert_eq!(decode.lookup(START, "e", 8, true), undecided);
}

#[test]
fn a_sample_that_has_waited_too_long_computes_and_gives_back_what_it_inherits() {
    let mut decode = decode(&[("d", 1), ("e", 1)]);
    let late = START.after_millis(LEASE_MS + TIMEOUT_MS).after_nanos(1);
    assert_eq!(decode.lookup(late, "e", 0, true), None);
    assert_eq!(decode.allocated("e", &[TABLE.to_vec()], 0), Ok(false));
    none(&mut decode);
    decode.finished("d");
    none(&mut decode);
    decode.finished("e");
    assert_eq!(only(&mut decode).request, None);
}

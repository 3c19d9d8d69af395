//! Decode's end: which tickets are taken, for which blocks, and how they are given back.

use tessera_proto::ticket::{Ticket, TicketError, TicketKey};

use super::scene::{
    FULL, HYBRID, KEY, LEASE_MS, NULL, START, TIMEOUT_MS, Text, UNIX_MS, admit, none, offer, only,
    pairs, root, shape,
};
use crate::handover::taker::pair;
use crate::handover::{End, HandoverOrder, HandoverRoot, Refused};
use crate::peer::{Mode, Side};
use crate::scheduler::LookupAnswer;
use crate::shape::GroupKind;

const FULL_TABLE: [u32; 3] = [11, 12, 13];

/// The ticket of an engine of full attention for a prompt of so many tokens.
fn ticket(text: &Text) -> String {
    offer(&mut root(FULL, 1), text, &[FULL_TABLE.to_vec()]).unwrap()
}

fn lookup(root: &mut HandoverRoot, name: &str, computed: u64) -> Option<LookupAnswer> {
    let answer = root.lookup(START, name, computed, true);
    assert_eq!(
        root.lookup(START, name, computed, true),
        answer,
        "a lookup may be repeated"
    );
    root.check_invariants();
    answer
}

fn tokens(count: u64) -> Option<LookupAnswer> {
    Some(LookupAnswer {
        tokens: Some(count),
    })
}

/// A decode engine with one request, `d`, that has a ticket for its ten tokens.
fn decode() -> (HandoverRoot, Text) {
    let (mut decode, text) = (root(FULL, 1), Text::new(1, 10));
    admit(&mut decode, "d", &ticket(&text), &text).unwrap();
    (decode, text)
}

/// Takes nothing, and says so to prefill.
fn assert_declined(order: &HandoverOrder) {
    assert_eq!((order.end, order.request.as_deref()), (End::Takes, None));
    assert_eq!(pairs(order, 0), [(NULL, NULL); 3]);
    assert_eq!(order.on(0, KEY, |_| 9).parts[0].length_bytes, 0);
}

#[test]
fn all_but_the_last_token_are_promised_and_taken_into_the_blocks_that_are_given() {
    let (mut decode, _) = decode();
    assert_eq!(lookup(&mut decode, "d", 0), tokens(9));
    assert_eq!(decode.allocated("d", &[vec![21, 22, 23]], 9), Ok(true));
    let order = only(&mut decode);
    assert_eq!(order.request.as_deref(), Some("d"));
    assert_eq!(pairs(&order, 0), [(21, 11), (22, 12), (23, 13)]);
    let taken = order.on(0, KEY, |_| 9);
    assert_eq!((taken.mode, taken.side), (Mode::Read, Side::Destination));
    assert_eq!(
        (taken.parts[0].length_bytes, taken.timeout_ms),
        (27, TIMEOUT_MS)
    );
    assert_eq!(taken.parts[0].peer.map(|peer| peer.0), Some(101));
    assert_eq!(order.worker(0).unwrap().1, "127.0.0.1:4000");
    assert!(decode.is_taking("d"));
    assert!(decode.received("d"));
    assert!(!decode.is_taking("d") && !decode.received("d"));
    assert_eq!(lookup(&mut decode, "d", 0), None, "a ticket is used once");
    assert_eq!(decode.allocated("d", &[vec![21, 22, 23]], 0), Ok(false));
    decode.finished("d");
    none(&mut decode);
}

#[test]
fn what_the_engine_has_itself_is_not_asked_for() {
    let (mut decode, _) = decode();
    assert_eq!(lookup(&mut decode, "d", 8), tokens(1));
    assert_eq!(decode.allocated("d", &[vec![31, 32, 23]], 1), Ok(true));
    let order = only(&mut decode);
    assert_eq!(pairs(&order, 0), [(NULL, NULL), (NULL, NULL), (23, 13)]);
}

#[test]
fn a_ticket_that_is_not_needed_is_given_back() {
    // The engine has it all; it cannot load; its request is gone before it was looked at.
    let (mut decode, text) = decode();
    assert_eq!(lookup(&mut decode, "d", 9), None);
    assert_eq!(decode.allocated("d", &[vec![1, 2, 3]], 0), Ok(false));
    assert_declined(&only(&mut decode));
    decode.finished("d");
    none(&mut decode);

    admit(&mut decode, "e", &ticket(&text), &text).unwrap();
    assert_eq!(decode.lookup(START, "e", 0, false), None);
    assert_eq!(decode.allocated("e", &[vec![1, 2, 3]], 0), Ok(false));
    assert_declined(&only(&mut decode));
    decode.finished("e");
    none(&mut decode);

    admit(&mut decode, "f", &ticket(&text), &text).unwrap();
    decode.finished("f");
    assert_declined(&only(&mut decode));
    assert_eq!(decode.counters().declined, 3);
}

#[test]
fn tokens_of_the_cache_are_not_those_of_a_ticket() {
    let (mut decode, _) = decode();
    // Nothing was promised by the ticket, so that external tokens are the cache's.
    assert_eq!(decode.allocated("d", &[vec![1, 2, 3]], 4), Ok(false));
    assert_declined(&only(&mut decode));
}

#[test]
fn an_engine_that_wants_nothing_of_what_was_promised_has_declined() {
    let (mut decode, _) = decode();
    assert_eq!(lookup(&mut decode, "d", 0), tokens(9));
    assert_eq!(decode.allocated("d", &[vec![1, 2, 3]], 0), Ok(false));
    assert_declined(&only(&mut decode));
}

#[test]
fn an_engine_that_expects_other_tokens_than_were_promised_is_stopped() {
    let (mut decode, _) = decode();
    assert_eq!(lookup(&mut decode, "d", 0), tokens(9));
    let error = decode.allocated("d", &[vec![1, 2, 3]], 8).unwrap_err();
    assert_eq!((error.promised, error.external_tokens), (9, 8));
}

#[test]
fn a_request_that_is_gone_calls_its_transfer_off_and_is_awaited() {
    let (mut decode, _) = decode();
    lookup(&mut decode, "d", 0);
    decode.allocated("d", &[vec![1, 2, 3]], 9).unwrap();
    let transfer = only(&mut decode).transfer;
    decode.finished("d");
    assert_eq!(decode.take_orders(), (Vec::new(), vec![transfer]));
    assert!(
        decode.is_taking("d"),
        "its blocks are not the engine's again"
    );
    assert!(decode.received("d"));
    assert!(!decode.is_taking("d"));
    none(&mut decode);
}

#[test]
fn samples_of_one_prompt_wait_for_the_one_that_takes_it() {
    let (mut decode, text) = decode();
    let again = ticket(&text);
    admit(&mut decode, "e", &again, &text).unwrap();
    assert_eq!(lookup(&mut decode, "d", 0), tokens(9));
    assert_eq!(lookup(&mut decode, "e", 0), Some(LookupAnswer::UNDECIDED));
    decode.allocated("d", &[vec![1, 2, 3]], 9).unwrap();
    assert_eq!(lookup(&mut decode, "e", 0), Some(LookupAnswer::UNDECIDED));
    let patience = START.after_millis(LEASE_MS + TIMEOUT_MS);
    let mut answer = |at| decode.lookup(at, "e", 0, true);
    assert_eq!(answer(patience), Some(LookupAnswer::UNDECIDED));
    assert_eq!(
        answer(patience.after_nanos(1)),
        None,
        "it waits while a deadline runs"
    );
    decode.received("d");
    assert_eq!(
        lookup(&mut decode, "e", 8),
        None,
        "the engine's own cache has the rest"
    );
    only(&mut decode);
    decode.finished("e");
    none(&mut decode);
}

#[test]
fn a_sample_that_is_gone_leaves_its_ticket_to_another() {
    let (mut decode, text) = decode();
    admit(&mut decode, "e", &ticket(&text), &text).unwrap();
    decode.finished("d");
    none(&mut decode);
    assert_eq!(lookup(&mut decode, "e", 0), tokens(9));
    decode.finished("e");
    assert_declined(&only(&mut decode));
}

#[test]
fn tickets_that_do_not_fit_are_refused_and_their_requests_compute() {
    let text = Text::new(1, 10);
    let good = ticket(&text);
    let hybrid = [vec![1, 2, 3], vec![0, 4, 5], vec![0, 0, 6]];
    let other_shape = offer(&mut root(HYBRID, 1), &text, &hybrid).unwrap();
    let short = offer(&mut root(FULL, 1), &text, &[vec![11, 12]]).unwrap();
    let foreign = offer(&mut root(FULL, 2), &text, &[FULL_TABLE.to_vec()]).unwrap();
    let mut decode = root(FULL, 1);
    let other = Text::new(2, 10);
    let cases = [
        (
            admit(&mut decode, "d", &foreign, &text),
            Refused::Ticket(TicketError::Signature),
        ),
        (
            admit(&mut decode, "d", "no", &text),
            Refused::Ticket(TicketError::Text),
        ),
        (admit(&mut decode, "d", &good, &other), Refused::Prompt),
        (admit(&mut decode, "d", &other_shape, &text), Refused::Shape),
        (admit(&mut decode, "d", &short, &text), Refused::Shape),
    ];
    for (admitted, refused) in cases {
        assert_eq!(admitted, Err(refused));
    }
    assert_eq!(decode.counters().tickets_refused, 5);
    // Nothing is said of a ticket that is not signed.
    let (orders, _) = decode.take_orders();
    let released: Vec<_> = orders.iter().map(|order| order.blocks.len()).collect();
    assert_eq!(released, [3, 9, 2]);
    decode.config.takes = false;
    assert_eq!(admit(&mut decode, "d", &good, &text), Err(Refused::Role));
    assert_eq!(lookup(&mut decode, "d", 0), None);
    none(&mut decode);
}

#[test]
fn a_good_ticket_that_its_request_cannot_use_is_given_back_at_once() {
    let (mut decode, text) = (root(FULL, 1), Text::new(1, 10));
    let (good, other) = (ticket(&text), Text::new(2, 10));
    assert_eq!(admit(&mut decode, "e", &good, &other), Err(Refused::Prompt));
    assert_declined(&only(&mut decode));
    assert_eq!(decode.counters().declined, 1);
    // Of an engine with ranks that were not expected nobody knows who holds what.
    let mut decode = root(FULL, 1);
    decode.config.peer_ranks += 1;
    assert_eq!(admit(&mut decode, "d", &good, &text), Err(Refused::Shape));
    none(&mut decode);
    // What a request has is its own, whatever another one brings.
    let (mut decode, _) = self::decode();
    assert_eq!(admit(&mut decode, "e", &good, &other), Err(Refused::Prompt));
    none(&mut decode);
    assert_eq!(lookup(&mut decode, "d", 0), tokens(9));
    assert_eq!(decode.allocated("d", &[vec![21, 22, 23]], 9), Ok(true));
}

#[test]
fn windows_and_states_are_taken_only_behind_the_last_token_but_one() {
    let (tables, text) = (
        [vec![1, 2, 3], vec![0, 4, 5], vec![0, 0, 6]],
        Text::new(1, 11),
    );
    let ticket = offer(&mut root(HYBRID, 1), &text, &tables).unwrap();
    let mut decode = root(HYBRID, 1);
    // The same number of tokens: the state behind the last one is of no use.
    assert_eq!(admit(&mut decode, "d", &ticket, &text), Err(Refused::Shape));
    // A prompt that goes on is computed from there.
    for (name, length) in [("d", 12), ("longer", 13)] {
        admit(&mut decode, name, &ticket, &Text::new(1, length)).unwrap();
        assert_eq!(lookup(&mut decode, name, 0), tokens(11));
        decode.finished(name);
        decode.take_orders();
    }
    admit(&mut decode, "d", &ticket, &Text::new(1, 12)).unwrap();
    lookup(&mut decode, "d", 0);
    decode
        .allocated("d", &[vec![7, 8, 9], vec![0, 10, 11], vec![0, 0, 12]], 11)
        .unwrap();
    let order = only(&mut decode);
    assert_eq!(pairs(&order, 1), [(NULL, NULL), (10, 4), (11, 5)]);
    assert_eq!(pairs(&order, 2), [(NULL, NULL), (NULL, NULL), (12, 6)]);
}

#[test]
fn a_block_that_is_needed_and_missing_fails_the_transfer() {
    let tables = [vec![1, 2, 3], vec![0, 4, 5], vec![0, 0, 6]];
    let (text, kinds) = (
        Text::new(1, 11),
        [HYBRID[0], GroupKind::Window { tokens: 6 }, HYBRID[2]],
    );
    let shape = shape(&kinds);
    let sealed = offer(&mut root(HYBRID, 1), &text, &tables).unwrap();
    let key = TicketKey::new(&[1; 32]).unwrap();
    let ticket = Ticket::open(&sealed, &key, 0).unwrap();
    let own = [vec![7, 8, 9], vec![0, 10, 11], vec![0, 0, 12]];
    assert!(pair(&shape, &ticket, &own, 0, 11).is_some());
    for (group, index) in [(0, 0), (0, 2), (1, 1), (1, 2), (2, 2)] {
        let mut spoiled = own.clone();
        spoiled[group][index] = 0;
        let pairs = pair(&shape, &ticket, &spoiled, 0, 11);
        assert!(pairs.is_none(), "group {group}, block {index}");
    }
    // The first chunk is there already.
    let mut cached = own.clone();
    cached[0][0] = 0;
    assert!(pair(&shape, &ticket, &cached, 4, 11).is_some());
}

/// A ticket of full attention for `text`, spoiled and signed again.
fn forged(text: &Text, spoil: impl FnOnce(&mut Ticket)) -> String {
    let key = TicketKey::new(&[1; 32]).unwrap();
    let mut ticket = Ticket::open(&ticket(text), &key, 0).unwrap();
    spoil(&mut ticket);
    ticket.seal(&key)
}

#[test]
fn a_ticket_of_an_engine_of_another_size_is_refused() {
    let text = Text::new(1, 10);
    let two = |ticket: &mut Ticket| ticket.workers.push(ticket.workers[0].clone());
    let none = |ticket: &mut Ticket| ticket.workers.clear();
    let groups = |ticket: &mut Ticket| ticket.tables.push(FULL_TABLE.to_vec());
    let spoils: [fn(&mut Ticket); 3] = [two, none, groups];
    for spoil in spoils {
        let mut decode = root(FULL, 1);
        let refused = admit(&mut decode, "d", &forged(&text, spoil), &text);
        assert_eq!(refused, Err(Refused::Shape));
    }
    let same = forged(&text, |_| {});
    assert_eq!(admit(&mut root(FULL, 1), "d", &same, &text), Ok(()));
}

#[test]
fn a_ticket_is_good_until_its_lease_has_ended() {
    let (mut decode, text) = (root(FULL, 1), Text::new(1, 10));
    let ticket = ticket(&text);
    let mut at = |late_ms| {
        let now = (START, UNIX_MS + LEASE_MS + late_ms);
        text.with(|prompt| decode.admit(now, "d", &ticket, prompt))
    };
    let expired = Refused::Ticket(TicketError::Expired(1));
    assert_eq!((at(1), at(0)), (Err(expired), Ok(())));
}

#[test]
fn a_prompt_of_one_token_has_nothing_to_take() {
    let text = Text::new(1, 1);
    let one = offer(&mut root(FULL, 1), &text, &[vec![11]]).unwrap();
    let mut decode = root(FULL, 1);
    assert_eq!(admit(&mut decode, "d", &one, &text), Err(Refused::Shape));
    let two = Text::new(1, 2);
    assert_eq!(admit(&mut decode, "d", &one, &two), Ok(()));
    assert_eq!(lookup(&mut decode, "d", 0), tokens(1));
}

#[test]
fn no_more_requests_with_a_ticket_are_known_than_the_limit_allows() {
    let (mut decode, text) = (root(FULL, 1), Text::new(1, 10));
    decode.config.limits.requests = 2;
    let ticket = ticket(&text);
    for (name, admitted) in [("d", Ok(())), ("e", Ok(())), ("f", Err(Refused::Full))] {
        assert_eq!(admit(&mut decode, name, &ticket, &text), admitted);
    }
    assert_eq!(lookup(&mut decode, "f", 0), None);
    decode.finished("e");
    assert_eq!(admit(&mut decode, "f", &ticket, &text), Ok(()));
    let counters = decode.counters();
    assert_eq!((counters.tickets, counters.tickets_refused), (3, 1));
}

#[test]
fn what_is_called_off_is_called_off_once_and_only_while_it_is_under_way() {
    // Known to nobody, and held but not taken: nothing is received.
    let (mut decode, text) = decode();
    for name in ["x", "d"] {
        assert!(!decode.is_taking(name) && !decode.received(name), "{name}");
    }
    lookup(&mut decode, "d", 0);
    decode.allocated("d", &[vec![1, 2, 3]], 9).unwrap();
    let transfer = only(&mut decode).transfer;
    assert!(!decode.received("x"), "another one's");
    decode.finished("d");
    decode.finished("d");
    assert_eq!(decode.take_orders(), (Vec::new(), vec![transfer]));
    assert!(!decode.is_taking("x") && decode.received("d"));
    assert!(!decode.received("d"), "once");

    // Its next life received what was taken: there is nothing to call off.
    admit(&mut decode, "d", &ticket(&text), &text).unwrap();
    lookup(&mut decode, "d", 0);
    decode.allocated("d", &[vec![1, 2, 3]], 9).unwrap();
    only(&mut decode);
    assert!(decode.received("d"));
    decode.finished("d");
    none(&mut decode);
    let counters = decode.counters();
    let of_takes = (
        counters.takes,
        counters.tokens_taken,
        counters.takes_cancelled,
    );
    assert_eq!((of_takes, counters.declined), ((2, 18, 1), 0));
}

#[test]
fn a_request_that_was_preempted_computes() {
    let (mut decode, _) = decode();
    lookup(&mut decode, "d", 0);
    decode.allocated("d", &[vec![1, 2, 3]], 9).unwrap();
    only(&mut decode);
    assert!(decode.received("d"));
    // It has lost its blocks, and the cache may bring some of it.
    assert_eq!(lookup(&mut decode, "d", 0), None);
    assert_eq!(decode.allocated("d", &[vec![4, 5, 6]], 8), Ok(false));
    none(&mut decode);
}

#[test]
fn a_ticket_of_a_step_that_failed_is_given_back_to_the_process_that_wrote_it() {
    let (mut decode, _) = decode();
    lookup(&mut decode, "d", 0);
    assert!(decode.allocated("d", &[vec![1, 2, 3]], 8).is_err());
    none(&mut decode);
    decode.finished("d");
    let order = only(&mut decode);
    assert_declined(&order);
    assert_eq!(
        order.on(0, KEY, |_| 9).parts[0].peer.map(|peer| peer.0),
        Some(101)
    );
    assert_eq!((order.worker(1), order.workers.len()), (None, 1));
}

#[test]
fn each_rank_takes_from_its_own() {
    let (mut decode, _) = decode();
    lookup(&mut decode, "d", 0);
    decode.allocated("d", &[vec![1, 2, 3]], 9).unwrap();
    let mut order = only(&mut decode);
    order.workers.push((102, "127.0.0.1:4001".to_owned()));
    let part = order.on(1, KEY, |_| 9).parts.remove(0);
    assert_eq!((part.part.source, part.part.destination), (1, 1));
    assert_eq!(part.peer.map(|peer| peer.0), Some(102));
    assert_eq!(order.worker(1).unwrap().1, "127.0.0.1:4001");
}

#[test]
fn a_block_that_is_missing_orders_a_transfer_that_fails() {
    let (mut decode, _) = decode();
    lookup(&mut decode, "d", 0);
    assert_eq!(decode.allocated("d", &[vec![1, 0, 3]], 9), Ok(true));
    let order = only(&mut decode);
    assert_eq!(order.request.as_deref(), Some("d"));
    assert_eq!(order.blocks, [], "which fits no offer");
    assert!(decode.is_taking("d"), "it is reported all the same");
}

#[test]
fn a_ticket_that_expires_while_its_request_waits_is_not_promised() {
    for (late_nanos, promised) in [(0, Some(9)), (1, None)] {
        let (mut decode, _) = decode();
        let now = START.after_millis(LEASE_MS).after_nanos(late_nanos);
        let answer = decode.lookup(now, "d", 0, true);
        assert_eq!(answer.and_then(|answer| answer.tokens), promised);
        if promised.is_none() {
            assert_eq!(decode.allocated("d", &[vec![1, 2, 3]], 0), Ok(false));
            assert_declined(&only(&mut decode));
        }
    }
}

//! Prefill's end: what is offered, and what is not.

use tessera_proto::ticket::{Ticket, TicketKey};

use super::scene::{
    FULL, HYBRID, KEY, LEASE_MS, NULL, TIMEOUT_MS, Text, UNIX_MS, none, offer, offer_after, only,
    pairs, root,
};
use crate::handover::{End, HandoverRoot};
use crate::peer::{Mode, Side};

fn opened(ticket: &str) -> Ticket {
    let key = TicketKey::new(&[1; 32]).unwrap();
    Ticket::open(ticket, &key, UNIX_MS + LEASE_MS).unwrap()
}

#[test]
fn a_finished_prompt_is_offered_with_its_blocks_until_its_lease_ends() {
    let mut prefill = root(HYBRID, 1);
    let tables = [vec![3, 4, 5], vec![0, 6, 7], vec![0, 0, 8]];
    let ticket = offer(&mut prefill, &Text::new(1, 11), &tables).unwrap();
    let ticket = opened(&ticket);
    assert_eq!(
        (ticket.tokens, ticket.expires_unix_ms),
        (11, UNIX_MS + LEASE_MS)
    );
    assert_eq!(
        ticket.tables,
        [vec![3, 4, 5], vec![NULL, 6, 7], vec![NULL, NULL, 8]]
    );
    let order = only(&mut prefill);
    assert_eq!(order.request.as_deref(), Some("p"));
    assert_eq!((order.end, order.transfer), (End::Gives, ticket.transfer.0));
    assert_eq!(pairs(&order, 1), [(NULL, NULL), (6, NULL), (7, NULL)]);
    let given = order.on(0, KEY, |group| u64::from(group) + 10);
    assert_eq!((given.mode, given.side), (Mode::Read, Side::Source));
    assert_eq!((given.lease_ms, given.timeout_ms), (LEASE_MS, TIMEOUT_MS));
    assert_eq!(given.parts[0].local, ticket.blocks().collect::<Vec<_>>());
    assert_eq!(given.parts[0].length_bytes, 3 * 10 + 2 * 11 + 12);
    assert_eq!(given.parts[0].peer, None, "whoever claims it first");
    none(&mut prefill);
}

#[test]
fn each_offer_is_a_life_of_its_blocks_of_its_own() {
    let mut prefill = root(FULL, 1);
    let mut life = || {
        let ticket = offer(&mut prefill, &Text::new(1, 4), &[vec![3]]).unwrap();
        opened(&ticket).generation
    };
    assert_ne!(life(), life());
}

#[test]
fn a_prompt_that_cannot_be_taken_over_exactly_is_not_offered() {
    type Spoil = fn(&mut HandoverRoot);
    let (text, full, hybrid) = (
        Text::new(1, 8),
        [vec![1, 2]],
        [vec![1, 2], vec![3, 4], vec![0, 5]],
    );
    let keep: Spoil = |_| {};
    let cases: [(&str, Spoil, bool, u64, bool); 7] = [
        ("all computed", keep, false, 8, true),
        ("part computed", keep, false, 7, false),
        ("full attention that went on", keep, false, 9, true),
        ("windows and states, all computed", keep, true, 8, true),
        ("windows and states that went on", keep, true, 9, false),
        (
            "workers unknown",
            |root| root.meet(Vec::new()),
            false,
            8,
            false,
        ),
        ("role", |root| root.config.offers = false, false, 8, false),
    ];
    for (what, spoil, is_hybrid, computed, offered) in cases {
        let mut prefill = root(if is_hybrid { HYBRID } else { FULL }, 1);
        spoil(&mut prefill);
        let tables: &[Vec<u32>] = if is_hybrid { &hybrid } else { &full };
        let ticket = offer_after(&mut prefill, &text, computed, tables);
        assert_eq!(ticket.is_some(), offered, "{what}");
        assert_eq!(
            prefill.counters().offers_withheld,
            u64::from(!offered),
            "{what}"
        );
        assert_eq!(
            prefill.take_orders().0.len(),
            usize::from(offered),
            "{what}"
        );
    }
}

#[test]
fn the_last_token_is_left_to_decode_where_a_state_or_a_window_stands_behind_it() {
    assert_eq!(root(FULL, 1).left_to_decode(), 0);
    assert_eq!(root(HYBRID, 1).left_to_decode(), 1);
}

#[test]
fn nothing_is_left_to_decode_where_nothing_is_offered() {
    let mut decode = root(HYBRID, 1);
    decode.config.offers = false;
    assert_eq!(decode.left_to_decode(), 0);
    assert_eq!(root(&HYBRID[1..2], 1).left_to_decode(), 1);
}

#[test]
fn a_prompt_without_tokens_or_with_other_groups_is_not_offered() {
    let mut prefill = root(FULL, 1);
    let text = Text::new(1, 8);
    assert_eq!(offer(&mut prefill, &Text::new(1, 0), &[vec![1]]), None);
    assert_eq!(offer(&mut prefill, &text, &[]), None);
    assert_eq!(offer(&mut prefill, &text, &[vec![1, 2], vec![3, 4]]), None);
    none(&mut prefill);
    assert!(offer(&mut prefill, &text, &[vec![1, 2]]).is_some());
    let counters = prefill.counters();
    assert_eq!((counters.offers, counters.offers_withheld), (1, 3));
}

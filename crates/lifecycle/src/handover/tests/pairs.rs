//! Which blocks are asked for, and which the engine must have given for them.

use tessera_proto::ticket::{Ticket, TicketKey};

use super::scene::{FULL, NULL, Text, offer, root, shape};
use crate::handover::taker::pair;
use crate::shape::GroupKind;

/// The opened ticket of so many tokens in one group of this kind.
fn in_one_group(kind: GroupKind, length: u32) -> Ticket {
    let table = [vec![1, 2, 3]];
    let sealed = offer(&mut root(&[kind], 1), &Text::new(1, length), &table).unwrap();
    Ticket::open(&sealed, &TicketKey::new(&[1; 32]).unwrap(), 0).unwrap()
}

#[test]
fn of_a_window_exactly_the_blocks_that_the_next_token_looks_at_are_needed() {
    // Behind eleven tokens the next one is the twelfth, at 11: of four it looks back to 8.
    // A window of one token needs at least the last block, as a state does.
    let cases = [
        (11, Some(1), 2),
        (11, Some(4), 2),
        (11, Some(5), 1),
        (11, Some(8), 1),
        (11, Some(9), 0),
        (11, Some(100), 0),
        (12, Some(1), 2),
        (12, Some(5), 2),
        (12, Some(6), 1),
        (11, None, 2),
        (12, None, 2),
        (9, None, 2),
    ];
    for (length, tokens, oldest) in cases {
        let window = |tokens| GroupKind::Window { tokens };
        let kind = tokens.map_or(GroupKind::State, window);
        let ticket = in_one_group(kind, length);
        for missing in 0..3 {
            let mut table = vec![7, 8, 9];
            table[missing] = 0;
            let pairs = pair(&shape(&[kind]), &ticket, &[table], 0, u64::from(length));
            assert_eq!(
                pairs.is_some(),
                missing < oldest,
                "{kind:?} {length} {missing}"
            );
        }
    }
}

#[test]
fn a_table_that_is_too_short_or_too_long_asks_for_what_is_needed_only() {
    let ticket = in_one_group(GroupKind::Full, 10);
    let pair = |table: &[Vec<u32>], computed, limit| {
        let pairs = pair(&shape(FULL), &ticket, table, computed, limit)?;
        Some(
            pairs
                .iter()
                .map(|of| (of.local, of.remote))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(pair(&[vec![7, 8]], 0, 10), None, "the engine reads three");
    assert_eq!(pair(&[], 0, 10), None, "and knows no such group");
    let first_two = Some(vec![(7, 1), (8, 2), (NULL, NULL)]);
    assert_eq!(pair(&[vec![7, 8]], 0, 8), first_two);
    assert_eq!(pair(&[vec![7, 8, 9, 10]], 0, 8), first_two);
    // Inside a block the whole block comes.
    let last_two = Some(vec![(NULL, NULL), (8, 2), (9, 3)]);
    assert_eq!(pair(&[vec![7, 8, 9, 10]], 5, 9), last_two);
}

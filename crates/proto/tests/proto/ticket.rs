//! Tickets: their golden text, and what is refused.

use proptest::prelude::*;
use tessera_proto::peer::{BlockRef, Generation, TransferId};
use tessera_proto::ticket::{Lender, Pass, Prompt, Ticket, TicketError, TicketKey, TicketWorker};
use tessera_proto::{DecodeError, Incarnation};

const KEY: [u8; 32] = [7; 32];
const EXPIRES: u64 = 1_000_000;

/// Made by Python's `hmac` and `hashlib` over the fields in the order of the type.
const GOLDEN: &str = include_str!("../golden/ticket-v1.hex");

/// The same of a pass.
const GOLDEN_PASS: &str = include_str!("../golden/pass-v1.hex");

fn key(byte: u8) -> TicketKey {
    TicketKey::new(&[byte; 32]).unwrap()
}

fn ticket() -> Ticket {
    Ticket {
        transfer: TransferId(0x0102_0304),
        expires_unix_ms: EXPIRES,
        prompt: [0xab; 32],
        tokens: 1_499,
        generation: Generation(9),
        workers: vec![
            TicketWorker {
                incarnation: Incarnation(5),
                address: "127.0.0.1:4000".to_owned(),
            },
            TicketWorker {
                incarnation: Incarnation(6),
                address: "127.0.0.1:4001".to_owned(),
            },
        ],
        tables: vec![vec![3, 4, 5], vec![BlockRef::NULL, 8]],
    }
}

fn digest_of(prompt: Prompt<'_>, tokens: u64) -> [u8; 32] {
    prompt.digest(tokens).unwrap()
}

#[test]
fn a_ticket_has_its_golden_text() {
    let key = TicketKey::new(&KEY).unwrap();
    assert_eq!(ticket().seal(&key), GOLDEN.trim());
    assert_eq!(Ticket::open(GOLDEN.trim(), &key, 0), Ok(ticket()));
}

fn pass() -> Pass {
    Pass {
        transfer: TransferId(0x0102_0304),
        expires_unix_ms: EXPIRES,
        inbox: "127.0.0.1:4100".to_owned(),
    }
}

#[test]
fn a_pass_has_its_golden_text() {
    let key = TicketKey::new(&KEY).unwrap();
    assert_eq!(pass().seal(&key), GOLDEN_PASS.trim());
    assert_eq!(Pass::open(GOLDEN_PASS.trim(), &key, 0), Ok(pass()));
}

#[test]
fn a_pass_is_good_until_its_expiry_and_not_after() {
    let text = pass().seal(&key(7));
    for (now, open) in [
        (EXPIRES, Ok(pass())),
        (EXPIRES + 1, Err(TicketError::Expired(1))),
    ] {
        assert_eq!(Pass::open(&text, &key(7), now), open, "at {now}");
    }
    assert_eq!(Pass::open(&text, &key(8), 0), Err(TicketError::Signature));
}

/// Who may read blocks may not write them, nor the other way round.
#[test]
fn what_is_signed_for_one_use_is_good_for_no_other() {
    let key = key(7);
    let (read, write) = (ticket().seal(&key), ticket().seal_by(Lender::Decode, &key));
    assert_eq!(
        Ticket::open_by(Lender::Decode, &write, &key, 0),
        Ok(ticket())
    );
    let of_another_kind = |error: TicketError| {
        assert!(
            matches!(error, TicketError::Malformed(DecodeError::Version { .. })),
            "{error}"
        );
    };
    of_another_kind(Ticket::open(&write, &key, 0).unwrap_err());
    of_another_kind(Ticket::open_by(Lender::Decode, &read, &key, 0).unwrap_err());
    for text in [&read, &write] {
        of_another_kind(Pass::open(text, &key, 0).unwrap_err());
    }
    of_another_kind(Ticket::open(&pass().seal(&key), &key, 0).unwrap_err());
}

#[test]
fn a_ticket_is_good_until_its_expiry_and_not_after() {
    let text = ticket().seal(&key(7));
    for (now, open) in [
        (EXPIRES - 1, Ok(ticket())),
        (EXPIRES, Ok(ticket())),
        (EXPIRES + 1, Err(TicketError::Expired(1))),
    ] {
        assert_eq!(Ticket::open(&text, &key(7), now), open, "at {now}");
    }
}

#[test]
fn a_ticket_of_another_key_is_refused() {
    let text = ticket().seal(&key(7));
    assert_eq!(Ticket::open(&text, &key(8), 0), Err(TicketError::Signature));
}

#[test]
fn a_key_has_a_least_length() {
    assert!(TicketKey::new(&[1; 31]).is_none());
    assert!(TicketKey::new(&[1; 32]).is_some());
    assert_eq!(format!("{:?}", key(1)), "TicketKey");
}

#[test]
fn what_is_no_ticket_is_refused_without_a_panic() {
    for text in [
        "",
        "0",
        "zz",
        "äöü",
        &"0".repeat(63),
        &"0".repeat((4 << 20) + 2),
    ] {
        assert_eq!(Ticket::open(text, &key(7), 0), Err(TicketError::Text));
    }
    assert_eq!(
        Ticket::open(&"0".repeat(64), &key(7), 0),
        Err(TicketError::Signature)
    );
}

#[test]
fn blocks_come_group_after_group() {
    let blocks: Vec<_> = ticket().blocks().map(|of| (of.group, of.block)).collect();
    assert_eq!(
        blocks,
        [(0, 3), (0, 4), (0, 5), (1, BlockRef::NULL), (1, 8)]
    );
    assert!(ticket().blocks().all(|of| of.generation == Generation(9)));
}

#[test]
fn a_prompt_is_known_by_all_that_its_blocks_depend_on() {
    let prompt = Prompt {
        tokens: &[1, 2, 3, 4, 5],
        hashes: &[b"one", b"two"],
        hash_tokens: 2,
        others: &[b"salt"],
    };
    let base = digest_of(prompt, 5);
    let others = [
        digest_of(prompt, 4),
        digest_of(
            Prompt {
                tokens: &[1, 2, 3, 4, 6],
                ..prompt
            },
            5,
        ),
        digest_of(
            Prompt {
                hashes: &[b"one", b"twO"],
                ..prompt
            },
            5,
        ),
        digest_of(
            Prompt {
                hashes: &[b"on", b"etwo"],
                ..prompt
            },
            5,
        ),
        digest_of(
            Prompt {
                others: &[b"pepper"],
                ..prompt
            },
            5,
        ),
        digest_of(
            Prompt {
                others: &[],
                ..prompt
            },
            5,
        ),
    ];
    assert!(others.iter().all(|other| *other != base));
    // What comes behind the tokens that are offered changes nothing.
    let longer = Prompt {
        tokens: &[1, 2, 3, 4, 9],
        hashes: &[b"one", b"two", b"no"],
        ..prompt
    };
    assert_eq!(digest_of(longer, 4), digest_of(prompt, 4));
    assert_eq!(prompt.digest(6), None, "there are five tokens");
    assert_eq!(
        Prompt {
            hashes: &[b"one"],
            ..prompt
        }
        .digest(5),
        None
    );
}

proptest! {
    #[test]
    fn no_changed_ticket_is_opened(at in any::<prop::sample::Index>(), change in 1_u8..16) {
        let mut text = ticket().seal(&key(7)).into_bytes();
        let at = at.index(text.len());
        let digit = char::from(text[at]).to_digit(16).unwrap();
        let other = char::from_digit(digit ^ u32::from(change), 16).unwrap();
        text[at] = u8::try_from(other).unwrap();
        let text = String::from_utf8(text).unwrap();
        prop_assert_eq!(Ticket::open(&text, &key(7), 0), Err(TicketError::Signature));
    }

    #[test]
    fn a_ticket_comes_back_as_it_was(
        numbers in any::<(u128, u64, u64, u64)>(),
        tables in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..9), 0..9),
    ) {
        let (transfer, expires_unix_ms, tokens, generation) = numbers;
        let ticket = Ticket {
            transfer: TransferId(transfer),
            expires_unix_ms,
            tokens,
            generation: Generation(generation),
            tables,
            ..ticket()
        };
        let text = ticket.seal(&key(7));
        prop_assert_eq!(Ticket::open(&text, &key(7), 0), Ok(ticket));
    }
}

/// A text that is signed as a ticket, and is none.
#[test]
fn signed_bytes_are_read_as_strictly_as_others() {
    let mut many = ticket();
    many.tables = vec![vec![0; 65_536], vec![0]];
    let opened = Ticket::open(&many.seal(&key(7)), &key(7), 0);
    let over = |error: &TicketError| {
        matches!(
            error,
            TicketError::Malformed(DecodeError::OverLimit {
                field: "blocks",
                ..
            })
        )
    };
    assert!(opened.as_ref().is_err_and(over), "{opened:?}");
}

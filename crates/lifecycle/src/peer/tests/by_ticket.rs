//! WRITE by a ticket: whoever has it claims, and decode learns from the claim who that is.

use super::scene::{FIRST, PEER, SECOND, Scene, at, blocks, order, part, transfer};
use crate::peer::{Drain, LentPart, Message, Mode, Proof, Side, TransferOrder};
use crate::shape::LayoutClass::Request;

/// Decode lends a transfer of one part to whoever has its ticket.
fn lent() -> TransferOrder {
    let mut order = order(1, Mode::Write, Side::Destination, 1);
    order.parts[0].peer = None;
    order
}

/// Prefill has a ticket of one part.
fn written() -> TransferOrder {
    let mut order = order(1, Mode::Write, Side::Source, 1);
    order.parts[0].remote = blocks(1, 0, true);
    order
}

fn claim() -> Message {
    Message::Claim {
        transfer: transfer(1),
        parts: vec![LentPart {
            at: at(0),
            blocks: blocks(1, 0, false),
        }],
    }
}

fn gives_up() -> Message {
    Message::PartErr {
        transfer: transfer(1),
        at: at(0),
        proof: Some(Proof::NeverPosted),
    }
}

fn acknowledged() -> Message {
    Message::ReleaseAck {
        transfer: transfer(1),
        parts: vec![part(0)],
    }
}

#[test]
fn who_has_a_ticket_dials_and_claims_without_an_offer() {
    let mut scene = Scene::new(Request);
    scene.order(&written());
    assert_eq!(scene.connects, [PEER]);
    scene.connect(FIRST);
    let asked = Message::Claim {
        transfer: transfer(1),
        parts: vec![LentPart {
            at: at(0),
            blocks: blocks(1, 0, true),
        }],
    };
    assert_eq!(scene.sent, [asked]);
    scene.hear(Message::Grant {
        transfer: transfer(1),
        parts: vec![at(0)],
    });
    assert_eq!(scene.moves.len(), 1);
    scene.drained(1, 0, Drain::Clean);
    scene.passes(2);
    assert_eq!(scene.root.tables().releasing, 1);
    scene.hear(acknowledged());
    assert_eq!(scene.root.tables().releasing, 0);
}

#[test]
fn who_lends_by_a_ticket_dials_nobody_and_takes_note_of_the_last_word() {
    let mut scene = Scene::new(Request);
    scene.order(&lent());
    assert!(scene.connects.is_empty());
    scene.connect(FIRST);
    assert_eq!(scene.sent, [], "nothing is offered to anybody");
    scene.hear(claim());
    scene.sent.clear();
    scene.succeed(Mode::Write, 1, 0);
    scene.passes(1);
    scene.event(crate::peer::PeerEvent::DeviceFenced(transfer(1)));
    scene.passes(2);
    assert_eq!(scene.sent, [acknowledged()], "once");
    assert_eq!(scene.results().failed, []);
}

/// Prefill that gives up without a grant holds nothing, and need not be waited for.
#[test]
fn a_claimant_that_gives_up_is_answered_and_ends_the_wait_before_or_after_the_order() {
    for (claimed, order_first) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut scene = Scene::new(Request);
        scene.connect(FIRST);
        if order_first && claimed {
            // Its claim was lost with its connection.
            scene.hear(claim());
            scene.disconnect();
            scene.connect(SECOND);
        }
        if order_first {
            scene.order(&lent());
        } else if claimed {
            scene.hear(claim());
        }
        scene.sent.clear();
        scene.hear(gives_up());
        let answers = scene.sent.iter().filter(|sent| **sent == acknowledged());
        assert_eq!(answers.count(), 1, "{claimed} {order_first}");
        if !order_first {
            scene.order(&lent());
        }
        scene.passes(2);
        let results = scene.results();
        assert_eq!(results.received.len(), 1, "{claimed} {order_first}");
        assert_eq!(results.failed, results.received);
        assert!(scene.root.is_idle());
    }
}

//! WRITE: the lender sees the end of a part itself, and its answer takes the place of a word.

use tessera_proto::peer::Attempt;

use super::scene::{FIRST, SECOND, Scene, at, order, part, received, sent, transfer};
use crate::peer::{Drain, Message, Mode, PartAttempt, PeerEvent, Proof, Side};
use crate::shape::LayoutClass::Request;

fn landed(index: u16) -> PeerEvent {
    PeerEvent::Landed {
        transfer: transfer(1),
        at: at(index),
    }
}

fn closed() -> Message {
    Message::ReleaseAck {
        transfer: transfer(1),
        parts: vec![part(0), part(1)],
    }
}

/// Decode, whose blocks are written.
fn lender() -> Scene {
    let mut scene = Scene::live(Request, Mode::Write, Side::Destination);
    scene.sent.clear();
    scene
}

/// Prefill, which writes both parts.
fn writer() -> Scene {
    let mut scene = Scene::live(Request, Mode::Write, Side::Source);
    assert_eq!(scene.moves.len(), 2);
    scene.sent.clear();
    scene
}

#[test]
fn a_part_that_has_landed_waits_for_no_word_and_still_for_its_device() {
    let mut scene = lender();
    for index in [0, 1] {
        scene.assert_silent();
        assert_eq!(scene.devices, []);
        scene.event(landed(index));
        scene.passes(2);
    }
    assert_eq!(scene.devices, [transfer(1)]);
    scene.assert_silent();
    scene.prove();
    scene.passes(2);
    assert_eq!(scene.take_releases(), [closed()]);
    assert_eq!(scene.results(), received(&[1], &[]));
    scene.event(landed(0));
    assert_eq!(scene.root.counters().late_completions, 1);
}

#[test]
fn what_lands_of_another_claim_or_after_an_error_proves_nothing() {
    let mut scene = lender();
    let (transfer, parts) = (transfer(1), [at(0).part, part(7)]);
    for part in parts {
        let at = PartAttempt {
            part,
            attempt: Attempt(2),
        };
        scene.event(PeerEvent::Landed { transfer, at });
    }
    let proof = None;
    let at = at(1);
    scene.hear(Message::PartErr {
        transfer,
        at,
        proof,
    });
    scene.event(landed(1));
    scene.passes(2);
    assert_eq!(scene.root.counters().late_completions, 3);
    assert_eq!(scene.devices, [], "both parts are in doubt");
    assert_eq!(scene.fences.len(), 1);
    // Of a READ nothing lands that its own claimant does not know of.
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    scene.event(landed(0));
    assert_eq!(scene.root.counters().late_completions, 1);
}

#[test]
fn a_part_whose_end_the_lender_has_seen_takes_no_word_of_its_writer() {
    let mut scene = writer();
    for index in [0, 1] {
        scene.drained(1, index, Drain::Noted);
    }
    scene.passes(2);
    assert_eq!(scene.sent, [], "the answers have said it");
    assert_eq!(scene.results(), sent(&[1]));
    assert_eq!(scene.root.tables().releasing, 1, "the lender may hold it");
    scene.hear(closed());
    assert!(scene.root.is_idle());
}

#[test]
fn a_lender_that_has_closed_a_write_before_its_answers_came_fails_nothing() {
    let mut scene = writer();
    scene.hear(closed());
    scene.passes(2);
    scene.assert_silent();
    assert!(scene.root.is_open(transfer(1)), "our blocks may be read");
    for index in [0, 1] {
        scene.drained(1, index, Drain::Noted);
    }
    scene.passes(2);
    assert_eq!(scene.sent, []);
    assert_eq!(scene.results(), sent(&[1]));
    assert_eq!(scene.root.counters().transfers_succeeded, 1);
    assert!(scene.root.is_idle(), "nothing more is waited for");
}

#[test]
fn a_lender_that_has_closed_what_never_moved_fails_it() {
    let mut scene = Scene::new(Request);
    let mut order = order(1, Mode::Write, Side::Source, 2);
    order.parts[1].ready = false;
    scene.begin_order(&order);
    scene.hear(closed());
    scene.drained(1, 0, Drain::Noted);
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[1]));
    assert_eq!(scene.root.counters().transfers_failed, 1);
    assert!(scene.root.is_idle());
}

/// The writer cannot know how it ended and fences; the lender knows, and is not disturbed.
#[test]
fn an_answer_that_is_lost_with_its_connection_costs_its_writer_a_fence_only() {
    let mut scene = writer();
    scene.hear(closed());
    scene.drained(1, 0, Drain::Dirty);
    scene.passes(2);
    scene.assert_silent();
    assert_eq!(scene.fences.len(), 1);
    scene.fence();
    scene.passes(2);
    assert_eq!(scene.sent, [], "who has closed it waits for no word");
    assert_eq!(scene.results(), sent(&[1]));
    assert_eq!(scene.root.tables().releasing, 0);

    let mut scene = lender();
    scene.event(landed(0));
    scene.event(landed(1));
    scene.disconnect();
    scene.connect(SECOND);
    assert_ne!(scene.connection, FIRST);
    scene.passes(1);
    scene.prove();
    scene.passes(2);
    scene.hear(Message::PartErr {
        transfer: transfer(1),
        at: at(0),
        proof: Some(Proof::Fenced),
    });
    assert_eq!(scene.results(), received(&[1], &[]));
    assert!(scene.root.is_idle());
}

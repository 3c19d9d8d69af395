//! Sequences, doubles, gaps, and what two sides agree on after a connection is lost.

use tessera_proto::peer::Attempt;

use super::scene::{
    FIRST, PEER, SECOND, START, Scene, TIMEOUT_MS, at, blocks, order, part, received, sent,
    transfer,
};
use crate::peer::{Drain, LentPart, Message, Mode, PartAttempt, PeerEvent, Proof, Side};
use crate::shape::LayoutClass::Request;

fn count(scene: &Scene, wanted: fn(&Message) -> bool) -> usize {
    scene.sent.iter().filter(|message| wanted(message)).count()
}

#[test]
fn a_frame_that_comes_twice_or_too_early_moves_a_counter_only() {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Read, Side::Destination, 2));
    scene.connect(FIRST);
    let parts = vec![at(0)];
    let transfer = transfer(1);
    let first = scene.frame(Message::Grant { transfer, parts });
    let parts = vec![at(1)];
    let second = scene.frame(Message::Grant { transfer, parts });
    scene.take(second.clone());
    assert_eq!(
        (scene.moves.len(), scene.root.counters().early_frames),
        (0, 1)
    );
    scene.take(first.clone());
    scene.take(first);
    assert_eq!(
        (scene.moves.len(), scene.root.counters().duplicate_frames),
        (1, 1)
    );
    scene.take(second);
    assert_eq!(scene.moves.len(), 2);
}

#[test]
fn a_frame_of_an_earlier_connection_moves_a_counter_only() {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Read, Side::Destination, 2));
    scene.connect(FIRST);
    let parts = vec![at(0), at(1)];
    let transfer = transfer(1);
    let grant = scene.frame(Message::Grant { transfer, parts });
    scene.disconnect();
    scene.take(grant.clone());
    scene.connect(SECOND);
    scene.take(grant);
    assert_eq!(scene.moves.len(), 0);
    assert_eq!(scene.root.counters().stale_connections, 2);
}

#[test]
fn an_old_connection_is_not_taken_for_a_new_one() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.connect(SECOND);
    scene.connect(FIRST);
    scene.connection = SECOND;
    assert_eq!(scene.root.counters().stale_connections, 1);
}

#[test]
fn a_heartbeat_is_answered_and_repairs_what_was_lost() {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Read, Side::Destination, 2));
    scene.connect(FIRST);
    let claim: fn(&Message) -> bool = |message| matches!(message, Message::Claim { .. });
    assert_eq!(count(&scene, claim), 1);
    // A heartbeat of the peer, which holds nothing open.
    scene.sent.clear();
    scene.hear(Message::Ping { digest: 0 });
    assert_eq!(count(&scene, |message| matches!(message, Message::Pong)), 1);
    assert_eq!(
        count(&scene, |message| matches!(message, Message::OpenSet { .. })),
        1
    );
    assert_eq!(count(&scene, claim), 0);
    // Its answer to ours: it has got nothing.
    scene.sent.clear();
    scene.hear(Message::Pong);
    assert_eq!(count(&scene, claim), 1, "sent again");
    // Then it has, and nothing is sent again.
    scene.sent.clear();
    let mut pong = scene.frame(Message::Pong);
    pong.acknowledged = 2;
    scene.take(pong);
    assert!(scene.sent.is_empty());
    assert_eq!(scene.root.tables().unacknowledged, 0);
}

#[test]
fn a_last_word_is_repeated_on_every_connection_until_it_is_acknowledged() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.succeed(Mode::Read, 1, 0);
    scene.succeed(Mode::Read, 1, 1);
    scene.disconnect();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(
        scene.results(),
        received(&[1], &[]),
        "its own proof is enough for decode"
    );
    let release: fn(&Message) -> bool = |message| matches!(message, Message::Release { .. });
    assert_eq!(scene.connects, [PEER; 2], "it dials again to say it");
    for number in 2..5 {
        scene.sent.clear();
        scene.connect(crate::peer::ConnectionId(number));
        assert_eq!(count(&scene, release), 1);
    }
    let parts = vec![part(0), part(1)];
    let mut frame = scene.frame(Message::ReleaseAck {
        transfer: transfer(1),
        parts,
    });
    frame.acknowledged = 1;
    scene.take(frame);
    assert_eq!(scene.root.tables().releasing, 0);
    scene.sent.clear();
    scene.connect(crate::peer::ConnectionId(9));
    assert_eq!(count(&scene, release), 0);
    assert!(scene.root.is_idle());
}

#[test]
fn a_claim_whose_connection_is_lost_is_made_again_under_a_higher_attempt() {
    for granted in [false, true] {
        let mut scene = Scene::new(Request);
        let mut order = order(1, Mode::Write, Side::Source, 2);
        order.parts.iter_mut().for_each(|part| part.ready = false);
        scene.order(&order);
        scene.connect(FIRST);
        scene.offer(1, 2);
        let transfer = transfer(1);
        if granted {
            let parts = vec![at(0), at(1)];
            scene.hear(Message::Grant { transfer, parts });
        }
        scene.disconnect();
        scene.sent.clear();
        scene.connect(SECOND);
        let again = |message: &Message| match message {
            Message::Claim { parts, .. } => parts.iter().map(|of| of.at.attempt).collect(),
            _ => Vec::new(),
        };
        let attempts: Vec<_> = scene.sent.iter().flat_map(again).collect();
        assert_eq!(attempts, [Attempt(2); 2]);
        // A grant of the first attempt allows nothing.
        let parts = vec![at(0), at(1)];
        scene.hear(Message::Grant { transfer, parts });
        for index in [0, 1] {
            let part = part(index);
            scene.event(PeerEvent::Ready { transfer, part });
        }
        assert_eq!(scene.moves, []);
        let attempt = Attempt(2);
        let parts = [0, 1].map(|index| PartAttempt {
            part: part(index),
            attempt,
        });
        let parts = parts.to_vec();
        scene.hear(Message::Grant { transfer, parts });
        assert_eq!(scene.moves.len(), 2);
    }
}

#[test]
fn an_offer_is_made_again_on_a_new_connection_while_nobody_has_claimed() {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Write, Side::Destination, 2));
    let offer: fn(&Message) -> bool = |message| matches!(message, Message::Offer { .. });
    for (number, claimed) in [(1, false), (2, true), (3, true)] {
        scene.sent.clear();
        scene.connect(crate::peer::ConnectionId(number));
        assert_eq!(count(&scene, offer), usize::from(number < 3));
        if claimed && number == 2 {
            let claim = |index| LentPart {
                at: at(index),
                blocks: blocks(1, index, false),
            };
            scene.hear(Message::Claim {
                transfer: transfer(1),
                parts: vec![claim(0), claim(1)],
            });
        }
    }
}

#[test]
fn what_a_peer_does_not_know_was_never_posted() {
    // The lender learns it of a claim.
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    let unknown = vec![(transfer(1), part(0)), (transfer(1), part(1))];
    scene.hear(Message::NeverPosted {
        unknown: unknown.clone(),
    });
    scene.passes(1);
    assert_eq!(scene.results(), sent(&[1]));
    // The claimant learns that it has nothing to claim; what moves is awaited all the same.
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.hear(Message::NeverPosted { unknown });
    scene.passes(2);
    scene.assert_silent();
    scene.drained(1, 0, Drain::Clean);
    scene.drained(1, 1, Drain::Clean);
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[1]));
}

#[test]
fn unknown_parts_of_an_open_set_are_answered_and_known_ones_are_not() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.sent.clear();
    let open = vec![(transfer(1), part(0)), (transfer(8), part(0))];
    scene.hear(Message::OpenSet { open });
    let unknown = vec![(transfer(8), part(0))];
    assert_eq!(scene.sent, [Message::NeverPosted { unknown }]);
}

#[test]
fn messages_about_what_was_never_known_are_answered() {
    let mut scene = Scene::new(Request);
    scene.connect(FIRST);
    let (transfer, at, proof) = (transfer(5), at(0), Some(Proof::Clean));
    let parts = vec![part(0)];
    for (message, answer) in [
        (Message::DataDone { transfer, at }, "ReleaseAck"),
        (
            Message::PartErr {
                transfer,
                at,
                proof,
            },
            "ReleaseAck",
        ),
        (
            Message::Abort {
                transfer,
                parts: parts.clone(),
            },
            "NeverPosted",
        ),
        (Message::FenceReq { transfer, parts }, "NeverPosted"),
        (
            Message::Grant {
                transfer,
                parts: vec![at],
            },
            "NeverPosted",
        ),
        (
            Message::Release {
                transfer,
                parts: vec![(at, Proof::Clean)],
            },
            "ReleaseAck",
        ),
    ] {
        scene.hear(message);
        let said = format!("{:?}", scene.sent.pop());
        assert!(said.contains(answer), "{said}");
    }
    assert!(scene.root.is_idle());
}

#[test]
fn offers_wait_for_their_order_until_their_lease_ends_and_are_bounded() {
    let mut scene = Scene::new(Request);
    scene.connect(FIRST);
    for number in [1, 2, 3] {
        scene.offer(number, 1);
    }
    assert_eq!(scene.root.tables().offers, 2);
    assert_eq!(scene.root.counters().declined_offers, 1);
    let unknown = vec![(transfer(3), part(0))];
    assert_eq!(scene.sent, [Message::NeverPosted { unknown }]);
    scene.order(&order(1, Mode::Write, Side::Source, 1));
    assert_eq!(
        count(&scene, |message| matches!(message, Message::Claim { .. })),
        1
    );
    assert_eq!(scene.root.tables().offers, 1);
    scene.wait(500);
    assert_eq!(scene.root.tables().offers, 1);
    scene.now = scene.now.after_nanos(1);
    scene.tick();
    assert_eq!(scene.root.tables().offers, 0);
}

#[test]
fn a_connection_that_comes_back_in_time_costs_nothing() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    scene.disconnect();
    scene.now = START.after_millis(TIMEOUT_MS);
    scene.passes(2);
    scene.connect(SECOND);
    let parts = vec![(at(0), Proof::Clean), (at(1), Proof::Clean)];
    let transfer = transfer(1);
    scene.hear(Message::Release { transfer, parts });
    scene.passes(1);
    assert_eq!(scene.results(), sent(&[1]));
    assert_eq!(scene.root.counters().transfers_succeeded, 1);
}

//! What a lender grants, what it refuses, and what it takes for a proof.

use tessera_proto::peer::Attempt;

use super::scene::{
    BYTES, FIRST, LEASE_MS, OWN, PEER, START, STRANGER, Scene, TIMEOUT_MS, at, blocks, order, part,
    received, sent, transfer,
};
use crate::peer::{
    BlockRef, ConnectionId, EARLY_CLAIM_MS, FenceKind, LentPart, Message, Mode, PartAttempt,
    PartId, PeerEvent, Proof, Refusal, Side,
};
use crate::shape::LayoutClass::Request;

pub(super) fn claim(number: u64, index: u16, attempt: u32) -> Message {
    let at = PartAttempt {
        part: part(index),
        attempt: Attempt(attempt),
    };
    let parts = vec![LentPart {
        at,
        blocks: blocks(number, index, false),
    }];
    Message::Claim {
        transfer: transfer(number),
        parts,
    }
}

/// Prefill has offered a transfer of two parts.
pub(super) fn offered() -> Scene {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Read, Side::Source, 2));
    scene.connect(FIRST);
    scene
}

pub(super) fn refusals(scene: &mut Scene) -> Vec<Refusal> {
    let sent = std::mem::take(&mut scene.sent);
    let reason = |message| match message {
        Message::Refuse { reason, .. } => Some(reason),
        _ => None,
    };
    sent.into_iter().filter_map(reason).collect()
}

pub(super) fn grants(scene: &mut Scene) -> usize {
    let sent = std::mem::take(&mut scene.sent);
    sent.iter()
        .filter(|message| matches!(message, Message::Grant { .. }))
        .count()
}

pub(super) fn release(index: u16, proof: Proof) -> Message {
    Message::Release {
        transfer: transfer(1),
        parts: vec![(at(index), proof)],
    }
}

#[test]
fn an_offer_can_be_claimed_until_its_lease_ends_and_not_after() {
    let end = START.after_millis(LEASE_MS);
    for (now, granted) in [(end.0 - 1, true), (end.0, true), (end.0 + 1, false)] {
        for collected_before in [true, false] {
            let mut scene = offered();
            scene.now.0 = now;
            if collected_before {
                scene.passes(2);
            }
            scene.hear(claim(1, 0, 1));
            assert_eq!(refusals(&mut scene).is_empty(), granted, "at {now}");
            scene.passes(2);
            let expected = if granted { sent(&[]) } else { sent(&[1]) };
            assert_eq!(scene.results(), expected);
        }
    }
}

#[test]
fn a_claim_outlives_every_clock() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    for _ in 0..3 {
        scene.wait(100 * TIMEOUT_MS);
        scene.passes(2);
        assert_eq!(scene.results(), sent(&[]));
        assert!(scene.root.is_open(transfer(1)));
    }
}

#[test]
fn what_was_not_claimed_lapses_beside_what_was() {
    let mut scene = offered();
    scene.hear(claim(1, 0, 1));
    scene.wait(LEASE_MS + 1);
    scene.passes(1);
    scene.hear(claim(1, 1, 1));
    assert_eq!(refusals(&mut scene), [Refusal::Revoked]);
    scene.passes(1);
    assert_eq!(scene.results(), sent(&[]), "one part is claimed");
    scene.hear(release(0, Proof::Clean));
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[1]));
}

#[test]
fn a_claim_with_another_generation_is_refused() {
    let mut scene = offered();
    let mut stale = blocks(1, 0, false);
    stale[0].generation.0 += 1;
    let parts = vec![LentPart {
        at: at(0),
        blocks: stale,
    }];
    let transfer = transfer(1);
    scene.hear(Message::Claim { transfer, parts });
    assert_eq!(refusals(&mut scene), [Refusal::Stale]);
    assert!(scene.root.lent(PEER, FIRST, transfer, under(1)).is_none());
}

#[test]
fn who_pulls_may_leave_blocks_out_and_is_lent_nothing_of_them() {
    let mut scene = offered();
    let mut fewer = blocks(1, 0, false);
    let left_out = fewer[0];
    fewer[0].block = BlockRef::NULL;
    let parts = vec![LentPart {
        at: at(0),
        blocks: fewer.clone(),
    }];
    let transfer = transfer(1);
    scene.hear(Message::Claim { transfer, parts });
    assert_eq!(grants(&mut scene), 1);
    let lent = scene.root.lent(PEER, FIRST, transfer, under(1)).unwrap();
    assert_eq!(lent, fewer);
    assert!(!lent.contains(&left_out));
}

#[test]
fn who_pushes_leaves_no_block_out() {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Write, Side::Destination, 1));
    scene.connect(FIRST);
    let mut fewer = blocks(1, 0, false);
    fewer[0].block = BlockRef::NULL;
    let parts = vec![LentPart {
        at: at(0),
        blocks: fewer,
    }];
    let transfer = transfer(1);
    scene.hear(Message::Claim { transfer, parts });
    assert_eq!(refusals(&mut scene), [Refusal::Stale]);
}

#[test]
fn unknown_transfers_and_parts_are_refused_and_counted() {
    let mut scene = offered();
    scene.hear(claim(9, 0, 1));
    scene.hear(claim(1, 7, 1));
    assert_eq!(refusals(&mut scene), [Refusal::Unknown]);
    // The first may be early.
    scene.wait(EARLY_CLAIM_MS + 1);
    assert_eq!(refusals(&mut scene), [Refusal::Unknown]);
    assert_eq!(scene.root.counters().refused_claims, 2);
}

#[test]
fn a_ticket_admits_one_process() {
    let mut scene = offered();
    scene.hear(claim(1, 0, 1));
    assert_eq!(grants(&mut scene), 1);
    scene.event(PeerEvent::Connected {
        peer: STRANGER,
        rank: 0,
        connection: FIRST,
    });
    scene.strange(1, claim(1, 0, 1));
    assert_eq!(refusals(&mut scene), [Refusal::Used]);
    assert!(
        scene
            .root
            .lent(PEER, FIRST, transfer(1), under(1))
            .is_some()
    );
    assert!(
        scene
            .root
            .lent(STRANGER, FIRST, transfer(1), under(1))
            .is_none()
    );
}

#[test]
fn a_released_transfer_is_not_granted_again() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    scene.hear(release(0, Proof::Clean));
    scene.hear(claim(1, 0, 2));
    assert_eq!(refusals(&mut scene), [Refusal::Revoked], "the part is over");
    scene.hear(release(1, Proof::Clean));
    scene.passes(1);
    scene.hear(claim(1, 0, 3));
    assert_eq!(
        refusals(&mut scene),
        [Refusal::Unknown],
        "the transfer is over"
    );
}

#[test]
fn a_higher_attempt_is_granted_and_a_lower_one_refused() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    scene.hear(claim(1, 0, 3));
    scene.sent.clear();
    scene.hear(claim(1, 0, 2));
    assert_eq!(refusals(&mut scene), [Refusal::Stale]);
    assert!(
        scene
            .root
            .lent(PEER, FIRST, transfer(1), under(3))
            .is_some()
    );
    assert!(
        scene
            .root
            .lent(PEER, FIRST, transfer(1), under(1))
            .is_none()
    );
    scene.hear(release(0, Proof::Clean));
    scene.hear(release(1, Proof::Clean));
    scene.passes(1);
    assert_eq!(
        scene.results(),
        sent(&[]),
        "the release of an earlier attempt proves nothing"
    );
    assert_eq!(scene.root.counters().late_completions, 1);
}

#[test]
fn access_is_bound_to_the_connection() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    let touches = |scene: &Scene, connection| {
        scene
            .root
            .lent(PEER, connection, transfer(1), under(1))
            .is_some()
    };
    assert!(touches(&scene, FIRST) && !touches(&scene, ConnectionId(2)));
    scene.disconnect();
    assert!(!touches(&scene, FIRST));
}

#[test]
fn each_rank_releases_for_itself_and_the_last_one_frees() {
    let mut scene = Scene::new(Request);
    let mut order = order(1, Mode::Read, Side::Source, 2);
    order.parts[1].part.destination = 1;
    let second = order.parts[1].part;
    scene.order(&order);
    scene.connect(FIRST);
    scene.event(PeerEvent::Connected {
        peer: STRANGER,
        rank: 1,
        connection: FIRST,
    });
    let parts = |id: PartId, index| {
        vec![LentPart {
            at: PartAttempt {
                part: id,
                attempt: Attempt(1),
            },
            blocks: blocks(1, index, false),
        }]
    };
    let transfer = transfer(1);
    // Rank 0 claims for rank 1, and is refused.
    let foreign = parts(second, 1);
    scene.hear(Message::Claim {
        transfer,
        parts: foreign,
    });
    assert_eq!(refusals(&mut scene), [Refusal::Unknown]);
    assert_eq!(scene.root.counters().foreign_messages, 1);
    scene.hear(claim(1, 0, 1));
    let parts = parts(second, 1);
    scene.strange(1, Message::Claim { transfer, parts });
    // Rank 0 releases both, and is heard for its own.
    let mut both = vec![(at(0), Proof::Clean)];
    both.push((
        PartAttempt {
            part: second,
            attempt: Attempt(1),
        },
        Proof::Clean,
    ));
    scene.hear(Message::Release {
        transfer,
        parts: both.clone(),
    });
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[]), "rank 1 may still read");
    let parts = vec![both[1]];
    scene.strange(2, Message::Release { transfer, parts });
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[1]));
}

#[test]
fn a_release_is_acknowledged_however_often_it_comes() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    for index in [0, 1, 0, 1] {
        scene.sent.clear();
        scene.hear(release(index, Proof::Clean));
        assert!(matches!(scene.sent[..], [Message::ReleaseAck { .. }]));
        scene.passes(1);
    }
    assert_eq!(scene.results(), sent(&[1]));
    assert_eq!(scene.root.counters().duplicate_proofs, 2);
}

#[test]
fn bytes_of_a_write_that_failed_are_awaited_until_access_is_revoked() {
    for proof in [None, Some(Proof::Fenced)] {
        let mut scene = Scene::live(Request, Mode::Write, Side::Destination);
        scene.hear(Message::DataDone {
            transfer: transfer(1),
            at: at(0),
        });
        scene.hear(Message::PartErr {
            transfer: transfer(1),
            at: at(1),
            proof,
        });
        assert_eq!(
            scene.fences.len(),
            1,
            "no grace for bytes that may still land"
        );
        assert_eq!(scene.fences[0].2, FenceKind::Revoke);
        // Whatever else the sender says of it.
        for claimed in [Proof::NeverPosted, Proof::Clean, Proof::Fenced] {
            let word = Message::AbortAck {
                transfer: transfer(1),
                at: at(1),
                proof: claimed,
            };
            let frame = scene.frame(word);
            scene.take(frame);
            scene.passes(1);
            scene.assert_silent();
        }
        assert_eq!(scene.root.gauges().quarantined_bytes, BYTES);
        scene.fence();
        scene.passes(1);
        scene.prove();
        scene.passes(2);
        assert_eq!(scene.results(), received(&[1], &[1]));
    }
}

#[test]
fn a_word_that_nothing_was_posted_proves_nothing_of_a_part_in_doubt() {
    let mut scene = Scene::live(Request, Mode::Write, Side::Destination);
    for index in [0, 1] {
        scene.hear(Message::PartErr {
            transfer: transfer(1),
            at: at(index),
            proof: None,
        });
    }
    let unknown = vec![(transfer(1), part(0)), (transfer(1), part(1))];
    scene.connection = FIRST;
    scene.hear(Message::NeverPosted { unknown });
    scene.passes(2);
    scene.assert_silent();
    assert_eq!(scene.devices, []);
    assert!(scene.root.is_open(transfer(1)));
}

#[test]
fn an_offer_of_a_write_that_nobody_claims_fails_and_frees() {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Write, Side::Destination, 2));
    scene.connect(FIRST);
    assert!(matches!(scene.sent[..], [Message::Offer { .. }]));
    scene.wait(LEASE_MS);
    scene.passes(2);
    assert_eq!(scene.results(), received(&[], &[]));
    scene.now = scene.now.after_nanos(1);
    scene.passes(2);
    assert_eq!(scene.results(), received(&[1], &[1]));
    assert_eq!(scene.devices, [], "nothing was written");
    scene.hear(claim(1, 0, 1));
    assert_eq!(refusals(&mut scene), [Refusal::Unknown]);
}

#[test]
fn a_frame_for_another_process_start_is_refused_and_counted() {
    let mut scene = offered();
    let mut frame = scene.frame(claim(1, 0, 1));
    assert_eq!(frame.to, OWN);
    frame.to = STRANGER;
    scene.take(frame.clone());
    (frame.to, frame.from) = (OWN, STRANGER);
    scene.take(frame);
    assert_eq!(grants(&mut scene), 0);
    assert_eq!(scene.root.counters().stale_incarnations, 2);
}

fn under(attempt: u32) -> PartAttempt {
    let attempt = Attempt(attempt);
    PartAttempt {
        part: part(0),
        attempt,
    }
}

//! The search for proofs: which fence, when, what it proves, and for whom.

use tessera_proto::Instant;
use tessera_proto::peer::Attempt;

use super::scene::{
    BYTES, FIRST, PEER, SECOND, Scene, TIMEOUT_MS, at, config, order, part, received, request,
    sent, transfer,
};
use crate::peer::{
    Drain, FenceId, FenceKind, Message, Mode, PartAttempt, PeerEvent, PeerResults, PeerStop, Proof,
    Side,
};
use crate::shape::LayoutClass::{Block, Request};

fn has(scene: &Scene, wanted: fn(&Message) -> bool) -> bool {
    scene.sent.iter().any(wanted)
}

#[test]
fn an_error_of_a_read_is_fenced_on_this_side_before_anything_is_released() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    assert_eq!(scene.fences.len(), 1);
    assert_eq!(scene.fences[0].2, FenceKind::Close);
    scene.passes(3);
    scene.assert_silent();
    scene.fence();
    scene.connect(SECOND);
    scene.passes(1);
    scene.prove();
    scene.passes(3);
    let parts = vec![(at(0), Proof::Fenced), (at(1), Proof::Fenced)];
    let transfer = transfer(1);
    assert_eq!(
        scene.take_releases(),
        [Message::Release { transfer, parts }]
    );
    assert_eq!(scene.results(), received(&[1], &[1]));
}

#[test]
fn an_error_of_a_write_is_fenced_for_the_source_and_told_to_the_destination_before() {
    let mut scene = Scene::live(Request, Mode::Write, Side::Source);
    scene.sent.clear();
    scene.drained(1, 0, Drain::Dirty);
    let proof = None;
    let (transfer, at) = (transfer(1), at(0));
    assert_eq!(
        scene.sent,
        [Message::PartErr {
            transfer,
            at,
            proof
        }]
    );
    assert_eq!(scene.fences[0].2, FenceKind::Close);
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[]));
    scene.fence();
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[1]));
}

/// P6: who shares the connection is claimed again, and succeeds.
#[test]
fn a_read_that_shares_a_fenced_connection_is_claimed_again_a_bounded_number_of_times() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.begin(2, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    scene.fence();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[1]));
    scene.sent.clear();
    scene.moves.clear();
    scene.connect(SECOND);
    let second = |index| PartAttempt {
        part: part(index),
        attempt: Attempt(2),
    };
    let claims = |message: &Message| match message {
        Message::Claim { parts, .. } => parts.iter().map(|of| of.at).collect(),
        _ => Vec::new(),
    };
    let claimed: Vec<_> = scene.sent.iter().flat_map(claims).collect();
    assert_eq!(claimed, [second(0), second(1)]);
    let parts = claimed.clone();
    let transfer = transfer(2);
    scene.hear(Message::Grant { transfer, parts });
    assert_eq!(scene.moves.len(), 2);
    // What comes of the first attempt is of no account.
    scene.drained(2, 0, Drain::Clean);
    assert_eq!(scene.root.counters().late_completions, 1);
    // A third transfer spoils the connection again: no retry is left.
    scene.begin(3, Mode::Read, Side::Destination);
    scene.drained(3, 0, Drain::Dirty);
    scene.fence();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[2, 3], &[2, 3]));
}

/// What was written under the first claim is there, whatever becomes of the second.
#[test]
fn a_read_that_is_given_up_before_its_second_claim_still_owes_the_proof_of_the_device() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.begin(2, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    scene.fence();
    scene.root.cancel(scene.now, transfer(2));
    scene.passes(2);
    assert_eq!(scene.devices, [transfer(1), transfer(2)]);
    scene.assert_silent();
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1, 2], &[1, 2]));
}

#[test]
fn writes_that_share_a_fenced_connection_fail_and_are_computed() {
    let mut scene = Scene::live(Request, Mode::Write, Side::Source);
    scene.begin(2, Mode::Write, Side::Source);
    scene.drained(1, 0, Drain::Dirty);
    scene.sent.clear();
    scene.fence();
    scene.connect(SECOND);
    let fenced = |message: &Message| {
        matches!(message, Message::PartErr { transfer: id, proof: Some(Proof::Fenced), .. }
            if *id == transfer(2))
    };
    assert_eq!(
        scene.sent.iter().filter(|message| fenced(message)).count(),
        2
    );
    scene.passes(1);
    assert_eq!(scene.results(), sent(&[1, 2]));
}

#[test]
fn a_lender_asks_for_an_end_then_for_a_fence_then_fences() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    scene.sent.clear();
    let abort: fn(&Message) -> bool = |message| matches!(message, Message::Abort { .. });
    let fence: fn(&Message) -> bool = |message| matches!(message, Message::FenceReq { .. });
    let deadline = scene.now.after_millis(TIMEOUT_MS);
    scene.now = deadline.after_nanos(1);
    scene.passes(2);
    let step = |scene: &mut Scene, millis: u64| {
        scene.wait(millis);
        assert!(
            scene.fences.is_empty()
                && !has(scene, |message| {
                    matches!(message, Message::Abort { .. } | Message::FenceReq { .. })
                })
        );
        scene.now = scene.now.after_nanos(1);
        scene.tick();
        scene.passes(2);
        assert_eq!(scene.results(), sent(&[]), "no clock frees");
    };
    step(&mut scene, 200);
    assert!(has(&scene, abort));
    scene.sent.clear();
    step(&mut scene, 300);
    assert!(has(&scene, fence));
    scene.sent.clear();
    step(&mut scene, 400);
    assert_eq!(scene.fences.len(), 1);
    assert_eq!(scene.fences[0].2, FenceKind::Revoke);
    scene.fence();
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[1]));
}

#[test]
fn an_answer_to_an_abort_frees_part_by_part() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    scene.root.cancel(scene.now, transfer(1));
    scene.wait(201);
    for (index, proof) in [(0, Proof::Clean), (1, Proof::NeverPosted)] {
        scene.passes(1);
        assert_eq!(scene.results(), sent(&[]));
        scene.hear(Message::AbortAck {
            transfer: transfer(1),
            at: at(index),
            proof,
        });
    }
    scene.passes(1);
    assert_eq!(scene.results(), sent(&[1]));
}

#[test]
fn a_claimant_that_is_asked_answers_after_the_drain_and_fences_when_asked_to() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.sent.clear();
    let (transfer, parts) = (transfer(1), vec![part(0), part(1)]);
    scene.hear(Message::Abort {
        transfer,
        parts: parts.clone(),
    });
    assert!(scene.sent.is_empty(), "something moves");
    scene.drained(1, 0, Drain::Clean);
    let (proof, at) = (Proof::Clean, at(0));
    assert_eq!(
        scene.sent,
        [Message::AbortAck {
            transfer,
            at,
            proof
        }]
    );
    scene.sent.clear();
    scene.hear(Message::FenceReq { transfer, parts });
    assert_eq!(scene.fences[0].2, FenceKind::Close, "without waiting");
    scene.fence();
    scene.connect(SECOND);
    let fenced = |message: &Message| matches!(message, Message::FenceDone { .. });
    assert_eq!(
        scene.sent.iter().filter(|message| fenced(message)).count(),
        1
    );
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[1]));
}

#[test]
fn the_answer_of_another_fence_proves_nothing() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    let (peer, fence) = (PEER, FenceId(77));
    scene.event(PeerEvent::Fenced { peer, fence });
    scene.passes(2);
    assert_eq!(scene.devices, []);
    assert_eq!(scene.root.counters().late_completions, 1);
}

/// A stronger fence replaces a weaker one, whose answer then proves nothing.
#[test]
fn a_fence_that_must_take_access_away_replaces_one_that_only_closes() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.begin(2, Mode::Write, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    scene.event(PeerEvent::PeerDead(PEER));
    let kinds: Vec<_> = scene.fences.iter().map(|fence| fence.2).collect();
    assert_eq!(kinds, [FenceKind::Close, FenceKind::Revoke]);
    let (peer, fence, _) = scene.fences.remove(0);
    scene.event(PeerEvent::Fenced { peer, fence });
    scene.passes(2);
    assert_eq!(scene.devices, []);
    scene.fence();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1, 2], &[1, 2]));
    assert_eq!(scene.root.tables().peers, 0, "the dead are forgotten");
}

/// The process is on both sides of the same peer: it pulls from it, and lends to it.
#[test]
fn a_fence_that_only_closes_proves_nothing_of_what_is_lent() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.begin(2, Mode::Write, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    assert_eq!(scene.fences[0].2, FenceKind::Close);
    scene.fence();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[1]));
    assert!(scene.root.is_open(transfer(2)), "bytes may still land");
    scene.connect(SECOND);
    scene.succeed(Mode::Write, 2, 0);
    scene.succeed(Mode::Write, 2, 1);
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[2], &[]));
}

#[test]
fn the_death_of_the_peer_frees_behind_a_fence_only() {
    for (mode, side) in [(Mode::Read, Side::Source), (Mode::Write, Side::Destination)] {
        let mut scene = Scene::live(Request, mode, side);
        scene.event(PeerEvent::PeerDead(PEER));
        assert_eq!(scene.fences[0].2, FenceKind::Revoke);
        scene.wait(1_000);
        scene.passes(2);
        assert_eq!(scene.results(), PeerResults::default());
        scene.fence();
        scene.passes(1);
        scene.prove();
        scene.passes(1);
        let expected = match side {
            Side::Source => sent(&[1]),
            Side::Destination => received(&[1], &[1]),
        };
        assert_eq!(scene.results(), expected);
        assert_eq!(scene.root.counters().fences_dead, 1);
    }
}

#[test]
fn a_fence_that_never_ends_stops_the_worker_which_reports_nothing() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    scene.wait(5_000);
    assert_eq!((scene.stops, scene.root.stopped()), (0, None));
    scene.now = Instant(scene.now.0 + 1);
    scene.tick();
    assert_eq!(
        (scene.stops, scene.root.stopped()),
        (1, Some(PeerStop::Fence))
    );
    scene.fence();
    scene.passes(3);
    scene.prove();
    scene.passes(3);
    scene.assert_silent();
    assert!(scene.root.is_open(transfer(1)), "never silent reuse");
}

/// A driver sleeps until the machine is due: what is due in the past has it spin.
#[test]
fn while_a_fence_is_under_way_nothing_is_due_in_the_past() {
    for mode in [Mode::Read, Mode::Write] {
        for side in [Side::Source, Side::Destination] {
            let mut scene = Scene::live(Request, mode, side);
            scene.root.cancel(scene.now, transfer(1));
            for _ in 0..20 {
                scene.wait(101);
                scene.passes(1);
                let due = scene.root.poll_timeout();
                assert!(due > Some(scene.now), "{mode:?} {side:?}: {due:?}");
            }
            assert_eq!(scene.fences.len(), 1);
        }
    }
}

#[test]
fn a_dearer_fence_gives_a_stuck_one_no_more_time() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.begin(2, Mode::Write, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    scene.wait(4_999);
    scene.event(PeerEvent::PeerDead(PEER));
    assert_eq!(scene.fences.len(), 2);
    scene.wait(1);
    assert_eq!(scene.root.stopped(), None);
    scene.now = scene.now.after_nanos(1);
    scene.tick();
    assert_eq!(scene.root.stopped(), Some(PeerStop::Fence));
}

#[test]
fn a_device_that_never_proves_stops_the_worker() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Clean);
    scene.drained(1, 1, Drain::Clean);
    scene.passes(1);
    scene.wait(5_000);
    assert_eq!(scene.stops, 0);
    scene.now = scene.now.after_nanos(1);
    scene.tick();
    assert_eq!(scene.root.stopped(), Some(PeerStop::Device));
    scene.prove();
    scene.passes(1);
    scene.assert_silent();
}

#[test]
fn a_device_that_fails_puts_every_block_in_doubt_and_still_owes_its_proof() {
    for class in [Request, Block] {
        let mut scene = Scene::live(class, Mode::Read, Side::Destination);
        scene.drained(1, 0, Drain::Clean);
        scene.drained(1, 1, Drain::Clean);
        scene.passes(1);
        scene.event(PeerEvent::DeviceFailed(transfer(1)));
        scene.passes(2);
        scene.assert_silent();
        scene.prove();
        scene.passes(2);
        let results = scene.results();
        assert_eq!(results.received, [request(1)]);
        match class {
            Request => assert_eq!(results.failed, [request(1)]),
            Block => assert_eq!(results.invalid_blocks.len(), 2),
        }
    }
}

#[test]
fn above_the_budget_nothing_begins_and_the_oldest_failure_is_fenced_at_once() {
    let mut config = config(Request);
    config.limits.quarantine_bytes = 3 * BYTES;
    let mut scene = Scene::with(config);
    for number in [1, 2] {
        scene.begin(number, Mode::Read, Side::Destination);
    }
    scene.root.cancel(scene.now, transfer(1));
    scene.drain();
    assert!(
        scene.fences.is_empty(),
        "within the budget there is a time to drain"
    );
    scene.now = scene.now.after_millis(1);
    scene.root.cancel(scene.now, transfer(2));
    scene.drain();
    assert_eq!(scene.fences.len(), 1);
    assert_eq!(scene.root.gauges().quarantined_bytes, 4 * BYTES);
    scene.order(&order(3, Mode::Read, Side::Destination, 2));
    scene.passes(1);
    assert_eq!(scene.results(), received(&[3], &[3]));
    scene.fence();
    assert_eq!(scene.root.gauges().quarantined_bytes, 0);
}

#[test]
fn above_the_hard_cap_the_worker_stops() {
    let mut config = config(Request);
    config.limits.quarantine_stop_bytes = BYTES;
    let mut scene = Scene::with(config);
    scene.begin(1, Mode::Read, Side::Destination);
    scene.root.cancel(scene.now, transfer(1));
    scene.drain();
    assert_eq!(scene.root.stopped(), Some(PeerStop::Quarantine));
}

#[test]
fn a_heartbeat_without_an_answer_fails_nothing() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.sent.clear();
    for _ in 0..9 {
        scene.wait(100);
        scene.passes(1);
    }
    let pings = scene
        .sent
        .iter()
        .filter(|message| matches!(message, Message::Ping { .. }));
    assert_eq!(pings.count(), scene.sent.len());
    assert!(scene.sent.len() >= 8, "{:?}", scene.sent);
    scene.drained(1, 0, Drain::Clean);
    scene.drained(1, 1, Drain::Clean);
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[]));
    assert_eq!(scene.connection, FIRST);
}

//! Orders that come again, that cannot begin, that are called off, and that find a failed source.

use super::scene::{
    FIRST, PEER, SECOND, Scene, TIMEOUT_MS, at, blocks, config, order, part, received, request,
    sent, transfer,
};
use crate::peer::{
    Drain, Message, Mode, PeerEvent, PeerFailure, PeerResults, Side, StepFailure, TransferOrder,
};
use crate::shape::LayoutClass::{Block, Request};

fn pull(number: u64) -> TransferOrder {
    order(number, Mode::Read, Side::Destination, 2)
}

fn finish(scene: &mut Scene, number: u64, drain: Drain) {
    scene.drained(number, 0, drain);
    scene.drained(number, 1, drain);
    scene.fence();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
}

#[test]
fn an_order_that_comes_again_is_not_a_second_transfer() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.order(&pull(1));
    finish(&mut scene, 1, Drain::Clean);
    assert_eq!(scene.results(), received(&[1], &[]));
    scene.order(&pull(1));
    scene.passes(2);
    assert_eq!(scene.results(), PeerResults::default());
    let counters = scene.root.counters();
    assert_eq!((counters.transfers, counters.repeated_orders), (1, 2));
}

#[test]
fn a_ticket_is_used_once_and_its_first_use_is_not_touched() {
    for over in [false, true] {
        for class in [Request, Block] {
            let mut scene = Scene::live(class, Mode::Read, Side::Destination);
            if over {
                finish(&mut scene, 1, Drain::Clean);
                scene.results();
            }
            let mut again = pull(1);
            again.request = request(2);
            again
                .parts
                .iter_mut()
                .for_each(|part| part.local = blocks(2, 0, false));
            scene.moves.clear();
            scene.order(&again);
            scene.order(&again);
            scene.passes(2);
            let results = scene.results();
            assert_eq!(results.received, [request(2)], "once");
            match class {
                Request => assert_eq!(results.failed, [request(2)]),
                Block => assert_eq!(results.invalid_blocks, [20]),
            }
            assert_eq!(scene.root.is_open(transfer(1)), !over);
            assert_eq!(scene.moves, []);
        }
    }
}

#[test]
fn a_used_ticket_of_a_step_is_raised() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    let mut again = pull(1);
    (again.request, again.synchronous) = (request(2), true);
    scene.order(&again);
    let expected = StepFailure {
        transfer: transfer(1),
        request: request(2),
        failure: PeerFailure::TicketUsed,
    };
    assert_eq!(scene.collect(), Err(expected));
    scene.root.step_failed(scene.now, transfer(1));
    finish(&mut scene, 1, Drain::Clean);
    assert_eq!(
        scene.results(),
        received(&[1], &[]),
        "the first use is not touched"
    );
}

/// P10.
#[test]
fn a_request_that_a_source_has_failed_takes_no_other() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    finish(&mut scene, 1, Drain::Dirty);
    assert_eq!(scene.results(), received(&[1], &[1]));
    scene.connect(SECOND);
    scene.sent.clear();
    let mut second = pull(2);
    second.request = request(1);
    scene.order(&second);
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[1]));
    assert!(
        scene.sent.is_empty(),
        "nothing is claimed: {:?}",
        scene.sent
    );
    // Another life of the request is another request.
    scene.root.request_ended(request(1));
    let mut third = pull(3);
    third.request = request(1);
    scene.order(&third);
    assert!(matches!(scene.sent[..], [Message::Claim { .. }]));
    assert_eq!(scene.root.tables().failed_sources, 0);
}

#[test]
fn a_request_that_a_source_failed_before_it_was_preempted_takes_no_other() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Dirty);
    scene.root.preempt(scene.now, transfer(1));
    scene.fence();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), PeerResults::default());
    scene.connect(SECOND);
    scene.sent.clear();
    let mut second = pull(2);
    second.request = request(1);
    scene.order(&second);
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[1]));
    assert_eq!(scene.sent, [], "nothing is claimed");
}

#[test]
fn an_order_that_contradicts_itself_fails_and_touches_nothing() {
    let mut double = pull(1);
    double.parts[1].part = double.parts[0].part;
    let mut foreign = pull(1);
    foreign.parts[0].part.destination = 3;
    let mut unnamed = pull(1);
    unnamed.parts[0].peer = None;
    for order in [double, foreign, unnamed] {
        let mut scene = Scene::new(Request);
        scene.order(&order);
        scene.passes(1);
        assert_eq!(scene.results(), received(&[1], &[1]));
        assert_eq!(scene.connects, []);
    }
}

#[test]
fn an_empty_transfer_is_over_at_once() {
    for (mode, side) in [
        (Mode::Read, Side::Source),
        (Mode::Read, Side::Destination),
        (Mode::Write, Side::Source),
        (Mode::Write, Side::Destination),
    ] {
        let mut scene = Scene::new(Request);
        scene.order(&order(1, mode, side, 0));
        scene.passes(2);
        let expected = match side {
            Side::Source => sent(&[1]),
            Side::Destination => received(&[1], &[]),
        };
        assert_eq!(scene.results(), expected);
        assert_eq!((scene.connects.len(), scene.devices.len()), (0, 0));
    }
}

#[test]
fn more_transfers_or_peers_than_there_is_room_for_fail_at_once() {
    let mut config = config(Request);
    config.limits.transfers = 1;
    let mut scene = Scene::with(config.clone());
    scene.order(&pull(1));
    scene.order(&pull(2));
    scene.passes(1);
    assert_eq!(scene.results(), received(&[2], &[2]));
    (config.limits.transfers, config.limits.peers) = (8, 0);
    let mut scene = Scene::with(config);
    scene.order(&pull(1));
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[1]));
}

#[test]
fn a_peer_that_is_not_reached_or_not_fit_fails_before_anything_moves() {
    for failure in [PeerFailure::Unreachable, PeerFailure::Handshake] {
        for mode in [Mode::Read, Mode::Write] {
            let mut scene = Scene::new(Request);
            scene.order(&order(1, mode, Side::Destination, 2));
            assert_eq!(scene.connects, [PEER]);
            let peer = PEER;
            scene.event(PeerEvent::ConnectFailed { peer, failure });
            scene.passes(1);
            assert_eq!(scene.results(), received(&[1], &[1]));
            assert_eq!(scene.root.tables().peers, 0);
        }
    }
}

#[test]
fn a_peer_that_is_not_reached_for_a_while_keeps_what_it_may_touch() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Source);
    scene.disconnect();
    let (peer, failure) = (PEER, PeerFailure::Unreachable);
    scene.event(PeerEvent::ConnectFailed { peer, failure });
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[]));
    let dials = scene.connects.len();
    scene.wait(99);
    assert_eq!(scene.connects.len(), dials, "dials have a rate");
    scene.wait(1);
    assert_eq!(scene.connects.len(), dials + 1);
}

#[test]
fn a_dial_that_is_given_up_fails_nothing_that_may_still_end_well() {
    for (mode, side) in [
        (Mode::Read, Side::Destination),
        (Mode::Write, Side::Destination),
    ] {
        let mut scene = Scene::live(Request, mode, side);
        scene.disconnect();
        let (peer, failure) = (PEER, PeerFailure::Unreachable);
        scene.event(PeerEvent::ConnectFailed { peer, failure });
        scene.passes(1);
        scene.connect(SECOND);
        scene.succeed(mode, 1, 0);
        scene.succeed(mode, 1, 1);
        scene.passes(1);
        scene.prove();
        scene.passes(1);
        assert_eq!(scene.results(), received(&[1], &[]), "{mode:?}");
    }
}

/// Stages of a transfer on the side that moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Ordered,
    Claiming,
    Live,
    OneDrained,
    AllDrained,
}

fn staged(stage: Stage) -> Scene {
    let mut scene = match stage {
        Stage::Ordered | Stage::Claiming => Scene::new(Request),
        _ => Scene::live(Request, Mode::Read, Side::Destination),
    };
    if matches!(stage, Stage::Ordered | Stage::Claiming) {
        scene.order(&pull(1));
    }
    if stage == Stage::Claiming {
        scene.connect(FIRST);
    }
    if matches!(stage, Stage::OneDrained | Stage::AllDrained) {
        scene.drained(1, 0, Drain::Clean);
    }
    if stage == Stage::AllDrained {
        scene.drained(1, 1, Drain::Clean);
    }
    scene.sent.clear();
    scene
}

fn drain_rest(scene: &mut Scene, stage: Stage) {
    let left: &[u16] = match stage {
        Stage::Live => &[0, 1],
        Stage::OneDrained => &[1],
        _ => &[],
    };
    for index in left {
        scene.passes(1);
        scene.assert_silent();
        scene.drained(1, *index, Drain::Clean);
    }
    scene.passes(1);
    scene.prove();
    scene.passes(2);
}

#[test]
fn a_request_that_is_given_up_in_any_state_is_reported_when_its_memory_is_at_rest() {
    use Stage::{AllDrained, Claiming, Live, OneDrained, Ordered};
    for stage in [Ordered, Claiming, Live, OneDrained, AllDrained] {
        let mut scene = staged(stage);
        scene.root.cancel(scene.now, transfer(1));
        scene.drain();
        drain_rest(&mut scene, stage);
        let failed: &[u64] = if stage == AllDrained { &[] } else { &[1] };
        assert_eq!(scene.results(), received(&[1], failed), "{stage:?}");
        let releases = scene.take_releases().len();
        assert_eq!(releases, usize::from(stage != Ordered), "{stage:?}");
    }
}

#[test]
fn a_request_that_loses_its_blocks_in_any_state_is_reported_to_nobody() {
    use Stage::{AllDrained, Claiming, Live, OneDrained, Ordered};
    for stage in [Ordered, Claiming, Live, OneDrained, AllDrained] {
        let mut scene = staged(stage);
        scene.root.preempt(scene.now, transfer(1));
        scene.drain();
        if matches!(stage, Live | OneDrained) {
            scene.passes(1);
            assert!(
                scene.root.is_open(transfer(1)),
                "the engine waits: {stage:?}"
            );
        }
        drain_rest(&mut scene, stage);
        assert!(!scene.root.is_open(transfer(1)));
        assert_eq!(scene.results(), PeerResults::default());
        assert_eq!(scene.root.tables().failed_sources, 0);
    }
}

#[test]
fn a_preemption_after_the_report_was_made_takes_it_back() {
    let mut scene = staged(Stage::AllDrained);
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    scene.root.preempt(scene.now, transfer(1));
    assert_eq!(scene.results(), PeerResults::default());
}

/// WRITE overlaps: each layer moves when it is there.
#[test]
fn layers_are_pushed_as_they_are_ready_and_nothing_after_a_failure() {
    let mut scene = Scene::new(Request);
    let mut order = order(1, Mode::Write, Side::Source, 3);
    order.parts.iter_mut().for_each(|part| part.ready = false);
    scene.order(&order);
    scene.connect(FIRST);
    scene.offer(1, 3);
    let transfer = transfer(1);
    let parts = vec![at(0), at(1), at(2)];
    scene.hear(Message::Grant { transfer, parts });
    assert_eq!(scene.moves, []);
    for index in [1, 0] {
        let part = part(index);
        scene.event(PeerEvent::Ready { transfer, part });
    }
    let moved: Vec<u16> = scene.moves.iter().map(|of| of.at.part.index).collect();
    assert_eq!(moved, [1, 0]);
    scene.sent.clear();
    scene.drained(1, 1, Drain::Clean);
    assert_eq!(
        scene.sent,
        [Message::DataDone {
            transfer,
            at: at(1)
        }]
    );
    let (failure, at) = (PeerFailure::Transport, at(0));
    scene.event(PeerEvent::PartFailed {
        transfer,
        at,
        failure,
    });
    let part = part(2);
    scene.event(PeerEvent::Ready { transfer, part });
    assert_eq!(
        scene.moves.len(),
        2,
        "nothing is posted after the first error"
    );
}

#[test]
fn an_offer_of_a_cancelled_prefill_is_declined() {
    let mut scene = Scene::new(Request);
    scene.connect(FIRST);
    scene.offer(1, 2);
    scene.order(&order(1, Mode::Write, Side::Source, 2));
    scene.root.cancel(scene.now, transfer(1));
    scene.drain();
    let errors = scene
        .sent
        .iter()
        .filter(|message| matches!(message, Message::PartErr { .. }));
    assert_eq!(errors.count(), 2);
    scene.passes(1);
    assert_eq!(scene.results(), sent(&[1]));
}

#[test]
fn the_next_timeout_is_the_deadline_and_just_past_it() {
    let mut scene = Scene::new(Request);
    scene.order(&pull(1));
    let deadline = scene.now.after_millis(TIMEOUT_MS);
    assert_eq!(scene.root.poll_timeout(), Some(deadline.after_nanos(1)));
}

/// From then until the end its bytes must not change, whoever reads them.
#[test]
fn what_a_source_offers_is_known_from_its_bytes_to_its_end() {
    for mode in [Mode::Read, Mode::Write] {
        let mut scene = Scene::new(Request);
        let mut order = order(1, mode, Side::Source, 2);
        order.parts[1].ready = false;
        scene.order(&order);
        let known = |scene: &Scene, index| scene.root.source(transfer(1), part(index)).is_some();
        assert!(known(&scene, 0), "{mode:?}");
        assert_eq!(known(&scene, 1), mode == Mode::Read);
        assert!(scene.root.source(transfer(2), part(0)).is_none());
        let (transfer, part) = (transfer(1), part(1));
        scene.event(PeerEvent::Ready { transfer, part });
        assert_eq!(
            scene.root.source(transfer, part),
            Some(&*order.parts[1].local)
        );
        scene.root.cancel(scene.now, transfer);
        assert!(!known(&scene, 0) && !known(&scene, 1), "{mode:?}");
    }
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Read, Side::Destination, 1));
    assert!(scene.root.source(transfer(1), part(0)).is_none());
}

//! The cells of the table of completions, for the side whose memory is written.
//!
//! Each cell is a function of the mode, of the order in which the parts get their facts, and of how
//! often the completions are collected; it runs for both kinds of layout, and, where a step can
//! wait for the transfer, for synchronous transfers as well. Named one by one beside this file.

use super::scene::{
    BYTES, START, Scene, TIMEOUT_MS, at, blocks, order, part, received, request, transfer,
};
use crate::peer::{Drain, FenceKind, Message, Mode, PeerFailure, Proof, Side, StepFailure};
use crate::shape::LayoutClass::{self, Block, Request};

/// The parts in the order in which they get their facts.
pub(super) type Order = [u16; 2];
pub(super) const FORTH: Order = [0, 1];
pub(super) const BACK: Order = [1, 0];

/// What ends a part that is pending when its transfer has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Drain,
    Fence,
}

fn destination(class: LayoutClass, mode: Mode) -> Scene {
    let mut scene = Scene::live(class, mode, Side::Destination);
    scene.sent.clear();
    scene
}

fn synchronous() -> Scene {
    let mut scene = Scene::new(Request);
    let mut order = order(1, Mode::Read, Side::Destination, 2);
    order.synchronous = true;
    scene.begin_order(&order);
    scene.sent.clear();
    scene
}

/// Nothing was sent, nothing reported, and the table holds what is in flight.
fn assert_intact(scene: &mut Scene) {
    assert!(
        scene.sent.is_empty(),
        "nothing is sent to prefill: {:?}",
        scene.sent
    );
    scene.assert_silent();
    assert_eq!(scene.root.tables().transfers, 1);
    assert_eq!(scene.root.tables().releasing, 0);
}

/// The device proves; then there is one release, one report, and nothing more.
fn assert_over_once(scene: &mut Scene, passes: usize, good: [bool; 2], proofs: [Proof; 2]) {
    scene.passes(passes);
    scene.assert_silent();
    assert_eq!(scene.devices, [transfer(1)], "the device is asked once");
    scene.prove();
    scene.passes(passes);
    let mode = mode_of(scene);
    let releases = scene.take_releases();
    match mode {
        Mode::Read => {
            let parts = [0, 1]
                .map(|index| (at(index), proofs[usize::from(index)]))
                .to_vec();
            let transfer = transfer(1);
            assert_eq!(releases, [Message::Release { transfer, parts }]);
        }
        Mode::Write => {
            let parts = vec![part(0), part(1)];
            let transfer = transfer(1);
            assert_eq!(releases, [Message::ReleaseAck { transfer, parts }]);
        }
    }
    let whole = good == [true, true];
    let class = scene.root.config.class;
    let mut expected = received(&[1], if whole || class == Block { &[] } else { &[1] });
    if class == Block {
        let bad = [0, 1]
            .into_iter()
            .filter(|index| !good[usize::from(*index)]);
        expected.invalid_blocks = bad.map(|index| blocks(1, index, false)[0].block).collect();
    }
    assert_eq!(scene.results(), expected);
    assert!(!scene.root.is_open(transfer(1)));
    scene.passes(passes);
    scene.wait(10 * TIMEOUT_MS);
    scene.passes(passes);
    scene.assert_silent();
}

fn mode_of(scene: &Scene) -> Mode {
    match scene.moves.is_empty() {
        true => Mode::Write,
        false => Mode::Read,
    }
}

/// Ends a part of a failed transfer, and says with what proof.
fn end(scene: &mut Scene, mode: Mode, index: u16, how: End) -> Proof {
    match (how, mode) {
        (End::Drain, _) => {
            scene.succeed(mode, 1, index);
            Proof::Clean
        }
        (End::Fence, Mode::Read) => {
            scene.wait(201);
            assert_eq!(scene.fences.len(), 1);
            assert_eq!(scene.fences[0].2, FenceKind::Close);
            scene.passes(2);
            scene.assert_silent();
            scene.fence();
            scene.connect(super::scene::SECOND);
            Proof::Fenced
        }
        (End::Fence, Mode::Write) => {
            scene.wait(201);
            let abort = |message: &Message| matches!(message, Message::Abort { .. });
            assert_eq!(
                scene.sent.iter().filter(|message| abort(message)).count(),
                1
            );
            scene.wait(301);
            assert_eq!(scene.fences[0].2, FenceKind::Revoke);
            scene.passes(2);
            scene.assert_silent();
            scene.fence();
            scene.connect(super::scene::SECOND);
            Proof::Fenced
        }
    }
}

fn proofs(order: Order, first: Proof, second: Proof) -> [Proof; 2] {
    match order {
        FORTH => [first, second],
        _ => [second, first],
    }
}

/// All done: released once, forgotten once, reported.
pub(super) fn all_done(mode: Mode, order: Order, passes: usize) {
    for class in [Request, Block] {
        let mut scene = destination(class, mode);
        for index in order {
            scene.passes(passes);
            assert_intact(&mut scene);
            scene.succeed(mode, 1, index);
        }
        assert_over_once(&mut scene, passes, [true, true], [Proof::Clean; 2]);
    }
}

/// One failed, another pending: nothing is sent, the tables are intact, the blocks are held until
/// the pending part has drained or is fenced; then one of each.
pub(super) fn failed_and_pending(mode: Mode, order: Order, passes: usize) {
    let [failed, pending] = order;
    for (class, how) in [
        (Request, End::Drain),
        (Request, End::Fence),
        (Block, End::Drain),
        (Block, End::Fence),
    ] {
        let mut scene = destination(class, mode);
        scene.fail(mode, 1, failed);
        scene.passes(passes);
        assert_intact(&mut scene);
        assert_eq!(
            scene.root.gauges().quarantined_bytes,
            BYTES,
            "the pending part is held"
        );
        let proof = end(&mut scene, mode, pending, how);
        let mut good = [how == End::Drain; 2];
        good[usize::from(failed)] = false;
        let proofs = proofs(order, Proof::Clean, proof);
        assert_over_once(&mut scene, passes, good, proofs);
    }
    if mode == Mode::Read {
        raised(
            passes,
            |scene| scene.fail(mode, 1, failed),
            PeerFailure::Corrupt,
        );
    }
}

/// A step that waits for the transfer fails before anything is sent or cleaned up.
fn raised(passes: usize, break_it: impl Fn(&mut Scene), failure: PeerFailure) {
    let mut scene = synchronous();
    break_it(&mut scene);
    let before = scene.digest();
    let expected = StepFailure {
        transfer: transfer(1),
        request: request(1),
        failure,
    };
    for _ in 0..passes {
        assert_eq!(scene.collect(), Err(expected));
        assert_eq!(
            scene.digest(),
            before,
            "a failure found while gathering changes nothing"
        );
    }
    assert_intact(&mut scene);
    scene.root.step_failed(scene.now, transfer(1));
    scene.drain();
    scene.passes(passes);
    assert_intact(&mut scene);
    for index in FORTH {
        scene.drained(1, index, Drain::Clean);
    }
    scene.passes(passes);
    scene.prove();
    scene.passes(passes);
    assert_eq!(scene.take_releases().len(), 1);
    assert_eq!(
        scene.results(),
        received(&[], &[]),
        "the step was failed, not the request"
    );
}

/// Pending, and exactly as old as its deadline: it waits. `order` says which part is done.
pub(super) fn pending_at_the_deadline(mode: Mode, order: Order, passes: usize) {
    let [done, pending] = order;
    for class in [Request, Block] {
        let deadline = START.after_millis(TIMEOUT_MS);
        for now in [deadline.0 - 1, deadline.0] {
            let mut scene = destination(class, mode);
            scene.succeed(mode, 1, done);
            scene.now.0 = now;
            scene.passes(passes);
            assert_intact(&mut scene);
            assert_eq!(
                scene.root.gauges().quarantined_bytes,
                0,
                "nothing has failed"
            );
            scene.succeed(mode, 1, pending);
            assert_over_once(&mut scene, passes, [true, true], [Proof::Clean; 2]);
        }
    }
}

/// Pending, and older than its deadline: as failed and pending.
pub(super) fn pending_past_the_deadline(mode: Mode, order: Order, passes: usize) {
    let [done, pending] = order;
    let late = START.after_millis(TIMEOUT_MS).after_nanos(1);
    for (class, how) in [
        (Request, End::Drain),
        (Request, End::Fence),
        (Block, End::Drain),
        (Block, End::Fence),
    ] {
        let mut scene = destination(class, mode);
        scene.succeed(mode, 1, done);
        scene.now = late;
        scene.passes(passes);
        assert_intact(&mut scene);
        assert_eq!(scene.root.gauges().quarantined_bytes, BYTES);
        let proof = end(&mut scene, mode, pending, how);
        let mut good = [true; 2];
        good[usize::from(pending)] = how == End::Drain;
        let proofs = proofs(order, Proof::Clean, proof);
        match class {
            // What came after all is worth having, where blocks can be named.
            Block => assert_over_once(&mut scene, passes, good, proofs),
            Request => assert_over_once(&mut scene, passes, [false; 2], proofs),
        }
    }
    if mode == Mode::Read {
        let expire = |scene: &mut Scene| {
            scene.succeed(mode, 1, done);
            scene.now = late;
        };
        raised(passes, expire, PeerFailure::Deadline);
    }
}

/// Failed, and all others drained: the request, or its blocks, have failed; one release.
pub(super) fn failed_and_drained(mode: Mode, order: Order, passes: usize) {
    let [first, second] = order;
    for class in [Request, Block] {
        for failed_first in [true, false] {
            let mut scene = destination(class, mode);
            let bad = match failed_first {
                true => {
                    scene.fail(mode, 1, first);
                    scene.succeed(mode, 1, second);
                    first
                }
                false => {
                    scene.succeed(mode, 1, first);
                    scene.fail(mode, 1, second);
                    second
                }
            };
            let mut good = [true; 2];
            good[usize::from(bad)] = false;
            assert_over_once(&mut scene, passes, good, [Proof::Clean; 2]);
        }
    }
    if mode == Mode::Read {
        let fail = |scene: &mut Scene| {
            scene.fail(mode, 1, first);
        };
        raised(passes, fail, PeerFailure::Corrupt);
    }
}

/// A done request and a failing one in one pass, in both orders of their names and facts.
#[test]
fn a_done_request_beside_a_failing_one_is_released_exactly_once() {
    for mode in [Mode::Read, Mode::Write] {
        for (done, failing) in [(1, 2), (2, 1)] {
            for fail_first in [true, false] {
                let mut scene = destination(Request, mode);
                scene.begin(2, mode, Side::Destination);
                scene.sent.clear();
                if fail_first {
                    scene.fail(mode, failing, 0);
                }
                scene.succeed(mode, done, 0);
                scene.succeed(mode, done, 1);
                if !fail_first {
                    scene.fail(mode, failing, 0);
                }
                scene.passes(1);
                scene.prove();
                scene.passes(3);
                assert_eq!(scene.take_releases().len(), 1);
                assert_eq!(scene.results(), received(&[done], &[]));
                assert!(scene.root.is_open(transfer(failing)));
                scene.succeed(mode, failing, 1);
                scene.passes(3);
                scene.prove();
                scene.passes(3);
                assert_eq!(scene.take_releases().len(), 1);
                assert_eq!(scene.results(), received(&[failing], &[failing]));
            }
        }
    }
}

/// The failing one stops the pass before the done one is released; later it is released once.
#[test]
fn a_done_request_beside_one_that_raises_is_released_once_after_the_step_has_failed() {
    for (done, failing) in [(1, 2), (2, 1)] {
        let mut scene = Scene::new(Request);
        for number in [1, 2] {
            let mut order = order(number, Mode::Read, Side::Destination, 2);
            order.synchronous = number == failing;
            scene.begin_order(&order);
        }
        scene.sent.clear();
        scene.succeed(Mode::Read, done, 0);
        scene.succeed(Mode::Read, done, 1);
        scene.fail(Mode::Read, failing, 0);
        let before = scene.digest();
        for _ in 0..3 {
            assert!(scene.collect().is_err());
            assert_eq!(scene.digest(), before);
        }
        scene.assert_silent();
        scene.root.step_failed(scene.now, transfer(failing));
        scene.passes(3);
        scene.prove();
        scene.passes(3);
        assert_eq!(scene.take_releases().len(), 1);
        assert_eq!(scene.results(), received(&[done], &[]));
        assert!(scene.root.is_open(transfer(failing)));
    }
}

//! Last words to a process with which there is no connection: for whom they wait, and how long.

use tessera_proto::Instant;
use tessera_proto::limits::LEASE_MS_MAX;

use super::scene::{FIRST, PEER, SECOND, Scene, at, order, part, received, transfer};
use crate::peer::{Drain, Message, Mode, PeerEvent, PeerFailure, Proof, Side};
use crate::shape::LayoutClass::Request;

/// Decode has the ticket of a prompt, and is given up while it dials.
fn given_up() -> Scene {
    let mut scene = Scene::new(Request);
    scene.order(&order(1, Mode::Read, Side::Destination, 1));
    assert_eq!(scene.connects, [PEER]);
    scene.root.cancel(scene.now, transfer(1));
    scene.passes(2);
    assert_eq!(scene.results(), received(&[1], &[1]));
    assert!(!scene.root.is_idle(), "prefill waits for a word");
    scene
}

fn unreachable(scene: &mut Scene) {
    let (peer, failure) = (PEER, PeerFailure::Unreachable);
    scene.event(PeerEvent::ConnectFailed { peer, failure });
}

#[test]
fn a_request_that_is_gone_while_its_peer_is_dialled_gives_its_ticket_back() {
    let mut scene = given_up();
    scene.connect(FIRST);
    let parts = vec![(at(0), Proof::NeverPosted)];
    let transfer = transfer(1);
    assert_eq!(
        scene.take_releases(),
        [Message::Release { transfer, parts }]
    );
    let parts = vec![part(0)];
    scene.hear(Message::ReleaseAck { transfer, parts });
    assert!(scene.root.is_idle());
}

#[test]
fn a_ticket_of_a_peer_that_was_never_met_is_left_to_its_lease() {
    let mut scene = given_up();
    unreachable(&mut scene);
    let tables = scene.root.tables();
    assert_eq!(
        (tables.releasing, tables.peers, tables.unacknowledged),
        (0, 0, 0)
    );
    assert!(scene.root.is_idle());
}

/// When a process that is lost now is forgotten, at the latest instant at which it is not.
fn last(scene: &Scene) -> Instant {
    scene.now.after_millis(u64::from(LEASE_MS_MAX))
}

fn tick_at(scene: &mut Scene, now: Instant) {
    scene.now = now;
    scene.tick();
}

#[test]
fn what_was_not_heard_is_forgotten_when_every_lease_is_over_and_not_before() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Clean);
    scene.drained(1, 1, Drain::Clean);
    scene.disconnect();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.results(), received(&[1], &[]));
    let last = last(&scene);
    unreachable(&mut scene);
    tick_at(&mut scene, last);
    assert_eq!(scene.root.tables().releasing, 1, "a process that was met");
    tick_at(&mut scene, last.after_nanos(1));
    let tables = scene.root.tables();
    assert_eq!(
        (tables.releasing, tables.peers, tables.unacknowledged),
        (0, 0, 0)
    );
    assert!(scene.root.is_idle());
    // It was only cut off, and still holds the claim.
    scene.connect(SECOND);
    scene.sent.clear();
    let (transfer, parts) = (transfer(1), vec![part(0), part(1)]);
    scene.hear(Message::Abort { transfer, parts });
    let unknown = vec![(transfer, part(0)), (transfer, part(1))];
    assert_eq!(scene.sent, [Message::NeverPosted { unknown }]);
}

#[test]
fn nothing_is_forgotten_of_a_process_with_which_something_is_open() {
    let mut scene = Scene::live(Request, Mode::Read, Side::Destination);
    scene.begin(2, Mode::Read, Side::Destination);
    scene.drained(1, 0, Drain::Clean);
    scene.drained(1, 1, Drain::Clean);
    scene.disconnect();
    scene.passes(1);
    scene.prove();
    scene.passes(1);
    assert_eq!(scene.root.tables().transfers, 1);
    let last = last(&scene);
    tick_at(&mut scene, last.after_millis(1));
    assert_eq!(scene.root.tables().releasing, 1);
}

#[test]
fn bytes_of_a_write_that_may_still_land_are_never_said_to_be_none() {
    let mut scene = Scene::live(Request, Mode::Write, Side::Source);
    scene.drained(1, 0, Drain::Dirty);
    scene.fence();
    scene.passes(2);
    assert_eq!(scene.root.tables().transfers, 0);
    let last = last(&scene);
    tick_at(&mut scene, last.after_millis(1));
    assert_eq!(scene.root.tables().releasing, 1);
    scene.event(PeerEvent::PeerDead(PEER));
    assert!(scene.root.is_idle(), "its death is a proof");
}

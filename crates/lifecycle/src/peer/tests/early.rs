//! Words of a claimant that come before the lender's own order, or without a claim.

use super::claims::{claim, grants, offered, refusals, release};
use super::scene::{FIRST, Scene, order, sent};
use crate::peer::{EARLY_CLAIM_MS, Mode, Proof, Refusal, Side};
use crate::shape::LayoutClass::Request;

/// Prefill that is connected and has no order yet.
fn before_its_order() -> Scene {
    let mut scene = Scene::new(Request);
    scene.connect(FIRST);
    scene.hear(claim(1, 0, 1));
    assert_eq!(scene.root.tables().early, 1);
    scene.sent.clear();
    scene
}

#[test]
fn a_claim_that_comes_before_its_order_is_granted_with_it() {
    for waited_ms in [0, EARLY_CLAIM_MS] {
        let mut scene = before_its_order();
        scene.wait(waited_ms);
        scene.passes(2);
        assert_eq!(scene.sent, [], "it is neither granted nor refused");
        scene.order(&order(1, Mode::Read, Side::Source, 1));
        assert_eq!(grants(&mut scene), 1);
        assert_eq!(scene.root.tables().early, 0);
        scene.hear(release(0, Proof::Clean));
        scene.passes(2);
        assert_eq!(scene.results(), sent(&[1]));
    }
}

#[test]
fn a_claim_whose_order_does_not_come_is_refused_in_bounded_time() {
    let mut scene = before_its_order();
    let end = scene.now.after_millis(EARLY_CLAIM_MS).after_nanos(1);
    assert_eq!(scene.root.poll_timeout(), Some(end));
    scene.wait(EARLY_CLAIM_MS);
    assert_eq!(refusals(&mut scene), []);
    scene.now = end;
    scene.tick();
    assert_eq!(refusals(&mut scene), [Refusal::Unknown]);
    assert_eq!(scene.root.tables().early, 0);
}

#[test]
fn a_claim_that_waits_ends_with_its_connection() {
    let mut scene = before_its_order();
    scene.disconnect();
    assert_eq!(scene.root.tables().early, 0);
}

#[test]
fn what_is_released_before_its_order_is_free_with_it() {
    for claimed in [true, false] {
        let mut scene = match claimed {
            true => before_its_order(),
            false => Scene::new(Request),
        };
        if !claimed {
            scene.connect(FIRST);
        }
        scene.hear(release(0, Proof::NeverPosted));
        // The word is said, and its connection is of no more use.
        scene.disconnect();
        scene.sent.clear();
        scene.wait(EARLY_CLAIM_MS);
        scene.order(&order(1, Mode::Read, Side::Source, 1));
        scene.passes(2);
        assert_eq!(grants(&mut scene), 0);
        assert_eq!(scene.results(), sent(&[1]));
        assert_eq!(scene.root.tables().early, 0);
    }
}

#[test]
fn a_release_whose_order_does_not_come_is_forgotten() {
    let mut scene = before_its_order();
    scene.hear(release(0, Proof::NeverPosted));
    assert_eq!(scene.root.tables().early, 1);
    scene.wait(EARLY_CLAIM_MS + 1);
    assert_eq!(scene.root.tables().early, 0);
    assert_eq!(refusals(&mut scene), [], "nobody waits for an answer");
}

#[test]
fn an_offer_is_free_when_the_claim_was_lost_and_given_up() {
    let mut scene = offered();
    scene.hear(release(0, Proof::NeverPosted));
    scene.hear(release(1, Proof::Clean));
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[]), "nobody has granted it");
    scene.hear(release(1, Proof::NeverPosted));
    scene.passes(2);
    assert_eq!(scene.results(), sent(&[1]));
}

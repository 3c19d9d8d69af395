//! Fences that fail: the load has failed, and is over only behind the proof.

use super::scene::{Scene, TIMEOUT_MS, full, hybrid};
use crate::worker::{LoadFailure, Phase, WorkerEvent};

fn report(request: u64) -> Vec<String> {
    vec![format!("r{request}")]
}

#[test]
fn l04_a_failed_fence_before_fetches_nothing_and_ends_behind_two_proofs() {
    let mut scene = Scene::new(&hybrid());
    let load = scene.load(1);
    let phase = Phase::Before;
    for _ in 0..3 {
        scene.event(WorkerEvent::FenceFailed { load, phase });
        scene.assert_silent();
    }
    assert!(scene.root.is_loading(load) && scene.fetches.is_empty());
    scene.fence();
    assert!(scene.fetches.is_empty(), "it has failed already");
    assert_eq!(scene.fences, [(load, Phase::After)]);
    scene.assert_silent();
    scene.fence();
    assert_eq!(scene.collect(), (report(1), report(1), vec![]));
    assert_eq!(scene.failed(LoadFailure::Device), 1);
}

#[test]
fn l04_a_failed_fence_after_claims_the_memory_until_the_proof_and_the_load_has_failed() {
    let mut scene = Scene::new(&hybrid());
    let load = scene.load(1);
    scene.fence();
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    let phase = Phase::After;
    scene.event(WorkerEvent::FenceFailed { load, phase });
    scene
        .root
        .handle_timeout(scene.now.after_millis(9 * TIMEOUT_MS));
    scene.root.preempt(&[]);
    scene.drain();
    scene.assert_silent();
    assert!(scene.root.is_loading(load), "a clock ends no claim");
    assert_eq!(scene.fences.len(), 1, "the driver still owes the answer");
    scene.fence();
    assert_eq!(scene.collect(), (report(1), report(1), vec![]));
    assert_eq!(
        scene.failed(LoadFailure::Device),
        1,
        "the first failure is kept"
    );
    scene.event(WorkerEvent::FenceFailed { load, phase });
    assert_eq!(scene.root.counters().late_completions, 1);
    scene.assert_silent();
}

#[test]
fn l04_without_a_fence_every_block_of_a_block_level_load_is_in_doubt() {
    for phase in [Phase::Before, Phase::After] {
        let mut scene = Scene::new(&full());
        let load = scene.load(1);
        if phase == Phase::After {
            scene.fence();
            scene.fetched(Ok(()));
            scene.fetched(Ok(()));
        }
        scene.event(WorkerEvent::FenceFailed { load, phase });
        scene.assert_silent();
        scene.fence();
        scene.fence();
        assert_eq!(
            scene.collect(),
            (report(1), vec![], vec![1, 2, 3, 4]),
            "{phase:?}"
        );
    }
}

#[test]
fn a_fence_that_fails_in_another_stage_changes_nothing() {
    let mut scene = Scene::new(&hybrid());
    let load = scene.load(1);
    scene.fence();
    for phase in [Phase::Before, Phase::After] {
        scene.event(WorkerEvent::FenceFailed { load, phase });
    }
    while !scene.fetches.is_empty() {
        scene.fetched(Ok(()));
    }
    scene.fence();
    assert_eq!(scene.collect(), (report(1), vec![], vec![]));
}

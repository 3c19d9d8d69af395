//! What is ordered to be saved, and when: one named case for each rule.

use super::scene::{Scene, hashes, new_request, next_step, tables};
use crate::metadata::StepPlan;
use crate::scheduler::{ScheduledRequest, StepInput};

fn saved(plan: &StepPlan, group: u32) -> Vec<Vec<u32>> {
    let saves = plan.saves.iter().filter(|save| save.group == group);
    saves.map(|save| save.blocks.clone()).collect()
}

#[test]
fn l10_after_a_failure_the_new_allocation_is_saved_whether_new_or_resumed() {
    for resumed in [false, true] {
        let mut scene = Scene::hybrid();
        if resumed {
            scene.schedule(&[new_request("a", 3, (0, 8))]);
            scene.step(&StepInput {
                preempted: vec!["a".into()],
                ..StepInput::default()
            });
        }
        scene.load("a", 33);
        scene.output(&["a"], &["a"], &[]);
        scene.lookup("a", 33, 0);
        scene.allocated("a", 0).unwrap();
        let mut request = new_request("a", 3, (0, 16));
        request.blocks = vec![vec![21, 22, 23, 24]; 3];
        let plan = scene.schedule(&[request]);
        assert_eq!(saved(&plan, 0), [[21, 22], [23, 24]], "resumed {resumed}");
    }
}

#[test]
fn a_loaded_prefix_is_not_saved_again_and_what_is_computed_behind_it_is() {
    let mut scene = Scene::hybrid();
    scene.load("a", 33);
    scene.output(&["a"], &[], &[]);
    let mut request = new_request("a", 3, (32, 33));
    request.blocks = tables(3, 9);
    assert!(scene.schedule(&[request]).saves.is_empty());
    let mut next = next_step("a", 33, 7);
    next.blocks = vec![vec![10]; 3];
    next.hashes = hashes(b'a', 40).split_off(8);
    next.hashes_from = 8;
    let plan = scene.schedule(&[next]);
    assert_eq!(saved(&plan, 0), [[9, 10]]);
    assert_eq!(saved(&plan, 1), [[9, 10]]);
    assert_eq!(saved(&plan, 2), [[10]]);
}

#[test]
fn chunked_prefill_saves_each_chunk_in_the_step_that_completes_it() {
    let mut scene = Scene::full();
    let mut first = new_request("a", 1, (0, 6));
    first.hashes = hashes(b'a', 24);
    assert!(scene.schedule(&[first]).saves.is_empty());
    let mut next = next_step("a", 6, 6);
    next.blocks = vec![vec![3]];
    assert_eq!(saved(&scene.schedule(&[next]), 0), [[1, 2]]);
    let mut last = next_step("a", 12, 12);
    last.blocks = vec![vec![4, 5, 6]];
    assert_eq!(saved(&scene.schedule(&[last]), 0), [[3, 4], [5, 6]]);
    assert!(
        scene.schedule(&[next_step("a", 24, 1)]).saves.is_empty(),
        "once"
    );
}

#[test]
fn a_hash_that_comes_late_is_saved_late_while_the_request_lives() {
    let mut scene = Scene::hybrid();
    let mut request = new_request("a", 3, (0, 8));
    request.hashes = hashes(b'a', 4);
    assert!(scene.schedule(&[request]).saves.is_empty());
    let mut next = next_step("a", 8, 1);
    next.blocks = vec![vec![3]; 3];
    next.hashes = hashes(b'a', 8).split_off(1);
    next.hashes_from = 1;
    let plan = scene.schedule(&[next]);
    assert_eq!(saved(&plan, 0), [[1, 2]]);
    assert_eq!(saved(&plan, 1), [[1, 2]], "its window still stands");
    assert!(saved(&plan, 2).is_empty(), "the state has moved on");
    let counters = scene.root.counters();
    assert_eq!((counters.saves_skipped, counters.saves), (1, 2));
}

#[test]
fn hashes_with_a_gap_are_ignored_and_replaced_ones_are_taken() {
    let mut scene = Scene::full();
    let mut request = new_request("a", 1, (0, 7));
    request.hashes = hashes(b'a', 4);
    scene.schedule(&[request]);
    let mut gap = next_step("a", 7, 1);
    gap.hashes = hashes(b'a', 16).split_off(3);
    gap.hashes_from = 3;
    assert!(scene.schedule(&[gap]).saves.is_empty());
    assert_eq!(scene.root.known_hashes("a"), 1);
    let mut replaced = next_step("a", 8, 1);
    replaced.hashes = hashes(b'z', 8);
    let plan = scene.schedule(&[replaced]);
    assert_eq!(scene.root.known_hashes("a"), 2);
    let hash = plan.saves[0].hash.block_hash().unwrap();
    assert_eq!(hash.as_bytes(), [b'z', 1, 1]);
}

#[test]
fn l15_null_and_given_up_blocks_and_states_between_boundaries_are_never_saved() {
    let mut scene = Scene::hybrid();
    let mut request = new_request("a", 3, (0, 20));
    // Windows and states are null where they are no longer needed.
    request.blocks = vec![
        vec![1, 2, 3, 4, 5],
        vec![0, 0, 3, 4, 5],
        vec![0, 0, 0, 4, 5],
    ];
    let plan = scene.schedule(&[request]);
    assert_eq!(saved(&plan, 0), [[1, 2], [3, 4]]);
    assert_eq!(saved(&plan, 1), [[3, 4]]);
    assert!(
        saved(&plan, 2).is_empty(),
        "the step ends at 20, no boundary"
    );
    let mut request = new_request("b", 3, (0, 16));
    request.blocks[2] = vec![0, 0, 0, 4];
    let plan = scene.schedule(&[request]);
    assert_eq!(saved(&plan, 2), [[4]]);
}

#[test]
fn nothing_is_saved_for_a_preempted_or_finished_request() {
    let mut scene = Scene::full();
    let mut request = new_request("a", 1, (0, 8));
    request.hashes.clear();
    scene.schedule(&[request]);
    scene.step(&StepInput {
        preempted: vec!["a".into()],
        ..StepInput::default()
    });
    let mut stray = next_step("a", 8, 1);
    stray.hashes = hashes(b'a', 8);
    assert!(
        scene.schedule(&[stray]).saves.is_empty(),
        "no table, no save"
    );
}

#[test]
fn a_load_holds_no_save_of_another_request_back() {
    let mut scene = Scene::full();
    scene.load("a", 17);
    let mut request = new_request("b", 1, (0, 8));
    request.hashes = hashes(b'b', 8);
    assert_eq!(saved(&scene.schedule(&[request]), 0), [[1, 2]]);
}

#[test]
fn tokens_that_the_engine_takes_back_are_saved_when_they_are_computed_again() {
    // As after the failed load of another connector, under which the engine has computed.
    let mut scene = Scene::full();
    let mut request = new_request("a", 1, (16, 24));
    request.hashes = hashes(b'a', 24);
    assert_eq!(saved(&scene.schedule(&[request]), 0), [[5, 6]]);
    let plan = scene.schedule(&[next_step("a", 8, 16)]);
    assert_eq!(saved(&plan, 0), [[3, 4], [5, 6]]);
}

#[test]
fn tokens_that_are_computed_again_as_others_are_saved_as_those() {
    let mut scene = Scene::full();
    let plan = scene.schedule(&[new_request("a", 1, (0, 16))]);
    assert_eq!(saved(&plan, 0), [[1, 2], [3, 4]]);
    let mut again = next_step("a", 8, 8);
    again.hashes = hashes(b'z', 16).split_off(2);
    again.hashes_from = 2;
    let plan = scene.schedule(&[again]);
    assert_eq!(saved(&plan, 0), [[3, 4]]);
    let hash = plan.saves[0].hash.block_hash().unwrap();
    assert_eq!(hash.as_bytes(), [b'z', 3, 1]);
}

#[test]
fn whole_tables_begin_a_new_life_whatever_was_known() {
    let mut scene = Scene::full();
    scene.schedule(&[new_request("a", 1, (0, 16))]);
    let mut again = new_request("a", 1, (8, 24));
    again.blocks = vec![vec![21, 22, 23, 24, 25, 26]];
    let plan = scene.schedule(&[again]);
    assert_eq!(saved(&plan, 0), [[23, 24], [25, 26]]);
}

#[test]
fn empty_steps_count_and_reset() {
    let mut scene = Scene::full();
    assert_eq!(scene.promised("a", 33, 0), Some(32));
    scene.allocated("a", 32).unwrap();
    let first = scene.step(&StepInput::default());
    let second = scene.step(&StepInput::default());
    assert_eq!((first.step, second.step), (1, 2));
    assert_eq!((first.loads.len(), second.is_empty()), (1, true));
    let unknown = scene.schedule(&[ScheduledRequest {
        request: "never seen".into(),
        scheduled_tokens: 1,
        ..ScheduledRequest::default()
    }]);
    assert!(unknown.is_empty());
}

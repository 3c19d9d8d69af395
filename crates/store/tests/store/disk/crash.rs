//! A crash at every write: of the process, where what was written is there, and of power, where
//! only what was synced is. Nothing acknowledged is lost, nothing removed or dropped comes back, no
//! byte is wrong.

use std::collections::HashMap;
use std::slice;
use std::sync::Arc;

use tessera_store::{DiskConfig, Published, Store, Unrecorded, WritePolicy};

use super::memory::{End, MemoryDisk};
use super::support::{
    Answer, KIB, MIB, SEGMENT, begin_drop, begin_put, begin_remove, config, get, put, try_open,
};
use crate::sample::{NAMESPACE_SHIFT, Numbers, namespace_of};

/// What is known of a key: writes and removals, each with the events before and after which it
/// was asked for and acknowledged.
#[derive(Debug)]
struct Step {
    /// The write; none for a removal and for the drop of its namespace.
    write: Option<(u64, u64)>,
    asked: usize,
    acknowledged: usize,
}

type History = HashMap<u64, Vec<Step>>;

enum Waiting {
    Put(Answer<Published>, u64, Step),
    Remove(Answer<Result<bool, Unrecorded>>, u64, Step),
}

/// Keys that are used, of two namespaces.
const KEYS: u64 = 24;

fn keyed(number: u64) -> u64 {
    number | (number % 2) << NAMESPACE_SHIFT
}

/// Runs stores and removals in groups that overlap, and notes when each was asked and answered.
fn live(store: &Store, disk: &MemoryDisk, numbers: &mut Numbers, groups: u64) -> History {
    let mut history = History::new();
    let mut write = 0;
    for _ in 0..groups {
        let mut waiting = Vec::new();
        let mut touched = Vec::new();
        for _ in 0..1 + numbers.below(8) {
            let key = keyed(numbers.below(KEYS));
            if touched.contains(&key) {
                continue;
            }
            touched.push(key);
            let asked = disk.events();
            let step = |write| Step {
                write,
                asked,
                acknowledged: usize::MAX,
            };
            let there = store.contains(&crate::sample::id(key));
            if there && numbers.below(2) == 0 {
                waiting.push(Waiting::Remove(
                    begin_remove(store, key, None),
                    key,
                    step(None),
                ));
            } else if !there {
                write += 1;
                let length = match numbers.below(3) {
                    0 => 1 + numbers.below(300),
                    1 => 1 + numbers.below(20 * KIB),
                    _ => 64 * KIB + numbers.below(30 * KIB),
                };
                let answer = begin_put(store, key, write, length).expect("room");
                waiting.push(Waiting::Put(answer, key, step(Some((write, length)))));
            }
        }
        // Behind what is still on its way.
        let dropping = (numbers.below(6) == 0).then(|| {
            let key = keyed(numbers.below(KEYS));
            let asked = disk.events();
            (key, asked, begin_drop(store, key))
        });
        for one in waiting {
            let (key, mut step) = match one {
                Waiting::Put(answer, key, step) => {
                    assert_eq!(answer.wait(), Published::Stored);
                    (key, step)
                }
                Waiting::Remove(answer, key, step) => {
                    assert_eq!(answer.wait(), Ok(true));
                    (key, step)
                }
            };
            step.acknowledged = disk.events();
            history.entry(key).or_default().push(step);
        }
        if let Some((key, asked, answer)) = dropping {
            answer.wait().expect("recorded");
            let acknowledged = disk.events();
            for other in (0..KEYS).map(keyed) {
                if namespace_of(other) == namespace_of(key) {
                    history.entry(other).or_default().push(Step {
                        write: None,
                        asked,
                        acknowledged,
                    });
                }
            }
        }
    }
    history
}

/// What may be found of a key after a crash in event `at`; `must` says whether something must.
fn allowed(steps: &[Step], at: usize) -> (Vec<(u64, u64)>, bool) {
    let certain = steps.iter().rposition(|step| step.acknowledged <= at);
    let from = certain.map_or(0, |last| last);
    let asked = steps[from..].iter().filter(|step| step.asked <= at);
    let (mut found, mut may_miss) = (Vec::new(), certain.is_none());
    for step in asked {
        match step.write {
            Some(write) => found.push(write),
            None => may_miss = true,
        }
    }
    (found, !may_miss)
}

/// What a workload looks like and what has to be there after a crash.
struct Case {
    seed: u64,
    segments: u64,
    groups: u64,
    policy: WritePolicy,
    end: End,
    /// There is room for everything, so nothing may be missing.
    roomy: bool,
}

/// Returns how many images were looked at.
fn crash_everywhere(case: &Case) -> usize {
    let config = DiskConfig {
        write: case.policy,
        ..config()
    };
    let disk = MemoryDisk::new(case.segments, SEGMENT);
    let mut numbers = Numbers(case.seed);
    let store = try_open(2 * MIB, &config, slice::from_ref(&disk)).expect("an empty disk");
    let begin = disk.events();
    let history = live(&store, &disk, &mut numbers, case.groups);
    let end = disk.events();
    drop(store);
    for at in begin..end {
        let image = disk.image(at, case.end, &mut numbers);
        check_image(case, &config, &image, &history, at);
    }
    end - begin
}

fn check_image(
    case: &Case,
    config: &DiskConfig,
    image: &Arc<MemoryDisk>,
    history: &History,
    at: usize,
) {
    let store = try_open(2 * MIB, config, slice::from_ref(image)).expect("a disk of ours");
    for (key, steps) in history {
        let (may, must) = allowed(steps, at);
        let found = get(&store, *key);
        let name = format!(
            "seed {} event {at} key {key}: {found:?} of {may:?}",
            case.seed
        );
        assert!(found.is_none_or(|found| may.contains(&found)), "{name}");
        assert!(found.is_some() || !must || !case.roomy, "lost: {name}");
    }
    // The store works on, and a second start finds the same.
    assert_eq!(put(&store, 1 << 50, 1, 70_000), Published::Stored);
    assert_eq!(store.disk_stat().skipped, 0, "event {at}");
    let keys = history.keys().copied();
    let first: Vec<_> = keys.clone().map(|key| get(&store, key)).collect();
    drop(store);
    let store = try_open(2 * MIB, config, slice::from_ref(image)).expect("a disk of ours");
    assert_eq!(get(&store, 1 << 50), Some((1, 70_000)));
    let second: Vec<_> = keys.map(|key| get(&store, key)).collect();
    assert!(first == second || !case.roomy);
}

#[test]
fn process_that_ends_at_any_write_loses_nothing_acknowledged() {
    let mut images = 0;
    for seed in 1..=2 {
        images += crash_everywhere(&Case {
            seed,
            segments: 20,
            groups: 25,
            policy: WritePolicy::Through,
            end: End::Process,
            roomy: true,
        });
    }
    assert!(images >= 100, "{images} images");
}

#[test]
fn power_that_ends_at_any_write_loses_nothing_synced() {
    let mut images = 0;
    for seed in 10..=11 {
        images += crash_everywhere(&Case {
            seed,
            segments: 20,
            groups: 20,
            policy: WritePolicy::Synced,
            end: End::Power,
            roomy: true,
        });
    }
    assert!(images >= 100, "{images} images");
}

#[test]
fn full_disk_that_ends_at_any_write_brings_nothing_removed_back() {
    let mut images = 0;
    for (seed, end) in [(20, End::Process), (22, End::Power)] {
        images += crash_everywhere(&Case {
            seed,
            segments: 4,
            groups: 30,
            policy: WritePolicy::Through,
            end,
            roomy: false,
        });
    }
    assert!(images >= 100, "{images} images");
}

#[test]
fn crash_while_a_disk_is_made_leaves_one_that_can_be_made() {
    let disk = MemoryDisk::new(4, SEGMENT);
    drop(try_open(MIB, &config(), slice::from_ref(&disk)).expect("an empty disk"));
    let mut numbers = Numbers(5);
    for at in 0..disk.events() {
        for _ in 0..5 {
            let image = disk.image(at, End::Power, &mut numbers);
            let store = try_open(MIB, &config(), slice::from_ref(&image)).expect("a new disk");
            assert_eq!(put(&store, 1, 1, 10), Published::Stored);
        }
    }
}

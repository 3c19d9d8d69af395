//! Random histories against a model: a map of what was stored last and not removed.

use std::collections::HashMap;
use std::slice;

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_store::{DiskConfig, Published, Store, WritePolicy};

use super::memory::MemoryDisk;
use super::support::{
    KIB, MIB, SEGMENT, config, drop_namespace, empty_ram, get, put, remove, try_open,
};
use crate::sample::{NAMESPACE_SHIFT, id, namespace_of};

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64),
    Get(u64),
    Remove(u64),
    Drop(u64),
    EmptyRam(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    // Of two namespaces.
    let key = (0..12_u64).prop_map(|number| number | (number % 2) << NAMESPACE_SHIFT);
    let length = prop_oneof![1..600_u64, 1..(20 * KIB), (60 * KIB)..(90 * KIB)];
    prop_oneof![
        6 => (key.clone(), length).prop_map(|(key, length)| Step::Put(key, length)),
        6 => key.clone().prop_map(Step::Get),
        2 => key.clone().prop_map(Step::Remove),
        1 => key.clone().prop_map(Step::Drop),
        3 => key.prop_map(Step::EmptyRam),
        1 => Just(Step::Restart),
    ]
}

/// Runs the steps. With `roomy`, everything has to be found; without, what is found is right.
fn run(steps: &[Step], segments: u64, back: bool, roomy: bool) {
    let disk = MemoryDisk::new(segments, SEGMENT);
    let config = DiskConfig {
        write: match back {
            true => WritePolicy::Back {
                dirty_bytes_max: 200 * KIB,
            },
            false => WritePolicy::Through,
        },
        ..config()
    };
    let open = || try_open(MIB, &config, slice::from_ref(&disk)).expect("a disk of ours");
    let mut store = open();
    let mut model: HashMap<u64, (u64, u64)> = HashMap::new();
    for (write, step) in (1..).zip(steps) {
        match step {
            Step::Put(key, length) => match put(&store, *key, write, *length) {
                Published::Stored => {
                    assert!(!roomy || !model.contains_key(key));
                    model.insert(*key, (write, *length));
                }
                Published::Existed => assert!(model.contains_key(key)),
                Published::Mismatch => panic!("a right header"),
            },
            Step::Get(key) => {
                let found = get(&store, *key);
                match found {
                    None => assert!(!roomy || !model.contains_key(key)),
                    found => assert_eq!(found.as_ref(), model.get(key)),
                }
            }
            Step::Remove(key) => {
                let gone = remove(&store, *key);
                let known = model.remove(key).is_some();
                assert!(gone == known || (!roomy && known));
                assert!(!store.contains(&id(*key)));
            }
            Step::Drop(key) => {
                let before = model.len();
                model.retain(|other, _| namespace_of(*other) != namespace_of(*key));
                let known = (before - model.len()) as u64;
                let dropped = drop_namespace(&store, *key);
                assert!(dropped.disk_objects <= known);
                assert!(dropped.disk_objects == known || !roomy || back);
            }
            Step::EmptyRam(key) => empty_ram(&store, &[*key]),
            Step::Restart => {
                close(&store);
                drop(store);
                store = open();
            }
        }
        // What is written behind the answer holds memory for as long as that takes.
        if !back {
            store.ram().check_invariants();
        }
    }
    close(&store);
}

/// Once the threads of the disk have ended, nothing is held.
fn close(store: &Store) {
    store.close();
    store.ram().check_invariants();
    assert_eq!((store.stat().pins, store.disk_stat().dirty_bytes), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn roomy_disk_finds_exactly_what_was_stored(steps in vec(step(), 1..80), back: bool) {
        run(&steps, 90, back, true);
    }

    #[test]
    fn full_disk_finds_nothing_else(steps in vec(step(), 1..200), back: bool) {
        run(&steps, 4, back, false);
    }
}

//! Random histories against a model: a map of what was stored last and not removed.

use std::collections::HashMap;
use std::slice;

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_proto::Instant;
use tessera_store::{Admission, DiskConfig, Lifetimes, Published, Store, StoreConfig, WritePolicy};

use super::memory::MemoryDisk;
use super::support::{
    KIB, MIB, SEGMENT, config, drop_namespace, empty_ram, get, put, remove, try_open_with,
};
use crate::sample::{NAMESPACE_SHIFT, id, namespace_of};

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64),
    Get(u64),
    Remove(u64),
    Drop(u64),
    EmptyRam(u64),
    /// A second passes.
    Wait,
    /// The next start, whose clock says what this one's does, or less by so many seconds.
    Restart(u32),
}

/// Seconds after which an object is not found.
const LIFETIME_S: u32 = 4;

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
        2 => Just(Step::Wait),
        1 => prop_oneof![Just(0), 0..3_u32].prop_map(Step::Restart),
    ]
}

/// A store, and what may be found in it.
struct Run<'a> {
    open: &'a dyn Fn(u32) -> Store,
    store: Store,
    /// Nothing has to leave, so nothing may be missing.
    roomy: bool,
    back: bool,
    /// When this start was, and how long it runs.
    epoch_s: u32,
    passed_s: u32,
    /// Write and length by key.
    model: HashMap<u64, (u64, u64)>,
    /// When each was stored, as it was stamped and as this start believes it.
    stored: HashMap<u64, (u32, u32)>,
}

impl Run<'_> {
    fn now_s(&self) -> u32 {
        self.epoch_s + self.passed_s
    }

    /// Whether the time of what was stored under a key is over.
    fn is_over(&self, key: u64) -> bool {
        let stored = self.stored.get(&key);
        stored.is_some_and(|(_, believed)| self.now_s() - believed >= LIFETIME_S)
    }

    /// What has to be found under a key if nothing left.
    fn expected(&self, key: u64) -> Option<(u64, u64)> {
        let there = self.model.get(&key).filter(|_| !self.is_over(key));
        there.copied()
    }

    fn apply(&mut self, write: u64, step: &Step) {
        match step {
            Step::Put(key, length) => match put(&self.store, *key, write, *length) {
                Published::Stored => {
                    assert!(!self.roomy || self.expected(*key).is_none());
                    self.model.insert(*key, (write, *length));
                    self.stored.insert(*key, (self.now_s(), self.now_s()));
                }
                Published::Existed => assert!(self.expected(*key).is_some()),
                Published::Mismatch => panic!("a right header"),
            },
            Step::Get(key) => match get(&self.store, *key) {
                None => assert!(!self.roomy || self.expected(*key).is_none()),
                found => assert_eq!(found, self.expected(*key)),
            },
            Step::Remove(key) => {
                let known = self.expected(*key).is_some();
                self.model.remove(key);
                let gone = remove(&self.store, *key);
                assert!(gone == known || (!self.roomy && known));
                assert!(!self.store.contains(&id(*key)));
            }
            Step::Drop(key) => self.drop_namespace(*key),
            Step::EmptyRam(key) => empty_ram(&self.store, &[*key]),
            Step::Wait => {
                self.passed_s += 1;
                let now = Instant(u64::from(self.passed_s) * 1_000_000_000);
                self.store.expire(now);
            }
            Step::Restart(back_s) => {
                close(&self.store);
                (self.epoch_s, self.passed_s) = (self.now_s() - back_s, 0);
                self.store = (self.open)(self.epoch_s);
                for (stamp, believed) in self.stored.values_mut() {
                    *believed = self.epoch_s.min(*stamp);
                }
            }
        }
    }

    fn drop_namespace(&mut self, key: u64) {
        let its = |other: &u64| namespace_of(*other) == namespace_of(key);
        let keys: Vec<_> = self.model.keys().copied().filter(its).collect();
        let there = keys.iter().filter(|key| self.expected(**key).is_some());
        let there = there.count() as u64;
        // What is over and was not met yet is dropped as well.
        let dropped = drop_namespace(&self.store, key);
        assert!(dropped.disk_objects >= there || !self.roomy || self.back);
        self.model.retain(|other, _| !its(other));
    }
}

/// Runs the steps. With `roomy`, everything has to be found; without, what is found is right.
fn run(steps: &[Step], segments: u64, back: bool, roomy: bool) {
    let disk = MemoryDisk::new(segments, SEGMENT);
    let config = DiskConfig {
        write: match back {
            true => WritePolicy::Back {
                dirty_bytes_max: 200 * KIB,
                admission: Admission::All,
            },
            false => WritePolicy::Through,
        },
        ..config()
    };
    let open = |epoch_s| {
        let ram = StoreConfig {
            epoch_s,
            lifetimes: Lifetimes {
                named: Vec::new(),
                others: Some(LIFETIME_S),
            },
            ..StoreConfig::with_capacity(MIB)
        };
        try_open_with(ram, &config, slice::from_ref(&disk)).expect("a disk of ours")
    };
    let mut run = Run {
        open: &open,
        store: open(1_000),
        roomy,
        back,
        epoch_s: 1_000,
        passed_s: 0,
        model: HashMap::new(),
        stored: HashMap::new(),
    };
    for (write, step) in (1..).zip(steps) {
        run.apply(write, step);
        // What is written behind the answer holds memory for as long as that takes.
        if !back {
            run.store.ram().check_invariants();
        }
    }
    close(&run.store);
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

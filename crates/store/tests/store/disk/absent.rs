//! Disks that move a part of what they are asked for, and disks that are gone: what it costs, and
//! that the rest lives on.

use std::slice;
use std::sync::Arc;

use tessera_store::{OpenError, Published, Store, Unrecorded};

use super::memory::{Faults, MemoryDisk};
use super::support::{
    KIB, MIB, SEGMENT, begin_drop, begin_remove, config, empty_ram, get, open, put, try_open,
};
use crate::sample::{T0, id};

const SHORT: Faults = Faults {
    write_errors: false,
    read_errors: false,
    room_bytes: None,
    full: false,
    sync_errors: false,
    erase_errors: false,
    bad_block: None,
    short: true,
    gone: false,
};
const GONE: Faults = Faults {
    short: false,
    gone: true,
    ..SHORT
};

#[test]
fn write_that_ends_short_is_no_write() {
    for length in [7 * KIB, 70 * KIB] {
        let disk = MemoryDisk::new(8, SEGMENT);
        let store = open(MIB, &disk);
        assert_eq!(put(&store, 1, 1, length), Published::Stored);
        disk.fail(SHORT);
        // Acknowledged, as everything is that no disk takes: from memory.
        assert_eq!(put(&store, 2, 1, length), Published::Stored);
        let stat = store.disk_stat();
        assert_eq!((stat.fenced, stat.skipped, stat.objects), (1, 1, 0));
        assert_eq!(get(&store, 2), Some((1, length)));
        assert_eq!(begin_remove(&store, 1, None).wait(), Err(Unrecorded));
        drop(store);
        disk.fail(Faults::default());
        let store = open(MIB, &disk);
        assert_eq!(get(&store, 1), Some((1, length)));
        assert_eq!(get(&store, 2), None);
    }
}

#[test]
fn read_that_ends_short_is_a_miss_and_the_next_writer_replaces_it() {
    for length in [7 * KIB, 70 * KIB] {
        let disk = MemoryDisk::new(8, SEGMENT);
        let store = open(MIB, &disk);
        assert_eq!(put(&store, 1, 1, length), Published::Stored);
        empty_ram(&store, &[1]);
        let misses = store.stat().misses;
        disk.fail(SHORT);
        assert_eq!(get(&store, 1), None);
        disk.fail(Faults::default());
        let stat = store.disk_stat();
        assert_eq!((stat.read_errors, stat.damaged, stat.fenced), (1, 0, 0));
        assert_eq!(store.stat().misses, misses + 1);
        assert_eq!(put(&store, 1, 2, length), Published::Stored);
        empty_ram(&store, &[1]);
        assert_eq!(get(&store, 1), Some((2, length)));
    }
}

/// A store over two disks with objects on both, out of memory.
fn on_two(disks: &[Arc<MemoryDisk>], keys: &[u64]) -> Store {
    let store = try_open(MIB, &config(), disks).expect("disks of ours");
    for key in keys {
        assert_eq!(put(&store, *key, 1, 20 * KIB), Published::Stored);
    }
    empty_ram(&store, keys);
    store
}

#[test]
fn disk_that_is_gone_costs_what_was_on_it_and_the_other_serves_on() {
    let disks = [MemoryDisk::new(8, SEGMENT), MemoryDisk::new(8, SEGMENT)];
    let keys: Vec<u64> = (0..40).collect();
    let store = on_two(&disks, &keys);
    let misses = store.stat().misses;
    disks[0].fail(GONE);
    let found = keys.iter().filter(|key| get(&store, **key).is_some());
    let missing = keys.len() as u64 - found.count() as u64;
    assert!((5..35).contains(&missing), "{missing} were on the first");
    assert_eq!(store.disk_stat().read_errors, missing);
    assert_eq!(store.stat().misses, misses + missing);
    // The first write tells; from then on the other one has everything that comes.
    for key in 100..140 {
        assert_eq!(put(&store, key, 1, 20 * KIB), Published::Stored);
    }
    let stat = store.disk_stat();
    assert_eq!((stat.fenced, stat.capacity_bytes), (1, 8 * SEGMENT));
    let late: Vec<u64> = (100..140).collect();
    empty_ram(&store, &late);
    let found = late.iter().filter(|key| get(&store, **key).is_some());
    assert!(found.count() >= 38, "all but what the first one was given");
    // What it holds cannot be removed for good, and that is said.
    assert_eq!(begin_remove(&store, 0, None).wait(), Err(Unrecorded));
    assert_eq!(begin_drop(&store, 0).wait(), Err(Unrecorded));
    store.ram().check_invariants();
}

#[test]
fn node_whose_only_disk_is_gone_lives_on_in_memory() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = on_two(slice::from_ref(&disk), &[1, 2, 3]);
    disk.fail(GONE);
    assert_eq!(get(&store, 1), None);
    for key in 10..200 {
        assert_eq!(put(&store, key, 1, 20 * KIB), Published::Stored);
        assert_eq!(get(&store, key), Some((1, 20 * KIB)));
        store.expire(T0);
    }
    let stat = store.disk_stat();
    assert_eq!((stat.fenced, stat.objects, stat.dirty_bytes), (1, 0, 0));
    assert!([1, 2, 3].iter().all(|key| !store.contains(&id(*key))));
    store.close();
    disk.fail(Faults::default());
    // It was out of reach, not at fault: what it held is found again.
    assert_eq!(get(&open(MIB, &disk), 2), Some((1, 20 * KIB)));
}

#[test]
fn start_on_a_disk_that_is_gone_is_refused_by_its_number() {
    let disks = [MemoryDisk::new(8, SEGMENT), MemoryDisk::new(8, SEGMENT)];
    drop(on_two(&disks, &[1]));
    disks[1].fail(GONE);
    let refused = try_open(MIB, &config(), &disks).map(drop);
    assert!(
        matches!(refused, Err(OpenError::Disk { disk: 1, .. })),
        "{refused:?}"
    );
}

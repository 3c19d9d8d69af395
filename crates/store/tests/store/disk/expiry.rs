//! The lifetime of objects on disk: across tiers, starts, leases and eviction.

use std::slice;
use std::sync::Arc;

use tessera_proto::Instant;
use tessera_store::{Lifetimes, OwnerId, Presence, Published, Store, StoreConfig};

use super::memory::MemoryDisk;
use super::support::{KIB, MIB, SEGMENT, config, empty_ram, get, put, remove, try_open_with};
use crate::sample::{TENANT_SHIFT, id};

const EPOCH_S: u32 = 1_800_000_000;

fn at(seconds: u64) -> Instant {
    Instant(seconds * 1_000_000_000)
}

/// Tenant 1 has ten seconds, all others a hundred.
fn open(epoch_s: u32, disk: &Arc<MemoryDisk>) -> Store {
    let ram = StoreConfig {
        epoch_s,
        lifetimes: Lifetimes {
            named: vec![("1".to_owned(), 10)],
            others: Some(100),
        },
        ..StoreConfig::with_capacity(MIB)
    };
    try_open_with(ram, &config(), slice::from_ref(disk)).expect("a disk of ours")
}

fn short(key: u64) -> u64 {
    key | 1 << TENANT_SHIFT
}

#[test]
fn object_on_disk_is_missing_once_its_time_is_over() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(EPOCH_S, &disk);
    for key in [1, short(2), short(3)] {
        assert_eq!(put(&store, key, 1, 10 * KIB), Published::Stored);
    }
    empty_ram(&store, &[1, short(2), short(3)]);
    store.expire(at(9));
    // It comes into memory with the time that it was stored, not with that of the read.
    assert_eq!(get(&store, short(2)), Some((1, 10 * KIB)));
    store.expire(at(10));
    for key in [short(2), short(3)] {
        assert!(!store.contains(&id(key)));
        assert_eq!(get(&store, key), None);
    }
    assert_eq!(get(&store, 1), Some((1, 10 * KIB)));
    let stat = store.disk_stat();
    assert_eq!((stat.objects, stat.expired), (1, 2));
    assert_eq!(put(&store, short(2), 2, KIB), Published::Stored);
    assert_eq!(get(&store, short(2)), Some((2, KIB)));
}

#[test]
fn time_goes_on_across_starts_and_a_clock_that_went_back_ends_nothing_early() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(EPOCH_S, &disk);
    assert_eq!(put(&store, short(1), 1, KIB), Published::Stored);
    drop(store);
    let store = open(EPOCH_S + 9, &disk);
    assert_eq!(get(&store, short(1)), Some((1, KIB)));
    drop(store);
    // What is stamped later than the clock says counts as new, and has its time from then on.
    let store = open(EPOCH_S - 1_000, &disk);
    assert_eq!(get(&store, short(1)), Some((1, KIB)));
    store.expire(at(9));
    assert_eq!(get(&store, short(1)), Some((1, KIB)));
    store.expire(at(10));
    assert_eq!(get(&store, short(1)), None);
    drop(store);
    let store = open(EPOCH_S + 10, &disk);
    assert!(!store.contains(&id(short(1))));
    assert_eq!(get(&store, short(1)), None);
}

#[test]
fn object_whose_time_is_over_can_be_removed_for_good() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(EPOCH_S, &disk);
    assert_eq!(put(&store, short(1), 1, KIB), Published::Stored);
    store.expire(at(10));
    assert_eq!(get(&store, short(1)), None);
    assert!(!remove(&store, short(1)));
    drop(store);
    // For a clock that went back its time would not be over.
    assert!(!open(EPOCH_S, &disk).contains(&id(short(1))));
}

#[test]
fn lease_on_disk_outlives_the_time_of_its_object_and_no_other_prolongs_it() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(EPOCH_S, &disk);
    assert_eq!(put(&store, short(1), 1, 10 * KIB), Published::Stored);
    empty_ram(&store, &[short(1)]);
    let acquire = |now| {
        let ids = [id(short(1))];
        store.acquire(OwnerId(1), &ids, 20_000_000_000, u64::MAX, now)
    };
    assert_eq!(acquire(at(5)).items[0].presence, Presence::Held);
    store.expire(at(24));
    assert_eq!(acquire(at(24)).items[0].presence, Presence::Missing);
    assert!(store.contains(&id(short(1))));
    assert_eq!(store.disk_stat().leased_bytes, 10 * KIB);
    store.expire(at(25));
    assert!(!store.contains(&id(short(1))));
    assert_eq!(get(&store, short(1)), None);
    assert_eq!(store.disk_stat().leased_bytes, 0);
}

#[test]
fn what_is_over_is_not_written_again_however_often_it_was_read() {
    let disk = MemoryDisk::new(4, SEGMENT);
    let store = open(EPOCH_S, &disk);
    for key in 0..6 {
        assert_eq!(put(&store, short(key), 1, 30 * KIB), Published::Stored);
    }
    let keys: Vec<_> = (0..6).map(short).collect();
    for _ in 0..3 {
        empty_ram(&store, &keys);
        for key in &keys {
            assert_eq!(get(&store, *key), Some((1, 30 * KIB)));
        }
    }
    store.expire(at(10));
    for key in 100..130 {
        assert_eq!(put(&store, key, 1, 30 * KIB), Published::Stored);
    }
    let stat = store.disk_stat();
    assert!(stat.expired >= 6, "{stat:?}");
    assert!(keys.iter().all(|key| !store.contains(&id(*key))));
}

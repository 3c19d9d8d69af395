//! Leases on what lies on disk: a promise that outlives eviction, with an owner and an end.

use tessera_proto::Instant;
use tessera_store::{OwnerId, Presence, Published, Store};

use super::memory::MemoryDisk;
use super::support::{KIB, MIB, SEGMENT, empty_ram, get, open, put, remove};
use crate::sample::{T0, id};

const OWNER: OwnerId = OwnerId(4);
const SECOND_NS: u64 = 1_000_000_000;

fn fill_disk(store: &Store, from: u64) {
    for key in from..from + 150 {
        assert_eq!(put(store, key, 1, 30 * KIB), Published::Stored);
    }
}

#[test]
fn leased_object_stays_on_disk_until_the_lease_ends() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    let keys: Vec<u64> = (0..10).collect();
    let ids: Vec<_> = keys.iter().map(|key| id(*key)).collect();
    for key in &keys {
        put(&store, *key, 1, 20 * KIB);
    }
    empty_ram(&store, &keys);
    let acquired = store.acquire(OWNER, &ids[..5], 9 * SECOND_NS, u64::MAX, T0);
    let held = |item: &tessera_store::AcquireItem| item.presence == Presence::Held;
    assert!(acquired.items.iter().all(held));
    assert_eq!(acquired.items[0].length_bytes, 20 * KIB);
    assert_eq!(store.disk_stat().leased_bytes, 100 * KIB);
    fill_disk(&store, 1_000);
    for key in 0..5 {
        assert_eq!(get(&store, key), Some((1, 20 * KIB)), "leased {key}");
    }
    empty_ram(&store, &keys);
    let lease = acquired.lease.expect("something is held");
    assert_eq!(store.release(lease, Some(&ids[..2])), 2);
    assert_eq!(store.disk_stat().leased_bytes, 60 * KIB);
    assert_eq!(store.expire(Instant(10 * SECOND_NS)), 1);
    assert_eq!(store.disk_stat().leased_bytes, 0);
    assert_eq!(store.release(lease, None), 0);
    fill_disk(&store, 2_000);
    fill_disk(&store, 3_000);
    for key in keys {
        assert!(!store.contains(&id(key)), "key {key} is on nobody's mind");
    }
}

#[test]
fn lease_on_an_object_of_a_leaving_segment_holds_like_any_other() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    for key in [0, 1] {
        put(&store, key, 1, 30 * KIB);
    }
    empty_ram(&store, &[0, 1]);
    // One of them is hot, and the other one would go.
    assert!(get(&store, 0).is_some());
    let reads = disk.hold_reads();
    std::thread::scope(|scope| {
        scope.spawn(|| fill_disk(&store, 1_000));
        disk.until_read_waits();
        let acquired = store.acquire(OWNER, &[id(1)], SECOND_NS, u64::MAX, T0);
        assert_eq!(acquired.items[0].presence, Presence::Held);
        drop(reads);
    });
    assert_eq!(get(&store, 1), Some((1, 30 * KIB)));
}

#[test]
fn one_lease_holds_what_is_in_ram_and_what_is_on_disk() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    put(&store, 1, 1, 20 * KIB);
    empty_ram(&store, &[1]);
    put(&store, 2, 1, 20 * KIB);
    let ids = [id(1), id(2), id(3), id(1)];
    let acquired = store.acquire(OWNER, &ids, SECOND_NS, u64::MAX, T0);
    let presence: Vec<_> = acquired.items.iter().map(|item| item.presence).collect();
    use Presence::{Held, Missing};
    assert_eq!(presence, [Held, Held, Missing, Held]);
    assert_eq!(store.stat().leased_bytes, 20 * KIB);
    assert_eq!(store.disk_stat().leased_bytes, 20 * KIB);
    let lease = acquired.lease.expect("something is held");
    assert_eq!(store.release(lease, None), 2);
    assert_eq!(
        store.stat().leased_bytes + store.disk_stat().leased_bytes,
        0
    );
}

#[test]
fn bounds_of_a_lease_count_both_tiers() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    for key in 0..10 {
        put(&store, key, 1, 30 * KIB);
    }
    let keys: Vec<u64> = (0..10).collect();
    empty_ram(&store, &keys);
    put(&store, 50, 1, 30 * KIB);
    let ids: Vec<_> = [50, 0, 1, 2].map(id).to_vec();
    let acquired = store.acquire(OWNER, &ids, SECOND_NS, 70 * KIB, T0);
    let presence: Vec<_> = acquired.items.iter().map(|item| item.presence).collect();
    use Presence::{Held, Refused};
    assert_eq!(presence, [Held, Held, Refused, Refused]);
    // All leases together hold at most a quarter of the disk.
    let ids: Vec<_> = keys.iter().map(|key| id(*key)).collect();
    for owner in 10..40 {
        let _ = store.acquire(OwnerId(owner), &ids, SECOND_NS, u64::MAX, T0);
    }
    assert!(store.disk_stat().leased_bytes <= 2 * SEGMENT);
}

#[test]
fn one_owner_leases_half_of_what_all_may_on_disk() {
    let disk = MemoryDisk::new(16, SEGMENT);
    let store = open(MIB, &disk);
    let keys: Vec<u64> = (0..40).collect();
    for key in &keys {
        put(&store, *key, 1, 30 * KIB);
    }
    empty_ram(&store, &keys);
    let ids: Vec<_> = keys.iter().map(|key| id(*key)).collect();
    // A quarter of 4 MiB for all, half of that for one: 17 objects of 30 KiB.
    let held = |acquired: &tessera_store::Acquired| {
        let presences = acquired.items.iter().map(|item| item.presence);
        presences.filter(|one| *one == Presence::Held).count()
    };
    let mine = store.acquire(OWNER, &ids[..10], SECOND_NS, u64::MAX, T0);
    let more = store.acquire(OWNER, &ids, SECOND_NS, u64::MAX, T0);
    assert_eq!((held(&mine), held(&more)), (10, 7), "counted once a lease");
    let other = store.acquire(OwnerId(5), &ids[20..], SECOND_NS, u64::MAX, T0);
    assert_eq!(held(&other), 17, "others have the rest");
    // What is given back, in part and whole, can be leased again.
    let lease = mine.lease.expect("something is held");
    assert_eq!(store.release(lease, Some(&ids[..4])), 4);
    assert_eq!(store.release(lease, None), 6);
    let again = store.acquire(OWNER, &ids[10..], SECOND_NS, u64::MAX, T0);
    assert_eq!(held(&again), 10);
}

#[test]
fn lost_owner_holds_nothing_and_a_removed_object_is_held_by_nobody() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    for key in 0..4 {
        put(&store, key, 1, 20 * KIB);
    }
    empty_ram(&store, &[0, 1, 2, 3]);
    let ids: Vec<_> = (0..4).map(id).collect();
    let mine = store.acquire(OWNER, &ids, SECOND_NS, u64::MAX, T0);
    let other = store.acquire(OwnerId(5), &ids, SECOND_NS, u64::MAX, T0);
    assert!(mine.lease.is_some() && mine.lease != other.lease);
    assert!(remove(&store, 0));
    assert_eq!(store.disk_stat().leased_bytes, 60 * KIB);
    assert_eq!(store.release_owner(OWNER), 4);
    assert_eq!(store.disk_stat().leased_bytes, 60 * KIB);
    assert_eq!(store.release_owner(OwnerId(5)), 4);
    assert_eq!(store.disk_stat().leased_bytes, 0);
    fill_disk(&store, 100);
    fill_disk(&store, 300);
    assert_eq!(get(&store, 0), None);
}

#[test]
fn read_that_relies_on_a_lease_that_is_over_is_counted() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    put(&store, 1, 1, 20 * KIB);
    empty_ram(&store, &[1]);
    let acquired = store.acquire(OWNER, &[id(1)], SECOND_NS, u64::MAX, T0);
    let lease = acquired.lease;
    let late = |now| {
        store.fetch(id(1), lease, now, |_| {});
        store.stat().late_reads
    };
    assert_eq!(late(T0), 0);
    assert_eq!(late(Instant(2 * SECOND_NS)), 1);
}

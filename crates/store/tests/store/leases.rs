//! Leases: owner, deadline, bounds, and what they promise.
//!
//! Called by the test runner.

use tessera_proto::Instant;
use tessera_store::{LeaseLimits, OwnerId, Presence, RamStore, StoreConfig};

use crate::sample::{T0, get, id, put, store};

const A: OwnerId = OwnerId(1);
const B: OwnerId = OwnerId(2);
const ALL: u64 = u64::MAX;

fn presence(store: &RamStore, owner: OwnerId, keys: &[u64], max_bytes: u64) -> Vec<Presence> {
    let ids: Vec<_> = keys.iter().map(|key| id(*key)).collect();
    let acquired = store.acquire(owner, &ids, 1_000, max_bytes, T0);
    acquired.items.iter().map(|item| item.presence).collect()
}

fn bounded(change: fn(&mut LeaseLimits)) -> RamStore {
    let mut config = StoreConfig::with_capacity(1 << 20);
    change(&mut config.leases);
    let store = RamStore::new(config).expect("a small arena");
    for key in 1..=8 {
        put(&store, key, 1, 100, T0).expect("room");
    }
    store
}

/// Writes and reads three times the capacity of a store of one MiB.
fn flood(store: &RamStore, first: u64, now: Instant) {
    for key in first..first + 300 {
        put(store, key, 1, 10_000, now).expect("room");
        assert!(get(store, key, now).is_some());
    }
}

#[test]
fn leased_object_is_never_evicted_and_becomes_evictable_when_the_lease_ends() {
    let store = store(1 << 20);
    for key in 1..=4 {
        put(&store, key, 1, 10_000, T0).expect("room");
    }
    let acquired = store.acquire(A, &[id(1), id(2), id(9), id(3)], 1_000, ALL, T0);
    let lengths: Vec<_> = acquired
        .items
        .iter()
        .map(|item| item.length_bytes)
        .collect();
    assert_eq!(lengths, [10_000, 10_000, 0, 10_000]);
    assert_eq!(
        (store.stat().leased_bytes, store.stat().leases),
        (30_000, 1)
    );
    flood(&store, 1_000, Instant(999));
    assert!([1, 2, 3].iter().all(|key| get(&store, *key, T0).is_some()));
    assert!(!store.contains(&id(4)), "not leased");
    store.check_invariants();
    // At the deadline the promise is over, and the next writers may have the memory.
    flood(&store, 2_000, Instant(1_000));
    let stat = store.stat();
    assert_eq!(
        (stat.leased_bytes, stat.leases, stat.leases_expired),
        (0, 0, 1)
    );
    assert!([1, 2, 3].iter().all(|key| !store.contains(&id(*key))));
    store.check_invariants();
}

#[test]
fn lease_is_cut_to_the_longest_that_is_granted() {
    let store = bounded(|limits| limits.ttl_ns_max = 50);
    let acquired = store.acquire(A, &[id(1)], 5_000, ALL, Instant(7));
    assert_eq!(acquired.deadline, Instant(57));
    assert_eq!(
        (store.expire(Instant(56)), store.expire(Instant(57))),
        (0, 1)
    );
    assert_eq!(store.expire(Instant(58)), 0);
}

#[test]
fn byte_bounds_refuse_what_is_beyond_them() {
    use Presence::{Held, Missing, Refused};
    let store = bounded(|_| {});
    assert_eq!(
        presence(&store, A, &[1, 99, 2, 3], 250),
        [Held, Missing, Held, Refused]
    );

    let store = bounded(|limits| limits.owner_bytes_max = 250);
    assert_eq!(presence(&store, A, &[1, 2], ALL), [Held, Held]);
    assert_eq!(presence(&store, A, &[3], ALL), [Refused]);
    assert_eq!(
        presence(&store, A, &[1], ALL),
        [Refused],
        "counted once for each lease"
    );
    assert_eq!(presence(&store, B, &[3], ALL), [Held]);

    let store = bounded(|limits| limits.store_bytes_max = 250);
    assert_eq!(presence(&store, A, &[1, 2], ALL), [Held, Held]);
    assert_eq!(
        presence(&store, B, &[3, 2], ALL),
        [Refused, Held],
        "leased already"
    );
    assert_eq!(
        (store.stat().leased_bytes, store.stat().leases_refused),
        (200, 1)
    );
    store.check_invariants();
}

#[test]
fn number_of_leases_of_an_owner_is_bounded_and_nothing_leaks_from_the_refusal() {
    let store = bounded(|limits| limits.owner_leases_max = 1);
    assert_eq!(presence(&store, A, &[1], ALL), [Presence::Held]);
    let refused = store.acquire(A, &[id(2), id(3)], 1_000, ALL, T0);
    assert_eq!(refused.lease, None);
    assert!(
        refused
            .items
            .iter()
            .all(|item| item.presence == Presence::Refused)
    );
    assert_eq!(store.stat().leased_bytes, 100);
    assert_eq!(store.release_owner(A), 1);
    assert_eq!(presence(&store, A, &[2], ALL), [Presence::Held]);
    store.check_invariants();
}

#[test]
fn nothing_found_gives_no_lease() {
    let store = bounded(|_| {});
    let acquired = store.acquire(A, &[id(50)], 1_000, ALL, T0);
    assert_eq!((acquired.lease, store.stat().leases), (None, 0));
    assert_eq!(store.acquire(A, &[], 1_000, ALL, T0).items, []);
}

#[test]
fn repeated_id_is_held_once() {
    let store = bounded(|_| {});
    let acquired = store.acquire(A, &[id(1), id(1)], 1_000, 150, T0);
    assert!(
        acquired
            .items
            .iter()
            .all(|item| item.presence == Presence::Held)
    );
    assert_eq!(store.release(acquired.lease.expect("held"), None), 1);
    assert_eq!(store.stat().leased_bytes, 0);
}

#[test]
fn release_of_some_keeps_the_rest_and_the_last_one_ends_the_lease() {
    let store = bounded(|_| {});
    let acquired = store.acquire(A, &[id(1), id(2), id(3)], 1_000, ALL, T0);
    let lease = acquired.lease.expect("held");
    assert_eq!(store.release(lease, Some(&[id(2), id(7), id(2)])), 1);
    assert_eq!((store.stat().leased_bytes, store.stat().leases), (200, 1));
    assert_eq!(store.release(lease, Some(&[id(1), id(3)])), 2);
    assert_eq!((store.stat().leased_bytes, store.stat().leases), (0, 0));
    assert_eq!(store.release(lease, None), 0, "ended");
    store.check_invariants();
}

#[test]
fn lost_owner_loses_its_leases_and_nobody_elses() {
    let store = bounded(|_| {});
    let _ = store.acquire(A, &[id(1), id(2)], 1_000, ALL, T0);
    let _ = store.acquire(A, &[id(2)], 1_000, ALL, T0);
    let of_b = store
        .acquire(B, &[id(2)], 1_000, ALL, T0)
        .lease
        .expect("held");
    assert_eq!(store.stat().leased_bytes, 200);
    assert_eq!(store.release_owner(A), 3);
    assert_eq!((store.stat().leased_bytes, store.stat().leases), (100, 1));
    assert_eq!(store.release(of_b, None), 1);
    assert_eq!(store.release_owner(A), 0);
    store.check_invariants();
}

#[test]
fn removal_beats_a_lease_and_frees_the_memory_when_it_ends() {
    let store = bounded(|_| {});
    let lease = store
        .acquire(A, &[id(1)], 1_000, ALL, T0)
        .lease
        .expect("held");
    let free = store.stat().free_bytes;
    assert!(store.remove(&id(1), None));
    assert!(store.pin(&id(1), Some(lease), T0).is_none());
    assert_eq!(store.stat().free_bytes, free, "still leased");
    assert_eq!(store.release(lease, Some(&[id(1)])), 1);
    assert_eq!(store.stat().free_bytes, free + 256);
    store.check_invariants();
}

#[test]
fn read_later_than_its_lease_is_counted_and_gets_the_object_or_a_miss() {
    let store = bounded(|_| {});
    let lease = store
        .acquire(A, &[id(1)], 1_000, ALL, T0)
        .lease
        .expect("held");
    assert!(store.pin(&id(1), Some(lease), Instant(999)).is_some());
    assert_eq!(store.stat().late_reads, 0);
    assert!(store.pin(&id(1), Some(lease), Instant(1_000)).is_some());
    assert!(store.remove(&id(1), None));
    assert!(store.pin(&id(1), Some(lease), Instant(1_001)).is_none());
    assert_eq!(store.stat().late_reads, 2);
}

/// One object of a unit each, under one lease after another.
#[test]
fn leases_of_the_smallest_objects_hold_no_more_records_than_the_arena_has_units() {
    let store = store(1 << 20);
    let ids: Vec<_> = (0..2_000).map(id).collect();
    for key in 0..2_000 {
        put(&store, key, 1, 1, T0).expect("room");
    }
    let held = |owner| {
        let items = store.acquire(owner, &ids, 1_000, ALL, T0).items;
        let held = |item: &&tessera_store::AcquireItem| item.presence == Presence::Held;
        items.iter().filter(held).count()
    };
    assert_eq!([A, B, A, B].map(held), [2_000, 2_000, 96, 0]);
    assert_eq!(store.release_owner(B), 2_000);
    assert_eq!(held(B), 2_000);
}

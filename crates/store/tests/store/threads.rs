//! The store under several threads: nobody sees a byte of another object, and nothing leaks.
//!
//! Called by the test runner. Threads run for a number of operations, not for a time.

use std::sync::Barrier;
use std::thread;

use tessera_proto::{Instant, checksum};
use tessera_store::{OwnerId, Presence, RamStore};

use crate::sample::{Numbers, T0, get, id, put, store};

const KEYS: u64 = 400;

fn length(key: u64) -> u64 {
    match key % 8 {
        0 => 150_000,
        1..=3 => 20_000,
        _ => 900,
    }
}

/// Runs `threads` copies of `work` at once.
fn at_once(threads: u64, work: impl Fn(u64) + Sync) {
    let start = Barrier::new(usize::try_from(threads).expect("few"));
    thread::scope(|scope| {
        for thread in 0..threads {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread);
            });
        }
    });
}

/// Removes everything and expects every byte of the arena back.
fn expect_baseline(store: &RamStore, keys: u64) {
    store.check_invariants();
    for key in 0..keys {
        store.remove(&id(key), None);
    }
    let stat = store.stat();
    assert_eq!((stat.objects, stat.bytes, stat.reserved_bytes), (0, 0, 0));
    assert_eq!((stat.pins, stat.leases, stat.leased_bytes), (0, 0, 0));
    assert_eq!(stat.free_bytes, stat.capacity_bytes);
    store.check_invariants();
}

#[test]
fn pins_read_their_own_bytes_through_eviction_removal_and_replacement() {
    let store = store(4 << 20);
    at_once(4, |thread| {
        let mut numbers = Numbers(thread);
        let mut pins = Vec::new();
        for round in 0..3_000 {
            let key = numbers.below(KEYS);
            match numbers.below(10) {
                0..=4 => drop(put(&store, key, round, length(key), T0)),
                5 => drop(store.remove(&id(key), None)),
                _ => pins.extend(store.pin(&id(key), None, T0)),
            }
            if pins.len() > 6 {
                let which = usize::try_from(numbers.below(7)).expect("small");
                let pin = pins.swap_remove(which);
                pin.header()
                    .check_payload(checksum(&pin))
                    .expect("bytes of the object");
            }
        }
        for pin in pins {
            pin.header()
                .check_payload(checksum(&pin))
                .expect("bytes of the object");
        }
    });
    let stat = store.stat();
    assert!(
        stat.evictions > 100 && stat.removed > 100 && stat.hits > 100,
        "{stat:?}"
    );
    expect_baseline(&store, KEYS);
}

#[test]
fn leased_objects_are_there_however_hard_others_write() {
    let store = store(4 << 20);
    at_once(4, |thread| {
        let mut numbers = Numbers(thread + 100);
        let owner = OwnerId(thread);
        for round in 0..1_500 {
            let ids: Vec<_> = (0..4).map(|_| id(numbers.below(KEYS))).collect();
            let acquired = store.acquire(owner, &ids, 1_000, 300_000, T0);
            for _ in 0..3 {
                let key = numbers.below(KEYS);
                let _ = put(&store, key, round, length(key), T0);
            }
            for (id, item) in ids.iter().zip(&acquired.items) {
                if item.presence == Presence::Held {
                    let pin = store
                        .pin(id, acquired.lease, T0)
                        .expect("a lease is a promise");
                    assert_eq!(pin.len() as u64, item.length_bytes);
                    pin.header()
                        .check_payload(checksum(&pin))
                        .expect("bytes of the object");
                }
            }
            match (round % 3, acquired.lease) {
                (0, Some(lease)) => drop(store.release(lease, None)),
                (1, Some(lease)) => drop(store.release(lease, Some(&ids[..2]))),
                _ => {}
            }
            if round % 16 == 15 {
                store.release_owner(owner);
            }
        }
        store.release_owner(owner);
    });
    let stat = store.stat();
    assert!(stat.evictions > 100, "{stat:?}");
    assert_eq!(stat.late_reads, 0);
    expect_baseline(&store, KEYS);
}

#[test]
fn expiry_release_and_owner_loss_give_each_hold_back_once() {
    let store = store(4 << 20);
    for key in 0..KEYS {
        put(&store, key, 1, 900, T0).expect("room");
    }
    at_once(4, |thread| {
        let mut numbers = Numbers(thread + 7);
        for round in 0..4_000 {
            let now = Instant(round);
            let ids: Vec<_> = (0..3).map(|_| id(numbers.below(KEYS))).collect();
            let acquired = store.acquire(OwnerId(numbers.below(2)), &ids, 5, u64::MAX, now);
            match numbers.below(4) {
                0 => drop(store.expire(now.after_nanos(5))),
                1 => drop(store.release_owner(OwnerId(thread % 2))),
                2 => drop(acquired.lease.map(|lease| store.release(lease, None))),
                _ => drop(acquired.lease.map(|lease| store.release(lease, Some(&ids)))),
            }
        }
    });
    store.expire(Instant::NEVER);
    expect_baseline(&store, KEYS);
}

#[test]
fn of_many_writers_of_one_key_one_is_stored() {
    let store = store(4 << 20);
    for key in 0..200 {
        at_once(3, |thread| {
            put(&store, key, thread, 900 + thread, T0).expect("room");
        });
        assert!(get(&store, key, T0).is_some());
    }
    let stat = store.stat();
    assert_eq!((stat.stored, stat.existed), (200, 400));
    expect_baseline(&store, 200);
}

//! Eviction: what stays, what goes, and that there is always a way to make room.
//!
//! Called by the test runner.

use std::collections::{BTreeMap, HashMap};

use tessera_proto::Instant;
use tessera_store::{OwnerId, Published, RamStore, ReserveRefusal};

use crate::sample::{Numbers, T0, get, id, put, store};

const CAPACITY: u64 = 8 << 20;

#[test]
fn full_ring_stays_hot_for_the_newest() {
    let store = store(CAPACITY);
    let count = 4 * CAPACITY / 64_000;
    for key in 0..count {
        assert_eq!(put(&store, key, 1, 64_000, T0), Ok(Published::Stored));
        assert!(store.contains(&id(key)), "the newest is there");
    }
    let kept = (0..count)
        .rev()
        .take_while(|key| store.contains(&id(*key)))
        .count();
    assert!(
        kept as u64 * 64_000 > CAPACITY * 9 / 10,
        "{kept} of the newest"
    );
    // The memory of evictions may mistake a few for objects that came back.
    let older = store.stat().objects - kept as u64;
    assert!(older <= 3, "{older} older ones");
    store.check_invariants();
}

#[test]
fn scan_of_three_times_the_capacity_leaves_the_hot_set() {
    let store = store(CAPACITY);
    let length = |key: u64| {
        if key.is_multiple_of(5) {
            300_000
        } else {
            20_000
        }
    };
    let hot: Vec<u64> = (0..40).collect();
    for key in &hot {
        put(&store, *key, 1, length(*key), T0).expect("room");
        assert!(get(&store, *key, T0).is_some());
    }
    let (mut scanned, mut misses, mut numbers) = (0, 0, Numbers(1));
    for key in 1_000.. {
        put(&store, key, 1, length(key), T0).expect("an evicting store always has room");
        scanned += length(key);
        let asked = hot[usize::try_from(numbers.below(40)).expect("small")];
        if get(&store, asked, T0).is_none() {
            misses += 1;
            put(&store, asked, 1, length(asked), T0).expect("room");
        }
        if scanned > 3 * CAPACITY {
            break;
        }
    }
    assert!(misses <= 8, "{misses} reads of the hot set missed");
    assert_eq!(store.stat().refused_no_space, 0);
    store.check_invariants();
}

#[test]
fn object_as_large_as_allowed_finds_room_among_the_smallest_and_back() {
    let store = store(4 << 20);
    let mut key = 0;
    for _ in 0..4 {
        for _ in 0..20_000 {
            key += 1;
            put(&store, key, 1, 100, T0).expect("room for a small one");
        }
        for _ in 0..5 {
            key += 1;
            put(&store, key, 1, 1 << 20, T0).expect("room for a large one");
        }
        store.check_invariants();
    }
}

#[test]
fn scattered_holes_are_widened_until_a_larger_object_fits() {
    let store = store(8 << 20);
    for key in 0..2_000 {
        put(&store, key, 1, 4_000, T0).expect("room");
        // Every other one was read: what leaves first has no neighbour that leaves first.
        if key.is_multiple_of(2) {
            assert!(get(&store, key, T0).is_some());
        }
    }
    for key in 3_000..3_020 {
        let before = store.stat().evicted_bytes;
        put(&store, key, 1, 120_000, T0).expect("nothing is held");
        let evicted = store.stat().evicted_bytes - before;
        assert!(evicted < 3 * 120_000, "{evicted} bytes left for 120,000");
    }
    store.check_invariants();
}

#[test]
fn one_large_object_does_not_empty_a_store_of_scattered_leases() {
    let store = store(8 << 20);
    for key in 0..1_600 {
        put(&store, key, 1, 4_000, T0).expect("room");
    }
    let leased: Vec<_> = (0..1_600).step_by(16).map(id).collect();
    let lease = store
        .acquire(OwnerId(1), &leased, 1_000, u64::MAX, T0)
        .lease
        .expect("held");
    // Between two leased objects lie 63 KiB at most, and the end of the arena is filled too.
    for key in 2_000..2_500 {
        put(&store, key, 1, 4_000, T0).expect("room");
    }
    let leased: Vec<_> = (2_000..2_500).step_by(16).map(id).collect();
    let more = store
        .acquire(OwnerId(1), &leased, 1_000, u64::MAX, T0)
        .lease
        .expect("held");
    let before = store.stat();
    assert_eq!(
        store.reserve(200_000, T0).err(),
        Some(ReserveRefusal::NoSpace)
    );
    let evicted = store.stat().evicted_bytes - before.evicted_bytes;
    assert!(
        evicted < 9 * 200_000 + 1_000_000,
        "{evicted} bytes left for nothing"
    );
    assert!(store.release(lease, None) + store.release(more, None) > 100);
    assert!(store.reserve(200_000, T0).is_ok());
    store.check_invariants();
}

#[test]
fn object_that_was_held_when_its_turn_came_can_leave_later() {
    let store = store(1 << 20);
    put(&store, 1, 1, 50_000, T0).expect("room");
    let pin = store.pin(&id(1), None, T0).expect("stored");
    for key in 100..200 {
        put(&store, key, 1, 50_000, T0).expect("room");
    }
    assert!(store.contains(&id(1)), "pinned");
    drop(pin);
    store.check_invariants();
    for key in 200..400 {
        put(&store, key, 1, 50_000, T0).expect("room");
        let _ = get(&store, key - 1, T0);
    }
    assert!(!store.contains(&id(1)));
}

#[test]
fn store_full_of_leases_refuses_until_they_end() {
    let mut config = tessera_store::StoreConfig::with_capacity(1 << 20);
    config.leases.store_bytes_max = u64::MAX;
    config.leases.owner_bytes_max = u64::MAX;
    let store = RamStore::new(config).expect("a small arena");
    for key in 0..20 {
        put(&store, key, 1, 50_000, T0).expect("room");
    }
    let ids: Vec<_> = (0..20).map(id).collect();
    let _ = store.acquire(OwnerId(1), &ids, 1_000, u64::MAX, T0);
    for key in 20..30 {
        assert_eq!(
            put(&store, key, 1, 50_000, Instant(999)),
            Err(ReserveRefusal::NoSpace)
        );
    }
    assert_eq!(store.stat().evictions, 0);
    assert_eq!(
        put(&store, 30, 1, 50_000, Instant(1_000)),
        Ok(Published::Stored)
    );
    store.check_invariants();
}

#[test]
fn what_comes_back_late_is_still_there() {
    let store = store(CAPACITY);
    let (length, fits) = (20_000, CAPACITY / 21_000);
    // A store full of what was read once, and that nobody asks for any more.
    for key in 0..fits {
        put(&store, key, 1, length, T0).expect("room");
        assert!(get(&store, key, T0).is_some());
    }
    // Each object is asked for once more, after as many others as fill 40 % of the store.
    let (first, late, rounds) = (10_000, fits * 4 / 10, 10 * fits);
    let mut hits = 0;
    for round in 0..rounds {
        put(&store, first + round, 1, length, T0).expect("room");
        let Some(asked) = round.checked_sub(late) else {
            continue;
        };
        if store.pin(&id(first + asked), None, T0).is_some() {
            hits += u64::from(round > rounds / 2);
        } else {
            put(&store, first + asked, 1, length, T0).expect("room");
        }
    }
    assert!(
        hits * 10 > rounds / 2 * 9,
        "{hits} of {} came back to a hit",
        rounds / 2
    );
    store.check_invariants();
}

#[test]
fn prompt_leaves_from_its_end_whether_it_was_found_or_stored() {
    let store = store(CAPACITY);
    let (length, fits) = (20_000, CAPACITY / 20_480);
    let prompt: Vec<u64> = (0..40).collect();
    let ids: Vec<_> = prompt.iter().map(|key| id(*key)).collect();
    let look_up = || {
        let lease = store.acquire(OwnerId(1), &ids, 1, u64::MAX, T0).lease;
        lease.map_or(0, |lease| store.release(lease, None))
    };
    // Of an empty store, one prompt is too large a part to be taken for one.
    for key in 500..500 + fits {
        put(&store, key, 1, length, T0).expect("room");
    }
    assert_eq!(look_up(), 0);
    for key in &prompt {
        put(&store, *key, 1, length, T0).expect("room");
    }
    let present = || {
        let there: Vec<_> = prompt.iter().map(|key| store.contains(&id(*key))).collect();
        let count = there.iter().filter(|there| **there).count();
        assert!(
            there[..count].iter().all(|there| *there),
            "a gap: {there:?}"
        );
        count
    };
    let mut key = 2_000;
    let mut flood = |least: usize| {
        while present() > least {
            key += 1;
            put(&store, key, 1, length, T0).expect("room");
            assert!(key < 2_000 + 40 * fits, "what nobody asks for leaves");
        }
    };
    flood(20);
    assert_eq!(look_up(), 20);
    flood(0);
    store.check_invariants();
}

#[test]
fn object_that_a_lookup_holds_is_used_once_however_often_it_is_read_under_the_lease() {
    let store = store(CAPACITY);
    let order = || {
        for key in [1, 2] {
            put(&store, key, 1, 50_000, T0).expect("room");
        }
        let one = store.acquire(OwnerId(1), &[id(1)], 1, u64::MAX, T0).lease;
        let two = store.acquire(OwnerId(1), &[id(2)], 1, u64::MAX, T0).lease;
        // The lookup of the other was later, and its use counts for it; reads of this one do not.
        for _ in 0..5 {
            drop(store.pin(&id(1), one, T0).expect("leased"));
        }
        for lease in [one, two].into_iter().flatten() {
            assert_eq!(store.release(lease, None), 1);
        }
    };
    order();
    for key in 100.. {
        put(&store, key, 1, 50_000, T0).expect("room");
        let there = [1, 2].map(|key| store.contains(&id(key)));
        if there != [true, true] {
            assert_eq!(there, [false, true], "the lookup of 1 was earlier");
            break;
        }
    }
}

/// The hit rate of an LRU of `capacity` bytes that loses nothing to rounding.
fn lru_hits(trace: &[(u64, u64)], capacity: u64) -> usize {
    let (mut last_use, mut order) = (HashMap::new(), BTreeMap::new());
    let (mut used, mut hits) = (0, 0);
    for (now, (key, length)) in trace.iter().enumerate() {
        match last_use.insert(*key, now) {
            Some(before) => {
                hits += 1;
                order.remove(&before);
            }
            None => used += length,
        }
        order.insert(now, (*key, *length));
        while used > capacity {
            let (_, (key, length)) = order.pop_first().expect("something is used");
            last_use.remove(&key);
            used -= length;
        }
    }
    hits
}

#[test]
fn hit_rate_on_two_sizes_is_that_of_lru_or_better() {
    let mut numbers = Numbers(11);
    // Popularity falls with the rank: the product of two uniform numbers leans to the small.
    let trace: Vec<(u64, u64)> = (0..16_000)
        .map(|_| {
            let key = numbers.below(1_000) * numbers.below(1_000) / 1_000;
            (
                key,
                if key.is_multiple_of(16) {
                    250_000
                } else {
                    16_000
                },
            )
        })
        .collect();
    let total: u64 = (0..2_000)
        .map(|key: u64| {
            if key.is_multiple_of(16) {
                250_000
            } else {
                16_000
            }
        })
        .sum();
    assert!(total > 3 * CAPACITY, "{total}");
    let store = store(CAPACITY);
    let mut hits = 0;
    for (key, length) in &trace {
        if store.pin(&id(*key), None, T0).is_some() {
            hits += 1;
        } else {
            put(&store, *key, 1, *length, T0).expect("room");
        }
    }
    let lru = lru_hits(&trace, CAPACITY);
    println!("hits {hits}, LRU {lru}");
    assert!(hits * 100 >= lru * 95, "{hits} hits, LRU has {lru}");
    assert_eq!(store.stat().refused_no_space, 0);
    store.check_invariants();
}

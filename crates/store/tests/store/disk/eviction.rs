//! A full disk is normal: segments leave by age, what is read or leased is written again.

use std::num::NonZeroU32;
use std::slice;

use tessera_store::{DiskConfig, Published};

use super::memory::{Faults, HEAD_BYTES, MemoryDisk};
use super::support::{KIB, MIB, SEGMENT, config, empty_ram, get, open, put, remove, try_open};
use crate::sample::{NAMESPACE_SHIFT, Numbers, id, namespace_of};

#[test]
fn full_disk_keeps_taking_objects_and_holds_the_newest() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    for key in 0..400 {
        assert_eq!(put(&store, key, 1, 20 * KIB), Published::Stored);
    }
    let stat = store.disk_stat();
    assert_eq!((stat.skipped, stat.stored), (0, 400));
    assert!(stat.evictions > 300, "{stat:?}");
    // Six segments hold about 70 of them; two are being emptied or filled.
    for key in 360..400 {
        assert_eq!(get(&store, key), Some((1, 20 * KIB)), "key {key}");
    }
    drop(store);
    let store = open(MIB, &disk);
    for key in 360..400 {
        assert_eq!(get(&store, key), Some((1, 20 * KIB)), "key {key}");
    }
}

#[test]
fn hot_set_stays_while_three_times_the_capacity_passes() {
    let disk = MemoryDisk::new(8, MIB);
    let larger = DiskConfig {
        segment_bytes: MIB,
        ..config()
    };
    let store = try_open(MIB, &larger, slice::from_ref(&disk)).expect("a disk of ours");
    let lengths = [12 * KIB, 80 * KIB];
    let hot: Vec<u64> = (0..10).collect();
    for key in &hot {
        put(&store, *key, 1, lengths[(*key % 2) as usize]);
    }
    for key in 1_000..1_520 {
        put(&store, key, 1, lengths[(key % 2) as usize]);
        // Each is asked for from disk about twice while the disk is filled once.
        let asked = hot[(key % 10) as usize];
        if key % 3 == 0 {
            empty_ram(&store, &[asked]);
            assert!(get(&store, asked).is_some(), "key {asked} at {key}");
        }
    }
    let stat = store.disk_stat();
    assert!(stat.evictions > 100 && stat.reinserted > 10, "{stat:?}");
    assert_eq!(stat.damaged, 0);
}

#[test]
fn disk_full_of_what_is_read_takes_new_objects_all_the_same() {
    let disk = MemoryDisk::new(6, SEGMENT);
    let store = open(MIB, &disk);
    let mut numbers = Numbers(3);
    for key in 0..300 {
        assert_eq!(put(&store, key, 1, 30 * KIB), Published::Stored);
        for _ in 0..4 {
            let asked = key.saturating_sub(numbers.below(30));
            empty_ram(&store, &[asked]);
            let _ = get(&store, asked);
        }
    }
    let stat = store.disk_stat();
    assert_eq!(stat.skipped, 0);
    // Of a segment that leaves, half stays; what tables and the ends of segments lose is new's.
    assert!(stat.reinserted_bytes <= 2 * stat.written_bytes, "{stat:?}");
}

/// Objects of two namespaces with these prices that are left, of a disk that was full of them, all
/// of them read, after as much was written that nobody reads.
fn left_with_prices(prices: [u32; 2]) -> [usize; 2] {
    let disk = MemoryDisk::new(16, SEGMENT);
    let store = open(MIB, &disk);
    let namespaces = [0, 1 << NAMESPACE_SHIFT];
    for (namespace, price) in namespaces.into_iter().zip(prices) {
        let ns_per_kib = NonZeroU32::new(price).expect("a price");
        store.ram().price(namespace_of(namespace), ns_per_kib);
    }
    let keys = |namespace: u64| (0..60).map(move |key| namespace + key);
    let [one, other] = namespaces.map(keys);
    let both: Vec<_> = one.zip(other).flat_map(<[u64; 2]>::from).collect();
    for key in &both {
        put(&store, *key, 1, 20 * KIB);
    }
    empty_ram(&store, &both);
    for key in &both {
        assert!(get(&store, *key).is_some());
    }
    empty_ram(&store, &both);
    for key in 1_000..1_100 {
        put(&store, key, 1, 20 * KIB);
    }
    namespaces.map(|namespace| {
        let left = keys(namespace).filter(|key| store.contains(&id(*key)));
        left.count()
    })
}

#[test]
fn of_what_is_read_the_dear_is_written_again_first() {
    let [one, other] = left_with_prices([100, 100]);
    assert!(one.abs_diff(other) < 4, "{one} and {other}");
    let [cheap, dear] = left_with_prices([100, 1_600]);
    assert!(dear > cheap + 4, "{dear} dear, {cheap} cheap");
}

#[test]
fn removal_outlives_the_segments_that_pass() {
    let disk = MemoryDisk::new(6, SEGMENT);
    {
        let store = open(MIB, &disk);
        for key in 0..5 {
            put(&store, key, 1, 10 * KIB);
            assert!(remove(&store, key));
        }
        for key in 100..200 {
            put(&store, key, 1, 30 * KIB);
            assert_eq!(get(&store, key % 5), None);
        }
    }
    let store = open(MIB, &disk);
    for key in 0..5 {
        assert_eq!(get(&store, key), None);
    }
}

#[test]
fn index_has_room_for_as_many_objects_as_it_was_told() {
    let disk = MemoryDisk::new(16, SEGMENT);
    let few = DiskConfig {
        objects_max: 200,
        ..config()
    };
    let store = try_open(MIB, &few, slice::from_ref(&disk)).expect("a disk of ours");
    for key in 0..2_000 {
        assert_eq!(put(&store, key, 1, 3 * KIB), Published::Stored);
        assert!(store.disk_stat().objects <= 228);
    }
    assert!(store.ram().contains(&id(1_999)));
    assert_eq!(get(&store, 1_999), Some((1, 3 * KIB)));
    drop(store);
    // A start that finds more than it was told keeps it, and then lets it go.
    let fewer = DiskConfig {
        objects_max: 50,
        ..config()
    };
    let store = try_open(MIB, &fewer, slice::from_ref(&disk)).expect("a disk of ours");
    assert!(store.disk_stat().objects > 50);
    for key in 5_000..5_200 {
        assert_eq!(put(&store, key, 1, 3 * KIB), Published::Stored);
    }
    assert_eq!(get(&store, 5_199), Some((1, 3 * KIB)));
}

#[test]
fn file_system_that_is_full_before_the_disk_is_lived_with_and_heals() {
    let disk = MemoryDisk::new(12, SEGMENT);
    let store = open(MIB, &disk);
    disk.fail(Faults {
        room_bytes: Some(HEAD_BYTES + 5 * SEGMENT),
        ..Faults::default()
    });
    for key in 0..100 {
        assert_eq!(put(&store, key, 1, 30 * KIB), Published::Stored);
    }
    assert_eq!(store.disk_stat().skipped, 0);
    assert_eq!(store.disk_stat().fenced, 0);
    empty_ram(&store, &[95, 99]);
    assert!(get(&store, 95).is_some() && get(&store, 99).is_some());
    let before = store.disk_stat().bytes;
    disk.fail(Faults::default());
    for key in 200..300 {
        assert_eq!(put(&store, key, 1, 30 * KIB), Published::Stored);
    }
    assert!(store.disk_stat().bytes > before + 4 * SEGMENT);
}

//! Both tiers together: what is acknowledged stays visible, reads are shared, removals are final.

use std::slice;
use std::sync::Barrier;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use tessera_store::{Admission, DiskConfig, Fetched, Published, RamStore, Unrecorded, WritePolicy};

use super::memory::{Faults, MemoryDisk};
use super::support::{
    KIB, MIB, SEGMENT, begin_get, begin_put, begin_remove, checked, config, empty_ram, get, open,
    put, remove, try_open,
};
use crate::sample::{T0, fill, header, id};

/// Around both borders: of a unit, of a block, of images that fill blocks.
const LENGTHS: [u64; 12] = [
    1, 127, 128, 129, 4_095, 4_096, 65_407, 65_408, 65_409, 100_000, 131_072, 200_000,
];

#[test]
fn object_of_any_length_comes_back_from_disk() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    for (key, length) in (0..).zip(LENGTHS) {
        assert_eq!(put(&store, key, 1, length), Published::Stored);
    }
    let keys: Vec<u64> = (0..LENGTHS.len() as u64).collect();
    empty_ram(&store, &keys);
    for (key, length) in (0..).zip(LENGTHS) {
        assert_eq!(get(&store, key), Some((1, length)), "length {length}");
        // And now from RAM.
        let reads = disk.reads();
        assert_eq!(get(&store, key), Some((1, length)));
        assert_eq!(disk.reads(), reads);
    }
    assert_eq!(store.disk_stat().hits, LENGTHS.len() as u64);
    store.ram().check_invariants();
}

#[test]
fn object_survives_a_restart_and_so_does_its_second_write_after_a_removal() {
    let disk = MemoryDisk::new(40, SEGMENT);
    for start in 0..4 {
        let store = open(MIB, &disk);
        assert_eq!(store.disk_stat().recovered, start * LENGTHS.len() as u64);
        for (key, length) in (0..).zip(LENGTHS) {
            for older in 0..start {
                assert_eq!(get(&store, older * 100 + key), Some((2, length)));
            }
            let key = start * 100 + key;
            assert_eq!(put(&store, key, 1, length), Published::Stored);
            assert!(remove(&store, key));
            assert_eq!(get(&store, key), None);
            assert_eq!(put(&store, key, 2, length), Published::Stored);
        }
    }
}

#[test]
fn restarts_go_on_in_the_segment_that_was_open() {
    let disk = MemoryDisk::new(4, SEGMENT);
    for start in 0..20 {
        let store = open(MIB, &disk);
        for key in 0..start {
            assert_eq!(get(&store, key), Some((1, 4 * KIB)), "start {start}");
        }
        assert_eq!(put(&store, start, 1, 4 * KIB), Published::Stored);
    }
}

#[test]
fn removed_object_is_never_found_again() {
    let disk = MemoryDisk::new(8, SEGMENT);
    {
        let store = open(MIB, &disk);
        for key in 0..20 {
            assert_eq!(put(&store, key, 1, 10 * KIB), Published::Stored);
        }
        for key in 0..10 {
            assert!(remove(&store, key));
            assert!(!remove(&store, key));
            assert!(!store.contains(&id(key)));
        }
    }
    for _ in 0..3 {
        let store = open(MIB, &disk);
        for key in 0..20 {
            assert_eq!(get(&store, key).is_some(), key >= 10, "key {key}");
        }
    }
}

#[test]
fn removal_of_another_write_changes_nothing() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 5, 70_000), Published::Stored);
    assert_eq!(begin_remove(&store, 1, Some(4)).wait(), Ok(false));
    empty_ram(&store, &[1]);
    assert_eq!(begin_remove(&store, 1, Some(4)).wait(), Ok(false));
    assert_eq!(get(&store, 1), Some((5, 70_000)));
    assert_eq!(begin_remove(&store, 1, Some(5)).wait(), Ok(true));
    assert_eq!(get(&store, 1), None);
}

#[test]
fn second_writer_is_told_that_the_object_exists_wherever_it_is() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
    assert_eq!(put(&store, 1, 2, 70_000), Published::Existed);
    empty_ram(&store, &[1]);
    assert!(store.contains(&id(1)));
    assert_eq!(put(&store, 1, 2, 70_000), Published::Existed);
    assert_eq!(get(&store, 1), Some((1, 70_000)));
}

#[test]
fn identical_concurrent_reads_share_one_read_of_the_disk() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
    empty_ram(&store, &[1]);
    let before = disk.reads();
    let held = disk.hold_reads();
    let answers: Vec<_> = (0..50).map(|_| begin_get(&store, 1)).collect();
    disk.until_read_waits();
    drop(held);
    for answer in answers {
        assert_eq!(checked(answer.wait(), 1), Some((1, 70_000)));
    }
    assert_eq!(disk.reads(), before + 1);
    assert_eq!(store.disk_stat().shared_reads, 49);
}

#[test]
fn a_read_that_ends_while_another_asks_is_not_repeated() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
    for round in 0..200 {
        assert!(store.ram().remove(&id(1), None));
        let before = disk.reads();
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    assert_eq!(get(&store, 1), Some((1, 70_000)));
                });
            }
        });
        assert_eq!(disk.reads(), before + 1, "round {round}");
    }
}

#[test]
fn who_is_answered_finds_nothing_held_but_by_himself() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    let mut extent = store.reserve(70_000, T0).expect("room");
    fill(&mut extent, 1, 1);
    let header = header(1, 1, &extent);
    let (seen, pins) = channel();
    let see = |ram: RamStore, seen: Sender<u64>| move || seen.send(ram.stat().pins);
    let stored = see(store.ram().clone(), seen.clone());
    store.publish(extent, id(1), header, T0, move |_| stored().expect("heard"));
    assert_eq!(pins.recv(), Ok(0), "by the writer");
    empty_ram(&store, &[1]);
    let held = disk.hold_reads();
    for _ in 0..3 {
        let read = see(store.ram().clone(), seen.clone());
        store.fetch(id(1), None, T0, move |fetched| {
            drop(fetched);
            read().expect("heard");
        });
    }
    drop(held);
    let by_the_others: Vec<u64> = pins.iter().take(3).collect();
    assert_eq!(by_the_others, [2, 1, 0], "by the reader");
}

#[test]
fn removal_while_the_object_is_read_ends_the_read_with_a_miss() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
    empty_ram(&store, &[1]);
    let held = disk.hold_reads();
    let answer = begin_get(&store, 1);
    disk.until_read_waits();
    assert!(remove(&store, 1));
    assert_eq!(checked(answer.wait(), 1), None);
    // What the read finds now must not come back into RAM, nor into what is written next.
    assert_eq!(put(&store, 1, 2, 80_000), Published::Stored);
    drop(held);
    assert_eq!(get(&store, 1), Some((2, 80_000)));
    empty_ram(&store, &[1]);
    assert_eq!(get(&store, 1), Some((2, 80_000)));
}

#[test]
fn removal_before_the_object_reached_the_disk_is_final() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(4 * MIB, &disk);
    let answers: Vec<_> = (0..40)
        .map(|key| {
            let stored = begin_put(&store, key, 1, 30 * KIB).expect("room");
            (stored, begin_remove(&store, key, None))
        })
        .collect();
    for (stored, gone) in answers {
        assert_eq!(stored.wait(), Published::Stored);
        assert_eq!(gone.wait(), Ok(true));
    }
    for key in 0..40 {
        assert_eq!(get(&store, key), None);
    }
    drop(store);
    let store = open(MIB, &disk);
    assert_eq!(store.disk_stat().recovered, 0);
}

#[test]
fn write_back_answers_at_once_up_to_its_bound_and_flushes_when_closed() {
    let disk = MemoryDisk::new(16, SEGMENT);
    let back = DiskConfig {
        write: WritePolicy::Back {
            dirty_bytes_max: 100 * KIB,
            admission: Admission::All,
        },
        ..config()
    };
    let store = try_open(8 * MIB, &back, slice::from_ref(&disk)).expect("a disk of ours");
    let held = disk.hold_writes();
    let mut answers = Vec::new();
    for key in 0..64 {
        let answer = begin_put(&store, key, 1, 30 * KIB).expect("room");
        assert!(store.contains(&id(key)));
        // Three of them are within the bound; the fourth waits for the disk.
        assert_eq!(answer.now().is_some(), key < 3, "key {key}");
        answers.push(answer);
    }
    assert_eq!(store.disk_stat().dirty_bytes, 64 * 30 * KIB);
    drop(held);
    for answer in answers.into_iter().skip(3) {
        assert_eq!(answer.wait(), Published::Stored);
    }
    store.close();
    assert_eq!(store.disk_stat().dirty_bytes, 0);
    drop(store);
    let store = open(8 * MIB, &disk);
    for key in 0..64 {
        assert_eq!(get(&store, key), Some((1, 30 * KIB)), "key {key}");
    }
}

#[test]
fn write_through_answers_no_writer_before_the_object_is_on_disk() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    let held = disk.hold_writes();
    let first = begin_put(&store, 1, 1, 30 * KIB).expect("room");
    let second = begin_put(&store, 1, 2, 30 * KIB).expect("room");
    let (sender, third) = channel();
    store.join(&id(1), move |published| {
        sender.send(published).expect("heard");
    });
    // Readers see it at once.
    assert_eq!(get(&store, 1), Some((1, 30 * KIB)));
    assert_eq!((first.now(), second.now()), (None, None));
    assert!(third.try_recv().is_err());
    drop(held);
    assert_eq!(first.wait(), Published::Stored);
    assert_eq!(second.wait(), Published::Existed);
    assert_eq!(third.recv(), Ok(Published::Existed));
    let image = MemoryDisk::of(disk.bytes());
    assert_eq!(get(&open(MIB, &image), 1), Some((1, 30 * KIB)));
}

#[test]
fn object_waiting_for_its_disk_is_not_evicted_from_ram() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    // The writer moves the oldest segment and waits for its read; what comes next waits in RAM.
    for key in 0..12 {
        assert_eq!(put(&store, key, 1, 200_000), Published::Stored);
    }
    let held = disk.hold_reads();
    for key in 12..16 {
        let _ = begin_put(&store, key, 1, 100_000).expect("room");
        assert!(store.contains(&id(key)));
    }
    let mut taken = Vec::new();
    while let Ok(extent) = store.reserve(100_000, T0) {
        taken.push(extent);
    }
    for key in 12..16 {
        assert!(store.contains(&id(key)), "key {key}");
    }
    drop(held);
}

#[test]
fn read_without_room_in_ram_is_busy_and_works_later() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 200_000), Published::Stored);
    empty_ram(&store, &[1]);
    let mut taken = Vec::new();
    while let Ok(extent) = store.reserve(100_000, T0) {
        taken.push(extent);
    }
    assert!(matches!(begin_get(&store, 1).wait(), Fetched::Busy));
    assert_eq!(store.disk_stat().busy, 1);
    taken.clear();
    assert_eq!(get(&store, 1), Some((1, 200_000)));
}

#[test]
fn object_too_large_for_a_segment_stays_in_ram() {
    let disk = MemoryDisk::new(4, SEGMENT);
    let store = open(4 * MIB, &disk);
    assert_eq!(put(&store, 1, 1, 300_000), Published::Stored);
    assert_eq!(get(&store, 1), Some((1, 300_000)));
    let stat = store.disk_stat();
    assert_eq!((stat.skipped, stat.stored, stat.objects), (1, 0, 0));
}

#[test]
fn several_disks_share_the_objects_and_each_keeps_its_own() {
    let disks = [MemoryDisk::new(6, SEGMENT), MemoryDisk::new(4, SEGMENT)];
    {
        let store = try_open(MIB, &config(), &disks).expect("disks of ours");
        for key in 0..60 {
            assert_eq!(put(&store, key, 1, 9 * KIB), Published::Stored);
        }
        assert!(remove(&store, 7));
    }
    let store = try_open(MIB, &config(), &disks).expect("disks of ours");
    for key in 0..60 {
        assert_eq!(get(&store, key).is_some(), key != 7);
    }
    drop(store);
    let alone: Vec<u64> = disks
        .iter()
        .map(|disk| open(MIB, disk).disk_stat().objects)
        .collect();
    assert_eq!(alone.iter().sum::<u64>(), 59);
    assert!(alone.iter().all(|objects| *objects > 10), "{alone:?}");
}

#[test]
fn store_without_its_disk_lives_on_in_ram() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
    disk.fail(Faults {
        write_errors: true,
        ..Faults::default()
    });
    assert_eq!(put(&store, 2, 1, 70_000), Published::Stored);
    assert_eq!(get(&store, 2), Some((1, 70_000)));
    assert_eq!(put(&store, 3, 1, 70_000), Published::Stored);
    assert_eq!(get(&store, 3), Some((1, 70_000)));
    assert_eq!(begin_remove(&store, 3, None).wait(), Err(Unrecorded));
    assert!(!store.contains(&id(3)));
    let stat = store.disk_stat();
    assert_eq!((stat.fenced, stat.objects, stat.skipped), (1, 0, 2));
}

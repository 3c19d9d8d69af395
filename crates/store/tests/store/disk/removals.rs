//! Removals and drops on disks that have no room for them, or that failed: answered when no start
//! can find what is gone, and not before.

use std::sync::Arc;

use tessera_proto::Instant;
use tessera_store::{OwnerId, Published, Store, Unrecorded};

use super::memory::{Faults, HEAD_BYTES, MemoryDisk};
use super::support::{
    Answer, KIB, MIB, SEGMENT, begin_drop, begin_remove, config, drop_namespace, empty_ram, get,
    open, put, remove, try_open,
};
use crate::sample::{NAMESPACE_SHIFT, T0, id};

/// A key of another namespace than the usual one.
fn other(key: u64) -> u64 {
    key | 1 << NAMESPACE_SHIFT
}

/// A disk of which the system gives a part only, with leased objects of two namespaces until there
/// is no room for one more. Returns the keys of the second.
fn full_of_leases(disk: &Arc<MemoryDisk>) -> (Store, Vec<u64>) {
    let store = open(MIB, disk);
    disk.fail(Faults {
        room_bytes: Some(HEAD_BYTES + 4 * SEGMENT),
        ..Faults::default()
    });
    let mut others = Vec::new();
    for next in 0.. {
        let key = if next % 2 == 1 { other(next) } else { next };
        assert_eq!(put(&store, key, 1, 20 * KIB), Published::Stored);
        store.ram().remove(&id(key), None);
        if store.disk_stat().skipped > 0 {
            break;
        }
        let _ = store.acquire(OwnerId(next), &[id(key)], 1_000, u64::MAX, T0);
        others.extend((next % 2 == 1).then_some(key));
    }
    assert!(others.iter().all(|key| store.contains(&id(*key))));
    (store, others)
}

/// How many of these a start finds on what is on the disk now.
fn found(disk: &MemoryDisk, keys: &[u64]) -> usize {
    let store = open(MIB, &MemoryDisk::of(disk.bytes()));
    let there = keys.iter().filter(|key| store.contains(&id(**key)));
    there.count()
}

#[test]
fn removals_have_room_on_a_disk_full_of_leases() {
    let disk = MemoryDisk::new(12, SEGMENT);
    let (store, others) = full_of_leases(&disk);
    for key in &others {
        assert!(remove(&store, *key));
    }
    assert_eq!(found(&disk, &others), 0);
}

#[test]
fn drop_has_room_on_a_disk_full_of_leases() {
    let disk = MemoryDisk::new(12, SEGMENT);
    let (store, others) = full_of_leases(&disk);
    let dropped = drop_namespace(&store, others[0]).disk_objects;
    assert_eq!(dropped, others.len() as u64);
    assert_eq!(found(&disk, &others), 0);
}

/// A disk of which the system gives a part only, under leases whole: as many objects as a segment
/// has blocks for, in each. Returns their keys.
fn filled_with_leases(disk: &Arc<MemoryDisk>, length: u64) -> (Store, Vec<u64>) {
    let store = open(MIB, disk);
    disk.fail(Faults {
        room_bytes: Some(HEAD_BYTES + 4 * SEGMENT),
        ..Faults::default()
    });
    let mut keys = Vec::new();
    for key in 0.. {
        assert_eq!(put(&store, key, 1, length), Published::Stored);
        store.ram().remove(&id(key), None);
        if store.disk_stat().skipped > 0 {
            break;
        }
        let leased = store.acquire(OwnerId(key), &[id(key)], 1_000, u64::MAX, T0);
        assert!(leased.lease.is_some(), "key {key}");
        keys.push(key);
    }
    (store, keys)
}

/// A segment has 60 blocks between its head and a footer of two, and an object of 19 takes 20 with
/// the table before it.
const THIRD: u64 = 19 * 4_096 - 128;

#[test]
fn objects_that_could_fill_a_segment_to_its_end_leave_room_for_a_removal() {
    // Whole blocks with the table before them: some of these leave less than a removal needs.
    for blocks in 1..20 {
        let disk = MemoryDisk::new(24, SEGMENT);
        let (store, keys) = filled_with_leases(&disk, blocks * 4_096 - 128);
        let moved = store.disk_stat().reinserted_bytes;
        assert!(remove(&store, keys[0]), "objects of {blocks} blocks");
        assert_eq!(
            store.disk_stat().reinserted_bytes,
            moved,
            "of {blocks} blocks"
        );
        assert_eq!(found(&disk, &keys[..1]), 0);
    }
}

#[test]
fn objects_that_come_to_a_disk_full_of_leases_move_none_of_them_again_and_again() {
    let disk = MemoryDisk::new(24, SEGMENT);
    let (store, keys) = filled_with_leases(&disk, THIRD);
    let (before, written) = (store.disk_stat(), disk.written());
    for key in 1_000..1_050 {
        assert_eq!(put(&store, key, 1, THIRD), Published::Stored);
        store.expire(T0);
    }
    let stat = store.disk_stat();
    assert_eq!((stat.skipped - before.skipped, stat.fenced), (50, 0));
    let moved = stat.reinserted_bytes - before.reinserted_bytes;
    assert!(moved <= 4 * SEGMENT, "{moved} bytes were moved");
    assert!(disk.written() - written <= 4 * SEGMENT);
    assert!(keys.iter().all(|key| store.contains(&id(*key))));
    // What the leases leave is used as soon as they do.
    store.expire(Instant(1_000));
    for key in 2_000..2_010 {
        assert_eq!(put(&store, key, 1, THIRD), Published::Stored);
    }
    assert_eq!(store.disk_stat().skipped, stat.skipped);
}

#[test]
fn removal_on_a_full_file_system_is_answered_once_it_is_written() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    let keys = [1, 2, other(3)];
    for key in keys {
        assert_eq!(put(&store, key, 1, 9 * KIB), Published::Stored);
    }
    let full = |full| Faults {
        full,
        ..Faults::default()
    };
    disk.fail(full(true));
    let removed = [1, 2].map(|key| begin_remove(&store, key, None));
    let dropped = begin_drop(&store, other(3));
    // Nothing that comes later is written ahead of them.
    assert_eq!(put(&store, 1, 2, 9 * KIB), Published::Stored);
    assert_eq!(removed.each_ref().map(Answer::now), [None, None]);
    assert!(dropped.now().is_none() && found(&disk, &keys) == 3);
    assert_eq!(store.disk_stat().fenced, 0, "to be full is no fault");
    disk.fail(full(false));
    store.expire(T0);
    assert_eq!(removed.map(Answer::wait), [Ok(true), Ok(true)]);
    assert_eq!(dropped.wait().expect("recorded").disk_objects, 1);
    assert_eq!(found(&disk, &keys), 0);
    assert_eq!(get(&store, 1), Some((2, 9 * KIB)));
}

#[test]
fn removal_that_waits_for_room_when_the_store_is_closed_is_tried_once_more() {
    for heals in [true, false] {
        let disk = MemoryDisk::new(8, SEGMENT);
        let store = open(MIB, &disk);
        assert_eq!(put(&store, 1, 1, 9 * KIB), Published::Stored);
        let full = |full| Faults {
            full,
            ..Faults::default()
        };
        disk.fail(full(true));
        let removed = begin_remove(&store, 1, None);
        assert_eq!(put(&store, 2, 1, 9 * KIB), Published::Stored);
        disk.fail(full(!heals));
        store.close();
        let answer = removed.wait();
        assert_eq!(answer, if heals { Ok(true) } else { Err(Unrecorded) });
        assert_eq!(found(&disk, &[1]), usize::from(!heals));
    }
}

#[test]
fn removal_that_a_closed_store_cannot_record_is_not_answered_as_done() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, KIB), Published::Stored);
    store.close();
    assert_eq!(begin_remove(&store, 1, None).wait(), Err(Unrecorded));
    assert_eq!(begin_drop(&store, 1).wait(), Err(Unrecorded));
}

#[test]
fn failed_disk_that_can_still_be_emptied_brings_nothing_removed_back() {
    let disks = [MemoryDisk::new(8, SEGMENT), MemoryDisk::new(8, SEGMENT)];
    let open = || try_open(MIB, &config(), &disks).expect("disks of ours");
    for drops in [false, true] {
        let store = open();
        for key in 0..20 {
            assert_eq!(put(&store, key, 1, 9 * KIB), Published::Stored);
        }
        let sync_errors = |sync_errors| Faults {
            sync_errors,
            ..Faults::default()
        };
        // A removal is synced: it is by this one that the disk is known to have failed.
        disks[0].fail(sync_errors(true));
        assert_eq!(begin_remove(&store, 0, None).wait(), Err(Unrecorded));
        assert_eq!(store.disk_stat().fenced, 1);
        disks[0].fail(sync_errors(false));
        match drops {
            true => assert!(drop_namespace(&store, 0).ram_objects > 0),
            false => (0..20).for_each(|key| {
                remove(&store, key);
            }),
        }
        drop(store);
        // The failed disk begins anew, and works.
        let store = open();
        assert_eq!(
            (store.disk_stat().objects, store.disk_stat().fenced),
            (0, 0)
        );
        for key in 0..20 {
            assert_eq!(get(&store, key), None);
            assert_eq!(put(&store, key, 2, 9 * KIB), Published::Stored);
        }
        assert_eq!(store.disk_stat().objects, 20);
        drop_namespace(&store, 0);
    }
}

#[test]
fn failed_disk_from_which_nothing_was_removed_is_found_again() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 9 * KIB), Published::Stored);
    disk.fail(Faults {
        write_errors: true,
        ..Faults::default()
    });
    assert_eq!(put(&store, 2, 1, 9 * KIB), Published::Stored);
    empty_ram(&store, &[1]);
    assert_eq!((store.disk_stat().fenced, get(&store, 1)), (1, None));
    drop(store);
    disk.fail(Faults::default());
    assert_eq!(get(&open(MIB, &disk), 1), Some((1, 9 * KIB)));
}

//! The drop of a namespace over both tiers: what is gone, when, for how long, and what it costs.

use std::slice;

use tessera_proto::Instant;
use tessera_store::{Admission, DiskConfig, OwnerId, Presence, Published, WritePolicy, verify};

use super::memory::MemoryDisk;
use super::support::{
    KIB, MIB, SEGMENT, begin_drop, begin_get, begin_put, checked, config, drop_namespace,
    empty_ram, get, open, put, remove, try_open,
};
use crate::sample::{NAMESPACE_SHIFT, T0, id};

/// A key of another namespace than the usual one.
fn other(key: u64) -> u64 {
    key | 1 << NAMESPACE_SHIFT
}

#[test]
fn dropped_namespace_is_gone_from_both_tiers_and_others_stay() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(MIB, &disk);
    for key in 0..8 {
        assert_eq!(put(&store, key, 1, 10 * KIB), Published::Stored);
        assert_eq!(put(&store, other(key), 1, 10 * KIB), Published::Stored);
    }
    let keys: Vec<_> = (0..4).map(other).collect();
    empty_ram(&store, &keys);
    let in_ram = (0..8).filter(|key| store.ram().contains(&id(other(*key))));
    let in_ram = in_ram.count() as u64;
    let dropped = drop_namespace(&store, other(0));
    assert_eq!((dropped.ram_objects, dropped.disk_objects), (in_ram, 8));
    assert_eq!(dropped.disk_bytes, 8 * 10 * KIB);
    for key in 0..8 {
        assert_eq!(get(&store, key), Some((1, 10 * KIB)));
        assert!(!store.contains(&id(other(key))));
        assert_eq!(get(&store, other(key)), None);
    }
    let stat = store.disk_stat();
    assert_eq!((stat.objects, stat.bytes), (8, 80 * KIB));
    assert_eq!((stat.removed, stat.namespaces), (8, 1));
    assert_eq!(drop_namespace(&store, other(0)).disk_objects, 0);
    store.ram().check_invariants();
}

#[test]
fn dropped_namespace_stays_gone_after_a_restart_and_what_came_later_is_found() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(MIB, &disk);
    for key in 0..8 {
        put(&store, key, 1, 10 * KIB);
        put(&store, other(key), 1, 10 * KIB);
    }
    drop_namespace(&store, other(0));
    for key in 4..8 {
        assert_eq!(put(&store, other(key), 2, 9 * KIB), Published::Stored);
    }
    drop(store);
    let report = verify(&*disk).expect("ours").expect("not empty");
    assert_eq!((report.drops, report.damaged), (1, 0));
    for _ in 0..2 {
        let store = open(MIB, &disk);
        for key in 0..8 {
            let again = (key >= 4).then_some((2, 9 * KIB));
            assert_eq!(get(&store, key), Some((1, 10 * KIB)));
            assert_eq!(get(&store, other(key)), again);
        }
        assert_eq!(store.disk_stat().recovered, 12);
    }
}

#[test]
fn drop_writes_one_entry_however_many_objects_there_are() {
    let mut written = Vec::new();
    for objects in [1, 500] {
        let disk = MemoryDisk::new(20, SEGMENT);
        let store = open(MIB, &disk);
        for key in 0..objects {
            assert_eq!(put(&store, key, 1, 100), Published::Stored);
        }
        let before = disk.events();
        assert_eq!(drop_namespace(&store, 0).disk_objects, objects);
        written.push(disk.events() - before);
    }
    assert_eq!(written, [2, 2], "one write and one sync");
}

#[test]
fn disk_on_which_everything_was_dropped_takes_new_objects_for_ever() {
    let disk = MemoryDisk::new(4, SEGMENT);
    let few = DiskConfig {
        objects_max: 40,
        ..config()
    };
    let store = try_open(MIB, &few, slice::from_ref(&disk)).expect("an empty disk");
    for round in 0..30 {
        for key in 0..20 {
            assert_eq!(put(&store, key, round, 20 * KIB), Published::Stored);
        }
        drop_namespace(&store, 0);
        let stat = store.disk_stat();
        assert_eq!((stat.objects, stat.bytes, stat.namespaces), (0, 0, 0));
    }
    assert_eq!(store.disk_stat().skipped, 0);
    assert_eq!(store.disk_stat().reinserted, 0, "nothing was worth keeping");
}

#[test]
fn object_that_is_written_while_its_namespace_is_dropped_does_not_come_back() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let back = DiskConfig {
        write: WritePolicy::Back {
            dirty_bytes_max: MIB,
            admission: Admission::All,
        },
        ..config()
    };
    let store = try_open(2 * MIB, &back, slice::from_ref(&disk)).expect("an empty disk");
    let held = disk.hold_writes();
    let answers: Vec<_> = (0..6)
        .map(|key| begin_put(&store, key, 1, 10 * KIB).expect("room"))
        .collect();
    let dropped = begin_drop(&store, 0);
    assert!(
        answers
            .iter()
            .all(|answer| answer.now() == Some(Published::Stored))
    );
    assert!(dropped.now().is_none(), "its entry is not written yet");
    for key in 0..6 {
        assert!(!store.contains(&id(key)));
    }
    let again = begin_put(&store, 3, 2, 5 * KIB).expect("room");
    drop(held);
    assert_eq!(dropped.wait().expect("recorded").ram_objects, 6);
    assert_eq!(again.wait(), Published::Stored);
    store.close();
    drop(store);
    let store = open(MIB, &disk);
    for key in 0..6 {
        let expected = (key == 3).then_some((2, 5 * KIB));
        assert_eq!(get(&store, key), expected);
    }
}

#[test]
fn read_that_is_under_way_when_its_namespace_is_dropped_finds_nothing() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(MIB, &disk);
    for key in [1, other(1)] {
        assert_eq!(put(&store, key, 1, 10 * KIB), Published::Stored);
    }
    empty_ram(&store, &[1, other(1)]);
    let held = disk.hold_reads();
    let reads = [1, other(1)].map(|key| begin_get(&store, key));
    drop_namespace(&store, other(1));
    drop(held);
    let [stays, gone] = reads;
    assert_eq!(checked(stays.wait(), 1), Some((1, 10 * KIB)));
    assert_eq!(checked(gone.wait(), other(1)), None);
    store.close();
    assert!(!store.ram().contains(&id(other(1))));
}

#[test]
fn leases_of_a_dropped_namespace_hold_nothing_and_end_as_any() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(MIB, &disk);
    for key in 0..4 {
        put(&store, key, 1, 10 * KIB);
        put(&store, other(key), 1, 10 * KIB);
    }
    empty_ram(
        &store,
        &(0..4).flat_map(|key| [key, other(key)]).collect::<Vec<_>>(),
    );
    let ids: Vec<_> = (0..4).flat_map(|key| [id(key), id(other(key))]).collect();
    let lease = |owner| {
        let acquired = store.acquire(OwnerId(owner), &ids, 1_000, u64::MAX, T0);
        let held = acquired
            .items
            .iter()
            .map(|item| item.presence == Presence::Held);
        (acquired.lease, held.filter(|held| *held).count())
    };
    let (first, held) = lease(1);
    assert_eq!((held, store.disk_stat().leased_bytes), (8, 80 * KIB));
    drop_namespace(&store, other(0));
    assert_eq!(store.disk_stat().leased_bytes, 40 * KIB);
    assert_eq!(get(&store, other(0)), None);
    let (_, held) = lease(2);
    assert_eq!(held, 4);
    assert!(store.release(first.expect("something is held"), None) > 0);
    store.expire(Instant(2_000));
    assert_eq!(store.disk_stat().leased_bytes, 0);
    assert_eq!(store.disk_stat().leases, 0);
}

#[test]
fn each_disk_keeps_what_another_one_says_nothing_of() {
    let disks = [MemoryDisk::new(20, SEGMENT), MemoryDisk::new(20, SEGMENT)];
    let open = || try_open(MIB, &config(), &disks).expect("disks of ours");
    let store = open();
    for key in 0..20 {
        assert_eq!(put(&store, key, 1, 3 * KIB), Published::Stored);
    }
    assert!(remove(&store, 0));
    assert_eq!(drop_namespace(&store, 0).disk_objects, 19);
    for key in 10..20 {
        assert_eq!(put(&store, key, 2, 3 * KIB), Published::Stored);
    }
    drop(store);
    // The drop on the second disk comes after what the first one stored anew.
    let store = open();
    for key in 0..20 {
        let expected = (key >= 10).then_some((2, 3 * KIB));
        assert_eq!(get(&store, key), expected, "key {key}");
    }
}

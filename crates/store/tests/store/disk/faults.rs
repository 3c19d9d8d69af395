//! Damage and failures of a disk: what they cost, and what they never do.

use std::slice;
use std::sync::Arc;

use tessera_store::{DiskConfig, DiskReport, Published, ScrubStep, Store, WritePolicy, verify};

use super::memory::{Faults, HEAD_BYTES, MemoryDisk};
use super::support::{KIB, MIB, SEGMENT, config, empty_ram, get, open, put, remove, try_open};
use crate::sample::{Numbers, id};

const KEYS: u64 = 30;

/// A disk with `KEYS` objects in several segments, closed.
fn filled() -> Arc<MemoryDisk> {
    let disk = MemoryDisk::new(12, SEGMENT);
    let store = open(MIB, &disk);
    for key in 0..KEYS {
        let length = if key % 2 == 0 { 7 * KIB } else { 70 * KIB };
        assert_eq!(put(&store, key, 1, length), Published::Stored);
    }
    disk
}

fn found(disk: &Arc<MemoryDisk>) -> usize {
    let store = open(MIB, disk);
    (0..KEYS).filter(|key| get(&store, *key).is_some()).count()
}

#[test]
fn flipped_bit_anywhere_costs_what_it_hit_and_never_gives_other_bytes() {
    let whole = filled().bytes();
    let mut numbers = Numbers(11);
    let mut lost = 0;
    for _ in 0..150 {
        let disk = MemoryDisk::of(whole.clone());
        disk.change(|bytes| {
            for _ in 0..3 {
                let span = 8 * SEGMENT;
                let at = HEAD_BYTES + numbers.below(span);
                bytes[at as usize] ^= 1 << numbers.below(8);
            }
        });
        lost += KEYS as usize - found(&disk);
    }
    assert!(lost > 0 && lost < 150 * 8, "{lost} objects lost");
}

#[test]
fn one_copy_of_a_segment_header_is_enough() {
    let disk = filled();
    for copy in [0, 4_096] {
        let half = MemoryDisk::of(disk.bytes());
        half.change(|bytes| bytes[HEAD_BYTES as usize + copy + 9] ^= 4);
        assert_eq!(found(&half), KEYS as usize);
    }
}

#[test]
fn damaged_footer_is_made_up_for_by_a_scan() {
    let disk = filled();
    disk.change(|bytes| {
        // The trailer and the last block of entries of the first two segments.
        for segment in 0..2 {
            let end = (HEAD_BYTES + (segment + 1) * SEGMENT) as usize;
            bytes[end - 4_096 + 5] ^= 1;
            bytes[end - 8_192 + 5] ^= 1;
        }
    });
    assert_eq!(found(&disk), KEYS as usize);
}

#[test]
fn damaged_table_in_a_scanned_segment_costs_its_batch_only() {
    let disk = filled();
    disk.change(|bytes| {
        let end = (HEAD_BYTES + SEGMENT) as usize;
        bytes[end - 4_096 + 5] ^= 1;
        bytes[HEAD_BYTES as usize + 2 * 4_096 + 100] ^= 1;
    });
    let lost = KEYS as usize - found(&disk);
    assert_eq!(lost, 1);
}

#[test]
fn object_that_a_crash_tore_is_neither_promised_nor_in_the_way() {
    let disk = MemoryDisk::new(4, SEGMENT);
    for (key, length) in [(1, 7 * KIB), (2, 70 * KIB)] {
        assert_eq!(put(&open(MIB, &disk), key, 1, length), Published::Stored);
    }
    // The first image lies behind the head of the segment and the table of its batch.
    disk.change(|bytes| bytes[HEAD_BYTES as usize + 3 * 4_096 + 10] ^= 1);
    let store = open(MIB, &disk);
    let stat = store.disk_stat();
    assert_eq!((stat.torn, stat.recovered, stat.damaged), (1, 1, 0));
    assert!(!store.contains(&id(1)) && store.contains(&id(2)));
    assert_eq!(put(&store, 1, 2, 7 * KIB), Published::Stored);
    empty_ram(&store, &[1]);
    assert_eq!(get(&store, 1), Some((2, 7 * KIB)));
}

#[test]
fn damaged_object_is_a_miss_and_the_next_writer_replaces_it() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
    empty_ram(&store, &[1]);
    let at = HEAD_BYTES as usize + 2 * 4_096 + 4_096 + 1_000;
    disk.change(|bytes| bytes[at] ^= 1);
    assert_eq!(get(&store, 1), None);
    assert_eq!(store.disk_stat().damaged, 1);
    assert_eq!(put(&store, 1, 2, 70_000), Published::Stored);
    drop(store);
    let store = open(MIB, &disk);
    assert_eq!(get(&store, 1), Some((2, 70_000)));
}

#[test]
fn read_that_fails_is_a_miss() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(MIB, &disk);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
    empty_ram(&store, &[1]);
    disk.fail(Faults {
        read_errors: true,
        ..Faults::default()
    });
    assert_eq!(get(&store, 1), None);
    disk.fail(Faults::default());
    assert_eq!(store.disk_stat().read_errors, 1);
    assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
}

#[test]
fn object_that_could_not_be_read_can_be_removed_for_good() {
    let at = HEAD_BYTES + 2 * 4_096 + 4_096 + 1_000;
    let flip = |disk: &MemoryDisk| disk.change(|bytes| bytes[at as usize] ^= 1);
    let bad = |disk: &MemoryDisk, bad_block| {
        disk.fail(Faults {
            bad_block,
            ..Faults::default()
        });
    };
    for is_damaged in [true, false] {
        let disk = MemoryDisk::new(8, SEGMENT);
        let store = open(MIB, &disk);
        assert_eq!(put(&store, 1, 1, 70_000), Published::Stored);
        empty_ram(&store, &[1]);
        match is_damaged {
            true => flip(&disk),
            false => bad(&disk, Some(at)),
        }
        assert_eq!(get(&store, 1), None);
        match is_damaged {
            true => flip(&disk),
            false => bad(&disk, None),
        }
        assert!(!remove(&store, 1), "it was not there any more");
        drop(store);
        assert_eq!(get(&open(MIB, &disk), 1), None);
    }
}

#[test]
fn object_that_two_disks_hold_can_be_removed_from_both_though_one_copy_is_damaged() {
    let disks = [MemoryDisk::new(8, SEGMENT), MemoryDisk::new(8, SEGMENT)];
    let open = || try_open(MIB, &config(), &disks).expect("disks of ours");
    // Of a key that belongs to the first disk, which fails then: the other one takes it as well.
    let store = open();
    let key = (0..).find(|key| {
        assert_eq!(put(&store, *key, 1, 70_000), Published::Stored);
        disks[1].bytes()[HEAD_BYTES as usize] == 0
    });
    let key = key.expect("of two, one is the first");
    empty_ram(&store, &[key]);
    let errors = |write_errors| Faults {
        write_errors,
        ..Faults::default()
    };
    disks[0].fail(errors(true));
    for other in 100.. {
        if store.disk_stat().fenced > 0 {
            break;
        }
        put(&store, other, 1, KIB);
    }
    assert_eq!(put(&store, key, 2, 70_000), Published::Stored);
    drop(store);
    disks[0].fail(errors(false));
    let store = open();
    disks[0].change(|bytes| bytes[HEAD_BYTES as usize + 4 * 4_096] ^= 1);
    assert_eq!(get(&store, key), None, "the first disk has the word");
    remove(&store, key);
    drop(store);
    assert_eq!(get(&open(), key), None);
}

#[test]
fn object_that_a_start_could_not_read_can_be_removed_for_good() {
    let disk = MemoryDisk::new(4, SEGMENT);
    assert_eq!(put(&open(MIB, &disk), 1, 1, 70_000), Published::Stored);
    // The segment is not sealed: a start scans it.
    disk.fail(Faults {
        bad_block: Some(HEAD_BYTES + 2 * 4_096 + 4_096 + 1_000),
        ..Faults::default()
    });
    let store = open(MIB, &disk);
    assert_eq!(store.disk_stat().torn, 1);
    assert!(!remove(&store, 1));
    drop(store);
    disk.fail(Faults::default());
    assert_eq!(get(&open(MIB, &disk), 1), None);
}

#[test]
fn segment_whose_head_a_start_could_not_read_brings_nothing_removed_back() {
    let sequence_of = |bytes: &[u8], segment: u64| {
        let at = (HEAD_BYTES + segment * SEGMENT) as usize + 24;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    for round in 0..8 {
        let disk = MemoryDisk::new(4, SEGMENT);
        // Until the newest segment is the last one, with a free one before it. Each is of a start
        // of its own, and so a random step further on.
        let mut newest = Vec::new();
        let mut keys = 0..;
        while newest.len() < 3 {
            let key = keys.next().expect("no end");
            assert_eq!(put(&open(MIB, &disk), key, 1, 20 * KIB), Published::Stored);
            let bytes = disk.bytes();
            if (0..4).max_by_key(|segment| sequence_of(&bytes, *segment)) == Some(3) {
                newest.push(key);
            }
        }
        disk.fail(Faults {
            bad_block: Some(HEAD_BYTES + 3 * SEGMENT),
            ..Faults::default()
        });
        let store = open(MIB, &disk);
        for key in &newest {
            assert!(!remove(&store, *key));
        }
        drop(store);
        disk.fail(Faults::default());
        let store = open(MIB, &disk);
        let back = newest.iter().filter(|key| store.contains(&id(**key)));
        assert_eq!(back.count(), 0, "round {round}");
    }
}

/// A store on these disks with what `count` small objects take, a part of them read since.
fn partly_hot(disks: &[Arc<MemoryDisk>], count: u64) -> Store {
    let store = try_open(MIB, &config(), disks).expect("disks of ours");
    for key in 0..count {
        assert_eq!(put(&store, key, 1, 8 * KIB), Published::Stored);
    }
    let hot: Vec<_> = (0..count).step_by(3).collect();
    empty_ram(&store, &hot);
    for key in hot {
        assert_eq!(get(&store, key), Some((1, 8 * KIB)));
    }
    store
}

/// Stores small objects from key `next` on until a disk fails, which does not erase from now on.
/// Returns the key after them.
fn put_until_fenced(store: &Store, disk: &MemoryDisk, mut next: u64) -> u64 {
    disk.fail(Faults {
        erase_errors: true,
        ..Faults::default()
    });
    while store.disk_stat().fenced == 0 {
        assert_eq!(put(store, next, 1, 8 * KIB), Published::Stored);
        next += 1;
        assert!(next < 2_000, "segments leave");
    }
    assert!(store.disk_stat().reinserted > 0, "something moved");
    next
}

#[test]
fn disk_that_fails_while_a_segment_leaves_holds_nothing_any_more() {
    let disk = MemoryDisk::new(6, SEGMENT);
    let store = partly_hot(slice::from_ref(&disk), 60);
    let next = put_until_fenced(&store, &disk, 60);
    let stat = store.disk_stat();
    assert_eq!((stat.objects, stat.bytes, stat.namespaces), (0, 0, 0));
    let keys: Vec<_> = (0..next).collect();
    empty_ram(&store, &keys);
    assert!(keys.iter().all(|key| !store.contains(&id(*key))));
}

#[test]
fn disk_that_fails_while_a_segment_leaves_costs_the_other_one_nothing() {
    let disks = [MemoryDisk::new(6, SEGMENT), MemoryDisk::new(6, SEGMENT)];
    let store = partly_hot(&disks, 100);
    let failed = put_until_fenced(&store, &disks[0], 100);
    let next = failed + 400;
    for key in failed..next {
        assert_eq!(put(&store, key, 1, 8 * KIB), Published::Stored);
    }
    let keys: Vec<_> = (0..next).collect();
    empty_ram(&store, &keys);
    let stat = store.disk_stat();
    let found = keys.iter().filter(|key| store.contains(&id(**key)));
    assert_eq!((found.count() as u64, stat.fenced), (stat.objects, 1));
    for key in next - 40..next {
        assert_eq!(get(&store, key), Some((1, 8 * KIB)), "key {key}");
    }
}

#[test]
fn disk_that_does_not_sync_is_fenced_and_the_other_serves_on() {
    let disks = [MemoryDisk::new(8, SEGMENT), MemoryDisk::new(8, SEGMENT)];
    let synced = DiskConfig {
        write: WritePolicy::Synced,
        ..config()
    };
    let store = try_open(MIB, &synced, &disks).expect("disks of ours");
    disks[0].fail(Faults {
        sync_errors: true,
        ..Faults::default()
    });
    for key in 0..40 {
        assert_eq!(put(&store, key, 1, 20 * KIB), Published::Stored);
    }
    let stat = store.disk_stat();
    assert_eq!((stat.fenced, stat.capacity_bytes), (1, 8 * SEGMENT));
    let keys: Vec<u64> = (0..40).collect();
    empty_ram(&store, &keys);
    let kept = keys.iter().filter(|key| get(&store, **key).is_some());
    // Most went to the second disk: all of those that came after the first had failed.
    assert!(kept.count() >= 30);
}

#[test]
fn scrub_finds_what_nobody_reads_a_few_bytes_at_a_time() {
    let disk = filled();
    // An object of the first segment, which is sealed and read by its footer.
    disk.change(|bytes| bytes[HEAD_BYTES as usize + 3 * 4_096 + 10] ^= 1);
    let store = open(MIB, &disk);
    let mut scrub = store.scrub().expect("it has a disk");
    for pass in 1..=2 {
        let (mut steps, mut bytes) = (0, 0);
        while let ScrubStep::Read(read) = scrub.step(80 << 10) {
            assert!((1..=80 << 10).contains(&read), "{read} bytes in one step");
            (steps, bytes) = (steps + 1, bytes + read);
        }
        assert!(steps >= KEYS / 2 - 2, "{steps} steps");
        let stat = store.disk_stat();
        assert_eq!((stat.scrubs, stat.damaged), (pass, 1));
        assert_eq!(stat.objects, KEYS - 1);
        assert!(bytes > 20 * 70 * KIB / 2);
    }
    assert_eq!(store.disk_stat().read_bytes, 0, "nothing came into memory");
    let found = (0..KEYS).filter(|key| get(&store, *key).is_some());
    assert_eq!(found.count() as u64, KEYS - 1);
    store.ram().check_invariants();
}

#[test]
fn offline_check_counts_what_is_there_and_what_is_damaged() {
    let empty = MemoryDisk::new(4, SEGMENT);
    assert_eq!(verify(&*empty).expect("readable"), None);
    let disk = filled();
    let good = verify(&*disk).expect("ours").expect("not empty");
    let bytes = KEYS / 2 * (7 * KIB + 70 * KIB);
    assert_eq!((good.objects, good.bytes, good.damaged), (KEYS, bytes, 0));
    assert_eq!(good.unsealed, 1);
    disk.change(|bytes| bytes[HEAD_BYTES as usize + 3 * 4_096 + 10] ^= 1);
    let bad = verify(&*disk).expect("ours").expect("not empty");
    assert_eq!(
        bad,
        DiskReport {
            objects: KEYS - 1,
            bytes: bytes - 7 * KIB,
            damaged: 1,
            ..good
        }
    );
    let before = disk.events();
    verify(&*disk).expect("ours");
    assert_eq!(disk.events(), before, "a check only reads");
    drop(try_open(MIB, &config(), slice::from_ref(&disk)).expect("ours"));
}

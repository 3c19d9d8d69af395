//! The golden disks: what this format wrote once is read for ever, and lies where
//! docs/disk-format.md says; what an older one wrote is refused and left as it is.
//!
//! A file holds the blocks of a disk that are not zero, each behind its number.

use std::fs;
use std::path::PathBuf;

use tessera_store::{FormatError, OpenError, Published, verify};

use super::memory::{HEAD_BYTES, MemoryDisk};
use super::support::{
    MIB, SEGMENT, config, drop_namespace, get, open, open_at, put, remove, try_open,
};
use crate::sample::{NAMESPACE_SHIFT, id, namespace_of};

const BLOCK: usize = 4_096;
const SEGMENTS: u64 = 4;
/// The lengths of keys 0, 1, 2 and so on; one segment holds the first five.
const LENGTHS: [u64; 9] = [
    1, 300, 5_000, 65_407, 65_408, 70_000, 20_000, 40_000, 90_000,
];
const REMOVED: u64 = 2;
/// Of another namespace, which is dropped behind it.
const DROPPED: u64 = 1 << NAMESPACE_SHIFT;
/// When everything was stored.
const STORED_S: u32 = 0x0102_0304;

fn path(version: u16) -> PathBuf {
    let name = format!("tests/golden/disk-v{version}.blocks");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn golden(version: u16) -> Vec<u8> {
    let mut bytes = vec![0; (HEAD_BYTES + SEGMENTS * SEGMENT) as usize];
    let file = fs::read(path(version)).expect("the golden file");
    for entry in file.chunks(8 + BLOCK) {
        let (number, block) = entry.split_first_chunk().expect("a number");
        let at = u64::from_le_bytes(*number) as usize * BLOCK;
        bytes[at..at + BLOCK].copy_from_slice(block);
    }
    bytes
}

#[test]
#[ignore = "writes the golden file of a new format; never run it for one that is released"]
fn write_golden_disk() {
    let disk = MemoryDisk::new(SEGMENTS, SEGMENT);
    let store = open_at(MIB, STORED_S, &disk);
    for (key, length) in (0..).zip(LENGTHS) {
        assert_eq!(put(&store, key, 1, length), Published::Stored);
        if key == REMOVED {
            assert!(remove(&store, key));
            assert_eq!(put(&store, DROPPED, 1, 400), Published::Stored);
            assert_eq!(drop_namespace(&store, DROPPED).disk_objects, 1);
        }
    }
    drop(store);
    let mut file = Vec::new();
    for (number, block) in (0_u64..).zip(disk.bytes().chunks(BLOCK)) {
        if block.iter().any(|byte| *byte != 0) {
            file.extend_from_slice(&number.to_le_bytes());
            file.extend_from_slice(block);
        }
    }
    assert!(!path(2).exists(), "remove the old one first");
    fs::write(path(2), file).expect("room");
}

#[test]
fn golden_disk_is_read_whole() {
    let disk = MemoryDisk::of(golden(2));
    let report = verify(&*disk).expect("ours").expect("not empty");
    assert_eq!((report.segments, report.unsealed), (2, 1));
    assert_eq!((report.objects, report.damaged), (10, 0));
    assert_eq!((report.removals, report.drops), (1, 1));
    let store = open(MIB, &disk);
    for (key, length) in (0..).zip(LENGTHS) {
        let expected = (key != REMOVED).then_some((1, length));
        assert_eq!(get(&store, key), expected, "key {key}");
    }
    assert_eq!(get(&store, DROPPED), None);
}

#[test]
fn disk_of_format_1_is_refused_and_left_as_it_is() {
    let before = golden(1);
    let disk = MemoryDisk::of(before.clone());
    let refused = try_open(MIB, &config(), std::slice::from_ref(&disk)).map(drop);
    let Err(OpenError::Disk { source, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        matches!(source, FormatError::Version { got: 1 }),
        "{source}"
    );
    assert!(source.to_string().contains("format 1"), "{source}");
    assert!(matches!(
        verify(&*disk),
        Err(FormatError::Version { got: 1 })
    ));
    assert_eq!(disk.bytes(), before);
}

#[test]
fn golden_bytes_lie_where_they_are_drawn() {
    let bytes = golden(2);
    let at = |at: usize, length: usize| &bytes[at..at + length];
    let number = |place: usize| u64::from_le_bytes(at(place, 8).try_into().expect("eight"));
    for copy in [0, BLOCK] {
        assert_eq!(at(copy, 8), b"TSDISK\r\n");
        assert_eq!(at(copy + 8, 2), [2, 0]);
        assert_eq!(number(copy + 32), SEGMENT);
        assert_eq!(at(copy + 40, 4), [4, 0, 0, 0]);
    }
    let disk_id = at(16, 16);
    let segment = HEAD_BYTES as usize;
    for copy in [segment, segment + BLOCK] {
        assert_eq!(at(copy, 8), b"TSSG\x02\0\0\0");
        assert_eq!(at(copy + 8, 16), disk_id);
        assert!(number(copy + 24) > 0);
        assert_eq!(at(copy + 32, 4), [0; 4]);
    }
    let stamp = STORED_S.to_le_bytes();
    let table = segment + 2 * BLOCK;
    assert_eq!(at(table, 8), b"TSBT\x02\0\x01\0");
    assert_eq!(at(table + 8, 16), disk_id);
    assert_eq!(number(table + 24), number(segment + 24));
    assert_eq!(at(table + 40, 4), [2, 0, 0, 0], "a table and one block");
    let entry = table + 64;
    assert_eq!(
        at(entry, 8),
        [1, 0, 0, 0, 48, 0, 0, 0],
        "an object at 48 units"
    );
    assert_eq!(at(entry + 16, 4), b"TSOB");
    assert_eq!(at(entry + 16 + 104, 4), stamp);
    // Its image: one byte, and the header at the end of the unit.
    assert_eq!(at(table + BLOCK + 128, 4), b"TSOB");
    assert_eq!(at(table + BLOCK + 128 + 104, 4), stamp);
    // Behind three objects, of which one takes two blocks, the removal, and one object more.
    let drop = table + (2 + 2 + 3 + 1 + 2) * BLOCK;
    assert_eq!(at(drop, 8), b"TSBT\x02\0\x01\0");
    assert_eq!(
        at(drop + 64, 16),
        [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    let dropped = namespace_of(DROPPED).0;
    assert_eq!(at(drop + 64 + 16, 32), dropped);
    golden_footer(&bytes, segment + SEGMENT as usize - BLOCK);
}

/// The footer of the first segment: eight events, then two namespaces.
fn golden_footer(bytes: &[u8], trailer: usize) {
    let at = |at: usize, length: usize| &bytes[at..at + length];
    let number = |place: usize| u64::from_le_bytes(at(place, 8).try_into().expect("eight"));
    let stamp = STORED_S.to_le_bytes();
    assert_eq!(at(trailer, 8), b"TSFT\x02\0\0\0");
    assert_eq!(at(trailer + 32, 4), [8, 0, 0, 0]);
    assert_eq!(at(trailer + 48, 4), [2, 0, 0, 0]);
    let row = |number: usize| trailer - BLOCK + 40 * number;
    assert_eq!(at(row(0), 16), id(0).0);
    assert_eq!(at(row(0) + 16, 8), [48, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(number(row(0) + 24), 1);
    assert_eq!(at(row(0) + 32, 8), [stamp, [0; 4]].concat());
    let removal = [&id(REMOVED).0[..], &[0; 20], &[0xff; 4]].concat();
    assert_eq!(at(row(3), 40), removal);
    assert_eq!(at(row(4) + 36, 4), [1, 0, 0, 0]);
    let drop = [&[0; 36][..], &[1, 0, 0, 0]].concat();
    assert_eq!(at(row(5), 40), drop);
    for (at_row, key) in [(8, 0), (9, DROPPED)] {
        assert_eq!(at(row(at_row), 32), namespace_of(key).0);
        assert_eq!(number(row(at_row) + 32), 0);
    }
    assert_eq!(at(row(10), 40), [0; 40]);
}

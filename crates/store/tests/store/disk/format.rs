//! The golden disk: what this format wrote once is read for ever, and lies where
//! docs/disk-format.md says.
//!
//! The file holds the blocks of a disk that are not zero, each behind its number.

use std::fs;
use std::path::PathBuf;

use tessera_store::{Published, verify};

use super::memory::{HEAD_BYTES, MemoryDisk};
use super::support::{MIB, SEGMENT, get, open, put, remove};
use crate::sample::id;

const BLOCK: usize = 4_096;
const SEGMENTS: u64 = 4;
/// The lengths of keys 0, 1, 2 and so on; one segment holds the first seven.
const LENGTHS: [u64; 9] = [
    1, 300, 5_000, 65_407, 65_408, 70_000, 20_000, 40_000, 90_000,
];
const REMOVED: u64 = 2;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/disk-v1.blocks")
}

fn golden() -> Vec<u8> {
    let mut bytes = vec![0; (HEAD_BYTES + SEGMENTS * SEGMENT) as usize];
    let file = fs::read(path()).expect("the golden file");
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
    let store = open(MIB, &disk);
    for (key, length) in (0..).zip(LENGTHS) {
        assert_eq!(put(&store, key, 1, length), Published::Stored);
        if key == REMOVED {
            assert!(remove(&store, key));
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
    assert!(!path().exists(), "remove the old one first");
    fs::write(path(), file).expect("room");
}

#[test]
fn golden_disk_is_read_whole() {
    let disk = MemoryDisk::of(golden());
    let report = verify(&*disk).expect("ours").expect("not empty");
    assert_eq!((report.segments, report.unsealed), (2, 1));
    assert_eq!((report.objects, report.removals, report.damaged), (9, 1, 0));
    let store = open(MIB, &disk);
    for (key, length) in (0..).zip(LENGTHS) {
        let expected = (key != REMOVED).then_some((1, length));
        assert_eq!(get(&store, key), expected, "key {key}");
    }
}

#[test]
fn golden_bytes_lie_where_they_are_drawn() {
    let bytes = golden();
    let at = |at: usize, length: usize| &bytes[at..at + length];
    let number = |place: usize| u64::from_le_bytes(at(place, 8).try_into().expect("eight"));
    for copy in [0, BLOCK] {
        assert_eq!(at(copy, 8), b"TSDISK\r\n");
        assert_eq!(at(copy + 8, 2), [1, 0]);
        assert_eq!(number(copy + 32), SEGMENT);
        assert_eq!(at(copy + 40, 4), [4, 0, 0, 0]);
    }
    let disk_id = at(16, 16);
    let segment = HEAD_BYTES as usize;
    for copy in [segment, segment + BLOCK] {
        assert_eq!(at(copy, 8), b"TSSG\x01\0\0\0");
        assert_eq!(at(copy + 8, 16), disk_id);
        assert!(number(copy + 24) > 0);
        assert_eq!(at(copy + 32, 4), [0; 4]);
    }
    let table = segment + 2 * BLOCK;
    assert_eq!(at(table, 8), b"TSBT\x01\0\x01\0");
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
    // Its image: one byte, and the header at the end of the unit.
    assert_eq!(at(table + BLOCK + 128, 4), b"TSOB");
    let trailer = segment + SEGMENT as usize - BLOCK;
    assert_eq!(at(trailer, 8), b"TSFT\x01\0\0\0");
    let entries = trailer - BLOCK;
    assert_eq!(at(entries, 16), id(0).0);
    assert_eq!(at(entries + 16, 8), [48, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(number(entries + 24), 1);
}

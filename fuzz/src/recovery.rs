//! A start on a disk that holds anything, under one property.
//!
//! Called by the fuzz target `recovery` for each input and by the runner, which makes seeds. An
//! input is a list of edits of the golden disk. The property: the disk is refused, or a node starts
//! on it, gives out no object whose bytes do not give its checksum, and takes a new one, which the
//! next start finds. Nothing panics, in no thread; time and memory are bounded by the runner.

use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tessera_proto::{
    Checksum, Instant, KeyDigest, NamespaceDigest, OBJECT_HEADER_BYTES, ObjectHeader, ObjectId,
    Reader, TenantTag, WriteId, checksum,
};
use tessera_store::{
    BLOCK_BYTES, Bytes, Disk, DiskConfig, DiskTier, Fetched, Published, RamStore, Store,
    StoreConfig, TenantLimits, Transfer, WritePolicy, verify,
};

/// The blocks of a disk that are not zero, each behind its number.
const GOLDEN: &[u8] = include_bytes!("../../crates/store/tests/golden/disk-v2.blocks");
const HEAD_BYTES: usize = 1 << 20;
const SEGMENT_BYTES: usize = 256 << 10;
const DISK_BYTES: usize = HEAD_BYTES + 4 * SEGMENT_BYTES;
const ARENA_BYTES: u64 = 1 << 20;

/// Objects that are asked for after a start.
const ASKED_MAX: usize = 64;
/// Places from here on name any block of the disk, those below one of the golden disk's.
const ANY_BLOCK_FROM: u16 = 0xc000;
/// Where the check of a superblock, header, table or trailer lies, and what it covers of a table.
const CHECK_AT: usize = 56;
const HEAD_RECORD_BYTES: usize = 64;
const FOOTER_ROW_BYTES: usize = 40;

/// Makes the disk of `input` and starts on it.
///
/// # Panics
/// If the property does not hold.
pub fn check(input: &[u8]) {
    let Some((flags, edits)) = input.split_first() else {
        return;
    };
    let mut image = golden();
    edit(&mut image, edits);
    // A fuzzer cannot guess a checksum. What passes with good ones is what a bug of ours may have
    // written, and only then may what is stored next be lost: it may have taken the last sequence.
    let repaired = flags & 1 == 1;
    if repaired {
        repair(&mut image);
    }
    let asked = ids(&image);
    let disk = Arc::new(MemoryDisk(Mutex::new(image)));
    let _ = verify(&*disk); // It reads what the start reads, and each object.
    let Some(store) = open(&disk) else { return };
    fetch(&store, &asked);
    let stored = put(&store) && store.disk_stat().skipped == 0;
    assert_eq!(store.disk_stat().fenced, 0, "the disk does not fail");
    drop(store);
    let again = open(&disk);
    if !repaired {
        let again = again.expect("the node has started on it before");
        let found = fetch(&again, &[new_object().0.id()]);
        assert_eq!(found, usize::from(stored), "the new object");
    }
}

/// The golden blocks that are ours, and a few of objects, with their first bytes, as inputs: what
/// an edit changes is there to be changed.
///
/// # Panics
/// If the golden disk has other checks, or other objects, than this file knows.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut repaired = golden();
    repair(&mut repaired);
    assert!(repaired == golden(), "a check is computed in another way");
    assert_eq!(ids(&repaired).len(), 10, "nine objects and a dropped one");
    let blocks = (0_u16..).zip(GOLDEN.chunks(8 + BLOCK_BYTES));
    let chosen = blocks.filter(|(number, entry)| number % 16 == 0 || entry[8..].starts_with(b"TS"));
    let each = chosen.flat_map(|(number, entry)| {
        let mut edit = number.to_le_bytes().to_vec();
        edit.extend_from_slice(&[0, 0, 80]);
        edit.extend_from_slice(&entry[8..88]);
        [0, 1].map(|flags| [&[flags], &edit[..]].concat())
    });
    std::iter::once(vec![0]).chain(each).collect()
}

fn golden() -> Vec<u8> {
    let mut image = vec![0; DISK_BYTES];
    for entry in GOLDEN.chunks(8 + BLOCK_BYTES) {
        let (block, bytes) = (golden_block(entry), &entry[8..]);
        image[block * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(bytes);
    }
    image
}

fn golden_block(entry: &[u8]) -> usize {
    let number = Reader::new(entry).u64("block").expect("a number");
    usize::try_from(number).expect("on the disk")
}

/// Edits: `place u16 | at u16 | count u8 | count bytes` writes bytes into a block; with a count of
/// 0 the block becomes a copy of the one at the place `at`.
fn edit(image: &mut [u8], edits: &[u8]) {
    let mut reader = Reader::new(edits);
    let mut next = || -> Option<(u16, u16, u8)> {
        let (place, at) = (reader.u16("place").ok()?, reader.u16("at").ok()?);
        let count = reader.u8("count").ok()?;
        let bytes = reader.bytes("bytes", usize::from(count)).ok()?;
        let block = block_of(place);
        let whole = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        if count == 0 {
            let from = block_of(at) * BLOCK_BYTES;
            image.copy_within(from..from + BLOCK_BYTES, whole.start);
        } else {
            let to = &mut image[whole][usize::from(at) % BLOCK_BYTES..];
            let count = bytes.len().min(to.len());
            to[..count].copy_from_slice(&bytes[..count]);
        }
        Some((place, at, count))
    };
    while next().is_some() {}
}

fn block_of(place: u16) -> usize {
    let entries = GOLDEN.len() / (8 + BLOCK_BYTES);
    match place.checked_sub(ANY_BLOCK_FROM) {
        Some(any) => usize::from(any) % (DISK_BYTES / BLOCK_BYTES),
        None => {
            let entry = usize::from(place) % entries;
            golden_block(&GOLDEN[entry * (8 + BLOCK_BYTES)..])
        }
    }
}

/// Puts every check right, under the id that the first block says.
fn repair(image: &mut [u8]) {
    let disk: [u8; 16] = image[16..32].try_into().expect("sixteen");
    for at in (0..image.len()).step_by(BLOCK_BYTES) {
        let (before, rest) = image.split_at_mut(at);
        let block = &mut rest[..BLOCK_BYTES];
        let rest_of_table = match &block[..4] {
            b"TSDI" | b"TSSG" => 0..0,
            b"TSBT" => HEAD_RECORD_BYTES..BLOCK_BYTES,
            b"TSFT" => {
                repair_rows(before, block);
                0..0
            }
            _ => continue,
        };
        let mut running = Checksum::new();
        for bytes in [&disk, &block[..CHECK_AT], &block[rest_of_table]] {
            running.update(bytes);
        }
        block[CHECK_AT..HEAD_RECORD_BYTES].copy_from_slice(&running.finish().to_le_bytes());
    }
}

fn repair_rows(before: &[u8], trailer: &mut [u8]) {
    let count = |at: usize| Reader::new(&trailer[at..]).u32("rows").unwrap_or(0);
    let rows = u64::from(count(32)) + u64::from(count(48));
    let bytes = usize::try_from(rows).unwrap_or(0) * FOOTER_ROW_BYTES;
    let start = before
        .len()
        .checked_sub(bytes.next_multiple_of(BLOCK_BYTES));
    if let Some(start) = start {
        let check = checksum(&before[start..start + bytes]);
        trailer[40..48].copy_from_slice(&check.to_le_bytes());
    }
}

/// The ids of all headers that the image holds, and thereby of all objects that it may give.
fn ids(image: &[u8]) -> Vec<ObjectId> {
    let mut ids = Vec::new();
    for at in (0..image.len()).step_by(16) {
        if image[at..].starts_with(b"TSOB") && image.len() - at >= OBJECT_HEADER_BYTES {
            let key = image[at + 40..at + 72].try_into().expect("a digest");
            ids.push(KeyDigest(key).object_id());
        }
    }
    ids.sort_unstable_by_key(|id| id.0);
    ids.dedup();
    ids.truncate(ASKED_MAX);
    ids
}

fn open(disk: &Arc<MemoryDisk>) -> Option<Store> {
    let ram = RamStore::new(StoreConfig::with_capacity(ARENA_BYTES)).expect("a small arena");
    let config = DiskConfig {
        segment_bytes: SEGMENT_BYTES as u64,
        write: WritePolicy::Through,
        objects_max: 10_000,
        readers: 1,
        tenants: TenantLimits::default(),
    };
    let disks = vec![Arc::clone(disk) as Arc<dyn Disk>];
    let tier = DiskTier::open(ram.clone(), &config, disks).ok()?;
    Some(Store::new(ram, Some(tier)))
}

/// Asks for all of these together, compares the bytes of those that are there with what they say of
/// themselves, and counts them.
fn fetch(store: &Store, asked: &[ObjectId]) -> usize {
    let (told, fetched) = channel();
    for id in asked.iter().copied() {
        let told = told.clone();
        store.fetch(id, None, Instant(0), move |fetched| {
            // Who waits is there until he is told.
            let _ = told.send((id, fetched));
        });
    }
    drop(told);
    let mut found = 0;
    for (id, fetched) in fetched {
        match fetched {
            Fetched::Found(pin) => {
                assert_eq!(pin.header().id(), id);
                assert_eq!(pin.header().length_bytes, pin.len() as u64);
                assert_eq!(pin.header().checksum, checksum(&pin), "a damaged object");
                found += 1;
            }
            // Those of one image may overlap, and be more than there is room for.
            Fetched::Missing | Fetched::Busy => {}
        }
    }
    found
}

/// An object that no golden disk holds.
fn new_object() -> (ObjectHeader, Vec<u8>) {
    let payload = vec![0x5c; 9_000];
    let header = ObjectHeader {
        namespace: NamespaceDigest([0xf0; 32]),
        key: KeyDigest([0xf1; 32]),
        layout: 1,
        length_bytes: payload.len() as u64,
        checksum: checksum(&payload),
        write: WriteId(1),
        tenant: TenantTag::NONE,
    };
    (header, payload)
}

fn put(store: &Store) -> bool {
    let (header, payload) = new_object();
    let extent = store.reserve(header.length_bytes, Instant(0));
    let mut extent = extent.expect("nothing is held");
    extent.copy_from_slice(&payload);
    let (told, published) = channel();
    store.publish(extent, header.id(), header, Instant(0), move |published| {
        let _ = told.send(published);
    });
    published.recv().expect("every store is answered") == Published::Stored
}

/// A disk in memory.
struct MemoryDisk(Mutex<Vec<u8>>);

impl MemoryDisk {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemoryDisk {
    fn length_bytes(&self) -> u64 {
        DISK_BYTES as u64
    }

    fn allocate(&self, _at: u64, _length_bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) {
        let mut bytes = self.bytes();
        for transfer in transfers {
            let at = usize::try_from(transfer.at).expect("on the disk");
            let end = at + transfer.length();
            assert!(end <= DISK_BYTES, "a transfer beyond the end");
            match &mut transfer.bytes {
                Bytes::Read(into) => into.copy_from_slice(&bytes[at..end]),
                Bytes::Write(from) => bytes[at..end].copy_from_slice(from),
            }
            transfer.outcome = Ok(());
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

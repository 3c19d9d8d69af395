//! The index of the disk tier: one record of 48 bytes for each object, found by id.
//!
//! Called under the directory's lock. Records lie in chunks that never move; hash tables hold their
//! numbers, in many small tables so that none takes long to grow. Together an object takes 54 to
//! 60 bytes. Invariants: a record is in the tables, or dead, or free; a dead record becomes free
//! when neither a segment's list nor a lease names it any more.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use tessera_proto::{ObjectId, WriteId};

use super::namespaces::NamespaceId;

const CHUNK_RECORDS: u32 = 1_024;
const TABLE_BITS: u32 = 8;
const NONE: u32 = u32::MAX;

const TOUCHES_MAX: u32 = 3;
const DEAD: u32 = 1 << 2;
const LISTED: u32 = 1 << 3;
const HOLD: u32 = 1 << 4;
const HOLDS_MAX: u32 = (1 << 28) - 1;

/// Names a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RecordId(u32);

impl RecordId {
    /// The end of a list.
    pub(crate) const NONE: Self = Self(NONE);

    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// Which segment of which disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    /// Disks are at most 255, segments of one at most 2^24.
    pub(crate) fn new(disk: u8, segment: u32) -> Self {
        debug_assert!(segment < 1 << 24);
        Self(u32::from(disk) << 24 | segment)
    }

    pub(crate) fn disk(self) -> usize {
        (self.0 >> 24) as usize
    }

    pub(crate) fn segment(self) -> u32 {
        self.0 & ((1 << 24) - 1)
    }
}

/// Where an object lies, and which write of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) place: Place,
    /// Where its image begins in the segment, units of 256 bytes.
    pub(crate) offset: u32,
    /// Bytes of its payload.
    pub(crate) length_bytes: u32,
    /// Half of the write id: enough to tell a write from its replacement.
    pub(crate) write: u32,
    /// When it was stored, seconds since the start of 1970.
    pub(crate) stored_s: u32,
    pub(crate) namespace: NamespaceId,
}

/// Folds a write id into what a record keeps of it.
pub(crate) fn write_tag(write: WriteId) -> u32 {
    let mixed = write.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    u32::try_from(mixed).expect("32 bits are left")
}

/// One record.
#[derive(Clone, Copy, Debug)]
struct Record {
    id: [u8; 16],
    location: Location,
    /// The next in the list of its segment, or of the free.
    next: RecordId,
    /// Touches, marks and holds.
    state: u32,
}

const _: () = assert!(size_of::<Record>() == 48);

/// All records and the tables that find them.
#[derive(Debug)]
pub(crate) struct Records {
    chunks: Vec<Box<[Record]>>,
    free: RecordId,
    made: u32,
    used: u32,
    most: u32,
    tables: Box<[HashTable<RecordId>]>,
    keys: RandomState,
}

impl Records {
    /// Room for `most` records, which are made when needed.
    pub(crate) fn new(most: u32) -> Self {
        Self {
            chunks: Vec::new(),
            free: RecordId::NONE,
            made: 0,
            used: 0,
            most,
            tables: (0..1 << TABLE_BITS).map(|_| HashTable::new()).collect(),
            keys: RandomState::new(),
        }
    }

    /// Records that may still be entered. A start may find more objects than that; then it is 0
    /// until enough have left.
    pub(crate) fn room(&self) -> usize {
        self.most.saturating_sub(self.used) as usize
    }

    /// Most records that there may be.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// A uniform hash of an id, another one in each start.
    pub(crate) fn hash(&self, id: &ObjectId) -> u64 {
        self.keys.hash_one(id.0)
    }

    /// The record of an object.
    pub(crate) fn find(&self, id: &ObjectId) -> Option<RecordId> {
        let hash = self.hash(id);
        self.tables[table(hash)]
            .find(hash, |record| self.at(*record).id == id.0)
            .copied()
    }

    /// Enters an object that has no record yet, at the head of a segment's list. None if all
    /// numbers of records are taken; who writes keeps to [`Self::room`] long before.
    pub(crate) fn enter(
        &mut self,
        id: &ObjectId,
        location: Location,
        head: RecordId,
    ) -> Option<RecordId> {
        let record = self.take_free()?;
        *self.at_mut(record) = Record {
            id: id.0,
            location,
            next: head,
            state: LISTED,
        };
        let (hash, chunks) = (self.keys.hash_one(id.0), &self.chunks);
        let hash_of =
            |record: &RecordId| self.keys.hash_one(chunks[chunk(*record)][slot(*record)].id);
        self.tables[table(hash)].insert_unique(hash, record, hash_of);
        Some(record)
    }

    /// Takes a record out of the tables: its object is not found any more.
    pub(crate) fn kill(&mut self, record: RecordId) {
        let hash = self.keys.hash_one(self.at(record).id);
        if let Ok(entry) = self.tables[table(hash)].find_entry(hash, |other| *other == record) {
            entry.remove();
        }
        self.at_mut(record).state |= DEAD;
        self.settle(record);
    }

    /// Takes a record out of the list of its segment; who calls this drops the whole list.
    pub(crate) fn unlist(&mut self, record: RecordId) {
        self.at_mut(record).state &= !LISTED;
        self.settle(record);
    }

    /// Moves an object to a new place, where it has to be read again to be worth keeping.
    pub(crate) fn relocate(&mut self, record: RecordId, location: Location) {
        let record = self.at_mut(record);
        record.location = location;
        record.state &= !TOUCHES_MAX;
    }

    pub(crate) fn set_next(&mut self, record: RecordId, next: RecordId) {
        self.at_mut(record).next = next;
    }

    pub(crate) fn location(&self, record: RecordId) -> Location {
        self.at(record).location
    }

    pub(crate) fn id(&self, record: RecordId) -> ObjectId {
        ObjectId(self.at(record).id)
    }

    pub(crate) fn next(&self, record: RecordId) -> RecordId {
        self.at(record).next
    }

    pub(crate) fn is_dead(&self, record: RecordId) -> bool {
        self.at(record).state & DEAD != 0
    }

    pub(crate) fn is_held(&self, record: RecordId) -> bool {
        self.at(record).state >= HOLD
    }

    pub(crate) fn touches(&self, record: RecordId) -> u32 {
        self.at(record).state & TOUCHES_MAX
    }

    /// Counts a read, up to three.
    pub(crate) fn touch(&mut self, record: RecordId) {
        let state = &mut self.at_mut(record).state;
        if *state & TOUCHES_MAX < TOUCHES_MAX {
            *state += 1;
        }
    }

    /// The records of a disk that the lists of its segments name, whatever state those are in.
    pub(crate) fn listed_on(&self, disk: usize) -> Vec<RecordId> {
        let all = (0..self.made).map(RecordId);
        all.filter(|record| {
            let record = self.at(*record);
            record.state & LISTED != 0 && record.location.place.disk() == disk
        })
        .collect()
    }

    /// Takes one hold. False, and nothing taken, if there are 2^28 already.
    pub(crate) fn hold(&mut self, record: RecordId) -> bool {
        let state = &mut self.at_mut(record).state;
        let room = *state / HOLD < HOLDS_MAX;
        if room {
            *state += HOLD;
        }
        room
    }

    /// Gives one hold back. True if it was the last.
    pub(crate) fn unhold(&mut self, record: RecordId) -> bool {
        self.at_mut(record).state -= HOLD;
        let last = !self.is_held(record);
        self.settle(record);
        last
    }

    /// Bytes that the records and tables take.
    pub(crate) fn memory_bytes(&self) -> usize {
        let records = self.chunks.len() * CHUNK_RECORDS as usize * size_of::<Record>();
        let tables = self.tables.iter().map(HashTable::allocation_size);
        records + tables.sum::<usize>()
    }

    /// Frees a dead record that nothing names any more.
    fn settle(&mut self, record: RecordId) {
        let state = self.at(record).state;
        if state & DEAD != 0 && state & LISTED == 0 && state < HOLD {
            let free = self.free;
            let freed = self.at_mut(record);
            freed.next = free;
            freed.state = 0;
            self.free = record;
            self.used -= 1;
        }
    }

    fn take_free(&mut self) -> Option<RecordId> {
        if let Some(record) = self.free.some() {
            self.free = self.next(record);
            self.used += 1;
            return Some(record);
        }
        if self.made == NONE {
            return None;
        }
        self.used += 1;
        let record = RecordId(self.made);
        if chunk(record) == self.chunks.len() {
            let empty = Record {
                id: [0; 16],
                location: Location {
                    place: Place(0),
                    offset: 0,
                    length_bytes: 0,
                    write: 0,
                    stored_s: 0,
                    namespace: NamespaceId::NONE,
                },
                next: RecordId::NONE,
                state: 0,
            };
            self.chunks
                .push(vec![empty; CHUNK_RECORDS as usize].into_boxed_slice());
        }
        self.made += 1;
        Some(record)
    }

    fn at(&self, record: RecordId) -> &Record {
        &self.chunks[chunk(record)][slot(record)]
    }

    fn at_mut(&mut self, record: RecordId) -> &mut Record {
        &mut self.chunks[chunk(record)][slot(record)]
    }
}

fn chunk(record: RecordId) -> usize {
    (record.0 / CHUNK_RECORDS) as usize
}

fn slot(record: RecordId) -> usize {
    (record.0 % CHUNK_RECORDS) as usize
}

/// The tables use the low bits for the place and the top seven as a tag.
fn table(hash: u64) -> usize {
    let at = (hash >> 40) & ((1 << TABLE_BITS) - 1);
    usize::try_from(at).expect("below the number of tables")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> ObjectId {
        let mut bytes = [3; 16];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        ObjectId(bytes)
    }

    fn location(offset: u32) -> Location {
        Location {
            place: Place::new(1, 5),
            offset,
            length_bytes: 9,
            write: 4,
            stored_s: 0,
            namespace: NamespaceId::NONE,
        }
    }

    #[test]
    fn object_takes_at_most_64_bytes_at_every_size() {
        let mut records = Records::new(u32::MAX);
        for number in 0..600_000 {
            records
                .enter(&id(number), location(number), RecordId::NONE)
                .expect("room");
            if number >= 20_000 && number % 1_000 == 0 {
                let bytes = records.memory_bytes();
                let objects = number as usize + 1;
                assert!(bytes <= 64 * objects, "{bytes} bytes for {objects} objects");
            }
        }
    }

    #[test]
    fn dead_record_is_reused_only_when_list_and_leases_let_go() {
        let mut records = Records::new(1);
        let enter = |records: &mut Records| {
            let entered = records.enter(&id(1), location(0), RecordId::NONE);
            entered.expect("numbers are left")
        };
        let record = enter(&mut records);
        assert!(records.hold(record));
        records.kill(record);
        assert_eq!(records.find(&id(1)), None);
        assert!(records.is_dead(record));
        assert_eq!(records.room(), 0);
        records.unlist(record);
        assert_eq!(records.room(), 0);
        assert!(records.unhold(record));
        assert_eq!(records.room(), 1);
        let again = enter(&mut records);
        assert_eq!((again, records.find(&id(1))), (record, Some(again)));
        assert!(!records.is_dead(again) && !records.is_held(again));
    }

    #[test]
    fn place_keeps_disk_and_segment_apart() {
        let place = Place::new(254, (1 << 24) - 1);
        assert_eq!((place.disk(), place.segment()), (254, (1 << 24) - 1));
    }
}

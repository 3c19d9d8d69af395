//! Lookups, reads and writes in the RAM tier, by the thousand.
//!
//! Called by the list of jobs. Invariant: every run leaves the store as it found it, but for the
//! order of eviction.

use anyhow::{Result, ensure};
use tessera_proto::message::Presence;
use tessera_proto::{
    Instant, KeyDigest, NamespaceDigest, ObjectHeader, ObjectId, TenantTag, WriteId,
};
use tessera_store::{OwnerId, Published, RamStore, StoreConfig};

use super::{Job, Work};

/// Objects that are stored before; a lookup asks for a quarter of them.
const STORED: u64 = 16_384;
const KEYS: usize = 4_096;
const CAPACITY_BYTES: u64 = 64 << 20;
const OBJECT_BYTES: u64 = 512;
const LEASE_NS: u64 = 60_000_000_000;
const NOW: Instant = Instant(1);

/// An ACQUIRE of keys that are there, and the end of its lease.
pub(super) const ACQUIRE: Job = Job {
    name: "acquire 4096 keys, release",
    operations: KEYS,
    prepare: acquire,
};

/// An ACQUIRE of keys that are not there.
pub(super) const MISS: Job = Job {
    name: "acquire 4096 missing keys",
    operations: KEYS,
    prepare: miss,
};

/// Reads, each with a pin of its own.
pub(super) const GET: Job = Job {
    name: "pin 4096 objects",
    operations: KEYS,
    prepare: get,
};

/// Writes of new objects, which are removed again.
pub(super) const PUT: Job = Job {
    name: "publish 4096 objects, remove",
    operations: KEYS,
    prepare: put,
};

fn header(number: u64) -> ObjectHeader {
    let mut key = [0; 32];
    // Keys are digests in the product: their bytes are spread.
    let spread = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[..8].copy_from_slice(&spread.to_le_bytes());
    ObjectHeader {
        namespace: NamespaceDigest([7; 32]),
        key: KeyDigest(key),
        layout: 1,
        length_bytes: OBJECT_BYTES,
        checksum: 0,
        write: WriteId(number),
        tenant: TenantTag::NONE,
    }
}

fn publish(store: &RamStore, number: u64) -> bool {
    let header = header(number);
    let extent = store.reserve(OBJECT_BYTES, NOW);
    extent.is_ok_and(|extent| store.publish(extent, header.id(), header, NOW) == Published::Stored)
}

fn filled() -> Result<RamStore> {
    let store = RamStore::new(StoreConfig::with_capacity(CAPACITY_BYTES))?;
    for number in 0..STORED {
        ensure!(publish(&store, number), "object {number} was not stored");
    }
    Ok(store)
}

/// Every fourth object from `first` on, so that a lookup walks over the whole table.
fn ids(first: u64) -> Vec<ObjectId> {
    let numbers = (first..).step_by(4).take(KEYS);
    numbers.map(|number| header(number).id()).collect()
}

fn look(store: &RamStore, ids: &[ObjectId], wanted: Presence) -> usize {
    let found = store.acquire(OwnerId(1), ids, LEASE_NS, u64::MAX, NOW);
    if let Some(lease) = found.lease {
        store.release(lease, None);
    }
    let items = found.items.iter();
    items.filter(|item| item.presence == wanted).count()
}

fn acquire() -> Result<Work> {
    let (store, ids) = (filled()?, ids(0));
    Ok(Box::new(move || look(&store, &ids, Presence::Held)))
}

fn miss() -> Result<Work> {
    let (store, ids) = (filled()?, ids(STORED));
    Ok(Box::new(move || look(&store, &ids, Presence::Missing)))
}

fn get() -> Result<Work> {
    let (store, ids) = (filled()?, ids(0));
    Ok(Box::new(move || {
        let pins = ids.iter().filter_map(|id| store.pin(id, None, NOW));
        pins.count()
    }))
}

fn put() -> Result<Work> {
    let store = filled()?;
    Ok(Box::new(move || {
        let new = (STORED..).take(KEYS);
        let stored = new
            .clone()
            .filter(|number| publish(&store, *number))
            .count();
        let removed = new
            .filter(|number| store.remove(&header(*number).id(), None))
            .count();
        stored.min(removed)
    }))
}

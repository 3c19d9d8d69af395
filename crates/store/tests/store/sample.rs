//! Objects to store, told apart by their bytes.
//!
//! Called by the tests beside it. The payload follows from key and write, so that a byte of
//! another object, or of another write of the same one, is seen.

use tessera_proto::{
    Instant, KeyDigest, NamespaceDigest, ObjectHeader, ObjectId, TenantTag, WriteId, checksum,
};
use tessera_store::{Published, RamStore, ReserveRefusal, StoreConfig};

/// The beginning of time.
pub(crate) const T0: Instant = Instant(0);

pub(crate) fn store(capacity_bytes: u64) -> RamStore {
    RamStore::new(StoreConfig::with_capacity(capacity_bytes)).expect("a small arena")
}

fn digest(key: u64) -> KeyDigest {
    let mut bytes = [0x5a; 32];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    KeyDigest(bytes)
}

pub(crate) fn id(key: u64) -> ObjectId {
    digest(key).object_id()
}

/// Fills `bytes` with the payload of write `write` of object `key`: one pattern, repeated.
pub(crate) fn fill(bytes: &mut [u8], key: u64, write: u64) {
    let mut numbers = Numbers(key.rotate_left(32) ^ write);
    let pattern: Vec<u8> = (0..32)
        .flat_map(|_| numbers.below(u64::MAX).to_le_bytes())
        .collect();
    for chunk in bytes.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
}

/// Keys of another tenant than nobody have it in their high bits.
pub(crate) const TENANT_SHIFT: u32 = 48;

pub(crate) fn tenant_of(key: u64) -> TenantTag {
    match key >> TENANT_SHIFT {
        0 => TenantTag::NONE,
        number => TenantTag::of(&number.to_string()),
    }
}

/// Keys of another namespace than the usual one have it in these bits.
pub(crate) const NAMESPACE_SHIFT: u32 = 32;

pub(crate) fn namespace_of(key: u64) -> NamespaceDigest {
    let number = (key >> NAMESPACE_SHIFT).to_le_bytes()[0];
    NamespaceDigest([7 ^ number; 32])
}

/// The header of write `write` of object `key` with this payload.
pub(crate) fn header(key: u64, write: u64, payload: &[u8]) -> ObjectHeader {
    ObjectHeader {
        namespace: namespace_of(key),
        key: digest(key),
        layout: 3,
        length_bytes: payload.len() as u64,
        checksum: checksum(payload),
        write: WriteId(write),
        tenant: tenant_of(key),
    }
}

/// Stores write `write` of object `key` with `length` bytes.
pub(crate) fn put(
    store: &RamStore,
    key: u64,
    write: u64,
    length: u64,
    now: Instant,
) -> Result<Published, ReserveRefusal> {
    let mut extent = store.reserve_for(tenant_of(key), length, now)?;
    fill(&mut extent, key, write);
    let header = header(key, write, &extent);
    Ok(store.publish(extent, id(key), header, now))
}

/// Reads an object and compares every byte with its header. None is a miss.
pub(crate) fn get(store: &RamStore, key: u64, now: Instant) -> Option<Vec<u8>> {
    let pin = store.pin(&id(key), None, now)?;
    pin.header()
        .check_payload(checksum(&pin))
        .expect("bytes of the object");
    assert_eq!(pin.header().id(), id(key));
    Some(pin.to_vec())
}

/// A small generator of numbers, so that a run can be repeated.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

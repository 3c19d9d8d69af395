//! A store in this process as a cache: the simulator of the shipped order of eviction, because it
//! is the shipped order of eviction.
//!
//! Called by the replay. It does for a request what an engine does: one lookup of all blocks, which
//! leases what is there, a read of each block up to the first that is missing, the end of the
//! lease, and a store of all others. Invariant: it holds `blocks` objects at most, which a quota
//! says, since an arena is of whole pages.

use std::time::Instant as Clock;

use anyhow::{Result, ensure};
use tessera_client::{KeyDigest, NamespaceDigest, ObjectHeader, TenantTag, WriteId};
use tessera_node::TenantLimits;
use tessera_node::store::{Instant, OwnerId, Presence, Published, RamStore, StoreConfig};

use super::cache::Cache;
use super::latency::{Latencies, Operation};

const T0: Instant = Instant(0);
const OWNER: OwnerId = OwnerId(1);
/// With its header, an object takes the smallest extent.
const PAYLOAD_BYTES: u64 = 128;
const EXTENT_BYTES: u64 = 256;
/// Objects that may be beyond the quota while they are written.
const SPARE_BLOCKS: u64 = 16;
const PAGE_BYTES: u64 = 4096;

/// A store that is asked directly.
pub(super) struct Direct {
    store: RamStore,
    pub(super) latencies: Latencies,
}

impl Direct {
    /// With memory for `blocks`.
    pub(super) fn new(blocks: u64) -> Result<Self> {
        let arena_bytes = ((blocks + SPARE_BLOCKS) * EXTENT_BYTES).next_multiple_of(PAGE_BYTES);
        let mut config = StoreConfig::with_capacity(arena_bytes);
        config.max_object_bytes = PAYLOAD_BYTES;
        config.leases.store_bytes_max = u64::MAX;
        config.leases.owner_bytes_max = u64::MAX;
        config.tenants = TenantLimits {
            named: Vec::new(),
            others: Some(blocks * PAYLOAD_BYTES),
        };
        Ok(Self {
            store: RamStore::new(config)?,
            latencies: Latencies::new()?,
        })
    }

    /// The store, for inspection.
    #[cfg(test)]
    pub(super) fn store(&self) -> &RamStore {
        &self.store
    }

    fn put(&self, header: ObjectHeader) -> Result<()> {
        let id = header.id();
        if self.store.contains(&id) {
            return Ok(());
        }
        let extent = self.store.reserve(PAYLOAD_BYTES, T0)?;
        let published = self.store.publish(extent, id, header, T0);
        ensure!(
            published == Published::Stored,
            "a put ended as {published:?}"
        );
        Ok(())
    }
}

impl Cache for Direct {
    fn request(&mut self, blocks: &[u64]) -> Result<usize> {
        let headers: Vec<_> = blocks.iter().map(|block| header(*block)).collect();
        let ids: Vec<_> = headers.iter().map(ObjectHeader::id).collect();
        let begun = Clock::now();
        let acquired = self.store.acquire(OWNER, &ids, 1, u64::MAX, T0);
        self.latencies.record(Operation::Lookup, begun.elapsed());
        let is_held = |at: &usize| acquired.items[*at].presence == Presence::Held;
        let hits = (0..blocks.len()).take_while(is_held).count();
        for id in &ids[..hits] {
            let begun = Clock::now();
            let pin = self.store.pin(id, acquired.lease, T0);
            self.latencies.record(Operation::Get, begun.elapsed());
            ensure!(pin.is_some(), "a leased object is missing");
        }
        if let Some(lease) = acquired.lease {
            self.store.release(lease, None);
        }
        for header in &headers[hits..] {
            let begun = Clock::now();
            self.put(*header)?;
            self.latencies.record(Operation::Put, begun.elapsed());
        }
        Ok(hits)
    }
}

fn header(block: u64) -> ObjectHeader {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&block.to_le_bytes());
    ObjectHeader {
        namespace: NamespaceDigest([7; 32]),
        key: KeyDigest(key),
        layout: 1,
        length_bytes: PAYLOAD_BYTES,
        checksum: 0,
        write: WriteId(1),
        tenant: TenantTag::NONE,
    }
}

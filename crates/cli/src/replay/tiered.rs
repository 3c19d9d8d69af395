//! A store of memory and a disk in this process as a cache: what is found, and what is written for
//! it, with each setting of `--admission`.
//!
//! Called by the replay. It asks as `direct.rs` does, and lets the disk write after each request
//! what is to be written, so that the figures hardly depend on this machine. The disk is in memory.
//! Invariant: memory holds `blocks` objects at most, by a quota; the disk has room for the images
//! of as many as it is told.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use anyhow::{Context, Result, bail};
use tessera_client::{KeyDigest, NamespaceDigest, ObjectHeader, TenantTag, WriteId};
use tessera_node::store::{
    Admission, Bytes, Disk, DiskConfig, DiskSize, DiskStat, DiskTier, Fetched, Instant, OwnerId,
    Presence, Published, RamStore, Store, StoreConfig, TenantLimits, Transfer, WritePolicy,
    checksum,
};

use super::cache::Cache;

const T0: Instant = Instant(0);
const OWNER: OwnerId = OwnerId(1);
/// With its header, an object takes a block of the disk and of the arena.
const PAYLOAD_BYTES: u64 = BLOCK_BYTES - 128;
const BLOCK_BYTES: u64 = 4_096;
/// Objects that may be beyond the quota while they are written or read.
const SPARE_BLOCKS: u64 = 256;
/// Before the segments.
const HEAD_BYTES: u64 = 1 << 20;
/// Segments of a disk: fewer would leave too little beside the open one and the free one.
const SEGMENTS_MIN: u64 = 16;

/// A store that is asked directly.
pub(super) struct Tiered {
    store: Store,
    payload_checksum: u64,
}

impl Tiered {
    /// With memory for `blocks` and a disk for `disk_blocks`.
    pub(super) fn new(blocks: u64, disk_blocks: u64, admission: Admission) -> Result<Self> {
        let mut ram = StoreConfig::with_capacity((blocks + SPARE_BLOCKS) * BLOCK_BYTES);
        ram.max_object_bytes = PAYLOAD_BYTES;
        ram.leases.store_bytes_max = u64::MAX;
        ram.leases.owner_bytes_max = u64::MAX;
        ram.tenants = TenantLimits {
            named: Vec::new(),
            others: Some(blocks * PAYLOAD_BYTES),
        };
        let ram = RamStore::new(ram)?;
        let wanted = HEAD_BYTES + disk_blocks * BLOCK_BYTES;
        let segment_bytes = DiskSize::of(wanted).segment_bytes;
        let segments = (wanted / segment_bytes).max(SEGMENTS_MIN);
        let config = DiskConfig {
            segment_bytes,
            write: WritePolicy::Back {
                dirty_bytes_max: u64::MAX,
                admission,
            },
            objects_max: u32::MAX,
            readers: 1,
            tenants: TenantLimits::default(),
        };
        let disk = Arc::new(MemoryDisk::new(HEAD_BYTES + segments * segment_bytes)?);
        let tier = DiskTier::open(ram.clone(), &config, vec![disk])?;
        let zeros = vec![0; usize::try_from(PAYLOAD_BYTES)?];
        Ok(Self {
            store: Store::new(ram, Some(tier)),
            payload_checksum: checksum(&zeros),
        })
    }

    /// What the disk came to.
    pub(super) fn stat(&self) -> DiskStat {
        self.store.disk_stat()
    }

    /// Returns when the disk has written what it was given, and memory holds nothing for it.
    fn settle(&self) {
        while self.store.disk_stat().dirty_bytes > 0 || self.store.stat().pins > 0 {
            thread::yield_now();
        }
    }

    fn put(&self, header: ObjectHeader) -> Result<()> {
        let id = header.id();
        if self.store.contains(&id) {
            return Ok(());
        }
        let mut extent = match self.store.reserve(PAYLOAD_BYTES, T0) {
            Err(_) => {
                self.settle();
                self.store.reserve(PAYLOAD_BYTES, T0)?
            }
            extent => extent?,
        };
        extent.fill(0);
        let (tell, told) = channel();
        self.store
            .publish(extent, id, header, T0, move |published| {
                let _ = tell.send(published);
            });
        match told.recv()? {
            Published::Stored => Ok(()),
            other => bail!("a put ended as {other:?}"),
        }
    }

    fn header(&self, block: u64) -> ObjectHeader {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&block.to_le_bytes());
        ObjectHeader {
            namespace: NamespaceDigest([7; 32]),
            key: KeyDigest(key),
            layout: 1,
            length_bytes: PAYLOAD_BYTES,
            checksum: self.payload_checksum,
            write: WriteId(1),
            tenant: TenantTag::NONE,
        }
    }
}

impl Cache for Tiered {
    fn request(&mut self, blocks: &[u64]) -> Result<usize> {
        let headers: Vec<_> = blocks.iter().map(|block| self.header(*block)).collect();
        let ids: Vec<_> = headers.iter().map(ObjectHeader::id).collect();
        let acquired = self.store.acquire(OWNER, &ids, 1, u64::MAX, T0);
        let is_held = |at: &usize| acquired.items[*at].presence == Presence::Held;
        let hits = (0..blocks.len()).take_while(is_held).count();
        let found = ids[..hits].iter().take_while(|id| {
            let (tell, told) = channel();
            self.store.fetch(**id, acquired.lease, T0, move |fetched| {
                let _ = tell.send(matches!(fetched, Fetched::Found(_)));
            });
            // Memory that a request leases whole has no room for what it has on disk.
            told.recv().unwrap_or(false)
        });
        let hits = found.count();
        if let Some(lease) = acquired.lease {
            self.store.release(lease, None);
        }
        for header in &headers[hits..] {
            self.put(*header)?;
        }
        self.settle();
        Ok(hits)
    }
}

/// A disk in memory.
struct MemoryDisk(Mutex<Vec<u8>>);

impl MemoryDisk {
    fn new(length_bytes: u64) -> Result<Self> {
        let length = usize::try_from(length_bytes).context("a disk larger than memory")?;
        Ok(Self(Mutex::new(vec![0; length])))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemoryDisk {
    fn length_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn allocate(&self, _at: u64, _length_bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) {
        let mut bytes = self.bytes();
        for transfer in transfers {
            let at = usize::try_from(transfer.at).unwrap_or(usize::MAX);
            let place = bytes.get_mut(at..at.saturating_add(transfer.length()));
            transfer.outcome = match (place, &mut transfer.bytes) {
                (None, _) => Err(io::ErrorKind::UnexpectedEof.into()),
                (Some(place), Bytes::Read(into)) => {
                    into.copy_from_slice(place);
                    Ok(())
                }
                (Some(place), Bytes::Write(from)) => {
                    place.copy_from_slice(from);
                    Ok(())
                }
            };
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::replay;
    use super::super::policy::generated_trace;
    use super::*;

    #[test]
    fn disk_for_everything_finds_what_a_trace_repeats_and_second_touch_writes_a_part_of_it() {
        let trace = generated_trace(120);
        let unique = trace.unique_blocks();
        let run = |memory: u64, disk: u64, admission| {
            let mut tiered = Tiered::new(memory, disk, admission).expect("a small store");
            let tally = replay(&trace, &mut tiered, |_| ()).expect("nothing is held");
            (tally.hit_tokens, tiered.stat())
        };
        let (most, _) = run(unique, 1, Admission::All);
        let (all, stat) = run(unique / 10, 2 * unique, Admission::All);
        assert_eq!((all, stat.stored), (most, unique));
        let (second, stat) = run(unique / 10, 2 * unique, Admission::SecondTouch);
        assert!(stat.stored < unique / 2, "{} of {unique}", stat.stored);
        assert_eq!((stat.stored, stat.skipped), (stat.admitted, 0));
        assert!(second < most && second > most / 2, "{second} of {most}");
    }
}

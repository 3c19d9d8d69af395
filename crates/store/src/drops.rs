//! How a namespace leaves memory: a walk over all records, in steps between which others go on.
//!
//! Called by the store. Invariant: between the beginning of a drop and its end nothing of the
//! namespace is published, so that one walk finds all of it; who publishes meanwhile is told that
//! his object was stored, as it was until the drop.

use parking_lot::MutexGuard;
use tessera_proto::NamespaceDigest;

use crate::core::Core;
use crate::ram::RamStore;
use crate::slots::SlotId;
use crate::state::Kind;

/// Records that are looked at for one hold of the space lock.
const RECORDS_PER_HOLD: u32 = 256;

/// What a drop took away. An object that was in memory and on a disk is counted in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Objects in memory.
    pub ram_objects: u64,
    /// Payload bytes of these.
    pub ram_bytes: u64,
    /// Objects on disk.
    pub disk_objects: u64,
    /// Payload bytes of these.
    pub disk_bytes: u64,
}

impl RamStore {
    /// Removes every object of a namespace for good: once this returns, no reader finds one that
    /// was stored before, leased or not. Returns what they were.
    pub fn drop_namespace(&self, namespace: NamespaceDigest) -> Dropped {
        self.begin_drop(namespace);
        self.finish_drop(namespace)
    }

    /// From now on nothing of the namespace is published.
    pub(crate) fn begin_drop(&self, namespace: NamespaceDigest) {
        self.core.space.lock().dropping.push(namespace);
    }

    /// Removes every object of the namespace; from then on it may be published again.
    pub(crate) fn finish_drop(&self, namespace: NamespaceDigest) -> Dropped {
        let core = &*self.core;
        let mut dropped = Dropped::default();
        let mut next = 0;
        let mut space = core.space.lock();
        loop {
            let made = space.parts().0.made();
            let end = made.min(next + RECORDS_PER_HOLD);
            for slot in (next..end).map(SlotId) {
                if is_of(core, slot, namespace) {
                    dropped.ram_objects += 1;
                    dropped.ram_bytes += u64::from(core.slots[slot].measure.get());
                    space.remove(&core.slots, &core.index, slot);
                }
            }
            next = end;
            if next == made {
                break;
            }
            MutexGuard::unlock_fair(space);
            space = core.space.lock();
        }
        let dropping = &mut space.dropping;
        if let Some(at) = dropping.iter().position(|other| *other == namespace) {
            dropping.swap_remove(at);
        }
        dropped
    }
}

/// Whether a record is an object of the namespace. One whose header cannot be read may be, and is
/// of no use to anybody.
fn is_of(core: &Core, slot: SlotId, namespace: NamespaceDigest) -> bool {
    core.slots[slot].kind() == Kind::Stored
        && core
            .read_header(slot)
            .is_none_or(|header| header.namespace == namespace)
}

#[cfg(test)]
mod tests {
    use tessera_proto::{Instant, KeyDigest, ObjectHeader, TenantTag, WriteId, checksum};

    use super::*;
    use crate::config::StoreConfig;
    use crate::ram::Published;

    fn put(store: &RamStore, namespace: u8, key: u8) -> ObjectHeader {
        let mut extent = store.reserve(3_000, Instant(0)).expect("room");
        extent.fill(key);
        let header = ObjectHeader {
            namespace: NamespaceDigest([namespace; 32]),
            key: KeyDigest([key; 32]),
            layout: 1,
            length_bytes: 3_000,
            checksum: checksum(&extent),
            write: WriteId(1),
            tenant: TenantTag::NONE,
        };
        let published = store.publish(extent, header.id(), header, Instant(0));
        assert_eq!(published, Published::Stored);
        header
    }

    #[test]
    fn object_stored_while_its_namespace_is_dropped_goes_with_it() {
        let store = RamStore::new(StoreConfig::with_capacity(1 << 20)).expect("a small arena");
        let namespace = NamespaceDigest([1; 32]);
        // Two drops overlap: the end of the first is not that of the second.
        store.begin_drop(namespace);
        store.begin_drop(namespace);
        let during = put(&store, 1, 10);
        let other = put(&store, 2, 11);
        assert_eq!(store.finish_drop(namespace), Dropped::default());
        let late = put(&store, 1, 12);
        assert_eq!(store.finish_drop(namespace), Dropped::default());
        let after = put(&store, 1, 13);
        let found = [during, late, other, after].map(|header| store.contains(&header.id()));
        assert_eq!(found, [false, false, true, true]);
        store.check_invariants();
    }
}

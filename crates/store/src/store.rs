//! Both tiers as one store.
//!
//! Called by the node for every operation on objects. Without disks each operation is that of the
//! RAM tier and answers at once. With disks, what has to wait for one takes a callback: it is
//! called exactly once, on the caller's thread or on one of the tier's, and must neither wait nor
//! call the store.
//!
//! Invariants: an object that was acknowledged is found in RAM or on disk until it is evicted from
//! both or removed; a lease holds the object in the tier in which it was found.

use std::collections::HashSet;
use std::sync::Arc;

use tessera_proto::message::Presence;
use tessera_proto::{
    Instant, LeaseId, NamespaceDigest, ObjectHeader, ObjectId, TenantTag, WriteId,
};

use crate::acquire::Acquired;
use crate::disk::{DiskStat, DiskTier, Fetched, Scrub, Unrecorded};
use crate::drops::Dropped;
use crate::guard::WriteExtent;
use crate::leases::OwnerId;
use crate::ram::{Published, RamStore, ReserveRefusal};
use crate::stat::{StoreStat, TenantStat};

/// Objects in memory and on disks. Clones are one store.
#[derive(Clone)]
pub struct Store {
    ram: RamStore,
    disk: Option<Arc<DiskTier>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("ram", &self.ram)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A store of `ram`, and of `disk`, which must have been opened over the same RAM store.
    #[must_use]
    pub fn new(ram: RamStore, disk: Option<DiskTier>) -> Self {
        let disk = disk.map(Arc::new);
        Self { ram, disk }
    }

    /// The RAM tier.
    #[must_use]
    pub fn ram(&self) -> &RamStore {
        &self.ram
    }

    /// Memory for an object of `length_bytes`, evicting others as needed.
    ///
    /// # Errors
    /// See [`ReserveRefusal`].
    pub fn reserve(&self, length_bytes: u64, now: Instant) -> Result<WriteExtent, ReserveRefusal> {
        self.ram.reserve(length_bytes, now)
    }

    /// Memory for an object of a tenant; see [`RamStore::reserve_for`].
    ///
    /// # Errors
    /// See [`ReserveRefusal`].
    pub fn reserve_for(
        &self,
        tenant: TenantTag,
        length_bytes: u64,
        now: Instant,
    ) -> Result<WriteExtent, ReserveRefusal> {
        self.ram.reserve_for(tenant, length_bytes, now)
    }

    /// Makes the object visible, whole, at once. `done` is told when it is as safe as the write
    /// policy says, or at once if it was not stored.
    pub fn publish(
        &self,
        extent: WriteExtent,
        id: ObjectId,
        header: ObjectHeader,
        now: Instant,
        done: impl FnOnce(Published) + Send + 'static,
    ) {
        self.ram.note(now);
        match &self.disk {
            None => done(self.ram.publish(extent, id, header, now)),
            Some(disk) => disk.publish(extent, id, header, Box::new(done)),
        }
    }

    /// Tells `done` that an object exists which [`Self::contains`] found, once it is as safe as the
    /// write policy says: who did not have to send it waits no less than who did.
    pub fn join(&self, id: &ObjectId, done: impl FnOnce(Published) + Send + 'static) {
        match &self.disk {
            None => done(Published::Existed),
            Some(disk) => disk.join(id, Box::new(done)),
        }
    }

    /// Whether a reader would find the object; see [`RamStore::contains`].
    #[must_use]
    pub fn contains(&self, id: &ObjectId) -> bool {
        self.ram.contains(id) || self.disk.as_ref().is_some_and(|disk| disk.contains(id))
    }

    /// The object, from RAM or from disk, verified; see [`RamStore::pin`]. From disk it comes into
    /// RAM first, and stays there for others.
    pub fn fetch(
        &self,
        id: ObjectId,
        lease: Option<LeaseId>,
        now: Instant,
        done: impl FnOnce(Fetched) + Send + 'static,
    ) {
        self.ram.note(now);
        let Some(disk) = &self.disk else {
            let pin = self.ram.pin(&id, lease, now);
            return done(pin.map_or(Fetched::Missing, Fetched::Found));
        };
        let on_disk = lease.is_some_and(|lease| disk.is_live(lease, now));
        let promised = on_disk || self.ram.is_promised(lease, now);
        match self.ram.find(&id, promised) {
            Some(pin) => {
                if !promised {
                    disk.touch([&id]); // Else the lookup did.
                }
                done(Fetched::Found(pin));
            }
            None => disk.fetch(id, now, Box::new(done)),
        }
    }

    /// Leases on objects in RAM and on disk; see [`RamStore::acquire`].
    #[must_use]
    pub fn acquire(
        &self,
        owner: OwnerId,
        ids: &[ObjectId],
        ttl_ns: u64,
        max_bytes: u64,
        now: Instant,
    ) -> Acquired {
        let mut acquired = self.ram.acquire(owner, ids, ttl_ns, max_bytes, now);
        let Some(disk) = &self.disk else {
            return acquired;
        };
        disk.expire(now);
        let found = acquired.items.iter().zip(ids);
        let found = found.filter(|(item, _)| item.presence == Presence::Held);
        disk.touch(found.map(|(_, id)| id));
        let mut held = HashSet::new();
        let mut missing = Vec::new();
        let mut left = max_bytes;
        for (at, item) in acquired.items.iter().enumerate() {
            match item.presence {
                Presence::Missing => missing.push(at),
                Presence::Held if held.insert(ids[at]) => {
                    left = left.saturating_sub(item.length_bytes);
                }
                _ => {}
            }
        }
        if missing.is_empty() {
            return acquired;
        }
        let wanted: Vec<_> = missing.iter().map(|at| ids[*at]).collect();
        let lease = (owner, acquired.lease, acquired.deadline);
        let (lease, items) = disk.acquire(lease, &wanted, left);
        acquired.lease = lease;
        for (at, item) in missing.into_iter().zip(items) {
            acquired.items[at] = item;
        }
        acquired
    }

    /// Gives back what a lease holds; see [`RamStore::release`].
    pub fn release(&self, lease: LeaseId, ids: Option<&[ObjectId]>) -> u64 {
        let disk = self.disk.as_ref();
        let on_disk = disk.map_or(0, |disk| disk.release(lease, ids));
        on_disk + self.ram.release(lease, ids)
    }

    /// Ends every lease of an owner. Returns how many objects they held.
    pub fn release_owner(&self, owner: OwnerId) -> u64 {
        let disk = self.disk.as_ref();
        let on_disk = disk.map_or(0, |disk| disk.release_owner(owner));
        on_disk + self.ram.release_owner(owner)
    }

    /// Ends every lease whose deadline has come. Returns how many. To be called now and then: what
    /// waits for room on a disk is tried again.
    pub fn expire(&self, now: Instant) -> u64 {
        let on_disk = self.disk.as_ref().map_or(0, |disk| {
            let ended = disk.expire(now);
            disk.retry();
            ended
        });
        on_disk + self.ram.expire(now)
    }

    /// Removes an object for good from both tiers; see [`RamStore::remove`]. `done` is told whether
    /// it was there, once no later start of the store can find it either. It waits while a disk has
    /// no room to record that, and is told so if a disk failed and cannot even be made empty.
    pub fn remove(
        &self,
        id: ObjectId,
        write: Option<WriteId>,
        done: impl FnOnce(Result<bool, Unrecorded>) + Send + Sync + 'static,
    ) {
        match &self.disk {
            None => done(Ok(self.ram.remove(&id, write))),
            Some(disk) => disk.remove(id, write, Box::new(done)),
        }
    }

    /// Drops a namespace: removes every object of it that was stored before, for good and from both
    /// tiers, and tells `done` what that was, once no later start of the store can find any, as
    /// [`Self::remove`] does. Walks
    /// over everything in memory, and so takes up to a second. What is stored meanwhile is dropped
    /// with the rest.
    pub fn drop_namespace(
        &self,
        namespace: NamespaceDigest,
        done: impl FnOnce(Result<Dropped, Unrecorded>) + Send + Sync + 'static,
    ) {
        match &self.disk {
            None => done(Ok(self.ram.drop_namespace(namespace))),
            Some(disk) => disk.drop_namespace(namespace, Box::new(done)),
        }
    }

    /// What RAM holds and what happened to it.
    #[must_use]
    pub fn stat(&self) -> StoreStat {
        self.ram.stat()
    }

    /// What the disks hold and what happened to it; all zero without disks.
    #[must_use]
    pub fn disk_stat(&self) -> DiskStat {
        let disk = self.disk.as_ref();
        disk.map_or_else(DiskStat::default, |disk| disk.stat())
    }

    /// What each tenant with a name in the limits holds in both tiers, and all others together,
    /// which come last and without a name.
    #[must_use]
    pub fn tenants(&self) -> Vec<TenantStat> {
        let mut tenants = self.ram.tenants();
        if let Some(disk) = &self.disk {
            for tenant in &mut tenants {
                let name = Some(tenant.name.as_str()).filter(|name| !name.is_empty());
                let there = disk.tenant(name);
                tenant.disk_objects = there.sums.objects;
                tenant.disk_bytes = there.sums.bytes;
                tenant.disk_evictions = there.evicted;
            }
        }
        tenants
    }

    /// A scrub of the disks, for whoever sets its pace. None without disks.
    #[must_use]
    pub fn scrub(&self) -> Option<Scrub> {
        self.disk.as_ref().map(|disk| disk.scrub())
    }

    /// Writes what is queued for the disks, syncs them and ends their threads. What is published
    /// after it stays in RAM.
    pub fn close(&self) {
        if let Some(disk) = &self.disk {
            disk.close();
        }
    }
}

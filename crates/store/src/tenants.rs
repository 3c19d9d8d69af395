//! Who holds how much of the arena, and who pays when it is full.
//!
//! Called under the space lock. Each tenant has an order of eviction of its own, so that what
//! one of them reads and writes does not change the order in which another's objects leave.
//!
//! **Who pays.** First whoever is over a quota; then whoever neither stored nor read anything
//! while a whole arena was written, as its objects would have left one list for all by then; then
//! whoever holds most, which is who is furthest beyond an equal share.
//!
//! Invariant: a tenant's bytes are those of its objects in the index and of the extents that are
//! reserved in its name; it is forgotten only when both are none.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_proto::TenantTag;

use crate::config::TenantLimits;
use crate::order::Order;

/// Tenants that are told apart; those beyond are one to the rest.
pub(crate) const TENANTS_MAX: usize = 1 << 9;

/// Names a tenant in a record. Nine bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantId(pub(crate) u16);

/// Which tenants have read something since that was last asked. Reads set it without a lock.
#[derive(Clone, Debug)]
pub(crate) struct Readers(Arc<[AtomicBool]>);

impl Readers {
    pub(crate) fn new() -> Self {
        Self((0..TENANTS_MAX).map(|_| AtomicBool::new(false)).collect())
    }

    /// Notes that a tenant reads.
    pub(crate) fn note(&self, tenant: TenantId) {
        let reader = &self.0[usize::from(tenant.0)];
        // Most reads find it noted, and leave the line shared.
        if !reader.load(Ordering::Relaxed) {
            reader.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self, at: usize) -> bool {
        self.0[at].swap(false, Ordering::Relaxed)
    }
}

/// One tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    tag: TenantTag,
    quota_bytes: u64,
    pub(crate) order: Order,
    /// Payload bytes of objects and reserved extents.
    pub(crate) bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) objects: u64,
    pub(crate) evicted: u64,
    /// What had been stored in all when this one last stored or read something.
    active_at: u64,
}

/// All tenants.
#[derive(Debug)]
pub(crate) struct Tenants {
    limits: TenantLimits,
    all: Vec<Tenant>,
    ids: HashMap<TenantTag, TenantId>,
    readers: Readers,
    capacity_bytes: u64,
    /// Payload bytes stored since the start: the clock of idleness.
    stored_bytes: u64,
}

impl Tenants {
    pub(crate) fn new(limits: TenantLimits, capacity_bytes: u64, readers: Readers) -> Self {
        let mut tenants = Self {
            limits,
            all: Vec::new(),
            ids: HashMap::new(),
            readers,
            capacity_bytes,
            stored_bytes: 0,
        };
        // Number 0: who has no name, and who comes when all numbers are taken.
        tenants.enter(TenantTag::NONE);
        tenants
    }

    /// The tenant with this tag; a new one takes the number of one that holds nothing.
    pub(crate) fn enter(&mut self, tag: TenantTag) -> TenantId {
        if let Some(id) = self.ids.get(&tag) {
            return *id;
        }
        let tenant = Tenant {
            tag,
            quota_bytes: self.limits.quota_bytes(tag),
            order: Order::new(),
            bytes: 0,
            reserved_bytes: 0,
            objects: 0,
            evicted: 0,
            active_at: self.stored_bytes,
        };
        let at = if self.all.len() < TENANTS_MAX {
            self.all.push(tenant);
            self.all.len() - 1
        } else {
            let unused = (1..TENANTS_MAX).find(|at| self.is_unused(*at));
            let Some(at) = unused else {
                return TenantId(0);
            };
            self.ids.remove(&self.all[at].tag);
            self.all[at] = tenant;
            at
        };
        let id = TenantId(u16::try_from(at).expect("nine bits"));
        self.ids.insert(tag, id);
        id
    }

    /// All tenants that have a number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tenant> {
        self.all.iter()
    }

    pub(crate) fn at(&self, id: TenantId) -> &Tenant {
        &self.all[usize::from(id.0)]
    }

    pub(crate) fn at_mut(&mut self, id: TenantId) -> &mut Tenant {
        &mut self.all[usize::from(id.0)]
    }

    /// Bytes that a tenant is beyond its quota, were it to hold `more`.
    pub(crate) fn excess(&self, id: TenantId, more: u64) -> u64 {
        let tenant = self.at(id);
        (tenant.bytes + more).saturating_sub(tenant.quota_bytes)
    }

    /// Counts what a tenant stored.
    pub(crate) fn stored(&mut self, id: TenantId, bytes: u64) {
        self.stored_bytes += bytes;
        self.at_mut(id).active_at = self.stored_bytes;
    }

    /// Whose objects leave next; none if nobody has one that could.
    pub(crate) fn payer(&mut self) -> Option<TenantId> {
        for (at, tenant) in self.all.iter_mut().enumerate() {
            let idle = self.stored_bytes - tenant.active_at > self.capacity_bytes;
            if idle && self.readers.take(at) {
                tenant.active_at = self.stored_bytes;
            }
        }
        let queued = (0_u16..).map(TenantId).zip(&self.all);
        let queued = queued.filter(|(_, tenant)| !tenant.order.is_empty());
        let rank = |(id, tenant): &(TenantId, &Tenant)| {
            let idle = self.stored_bytes - tenant.active_at > self.capacity_bytes;
            (self.excess(*id, 0), idle, tenant.bytes)
        };
        queued.max_by_key(rank).map(|(id, _)| id)
    }

    /// An equal share of the arena for everybody who holds something.
    pub(crate) fn share_bytes(&self) -> u64 {
        let present = self.all.iter().filter(|tenant| tenant.bytes > 0).count();
        self.capacity_bytes / present.max(1) as u64
    }

    fn is_unused(&self, at: usize) -> bool {
        let tenant = &self.all[at];
        tenant.bytes == 0 && tenant.objects == 0 && !self.limits.is_named(tenant.tag)
    }
}

impl Tenant {
    pub(crate) fn tag(&self) -> TenantTag {
        self.tag
    }
}

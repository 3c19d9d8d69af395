//! Who holds how much of the disks: quotas, and whose objects are written again when a segment
//! leaves.
//!
//! Called under the directory's lock. **Shares.** Segments leave by age, whoever wrote them. So
//! that a flood of one tenant does not carry another's objects out, those of a tenant who holds
//! clearly less than an equal part of what is found are written again first, read or not; unless
//! it neither stored nor read anything while a whole capacity was written. Invariant: the sums of
//! a tenant are those of its objects that are found.

use std::collections::HashMap;

use tessera_proto::TenantTag;

use super::namespaces::Sums;
use crate::config::TenantLimits;

/// Who holds less than this of an equal part, in percent, holds clearly less: two who differ by
/// chance are left alone.
const UNDER_PERCENT: u64 = 75;

/// Of a quota that was reached a part in so many becomes free at once, if objects are so small.
const ROOM_PARTS: u64 = 64;

/// What one tenant holds on the disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskTenant {
    pub(crate) sums: Sums,
    /// Objects that left for others or for a quota.
    pub(crate) evicted: u64,
    quota_bytes: u64,
    /// What had been written in all when this one last stored or read something.
    active_at: u64,
}

/// All tenants that hold something, and those with a name.
#[derive(Debug)]
pub(crate) struct DiskTenants {
    limits: TenantLimits,
    all: HashMap<TenantTag, DiskTenant>,
    /// Of tenants that are forgotten.
    evicted_before: u64,
    /// Payload bytes written since the start: the clock of idleness.
    written_bytes: u64,
}

impl DiskTenants {
    pub(crate) fn new(limits: TenantLimits) -> Self {
        Self {
            limits,
            all: HashMap::new(),
            evicted_before: 0,
            written_bytes: 0,
        }
    }

    /// Counts what entered.
    pub(crate) fn add(&mut self, tag: TenantTag, sums: &Sums) {
        let new = || DiskTenant {
            quota_bytes: self.limits.quota_bytes(tag),
            active_at: self.written_bytes,
            ..DiskTenant::default()
        };
        self.all.entry(tag).or_insert_with(new).sums.add(sums);
    }

    /// Counts what is not found any more. With its last object a tenant without a name is
    /// forgotten.
    pub(crate) fn sub(&mut self, tag: TenantTag, sums: &Sums) {
        let Some(tenant) = self.all.get_mut(&tag) else {
            return;
        };
        tenant.sums.sub(sums);
        if tenant.sums.objects == 0 && !self.limits.is_named(tag) {
            self.evicted_before += tenant.evicted;
            self.all.remove(&tag);
        }
    }

    /// Notes that a tenant's object was evicted, which is still counted.
    pub(crate) fn evicted(&mut self, tag: TenantTag) {
        if let Some(tenant) = self.all.get_mut(&tag) {
            tenant.evicted += 1;
        }
    }

    /// Notes that a tenant wrote.
    pub(crate) fn wrote(&mut self, tag: TenantTag, bytes: u64) {
        self.written_bytes += bytes;
        self.read(tag);
    }

    /// Notes that a tenant read.
    pub(crate) fn read(&mut self, tag: TenantTag) {
        if let Some(tenant) = self.all.get_mut(&tag) {
            tenant.active_at = self.written_bytes;
        }
    }

    /// Whether a tenant holds more than its quota.
    pub(crate) fn is_beyond(&self, tag: TenantTag) -> bool {
        let tenant = self.all.get(&tag);
        tenant.is_some_and(|tenant| tenant.sums.bytes > tenant.quota_bytes)
    }

    /// Whether a tenant gives up an object of so many bytes: as long as it is beyond its quota, and
    /// a small one until some room is free.
    pub(crate) fn gives(&self, tag: TenantTag, bytes: u64) -> bool {
        let Some(tenant) = self.all.get(&tag) else {
            return false;
        };
        let room = tenant.quota_bytes / ROOM_PARTS;
        let kept = match bytes <= room {
            true => tenant.quota_bytes - room,
            false => tenant.quota_bytes,
        };
        tenant.sums.bytes > kept
    }

    /// The tenants that hold more than their quotas.
    pub(crate) fn beyond(&self) -> Vec<TenantTag> {
        let tags = self.all.keys().copied();
        tags.filter(|tag| self.is_beyond(*tag)).collect()
    }

    /// Whether a tenant that is not idle holds clearly less than an equal part of what is found on
    /// disks of `capacity_bytes`.
    pub(crate) fn holds_little(&self, tag: TenantTag, capacity_bytes: u64) -> bool {
        let Some(tenant) = self.all.get(&tag) else {
            return false;
        };
        let holding = self.all.values().filter(|tenant| tenant.sums.objects > 0);
        let (count, bytes) = holding.fold((0, 0), |(count, bytes), tenant| {
            (count + 1, bytes + tenant.sums.bytes)
        });
        let part = bytes / u64::max(count, 1);
        let idle = self.written_bytes - tenant.active_at > capacity_bytes;
        !idle && tenant.sums.bytes < part / 100 * UNDER_PERCENT
    }

    /// What the tenant of this name holds; without one, all that have none.
    pub(crate) fn of(&self, name: Option<&str>) -> DiskTenant {
        if let Some(name) = name {
            let found = self.all.get(&TenantTag::of(name));
            return found.copied().unwrap_or_default();
        }
        let mut others = DiskTenant {
            evicted: self.evicted_before,
            ..DiskTenant::default()
        };
        for (_, tenant) in self
            .all
            .iter()
            .filter(|(tag, _)| !self.limits.is_named(**tag))
        {
            others.sums.add(&tenant.sums);
            others.evicted += tenant.evicted;
        }
        others
    }
}

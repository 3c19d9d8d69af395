//! How a tenant keeps to its quota: its oldest objects are not found any more.
//!
//! Called by the writer of the disk when it entered objects of a tenant, and when it starts. What
//! leaves so is forgotten and not removed: a start finds it again, and it leaves again. Each writer
//! looks at its own disk; what is leased stays. Invariant: a segment is looked at once for each
//! tenant, from the oldest on, as long as there is something left of it.

use tessera_proto::TenantTag;

use super::directory::{Segment, Use};
use super::evict::RECORDS_PER_HOLD;
use super::writer::Writer;

impl Writer<'_> {
    /// Forgets the oldest objects of everybody who is beyond a quota.
    pub(crate) fn trim_all(&self) {
        let beyond = self.shared.directory.lock().tenants.beyond();
        beyond.into_iter().for_each(|tag| self.trim(tag));
    }

    /// Forgets the oldest objects of a tenant on this disk, until it is within its quota.
    pub(crate) fn trim(&self, tag: TenantTag) {
        while let Some((number, segment)) = self.next_to_trim(tag) {
            self.trim_segment(tag, number);
            let mut directory = self.shared.directory.lock();
            if !directory.tenants.is_beyond(tag) {
                return;
            }
            let trimmed = &mut directory.disks[self.disk].trimmed;
            if segment.used == Use::Open {
                trimmed.remove(&tag); // All that is left was leased when it was looked at.
                return;
            }
            trimmed.insert(tag, segment.sequence + 1);
        }
    }

    /// The oldest segment that may hold objects of a tenant who is beyond its quota.
    fn next_to_trim(&self, tag: TenantTag) -> Option<(u32, Segment)> {
        let directory = self.shared.directory.lock();
        if !directory.tenants.is_beyond(tag) {
            return None;
        }
        let disk = &directory.disks[self.disk];
        let from = disk.trimmed.get(&tag).copied().unwrap_or(0);
        let used = (0_u32..).zip(disk.segments.iter().copied());
        let used = used.filter(|(_, segment)| {
            matches!(segment.used, Use::Sealed | Use::Open) && segment.sequence >= from
        });
        used.min_by_key(|(_, segment)| segment.sequence)
    }

    /// Forgets objects of a tenant in a segment, the oldest first, while it is beyond its quota and
    /// small ones for some room: to find them is to walk the segment, too much for each of them.
    fn trim_segment(&self, tag: TenantTag, number: u32) {
        let mut records = {
            let directory = self.shared.directory.lock();
            directory.records_of(self.disk, number)
        };
        records.reverse(); // Lists begin with the newest.
        for records in records.chunks(RECORDS_PER_HOLD) {
            let mut directory = self.shared.directory.lock();
            for record in records {
                let is_its = !directory.is_gone(*record) && directory.tenant(*record) == tag;
                if !is_its || directory.records.is_held(*record) {
                    continue;
                }
                let bytes = directory.records.location(*record).length_bytes;
                if !directory.tenants.gives(tag, bytes.into()) {
                    return;
                }
                directory.evict(*record);
                self.shared.counters.evictions.add(1);
            }
        }
    }
}

//! Which objects are written to a disk: all, or those that are seen a second time.
//!
//! Called by the operations when an object is stored or used. Most of what is stored is never
//! asked for again; where writes are scarce, it need not wear a disk. Seen again is what somebody
//! asks for while it is in memory, what comes back soon after it left, as the order of eviction
//! remembers, and what comes back while a disk would still have had it: for that as many objects
//! are remembered as the disks hold, at four bytes each, in a table like that of the order.
//!
//! Invariants: what is answered as written is written, so only write-back leaves anything out; an
//! object that is sent to its disk late is, as any other, pinned and queued in one step, ahead of
//! every removal and drop that finds it in memory.

use tessera_proto::ObjectId;

use super::directory::Directory;
use super::opening::{Admission, WritePolicy};
use super::tier::{DiskTier, Shared};
use crate::guard::ReadPin;

/// Objects that are looked at for one hold of the directory's lock.
const IDS_PER_HOLD: usize = 256;

impl Shared {
    /// Payload bytes that may wait, where objects are written at their second touch only.
    fn second_touch(&self) -> Option<u64> {
        match self.write {
            WritePolicy::Back {
                dirty_bytes_max,
                admission: Admission::SecondTouch,
            } => Some(dirty_bytes_max),
            _ => None,
        }
    }

    /// Whether an object that was just stored is written now. Counts what is decided.
    pub(super) fn takes_now(&self, directory: &mut Directory, pin: &ReadPin) -> bool {
        if self.second_touch().is_none() {
            return true;
        }
        let counters = &self.counters;
        let hash = directory.records.hash(&pin.header().id());
        let was_here = directory.seen.take(hash).is_some();
        if was_here || self.ram.was_seen(pin) {
            counters.admitted.add(1);
            return true;
        }
        counters.deferred.add(1);
        counters.deferred_bytes.add(pin.header().length_bytes);
        let mean_bytes = (counters.deferred_bytes.get() / counters.deferred.get().max(1)).max(1);
        directory.seen.keep(remembered(directory, mean_bytes));
        directory.seen.remember(hash, false);
        false
    }
}

/// How many objects of `mean_bytes` the disks hold, within the bound of the index. Another table
/// begins empty: it is one when twice as many are held, and not for each object more.
fn remembered(directory: &Directory, mean_bytes: u64) -> usize {
    let held = directory.capacity_bytes() / mean_bytes;
    let held = held.min(u64::from(directory.records.most()));
    usize::try_from(held.next_power_of_two()).expect("as many as records")
}

impl DiskTier {
    /// Notes that somebody asked for these objects, which are in memory: what no disk has is sent
    /// to one, unless too much waits already; then it is at its next use.
    pub(crate) fn touch<'a>(&self, ids: impl IntoIterator<Item = &'a ObjectId>) {
        let shared = &self.shared;
        let Some(dirty_bytes_max) = shared.second_touch() else {
            return;
        };
        let mut ids = ids.into_iter().peekable();
        while ids.peek().is_some() {
            let mut directory = shared.directory.lock();
            for id in ids.by_ref().take(IDS_PER_HOLD) {
                if directory.closing || directory.dirty_bytes >= dirty_bytes_max {
                    return;
                }
                if directory.pending.contains_key(id) || directory.find(id).is_some() {
                    continue;
                }
                let Some(pin) = shared.ram.pin_for_disk(id) else {
                    continue;
                };
                if let Some(disk) = directory.disk_for(pin.header()) {
                    shared.counters.admitted.add(1);
                    shared.queue(&mut directory, disk, pin, Vec::new());
                }
            }
        }
    }
}

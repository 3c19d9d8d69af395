//! The operations of the disk tier, and how it ends.
//!
//! Called by [`Store`](crate::Store). Each operation takes the directory's lock once and leaves the
//! rest to the threads of the disk; who waits is called back by them, without any lock held.
//!
//! Invariants: an object is published in RAM and queued for its disk in one step, so that a removal
//! finds it in both or in neither; a removal is answered when every disk has it; identical reads
//! share one.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tessera_proto::{Instant, ObjectHeader, ObjectId, WriteId};

use super::device::Disk;
use super::directory::{Directory, Flight, Job, Pending, ReadJob};
use super::opening::WritePolicy;
use super::recording::{Recording, Unrecorded};
use super::records::write_tag;
use super::stat::{DiskCounters, DiskStat};
use super::tenants::DiskTenant;
use crate::guard::ReadPin;
use crate::guard::WriteExtent;
use crate::ram::{Published, RamStore};

/// Called once, when the object is safe or will not be.
pub(crate) type Done = Box<dyn FnOnce(Published) + Send>;
/// Called once with what was found.
pub(crate) type Waiter = Box<dyn FnOnce(Fetched) + Send>;

/// How a read ended.
#[derive(Debug)]
pub enum Fetched {
    /// Here it is, verified.
    Found(ReadPin),
    /// It is not here.
    Missing,
    /// It is on disk, and RAM has no room for it now: try again later.
    Busy,
}

/// What the threads and the operations share.
pub(crate) struct Shared {
    pub(crate) ram: RamStore,
    pub(crate) write: WritePolicy,
    pub(crate) directory: Mutex<Directory>,
    pub(crate) counters: DiskCounters,
    pub(crate) disks: Vec<Arc<dyn Disk>>,
    /// A job for the writer of a disk.
    pub(crate) work: Vec<Condvar>,
    /// A job for the readers of a disk.
    pub(crate) asked: Vec<Condvar>,
    /// The last read of a segment ended.
    pub(crate) left: Condvar,
}

impl Shared {
    /// Sends an object to its disk; `waiters` are told when it is there.
    pub(super) fn queue(
        &self,
        directory: &mut Directory,
        disk: usize,
        pin: ReadPin,
        waiters: Vec<Done>,
    ) {
        let ticket = directory.ticket();
        let header = *pin.header();
        directory.dirty_bytes += header.length_bytes;
        let pending = Pending {
            ticket,
            write: header.write,
            namespace: header.namespace,
            disk,
            waiters,
        };
        directory.pending.insert(header.id(), pending);
        directory.disks[disk]
            .jobs
            .push_back(Job::Write { ticket, pin });
        self.work[disk].notify_one();
    }
}

/// Objects on disks. Dropped, it writes what is queued and ends its threads.
pub struct DiskTier {
    pub(crate) shared: Arc<Shared>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl DiskTier {
    /// Publishes an object in RAM and sends it to its disk. `done` is called when the policy says
    /// that the object is stored; who finds it on its way waits as its first writer does.
    pub(crate) fn publish(
        &self,
        extent: WriteExtent,
        id: ObjectId,
        header: ObjectHeader,
        done: Done,
    ) {
        let shared = &self.shared;
        let mut directory = shared.directory.lock();
        if directory.find(&id).is_some() {
            drop(directory);
            return done(Published::Existed);
        }
        let stored_s = shared.ram.now_s();
        let pin = match shared.ram.publish_pinned(extent, id, header, stored_s) {
            Ok(pin) => pin,
            Err(Published::Existed) => {
                drop(directory);
                return self.join(&id, done);
            }
            Err(published) => {
                drop(directory);
                return done(published);
            }
        };
        if !shared.takes_now(&mut directory, &pin) {
            drop((directory, pin));
            return done(Published::Stored);
        }
        let disk = match directory.closing {
            true => None,
            false => directory.disk_for(&header),
        };
        let Some(disk) = disk else {
            drop(directory);
            shared.counters.skipped.add(1);
            return done(Published::Stored);
        };
        let wait = match shared.write {
            WritePolicy::Back {
                dirty_bytes_max, ..
            } => directory.dirty_bytes + header.length_bytes > dirty_bytes_max,
            WritePolicy::Through | WritePolicy::Synced => true,
        };
        let (waiters, now) = match wait {
            true => (vec![done], None),
            false => (Vec::new(), Some(done)),
        };
        shared.queue(&mut directory, disk, pin, waiters);
        drop(directory);
        if let Some(done) = now {
            done(Published::Stored);
        }
    }

    /// Calls `done` when an object that exists is as safe as the policy says.
    pub(crate) fn join(&self, id: &ObjectId, done: Done) {
        let joined: Done = Box::new(move |_| done(Published::Existed));
        let mut directory = self.shared.directory.lock();
        let pending = match self.shared.write {
            WritePolicy::Back { .. } => None,
            WritePolicy::Through | WritePolicy::Synced => directory.pending.get_mut(id),
        };
        if let Some(pending) = pending {
            pending.waiters.push(joined);
            return;
        }
        drop(directory);
        joined(Published::Existed);
    }

    /// Reads an object that was not found in RAM into it. Who asks for one that is being read waits
    /// for that read.
    pub(crate) fn fetch(&self, id: ObjectId, now: Instant, waiter: Waiter) {
        let shared = &self.shared;
        let mut directory = shared.directory.lock();
        if let Some(flight) = directory.flights.get_mut(&id) {
            flight.waiters.push(waiter);
            shared.counters.hits.add(1);
            shared.counters.shared_reads.add(1);
            return;
        }
        // Since RAM was asked its read may have ended: then it is there, and is not read again.
        if let Some(pin) = shared.ram.find(&id, false) {
            drop(directory);
            return waiter(Fetched::Found(pin));
        }
        let record = match directory.closing {
            true => None,
            false => directory.find(&id),
        };
        let Some(record) = record else {
            drop(directory);
            shared.ram.count_miss();
            return waiter(Fetched::Missing);
        };
        shared.counters.hits.add(1);
        directory.records.touch(record);
        let tenant = directory.tenant(record);
        directory.tenants.read(tenant);
        let location = directory.records.location(record);
        directory.segment(location.place).readers += 1;
        let ticket = directory.ticket();
        let waiters = vec![waiter];
        let flight = Flight {
            ticket,
            write: location.write,
            namespace: directory.namespaces.name(location.namespace).digest,
            waiters,
        };
        directory.flights.insert(id, flight);
        let disk = location.place.disk();
        directory.disks[disk].reads.push_back(ReadJob {
            id,
            ticket,
            location,
            now,
        });
        drop(directory);
        shared.asked[disk].notify_one();
    }

    /// Whether the object is here, or on its way.
    pub(crate) fn contains(&self, id: &ObjectId) -> bool {
        let mut directory = self.shared.directory.lock();
        directory.find(id).is_some() || directory.pending.contains_key(id)
    }

    /// Removes an object from RAM and disks for good, only this write of it if one is named.
    /// `done` is told whether it was there, once no start of this store will find it again, or that
    /// one may.
    pub(crate) fn remove(
        &self,
        id: ObjectId,
        write: Option<WriteId>,
        done: Box<dyn FnOnce(Result<bool, Unrecorded>) + Send + Sync>,
    ) {
        let shared = &self.shared;
        let mut directory = shared.directory.lock();
        let in_ram = shared.ram.remove(&id, write);
        let record = directory.find(&id);
        let record = record.filter(|record| directory.is_write(*record, write));
        let named = |object: &mut Pending| write.is_none_or(|write| object.write == write);
        let pending = match directory.pending.get_mut(&id).is_some_and(named) {
            true => directory.pending.remove(&id),
            false => None,
        };
        // A read may outlive the record: its segment may have left meanwhile.
        let named = |flight: &Flight| write.is_none_or(|write| flight.write == write_tag(write));
        let flight = match directory.flights.get(&id).is_some_and(named) {
            true => directory.flights.remove(&id),
            false => None,
        };
        let waiters = flight.map_or_else(Vec::new, |flight| flight.waiters);
        if let Some(record) = record {
            directory.kill(record);
        }
        let on_disk = record.is_some() || pending.is_some();
        let gone = in_ram || on_disk;
        let last = Recording::new(move |recorded| done(recorded.map(|()| gone)));
        shared.counters.removed.add(u64::from(on_disk));
        for (number, work) in shared.work.iter().enumerate() {
            if on_disk || directory.hides(number) {
                let done = Arc::clone(&last);
                directory.disks[number].push_removal(Job::Removal { id, done });
                work.notify_one();
            }
        }
        drop(directory);
        // It was stored, if only until now.
        for waiter in pending.into_iter().flat_map(|object| object.waiters) {
            waiter(Published::Stored);
        }
        drop(last);
        for waiter in waiters {
            waiter(Fetched::Missing);
        }
    }

    /// What a tenant holds here, by its name in the limits; without one, all that have none there.
    pub(crate) fn tenant(&self, name: Option<&str>) -> DiskTenant {
        self.shared.directory.lock().tenants.of(name)
    }

    /// Numbers of this tier.
    #[must_use]
    pub fn stat(&self) -> DiskStat {
        let counters = &self.shared.counters;
        let directory = self.shared.directory.lock();
        DiskStat {
            objects: directory.sums.objects,
            bytes: directory.sums.bytes,
            namespaces: directory.namespaces.count() as u64,
            capacity_bytes: directory.capacity_bytes(),
            index_bytes: directory.records.memory_bytes() as u64,
            dirty_bytes: directory.dirty_bytes,
            leased_bytes: directory.sums.leased_bytes,
            leases: directory.leases.count() as u64,
            recovered: counters.recovered.get(),
            torn: counters.torn.get(),
            hits: counters.hits.get(),
            shared_reads: counters.shared_reads.get(),
            read_bytes: counters.read_bytes.get(),
            busy: counters.busy.get(),
            stored: counters.stored.get(),
            written_bytes: counters.written_bytes.get(),
            skipped: counters.skipped.get(),
            deferred: counters.deferred.get(),
            deferred_bytes: counters.deferred_bytes.get(),
            admitted: counters.admitted.get(),
            evictions: counters.evictions.get(),
            reinserted: counters.reinserted.get(),
            reinserted_bytes: counters.reinserted_bytes.get(),
            removed: counters.removed.get(),
            expired: directory.expired,
            damaged: counters.damaged.get(),
            read_errors: counters.read_errors.get(),
            fenced: counters.fenced.get(),
            scrubs: counters.scrubs.get(),
            scrubbed_bytes: counters.scrubbed_bytes.get(),
        }
    }

    /// Lets the writers try again what they found no room for: leases may have ended since.
    pub(crate) fn retry(&self) {
        let mut directory = self.shared.directory.lock();
        let disks = directory.disks.iter_mut().zip(&self.shared.work);
        for (disk, work) in disks.filter(|(disk, _)| disk.owes) {
            disk.retry = true;
            work.notify_one();
        }
    }

    /// Writes what is queued, syncs the disks, ends the threads. What is published from now on
    /// stays in RAM; what is asked for is not found.
    pub(crate) fn close(&self) {
        self.shared.directory.lock().closing = true;
        for condition in self.shared.work.iter().chain(&self.shared.asked) {
            condition.notify_all();
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A thread that panicked told so; the others still have to end.
            let _ = thread.join();
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tessera_proto::{KeyDigest, NamespaceDigest, TenantTag, checksum};

    use super::*;
    use crate::config::{StoreConfig, TenantLimits};
    use crate::disk::{DiskConfig, FileDisk};

    #[test]
    fn object_that_came_into_ram_and_left_its_disk_since_ram_was_asked_is_found() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(3 << 20).expect("room");
        let disk: Arc<dyn Disk> = Arc::new(FileDisk::new(file).expect("a length"));
        let ram = RamStore::new(StoreConfig::with_capacity(1 << 20)).expect("a small arena");
        let config = DiskConfig {
            segment_bytes: 256 << 10,
            write: WritePolicy::Through,
            objects_max: 100,
            readers: 1,
            tenants: TenantLimits::default(),
        };
        let tier = DiskTier::open(ram.clone(), &config, vec![disk]).expect("an empty disk");
        let now = Instant(0);
        let mut extent = ram.reserve(1_000, now).expect("room");
        extent.fill(7);
        let header = ObjectHeader {
            namespace: NamespaceDigest([1; 32]),
            key: KeyDigest([2; 32]),
            layout: 1,
            length_bytes: 1_000,
            checksum: checksum(&extent),
            write: WriteId(1),
            tenant: TenantTag::NONE,
        };
        assert_eq!(
            ram.publish(extent, header.id(), header, now),
            Published::Stored
        );
        let (sender, receiver) = channel();
        let found = move |fetched| sender.send(fetched).expect("heard");
        tier.fetch(header.id(), now, Box::new(found));
        let fetched = receiver.recv().expect("an answer");
        assert!(matches!(fetched, Fetched::Found(pin) if *pin == [7; 1_000]));
        assert_eq!(ram.stat().misses, 0);
    }
}

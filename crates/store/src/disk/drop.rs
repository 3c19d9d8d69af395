//! The drop of a namespace: gone from memory and disks at once, and for good once it is answered.
//!
//! Called by [`Store`](crate::Store). It costs one walk over the namespaces, one entry in the log
//! of each disk, and one walk over what is in memory. Invariants: every write of the namespace that
//! the tier took over before is ahead of the drop in its disk's queue; what is stored while a drop
//! is not over is dropped by it.

use std::sync::Arc;

use parking_lot::Mutex;
use tessera_proto::NamespaceDigest;

use super::directory::Job;
use super::recording::{Recording, Unrecorded};
use super::tier::{DiskTier, Fetched};
use crate::drops::Dropped;
use crate::ram::Published;

impl DiskTier {
    /// Drops a namespace. `done` is told what that was, once no start of this store will find any
    /// of it again, or that one may.
    pub(crate) fn drop_namespace(
        &self,
        namespace: NamespaceDigest,
        done: Box<dyn FnOnce(Result<Dropped, Unrecorded>) + Send + Sync>,
    ) {
        let shared = &self.shared;
        let told = Arc::new(Mutex::new(Dropped::default()));
        let tell = Arc::clone(&told);
        let last = Recording::new(move |recorded| {
            let dropped = *tell.lock();
            done(recorded.map(|()| dropped));
        });
        let mut directory = shared.directory.lock();
        shared.ram.begin_drop(namespace);
        let sums = directory.drop_namespace(namespace, None);
        let pending: Vec<_> = directory
            .pending
            .extract_if(|_, object| object.namespace == namespace)
            .collect();
        let flights: Vec<_> = directory
            .flights
            .extract_if(|_, flight| flight.namespace == namespace)
            .collect();
        for (disk, work) in directory.disks.iter_mut().zip(&shared.work) {
            let done = Arc::clone(&last);
            disk.push_removal(Job::Drop { namespace, done });
            work.notify_one();
        }
        drop(directory);
        shared.counters.removed.add(sums.objects);
        // It was stored, if only until now.
        for waiter in pending.into_iter().flat_map(|(_, object)| object.waiters) {
            waiter(Published::Stored);
        }
        for waiter in flights.into_iter().flat_map(|(_, flight)| flight.waiters) {
            waiter(Fetched::Missing);
        }
        let in_ram = shared.ram.finish_drop(namespace);
        *told.lock() = Dropped {
            disk_objects: sums.objects,
            disk_bytes: sums.bytes,
            ..in_ram
        };
    }
}

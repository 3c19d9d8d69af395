//! The counters and gauges of the disk tier.
//!
//! Called by the threads of the tier, and by the node, which reports them. All are zero in a store
//! without disks, so that the list of names does not depend on how a node was started.

use crate::stat::Count;

/// What the tier counts as it goes.
#[derive(Debug, Default)]
pub(crate) struct DiskCounters {
    pub(crate) hits: Count,
    pub(crate) shared_reads: Count,
    pub(crate) read_bytes: Count,
    pub(crate) busy: Count,
    pub(crate) stored: Count,
    pub(crate) written_bytes: Count,
    pub(crate) skipped: Count,
    pub(crate) deferred: Count,
    pub(crate) deferred_bytes: Count,
    pub(crate) admitted: Count,
    pub(crate) evictions: Count,
    pub(crate) reinserted: Count,
    pub(crate) reinserted_bytes: Count,
    pub(crate) removed: Count,
    pub(crate) damaged: Count,
    pub(crate) read_errors: Count,
    pub(crate) fenced: Count,
    pub(crate) recovered: Count,
    pub(crate) torn: Count,
    pub(crate) scrubs: Count,
    pub(crate) scrubbed_bytes: Count,
}

macro_rules! disk_stat {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What the disks of a store hold and what happened to it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DiskStat {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl DiskStat {
            /// All numbers with their names, in the order in which people should read them.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((concat!("disk_", stringify!($name)), self.$name),)+]
            }
        }
    };
}

disk_stat! {
    /// Objects that are found on disk.
    objects,
    /// Payload bytes of these objects.
    bytes,
    /// Namespaces of these, counted for each disk and each tenant that is charged.
    namespaces,
    /// Bytes of all segments of the disks that work.
    capacity_bytes,
    /// Bytes of memory that the index of the disks takes.
    index_bytes,
    /// Payload bytes that are in RAM and still to be written.
    dirty_bytes,
    /// Payload bytes on disk under lease, each object once.
    leased_bytes,
    /// Leases that hold objects on disk.
    leases,
    /// Objects found at the start.
    recovered,
    /// Objects that were not whole at the start, as the last ones before a crash may be.
    torn,
    /// Reads that found their object on disk.
    hits,
    /// Of these, reads that joined one in progress.
    shared_reads,
    /// Payload bytes read.
    read_bytes,
    /// Reads refused because memory had no room for the object.
    busy,
    /// Objects written.
    stored,
    /// Payload bytes of these.
    written_bytes,
    /// Objects that stayed in RAM only: too large for a segment, or no disk had room.
    skipped,
    /// Objects that were not written when they were stored: nobody had asked for them yet.
    deferred,
    /// Payload bytes of these.
    deferred_bytes,
    /// Objects that were sent to a disk because they were asked for again, or came back.
    admitted,
    /// Objects that left with their segment.
    evictions,
    /// Objects that were written again because they were leased or read.
    reinserted,
    /// Payload bytes of these.
    reinserted_bytes,
    /// Objects removed by request, one by one or with their namespace.
    removed,
    /// Objects that were met after their time.
    expired,
    /// Objects whose bytes did not verify; they are not found any more.
    damaged,
    /// Reads that failed.
    read_errors,
    /// Disks that failed and are not used any more.
    fenced,
    /// Times that the scrub has passed over everything.
    scrubs,
    /// Bytes that the scrub has read.
    scrubbed_bytes,
}

//! What happened on this node since its start, one number for each kind of event.
//!
//! Written by the accept loop and the connections, read by STAT. Every way to refuse a request or
//! to end a connection has a number of its own: an operator sees why, not only that.

use std::sync::atomic::{AtomicU64, Ordering};

use tessera_proto::message::StatEntry;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn count(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// All counters of one node.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: Counter,)* }

        impl Counters {
            /// Names and values in the order of this file.
            pub(crate) fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.read()),)*]
            }
        }
    };
}

counters! {
    /// Connections that were accepted.
    connections_accepted,
    /// Closed at once: the node had as many as it takes.
    connections_refused_full,
    /// `accept` itself failed, as it does when file descriptors run out.
    accept_failures,
    /// Closed by the client between two frames.
    closed_by_client,
    /// Closed: bytes that are no frame of this protocol, or a length over its limit.
    closed_malformed,
    /// Closed: versions that do not overlap.
    closed_version,
    /// Closed: the first frame was not HELLO, or HELLO came twice, or an answer came.
    closed_order,
    /// Closed: it had asked for nothing, and the node was full.
    closed_silent,
    /// Closed: a HELLO or another frame took longer than its deadline.
    closed_deadline,
    /// Closed: the connection broke inside a frame or while an answer was sent.
    closed_broken,
    /// Closed by the order to stop.
    closed_stopping,
    /// PUT requests.
    requests_put,
    /// ACQUIRE requests.
    requests_acquire,
    /// GET requests.
    requests_get,
    /// RELEASE requests.
    requests_release,
    /// REMOVE requests.
    requests_remove,
    /// DROP requests.
    requests_drop,
    /// PRICE requests.
    requests_price,
    /// STAT requests.
    requests_stat,
    /// PING requests.
    requests_ping,
    /// Refused as busy: more requests in flight on one connection than was agreed.
    refused_busy_in_flight,
    /// Refused as busy: too many bytes in reception over all connections.
    refused_busy_bytes,
    /// Refused as busy: too many bytes were being sent over all connections.
    refused_busy_sending,
    /// Refused as busy: memory had no room to read an object into from its disk.
    refused_busy_memory,
    /// Refused: the client's deadline passed before the answer was begun.
    refused_deadline,
    /// Objects that became visible.
    put_stored,
    /// Objects that were there before, or were published first by another writer.
    put_existed,
    /// Objects without room: all memory leased, pinned or in reception.
    put_no_space,
    /// Objects over this node's limit.
    put_too_large,
    /// Objects whose bytes did not give their checksum.
    put_corrupt,
    /// Objects whose payload had another length than their header said.
    put_mismatch,
    /// Objects that were sent.
    get_found,
    /// Objects that were not here.
    get_missing,
    /// Objects of another length than the reader had room for.
    get_length,
    /// Objects that went with a lease that was over.
    get_lease_over,
    /// Damaged objects: PUTs that did not verify, stored ones that a reader reported, and what the
    /// tiers found damaged themselves.
    integrity_failures,
    /// Payload bytes that arrived, also those that were not wanted.
    received_bytes,
    /// Payload bytes that were sent.
    sent_bytes,
}

/// One number with its name.
pub(crate) fn entry(name: &str, value: u64) -> StatEntry {
    StatEntry {
        name: name.to_owned(),
        value,
    }
}

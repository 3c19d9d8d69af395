//! What happened with each node, counted. Read by the metrics of the driver and the command line.
//!
//! Invariant: counters only grow, and are never used to decide anything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tessera_transport::Address;

use super::outcome::{FetchOutcome, StoreOutcome};
use crate::health::CircuitState;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one node.
        #[derive(Debug, Default)]
        pub(crate) struct NodeCounters { $(pub(crate) $name: Counter,)* }

        /// What happened with one node since the cluster started.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct NodeMetrics {
            /// The node.
            pub address: Address,
            /// Whether operations are sent to it.
            pub circuit: CircuitState,
            /// Requests in flight now, those given up included.
            pub in_flight: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl NodeMetrics {
            /// Name and value of every counter.
            #[must_use]
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }

        impl NodeCounters {
            pub(crate) fn snapshot(
                &self,
                address: Address,
                circuit: CircuitState,
                in_flight: u64,
            ) -> NodeMetrics {
                NodeMetrics { address, circuit, in_flight, $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Connections made.
    connections_made,
    /// Connections lost or closed.
    connections_lost,
    /// Attempts to connect that failed.
    connects_failed,
    /// Times that the circuit opened for silence.
    circuits_opened,
    /// Objects that a lookup found and leased.
    acquire_held,
    /// Objects that a lookup did not find.
    acquire_missing,
    /// Objects whose lookup had no answer or was refused.
    acquire_unknown,
    /// Objects that were to be saved and that the node had already; they were not sent.
    probe_present,
    /// Objects that were to be saved and that the node did not have.
    probe_absent,
    /// Objects that were to be saved and of which the node said nothing.
    probe_unknown,
    /// Objects loaded and verified.
    fetch_loaded,
    /// Bytes of them.
    fetch_loaded_bytes,
    /// Fetches that found no object, or no lease.
    fetch_missing,
    /// Objects that were not what was asked for, or damaged; each is removed.
    integrity_failures,
    /// Objects stored.
    store_stored,
    /// Bytes of them.
    store_stored_bytes,
    /// Stores of objects that were there.
    store_existed,
    /// Stores that the node refused for room or size.
    store_refused,
    /// Stores whose bytes changed on the way.
    store_corrupt,
    /// Operations that the node, or our own bound, had no room for.
    busy,
    /// Operations that the deadline ended.
    deadlines,
    /// Operations without a connection.
    unreachable,
    /// Requests that were sent again, since their connection was ended for the memory of another.
    retried,
    /// Answers to requests that were given up.
    late_answers,
    /// Answers to requests that were never made.
    unknown_answers,
    /// Microseconds that completed loads took, all together.
    fetch_micros,
    /// Microseconds that completed stores took, all together.
    store_micros,
}

impl NodeCounters {
    pub(super) fn fetched(&self, outcome: FetchOutcome, bytes: u64, took: Duration) {
        match outcome {
            FetchOutcome::Loaded => {
                self.fetch_loaded.add(1);
                self.fetch_loaded_bytes.add(bytes);
                self.fetch_micros.add(micros(took));
            }
            FetchOutcome::Missing | FetchOutcome::LeaseOver => self.fetch_missing.add(1),
            FetchOutcome::Length | FetchOutcome::Corrupt { .. } => self.integrity_failures.add(1),
            FetchOutcome::Busy => self.busy.add(1),
            FetchOutcome::Deadline => self.deadlines.add(1),
            FetchOutcome::Recalled => {}
            FetchOutcome::Unreachable => self.unreachable.add(1),
        }
    }

    pub(super) fn stored(&self, outcome: StoreOutcome, bytes: u64, took: Duration) {
        match outcome {
            StoreOutcome::Stored => {
                self.store_stored.add(1);
                self.store_stored_bytes.add(bytes);
                self.store_micros.add(micros(took));
            }
            StoreOutcome::Existed => self.store_existed.add(1),
            StoreOutcome::NoSpace | StoreOutcome::TooLarge => self.store_refused.add(1),
            StoreOutcome::Corrupt | StoreOutcome::Length => self.store_corrupt.add(1),
            StoreOutcome::Busy => self.busy.add(1),
            StoreOutcome::Deadline => self.deadlines.add(1),
            StoreOutcome::Unreachable => self.unreachable.add(1),
        }
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// What happened with all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterMetrics {
    /// One for each configured node, in order.
    pub nodes: Vec<NodeMetrics>,
}

impl ClusterMetrics {
    /// Objects that were not what was asked for, or damaged, over all nodes.
    #[must_use]
    pub fn integrity_failures(&self) -> u64 {
        self.nodes.iter().map(|node| node.integrity_failures).sum()
    }
}

//! What all connections of one node have in common.
//!
//! Built by `Node::start`, held by every connection. Nothing in here belongs to one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_proto::Incarnation;
use tessera_proto::message::StatEntry;
use tessera_store::RamStore;
use tokio::sync::watch;

use crate::budget::Budget;
use crate::clock::Clock;
use crate::config::NodeLimits;
use crate::counters::{Counters, entry};

/// One per node.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: RamStore,
    pub(crate) limits: NodeLimits,
    pub(crate) incarnation: Incarnation,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    /// Bytes of objects in reception.
    pub(crate) unpublished: Arc<Budget>,
    /// Connections that are open now.
    pub(crate) connections: AtomicU64,
}

impl Shared {
    /// Every number of this node, gauges first.
    pub(crate) fn stat(&self) -> Vec<StatEntry> {
        let mut entries = vec![
            entry("uptime_ms", self.clock.now().0 / 1_000_000),
            entry("connections", self.connections.load(Ordering::Relaxed)),
            entry("unpublished_bytes", self.unpublished.used()),
        ];
        let store = self.store.stat().entries();
        entries.extend(store.into_iter().map(|(name, value)| entry(name, value)));
        entries.append(&mut self.counters.entries());
        entries
    }
}

/// Returns when the node was ordered to stop, or when nobody is left who could order it.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The value that comes back is a lock on the channel: it must not be held any longer.
    let _ = stop.wait_for(|stop| *stop).await;
}

//! What all connections of one node have in common.
//!
//! Built by `Node::start`, held by every connection. Nothing in here belongs to one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_proto::Incarnation;
use tessera_proto::message::StatEntry;
use tessera_store::Store;
use tokio::sync::watch;

use crate::budget::Budget;
use crate::clock::Clock;
use crate::config::NodeLimits;
use crate::counters::{Counters, entry};
use crate::sending::Sending;

/// One per node.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) limits: NodeLimits,
    pub(crate) incarnation: Incarnation,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    /// Bytes of objects in reception, or stored and not acknowledged yet.
    pub(crate) unpublished: Arc<Budget>,
    /// Bytes of objects that are being sent.
    pub(crate) sending: Sending,
    /// Connections that are open now.
    pub(crate) connections: AtomicU64,
}

impl Shared {
    /// Every number of this node, gauges first.
    pub(crate) fn stat(&self) -> Vec<StatEntry> {
        let (ram, disk) = (self.store.stat(), self.store.disk_stat());
        let mut numbers = vec![
            ("uptime_ms", self.clock.now().0 / 1_000_000),
            ("connections", self.connections.load(Ordering::Relaxed)),
            ("unpublished_bytes", self.unpublished.used()),
            ("sending_bytes", self.sending.used_bytes()),
        ];
        numbers.append(&mut ram.entries());
        numbers.append(&mut disk.entries());
        for (name, value) in self.counters.entries() {
            let by_the_tiers = match name {
                "integrity_failures" => ram.damaged + disk.damaged,
                _ => 0,
            };
            numbers.push((name, value + by_the_tiers));
        }
        let entries = numbers.into_iter();
        let mut entries: Vec<_> = entries.map(|(name, value)| entry(name, value)).collect();
        entries.extend(self.tenants());
        entries
    }

    /// The numbers of each tenant with a quota and of all others together; none where nobody has
    /// one, so that names of clients never make names of numbers.
    fn tenants(&self) -> impl Iterator<Item = StatEntry> {
        let ram = self.store.ram();
        let stats = match ram.has_tenants() {
            true => self.store.tenants(),
            false => Vec::new(),
        };
        stats.into_iter().flat_map(|tenant| {
            let of = match tenant.name.as_str() {
                "" => "tenants_other".to_owned(),
                name => format!("tenant_{name}"),
            };
            [
                entry(&format!("{of}_objects"), tenant.objects),
                entry(&format!("{of}_bytes"), tenant.bytes),
                entry(&format!("{of}_evictions"), tenant.evictions),
                entry(&format!("{of}_disk_objects"), tenant.disk_objects),
                entry(&format!("{of}_disk_bytes"), tenant.disk_bytes),
                entry(&format!("{of}_disk_evictions"), tenant.disk_evictions),
            ]
        })
    }
}

/// Returns when the node was ordered to stop, or when nobody is left who could order it.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The value that comes back is a lock on the channel: it must not be held any longer.
    let _ = stop.wait_for(|stop| *stop).await;
}

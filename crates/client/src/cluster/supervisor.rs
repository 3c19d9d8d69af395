//! Keeps one connection to one node: connects, waits for its end, pauses, connects again.
//!
//! Started by the cluster, one task a connection; ends with the cluster. Invariant: both tasks of a
//! lost connection have ended before the next attempt, so that nothing writes lent memory any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::node::{Node, Slot};
use crate::connection::{ConnectSpec, connect};
use crate::health::{Backoff, HealthConfig};
use crate::latch::Latch;

/// Runs until `ended` is set, then closes the connection and waits for its tasks.
pub(super) async fn run(
    node: Arc<Node>,
    slot: usize,
    spec: ConnectSpec,
    health: HealthConfig,
    ended: Latch,
) {
    let mut backoff = Backoff::new(&health);
    let mut pause = Duration::ZERO;
    while !ended.is_set() {
        if !pause.is_zero() {
            node.set(slot, Slot::Down);
            tokio::select! {
                () = sleep(pause) => node.set(slot, Slot::Probing),
                () = ended.waited() => break,
            }
        }
        pause = attempt(&node, slot, &spec, &mut backoff, &ended).await;
    }
    node.set(slot, Slot::Down);
}

/// One connection from attempt to end. Returns the pause before the next.
async fn attempt(
    node: &Node,
    slot: usize,
    spec: &ConnectSpec,
    backoff: &mut Backoff,
    ended: &Latch,
) -> Duration {
    let connected = tokio::select! {
        connected = connect(spec) => connected,
        () = ended.waited() => return Duration::ZERO,
    };
    let (connection, mut tasks) = match connected {
        Ok(connected) => connected,
        Err(error) => {
            node.counters.connects_failed.add(1);
            node.tried(Some(error.to_string()));
            tracing::debug!(node = %node.address, %error, "no connection to cache node");
            return backoff.pause(random());
        }
    };
    node.tried(None);
    node.counters.connections_made.add(1);
    tracing::info!(node = %node.address, "connected to cache node");
    node.set(slot, Slot::Up(Arc::clone(&connection)));
    tokio::select! {
        _ = tasks.join_next() => {}
        () = ended.waited() => {}
    }
    let silent = node.was_opened(slot);
    connection.close();
    while tasks.join_next().await.is_some() {}
    node.counters.connections_lost.add(1);
    if connection.was_useful() || connection.is_ending() {
        backoff.reset();
        // A node that served well and is gone, or that we left, may be back already: no pause,
        // unless it was silent.
        if !silent && !ended.is_set() {
            node.set(slot, Slot::Connecting);
            return Duration::ZERO;
        }
    }
    backoff.pause(random())
}

/// Jitter need not be good; without a source of randomness there is none.
fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}

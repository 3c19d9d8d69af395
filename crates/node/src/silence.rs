//! Connections that were accepted and have asked for nothing since.
//!
//! Kept by the accept loop, oldest first. When the node has as many connections as it takes, the
//! oldest of them leaves for a new one. Invariant: a connection is either told to leave or has
//! asked for something, never both.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

const SILENT: u8 = 0;
const ASKED: u8 = 1;
const LEAVING: u8 = 2;

/// Of one connection.
#[derive(Debug)]
pub(crate) struct Silence {
    since: Instant,
    state: AtomicU8,
    leave: Notify,
}

impl Silence {
    /// The connection asked for something; false if it was told to leave before.
    pub(crate) fn end(&self) -> bool {
        self.becomes(ASKED)
    }

    /// Returns when the connection has to leave.
    pub(crate) async fn broken(&self) {
        self.leave.notified().await;
    }

    fn becomes(&self, state: u8) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let change = self.state.compare_exchange(SILENT, state, order, failed);
        change.is_ok()
    }
}

/// Of all connections, in the order in which they were accepted.
#[derive(Debug, Default)]
pub(crate) struct Silences(VecDeque<Arc<Silence>>);

impl Silences {
    /// For a connection that was accepted just now.
    pub(crate) fn begin(&mut self) -> Arc<Silence> {
        if self.0.len() == self.0.capacity() {
            // Those that asked or ended need no place here.
            self.0.retain(is_silent);
        }
        let silence = Arc::new(Silence {
            since: Instant::now(),
            state: AtomicU8::new(SILENT),
            leave: Notify::new(),
        });
        self.0.push_back(Arc::clone(&silence));
        silence
    }

    /// Tells the oldest to leave if it has been silent for `patience`. False if there is none.
    pub(crate) fn break_oldest(&mut self, patience: Duration) -> bool {
        while let Some(oldest) = self.0.front() {
            if is_silent(oldest) {
                if oldest.since.elapsed() < patience {
                    return false;
                }
                if oldest.becomes(LEAVING) {
                    oldest.leave.notify_one();
                    self.0.pop_front();
                    return true;
                }
            }
            self.0.pop_front();
        }
        false
    }
}

/// The connection itself holds the other reference for as long as it lives.
fn is_silent(silence: &Arc<Silence>) -> bool {
    Arc::strong_count(silence) > 1 && silence.state.load(Ordering::Acquire) == SILENT
}

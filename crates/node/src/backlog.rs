//! The bytes of answers that one connection has waiting.
//!
//! Its reader asks before it reads the next request, so that a client which asks and does not read
//! makes the node hold what a few answers take, and not what all its requests could ask for.
//! Invariant: what an answer was counted for is taken off once, when its last byte was sent or it
//! was dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// A connection is read on while its answers that wait take no more.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// Of one connection.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    bytes: AtomicUsize,
    less: Notify,
}

/// The bytes of one answer, while it waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    backlog: Arc<Backlog>,
    bytes: usize,
}

impl Backlog {
    /// Returns when another request may be read. For one caller at a time.
    pub(crate) async fn small(&self) {
        while self.bytes.load(Ordering::Acquire) > WAITING_BYTES_MAX {
            // Whoever makes it less before this waits leaves a permit.
            self.less.notified().await;
        }
    }

    /// An answer that is to come; nothing is known of it yet.
    pub(crate) fn answer(self: &Arc<Self>) -> Waiting {
        Waiting {
            backlog: Arc::clone(self),
            bytes: 0,
        }
    }
}

impl Waiting {
    /// The answer takes, or will take, so many bytes.
    pub(crate) fn of(&mut self, bytes: usize) {
        self.backlog.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.take_off();
        self.bytes = bytes;
    }

    fn take_off(&self) {
        if self.bytes > 0 {
            self.backlog.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
            self.backlog.less.notify_one();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.take_off();
    }
}

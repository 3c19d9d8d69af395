//! The bytes of objects that are being sent at once, over all connections.
//!
//! Asked by the writer of a connection before it pins an object. Who finds too little waits, first
//! come first served, until its own time is over, so that many honest readers take turns; a reader
//! that does not read holds one batch until the deadline of its frame, and no place in the line.
//! Invariants: the bytes of all living turns never exceed the limit; nobody overtakes who waits.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Shared by all connections.
#[derive(Debug)]
pub(crate) struct Sending {
    limit_bytes: usize,
    left: Arc<Semaphore>,
}

/// The right to send some bytes, until it is dropped.
pub(crate) type Turn = OwnedSemaphorePermit;

impl Sending {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        let limit_bytes = limit_bytes.min(Semaphore::MAX_PERMITS);
        Self {
            limit_bytes,
            left: Arc::new(Semaphore::new(limit_bytes)),
        }
    }

    /// The right to `bytes`, or `None` if others use too much now, or wait.
    pub(crate) fn now(&self, bytes: u64) -> Option<Turn> {
        let left = Arc::clone(&self.left);
        left.try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// The right to `bytes` when its turn has come, or `None` if it has not by `until`.
    pub(crate) async fn turn(&self, bytes: u64, until: Instant) -> Option<Turn> {
        let left = Arc::clone(&self.left);
        let turn = left.acquire_many_owned(u32::try_from(bytes).ok()?);
        timeout_at(until, turn).await.ok()?.ok()
    }

    /// Bytes that are being sent, or kept for who is next.
    pub(crate) fn used_bytes(&self) -> u64 {
        (self.limit_bytes - self.left.available_permits()) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn who_waits_is_served_in_order_within_the_limit_and_leaves_at_its_time() {
        let sending = Sending::new(100);
        let far = Instant::now() + Duration::from_secs(60);
        let first = sending.now(60).expect("60 of 100");
        let mut large = Box::pin(sending.turn(90, far));
        let mut small = Box::pin(sending.turn(30, far));
        let now = Instant::now();
        assert!(timeout_at(now, &mut large).await.is_err());
        assert!(timeout_at(now, &mut small).await.is_err(), "it overtakes");
        assert!(sending.now(1).is_none(), "it overtakes");
        assert!(sending.turn(1, now).await.is_none(), "its time is over");
        drop(first);
        let large = large.await.expect("its turn");
        assert_eq!(sending.used_bytes(), 100, "90, and 10 kept for the next");
        assert!(timeout_at(now, &mut small).await.is_err());
        drop(large);
        let small = small.await.expect("its turn");
        assert_eq!(sending.used_bytes(), 30);
        drop(small);
        assert_eq!(sending.used_bytes(), 0);
    }
}

//! The one place that reads the clock for the machines.
//!
//! Called by the drivers. Machine time is nanoseconds since the driver started.

use std::time::Duration;

use tessera_proto::Instant;

/// A clock that began when it was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: tokio::time::Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            start: tokio::time::Instant::now(),
        }
    }

    /// Machine time.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The runtime's name for a machine time.
    pub(crate) fn deadline(&self, at: Instant) -> tokio::time::Instant {
        // Far beyond any deadline of ours, and well inside what the runtime can express.
        const FAR: u64 = 1_000_000_000 * 60 * 60 * 24 * 365;
        self.start + Duration::from_nanos(at.0.min(FAR))
    }
}

//! The node's clock: the one place where this crate reads the time for the store.
//!
//! Called with every request that touches a lease. The store takes time as a parameter, so that its
//! own tests need no clock.

use std::time::Instant as SystemInstant;

use tessera_proto::Instant;

/// Counts nanoseconds since the node's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: SystemInstant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            origin: SystemInstant::now(),
        }
    }

    /// Saturates after 584 years.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

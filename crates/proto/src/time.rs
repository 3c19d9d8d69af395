//! A point in time as the pure crates see it: nanoseconds since an origin that the caller chose.
//!
//! Called by every machine that takes `now` as a parameter. The type has no `now()`: reading a
//! clock is the business of the runtime that drives the machine, so that a simulator can supply
//! its own. Instants of two processes are never comparable and never cross the wire.

/// Nanoseconds since an origin chosen by whoever drives the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The farthest point there is: a deadline that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// This instant moved `nanos` nanoseconds later, saturating at [`Instant::NEVER`].
    #[must_use]
    pub const fn after_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// This instant moved `millis` milliseconds later, saturating at [`Instant::NEVER`].
    #[must_use]
    pub const fn after_millis(self, millis: u64) -> Self {
        self.after_nanos(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds from `earlier` to this instant; zero if `earlier` is not earlier.
    #[must_use]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

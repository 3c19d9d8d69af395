//! When a node counts as dead, and when to try it again. Pure: randomness and outcomes come in.
//!
//! Called by the cluster after every operation and by the supervisor of each connection. Invariant:
//! only silence and lost connections open the circuit; any answer, also "busy", closes it.

use std::time::Duration;

/// How patient the client is with one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// Operations in a row without any answer until the circuit opens; at least 1.
    pub failures_to_open: u32,
    /// First pause before a new connection, before jitter.
    pub backoff_min: Duration,
    /// Longest pause, before jitter.
    pub backoff_max: Duration,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            failures_to_open: 3,
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
        }
    }
}

/// Whether operations are sent to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CircuitState {
    /// Connected: operations are sent.
    Closed,
    /// No connection, and the pause runs: every operation is a miss at once.
    Open,
    /// The pause is over and one connection is being tried.
    HalfOpen,
}

/// Counts silence.
#[derive(Debug)]
pub(crate) struct Circuit {
    failures_to_open: u32,
    failures: u32,
}

impl Circuit {
    pub(crate) fn new(config: &HealthConfig) -> Self {
        Self {
            failures_to_open: config.failures_to_open.max(1),
            failures: 0,
        }
    }

    /// The node answered something.
    pub(crate) fn answered(&mut self) {
        self.failures = 0;
    }

    /// The node said nothing until the deadline. Returns whether the circuit opens now; the count
    /// starts anew, for the connections that will be made then.
    pub(crate) fn silent(&mut self) -> bool {
        self.failures += 1;
        let opens = self.failures >= self.failures_to_open;
        if opens {
            self.failures = 0;
        }
        opens
    }
}

/// Pauses between connection attempts: doubled each time, with jitter so that many clients of a
/// restarted node do not return in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(config: &HealthConfig) -> Self {
        let (min, max) = (
            config.backoff_min,
            config.backoff_max.max(config.backoff_min),
        );
        Self {
            min,
            max,
            next: min,
        }
    }

    /// A connection proved useful: the next pause is the shortest again.
    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }

    /// The next pause: between half and all of the doubled step, by a `random` number.
    pub(crate) fn pause(&mut self, random: u64) -> Duration {
        let step = self.next;
        self.next = step.saturating_mul(2).min(self.max);
        let half = step / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(random % nanos.saturating_add(1).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_circuit_opens_after_silence_in_a_row_only() {
        let mut circuit = Circuit::new(&HealthConfig::default());
        assert!(!circuit.silent());
        assert!(!circuit.silent());
        circuit.answered();
        assert!(!circuit.silent());
        assert!(!circuit.silent());
        assert!(circuit.silent());
        assert!(
            !circuit.silent(),
            "a new connection starts with a clean count"
        );
    }

    #[test]
    fn pauses_grow_to_the_maximum_and_start_again_after_use() {
        let config = HealthConfig::default();
        let mut backoff = Backoff::new(&config);
        let mut step = config.backoff_min;
        for random in 0..20u64 {
            let pause = backoff.pause(random.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(pause >= step / 2 && pause <= step, "{pause:?} for {step:?}");
            step = (step * 2).min(config.backoff_max);
        }
        backoff.reset();
        assert!(backoff.pause(u64::MAX) <= config.backoff_min);
    }
}

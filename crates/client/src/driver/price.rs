//! What the engine takes to compute what it saves, measured while it does.
//!
//! Called by the worker's driver around each step. A step that completes many chunks is one that
//! mostly computes prompts: its time over the bytes of these chunks is what those bytes cost, in
//! the time of this rank. A step that completes few spends it on other things, and says nothing.
//! Single steps err in both directions, so the mean of their logarithms is kept; nodes are told no
//! more than a power of two, which is what they look at.

use std::num::NonZeroU32;

use tessera_proto::Instant;

/// Objects as large as the largest that a step has to complete to be counted.
const OBJECTS_MIN: u64 = 4;
/// The weight of the latest step.
const WEIGHT: f64 = 1.0 / 8.0;

/// The measure of one worker.
#[derive(Debug)]
pub(super) struct Meter {
    bytes_min: u64,
    begun: Option<Instant>,
    /// Of nanoseconds a KiB.
    log2: Option<f64>,
}

impl Meter {
    /// For objects of up to `largest_object_bytes`.
    pub(super) fn new(largest_object_bytes: u64) -> Self {
        Self {
            bytes_min: largest_object_bytes.saturating_mul(OBJECTS_MIN),
            begun: None,
            log2: None,
        }
    }

    /// The computation of a step begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// The computation of a step is over, and completed objects of `bytes` together. Returns the
    /// price by now, nanoseconds a KiB, if this step says something of it.
    pub(super) fn end(&mut self, now: Instant, bytes: u64) -> Option<NonZeroU32> {
        let begun = self.begun.take()?;
        if bytes < self.bytes_min.max(1) {
            return None;
        }
        let ns = now.nanos_since(begun).max(1);
        let log2 = (ns as f64 * 1024.0 / bytes as f64).log2();
        let mean = self.log2.map_or(log2, |mean| mean + (log2 - mean) * WEIGHT);
        self.log2 = Some(mean);
        price(mean)
    }
}

/// The power of two that is nearest to this logarithm.
fn price(log2: f64) -> Option<NonZeroU32> {
    let powers = (0..u32::BITS).map(|power| (f64::from(power), 1 << power));
    let nearest = powers.min_by(|(one, _), (other, _)| {
        let (one, other) = ((one - log2).abs(), (other - log2).abs());
        one.total_cmp(&other)
    });
    nearest.and_then(|(_, price)| NonZeroU32::new(price))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The prices that steps of these times and bytes lead to.
    fn prices(steps: &[(u64, u64)]) -> Vec<Option<u32>> {
        let mut meter = Meter::new(MIB);
        let mut now = Instant(7);
        let price = |(ns, bytes): &(u64, u64)| {
            meter.begin(now);
            now = now.after_nanos(*ns);
            meter.end(now, *bytes).map(NonZeroU32::get)
        };
        steps.iter().map(price).collect()
    }

    #[test]
    fn a_step_of_many_chunks_gives_its_time_for_each_of_their_bytes() {
        let ns = 400 * 8 * 1024;
        let steps = [(ns, 8 * MIB), (1_000_000, MIB), (2 * ns, 16 * MIB)];
        assert_eq!(prices(&steps), [Some(512), None, Some(512)]);
    }

    #[test]
    fn one_odd_step_moves_the_price_by_little_and_many_move_it_all_the_way() {
        let mut steps = vec![(400 * 4 * 1024, 4 * MIB); 10];
        steps.push((400 * 4 * 1024 * 256, 4 * MIB));
        let odd = prices(&steps).pop().flatten().expect("measured");
        assert_eq!(odd, 1_024, "by the eighth part of eight doublings");
        steps.extend(vec![(1_600 * 4 * 1024, 4 * MIB); 60]);
        let moved = prices(&steps).pop().flatten().expect("measured");
        assert_eq!(moved, 2_048);
    }

    #[test]
    fn no_time_and_all_time_are_prices_and_a_step_that_did_not_begin_is_none() {
        assert_eq!(prices(&[(0, 4 * MIB)]), [Some(1)]);
        assert_eq!(prices(&[(u64::MAX / 2, 4 * MIB)]), [Some(1 << 31)]);
        assert_eq!(Meter::new(MIB).end(Instant(9), 8 * MIB), None);
    }
}

//! Medians: what a noisy machine says most often, not what it says at its best; and the time that a
//! thread really had. Called by every family.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The middle of `values`; the mean of both middles if their number is even.
///
/// # Panics
/// If there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// The middle of `times`, in microseconds.
pub(crate) fn median_us(times: &[Duration]) -> f64 {
    let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    median(&times)
}

/// What this thread has had of a core so far: others on the machine do not lengthen it.
pub(crate) fn core_time() -> Result<Duration> {
    let statistics = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = statistics.split(' ').next().context("no time of a core")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert!((median_us(&[Duration::from_micros(7)]) - 7.0).abs() < 1e-9);
    }
}

//! How long the operations of a replay took.
//!
//! Called by the caches that do something that takes time. Recorded in nanoseconds, with three
//! digits.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

const DIGITS: u8 = 3;
/// What takes longer counts as this long: an hour.
const NANOS_MAX: u64 = 3_600_000_000_000;

/// The operations of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A lookup of all blocks of a request.
    Lookup,
    /// A read of a block.
    Get,
    /// A store of a block.
    Put,
}

/// The times of all operations.
#[derive(Debug)]
pub(crate) struct Latencies([Histogram<u64>; 3]);

/// What is said of the times of one operation, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Quantiles {
    /// `lookup`, `get` or `put`.
    pub(crate) operation: &'static str,
    /// How many there were.
    pub(crate) count: u64,
    /// The median,
    pub(crate) p50_us: f64,
    /// what nine of ten took at most,
    pub(crate) p90_us: f64,
    /// and 99 of a hundred.
    pub(crate) p99_us: f64,
}

impl Latencies {
    pub(crate) fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, NANOS_MAX, DIGITS);
        Ok(Self([histogram()?, histogram()?, histogram()?]))
    }

    pub(crate) fn record(&mut self, operation: Operation, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0[operation as usize].saturating_record(nanos);
    }

    /// Adds the times of another cache.
    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        for (times, others) in self.0.iter_mut().zip(&other.0) {
            times.add(others)?;
        }
        Ok(())
    }

    /// Of each operation.
    pub(crate) fn quantiles(&self) -> Vec<Quantiles> {
        let named = ["lookup", "get", "put"].into_iter().zip(&self.0);
        let quantiles = named.map(|(operation, times)| {
            let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
            Quantiles {
                operation,
                count: times.len(),
                p50_us: us(0.5),
                p90_us: us(0.9),
                p99_us: us(0.99),
            }
        });
        quantiles.collect()
    }
}

//! What a checksum costs: throughput with it against throughput without.
//!
//! Called by the wire and the disk rows, with something that can run both ways; the product itself
//! cannot. Both ways take turns in short repeats, each as often the first of its pair, so that
//! others on the machine meet both.

use anyhow::Result;

use super::row::Row;
use super::statistics::median;

/// Pairs of a repeat with and one without.
const PAIRS: u32 = 50;
/// Repeats are this much shorter than those of other rows, of which there are five pairs.
pub(crate) const SHORTER: u32 = PAIRS / 5;

/// Measures both ways with `speed`, bytes a second.
pub(crate) fn row(name: &str, mut speed: impl FnMut(bool) -> Result<f64>) -> Result<Row> {
    let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let first = pair % 2 == 0;
        let one = speed(first)?;
        let other = speed(!first)?;
        let (checked, bare) = if first { (one, other) } else { (other, one) };
        ratios.push(checked / bare);
        with.push(checked / 1e9);
        without.push(bare / 1e9);
    }
    let value = 1.0 - median(&ratios);
    Ok(Row {
        name: name.to_owned(),
        value,
        unit: "of throughput",
        floor: Some(median(&without)),
        must: Some(0.10),
        reach: Some(0.03),
        higher: false,
        absolute: format!("{:.1} %, {:.2} GB/s", value * 100.0, median(&with)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_what_is_lost_by_it_whichever_way_runs_first() {
        let mut firsts = Vec::new();
        let row = row("x", |with| {
            firsts.push(with);
            Ok(if with { 3e9 } else { 4e9 })
        });
        let row = row.expect("both ways run");
        assert!((row.value - 0.25).abs() < 1e-9 && !row.holds(), "{row:?}");
        assert_eq!(
            (row.floor, row.absolute.as_str()),
            (Some(4.0), "25.0 %, 3.00 GB/s")
        );
        assert_eq!(firsts[..4], [true, false, false, true]);
    }
}

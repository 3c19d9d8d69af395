//! `tessera ping`: how long a node takes for the smallest question.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde_json::json;

use super::connect::{NODE, connect, deadline, explain};
use crate::args::PingArguments;

/// Round trips are recorded in nanoseconds with three digits.
const DIGITS: u8 = 3;

/// Prints the median, the 99th percentile and the worst of the round trips. The first, which
/// waits for the connection, is not one of them.
pub(crate) fn run(arguments: &PingArguments) -> Result<()> {
    let node = &arguments.node;
    let (runtime, cluster) = connect(node)?;
    let mut times = Histogram::<u64>::new(DIGITS).context("a histogram")?;
    runtime.block_on(async {
        cluster
            .ping(NODE, deadline())
            .await
            .map_err(|error| explain(&cluster, node, error))?;
        for _ in 0..arguments.count {
            let time = cluster.ping(NODE, deadline()).await;
            let time: Duration = time.map_err(|error| explain(&cluster, node, error))?;
            times.record(u64::try_from(time.as_nanos())?)?;
        }
        cluster.shutdown().await;
        anyhow::Ok(())
    })?;
    let us = |nanos: u64| nanos as f64 / 1e3;
    let (p50, p99) = (
        us(times.value_at_quantile(0.5)),
        us(times.value_at_quantile(0.99)),
    );
    let (count, max) = (times.len(), us(times.max()));
    if arguments.json {
        let node = node.to_string();
        println!(
            "{}",
            json!({ "node": node, "count": count, "p50_us": p50, "p99_us": p99, "max_us": max })
        );
    } else {
        println!(
            "{node}: {count} round trips, p50 {p50:.0} us, p99 {p99:.0} us, worst {max:.0} us"
        );
    }
    Ok(())
}

//! What a replay says: a row for each capacity, as a table and as JSON.
//!
//! Called by the command. Hit rates are tokens found, in percent of the tokens asked for; what is
//! saved is computing, in percent of what all prompts cost, by which a late token counts for more.

use serde::Serialize;
use tessera_node::store::DiskStat;

use super::cache::Tally;
use super::latency::Quantiles;
use crate::units::format_size;

/// One capacity.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Capacity in percent of the working set.
    pub(crate) capacity_percent: f64,
    /// The same in blocks,
    pub(crate) capacity_blocks: u64,
    /// and in payload bytes.
    pub(crate) capacity_bytes: u64,
    /// Hit rate of Tessera, percent,
    pub(crate) tessera: f64,
    /// of LRU,
    pub(crate) lru: f64,
    /// and of Belady.
    pub(crate) belady: f64,
    /// Computing that Tessera saves, percent,
    pub(crate) tessera_saved: f64,
    /// that LRU saves,
    pub(crate) lru_saved: f64,
    /// and that Belady saves, who looks at tokens only.
    pub(crate) belady_saved: f64,
    /// Payload bytes that Tessera found.
    pub(crate) hit_bytes: u64,
}

/// Memory with a disk behind it, with one setting of admission to the disk.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TierRow {
    /// Memory in percent of the working set,
    pub(crate) capacity_percent: f64,
    /// and the disk.
    pub(crate) disk_percent: f64,
    /// As the option of a node.
    pub(crate) admission: &'static str,
    /// Hit rate of both together, percent.
    pub(crate) tessera: f64,
    /// Payload bytes that were read from the disk,
    pub(crate) disk_hit_bytes: u64,
    /// that were written because they were stored,
    pub(crate) written_bytes: u64,
    /// and written again to stay.
    pub(crate) moved_bytes: u64,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// The file.
    pub(crate) trace: String,
    /// The node, or none for a store in this process.
    pub(crate) node: Option<String>,
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    /// Blocks asked for, and different ones.
    pub(crate) blocks: u64,
    pub(crate) unique_blocks: u64,
    pub(crate) object_bytes: u64,
    pub(crate) rows: Vec<Row>,
    /// Where a disk was asked for, two for each capacity.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tiers: Vec<TierRow>,
    pub(crate) latency: Vec<Quantiles>,
    /// Reads of leased objects and stores that a node did not answer well.
    pub(crate) failed: u64,
}

impl TierRow {
    /// Of capacities in percent, from what the store came to and its disk counted.
    pub(crate) fn new(
        (capacity_percent, disk_percent): (f64, f64),
        (admission, object_bytes): (&'static str, u64),
        (tessera, disk): (Tally, &DiskStat),
    ) -> Self {
        Self {
            capacity_percent: hundredths(capacity_percent),
            disk_percent: hundredths(disk_percent),
            admission,
            tessera: hundredths(tessera.percent()),
            disk_hit_bytes: disk.hits.saturating_mul(object_bytes),
            written_bytes: disk.stored.saturating_mul(object_bytes),
            moved_bytes: disk.reinserted.saturating_mul(object_bytes),
        }
    }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Row {
    /// Of a capacity in blocks, from what the three caches came to.
    pub(crate) fn new(
        (capacity_blocks, unique_blocks): (u64, u64),
        object_bytes: u64,
        (tessera, lru, belady): (Tally, Tally, Tally),
    ) -> Self {
        let percent = 100.0 * capacity_blocks as f64 / unique_blocks.max(1) as f64;
        Self {
            capacity_percent: hundredths(percent),
            capacity_blocks,
            capacity_bytes: capacity_blocks.saturating_mul(object_bytes),
            tessera: hundredths(tessera.percent()),
            lru: hundredths(lru.percent()),
            belady: hundredths(belady.percent()),
            tessera_saved: hundredths(tessera.saved_percent()),
            lru_saved: hundredths(lru.saved_percent()),
            belady_saved: hundredths(belady.saved_percent()),
            hit_bytes: tessera.hit_blocks.saturating_mul(object_bytes),
        }
    }
}

impl Figures {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let ratio = |value: f64, of: f64| match of > 0.0 {
            true => format!("{:.3}", value / of),
            false => "-".to_owned(),
        };
        let mut lines = vec![
            format!(
                "{}: {} requests, {} tokens, {} blocks, {} different",
                self.trace, self.requests, self.tokens, self.blocks, self.unique_blocks
            ),
            format!(
                "{:>10}  {:>10}  {:>8}  {:>8}  {:>8}  {:>7}  {:>9}  {:>8}  {:>8}  {:>8}  {:>10}",
                "capacity",
                "",
                "tessera",
                "LRU",
                "Belady",
                "of LRU",
                "of Belady",
                "saved",
                "by LRU",
                "Belady",
                "hit bytes"
            ),
        ];
        lines.extend(self.rows.iter().map(|row| {
            format!(
                "{:>8.2} %  {:>10}  {:>6.2} %  {:>6.2} %  {:>6.2} %  {:>7}  {:>9}  \
                 {:>6.2} %  {:>6.2} %  {:>6.2} %  {:>10}",
                row.capacity_percent,
                format_size(row.capacity_bytes),
                row.tessera,
                row.lru,
                row.belady,
                ratio(row.tessera, row.lru),
                ratio(row.tessera, row.belady),
                row.tessera_saved,
                row.lru_saved,
                row.belady_saved,
                format_size(row.hit_bytes),
            )
        }));
        lines.extend(self.latency.iter().map(|times| {
            format!(
                "{:>10}  {:>10}  p50 {:.1} us, p90 {:.1} us, p99 {:.1} us",
                times.operation, times.count, times.p50_us, times.p90_us, times.p99_us
            )
        }));
        lines.extend(self.tiers_table());
        if self.failed > 0 {
            lines.push(format!("{} operations failed: misses", self.failed));
        }
        lines.join("\n")
    }

    /// What a disk adds, and what is written for it.
    fn tiers_table(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.tiers.is_empty() {
            lines.push(format!(
                "{:>10}  {:>10}  {:>12}  {:>8}  {:>11}  {:>11}  {:>11}",
                "memory", "disk", "admission", "tessera", "disk hits", "written", "moved"
            ));
        }
        lines.extend(self.tiers.iter().map(|row| {
            format!(
                "{:>8.2} %  {:>8.2} %  {:>12}  {:>6.2} %  {:>11}  {:>11}  {:>11}",
                row.capacity_percent,
                row.disk_percent,
                row.admission,
                row.tessera,
                format_size(row.disk_hit_bytes),
                format_size(row.written_bytes),
                format_size(row.moved_bytes),
            )
        }));
        lines
    }
}

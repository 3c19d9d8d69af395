//! The store family: what the RAM tier itself costs, without a socket, against a plain copy between
//! arenas of the same size.
//!
//! The floor is the copy of the standard library; non-temporal stores, which are faster on some
//! machines, need `unsafe` and a crate that may hold it.

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use tessera_client::{KeyDigest, NamespaceDigest, ObjectHeader, ObjectId, TenantTag, WriteId};
use tessera_node::store::{Instant, OwnerId, Presence, Published, RamStore, StoreConfig};

use super::disk::resident_bytes;
use super::floor::ARENA_BYTES;
use super::row::Row;
use super::statistics::{median, median_us};

const REPEATS: u32 = 5;
const SIZES: [(&str, usize); 3] = [("64KiB", 64 << 10), ("1MiB", 1 << 20), ("4MiB", 4 << 20)];
/// Twice the arena: every write of a new object evicts, and what is read is still there.
const CAPACITY_BYTES: u64 = 2 * ARENA_BYTES as u64 + (64 << 20);
const ACQUIRE_KEYS: u64 = 4_096;
const LEASE_NS: u64 = 60_000_000_000;

/// Rows of this family, for the progress bar.
pub(crate) const ROWS: u64 = (SIZES.len() * 2 + 2) as u64;

/// The objects whose index is weighed, and the smallest extent that holds one with its header.
const SMALL_OBJECTS: u64 = 10_000_000;
const SMALL_BYTES: usize = 128;
const SMALL_EXTENT_BYTES: u64 = 256;

/// The store and the arenas on both sides of the copy.
struct Bench {
    store: RamStore,
    source: Vec<u8>,
    destination: Vec<u8>,
    slice: Duration,
    rows: Vec<Row>,
}

/// Measures the family; a row takes about `seconds`.
pub(crate) fn run(seconds: u32, progress: &ProgressBar) -> Result<Vec<Row>> {
    let slice = Duration::from_secs(u64::from(seconds)) / (2 * REPEATS);
    let mut rows = Vec::new();
    for (size, block_bytes) in SIZES {
        progress.set_message(format!("store {size}"));
        let store = RamStore::new(StoreConfig::with_capacity(CAPACITY_BYTES))?;
        let (source, destination) = (vec![1; ARENA_BYTES], vec![2; ARENA_BYTES]);
        let mut bench = Bench {
            store,
            source,
            destination,
            slice,
            rows: Vec::new(),
        };
        bench.row(&format!("store put {size}"), block_bytes, Bench::put)?;
        progress.inc(1);
        bench.row(&format!("store get {size}"), block_bytes, Bench::get)?;
        progress.inc(1);
        if bench.blocks(block_bytes) >= ACQUIRE_KEYS {
            bench.acquire_row(block_bytes)?;
            progress.inc(1);
        }
        rows.append(&mut bench.rows);
    }
    progress.set_message("store index");
    rows.push(index_row()?);
    progress.inc(1);
    Ok(rows)
}

/// What ten million small objects take beside the arena, which is resident before.
fn index_row() -> Result<Row> {
    let store = RamStore::new(StoreConfig::with_capacity(
        SMALL_OBJECTS * SMALL_EXTENT_BYTES,
    ))?;
    let before = resident_bytes()?;
    // Each leaves for another one: the memory of evictions is full too.
    for number in 0..2 * SMALL_OBJECTS {
        let header = header(number, SMALL_BYTES);
        let extent = store.reserve(SMALL_BYTES as u64, Instant(0))?;
        let published = store.publish(extent, header.id(), header, Instant(0));
        ensure!(
            published == Published::Stored,
            "a put ended as {published:?}"
        );
    }
    let objects = store.stat().objects;
    ensure!(objects == SMALL_OBJECTS, "{objects} objects fill the arena");
    let grown = resident_bytes()?.saturating_sub(before);
    let value = grown as f64 / SMALL_OBJECTS as f64;
    Ok(Row {
        name: "store index".to_owned(),
        value,
        unit: "bytes an object",
        floor: None,
        must: Some(64.0),
        reach: Some(40.0),
        higher: false,
        absolute: format!("{:.0} MiB resident", grown as f64 / f64::from(1 << 20)),
    })
}

impl Bench {
    fn blocks(&self, block_bytes: usize) -> u64 {
        (self.source.len() / block_bytes) as u64
    }

    /// Alternates the operation with the plain copy of the same blocks.
    fn row(
        &mut self,
        name: &str,
        block_bytes: usize,
        operation: fn(&mut Self, u64, usize) -> Result<()>,
    ) -> Result<()> {
        // Whatever is read later was written by the last writes before: fill once, untimed.
        for number in 0..self.blocks(block_bytes) {
            self.put(number, block_bytes)?;
        }
        let (mut speeds, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for repeat in 0..REPEATS {
            let floor = self.throughput(block_bytes, repeat, Self::copy)?;
            let speed = self.throughput(block_bytes, repeat, operation)?;
            floors.push(floor / 1e9);
            speeds.push(speed / 1e9);
            ratios.push(speed / floor);
        }
        self.rows.push(Row {
            name: name.to_owned(),
            value: median(&ratios),
            unit: "of memcpy",
            floor: Some(median(&floors)),
            must: None,
            reach: Some(0.95),
            higher: true,
            absolute: format!("{:.2} GB/s", median(&speeds)),
        });
        Ok(())
    }

    fn throughput(
        &mut self,
        block_bytes: usize,
        repeat: u32,
        operation: fn(&mut Self, u64, usize) -> Result<()>,
    ) -> Result<f64> {
        let begun = Clock::now();
        let mut number = u64::from(repeat);
        let mut bytes = 0;
        while begun.elapsed() < self.slice {
            operation(self, number, block_bytes)?;
            number += 1;
            bytes += block_bytes;
        }
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    fn offset(&self, number: u64, block_bytes: usize) -> Result<usize> {
        Ok(usize::try_from(number % self.blocks(block_bytes))? * block_bytes)
    }

    fn copy(&mut self, number: u64, block_bytes: usize) -> Result<()> {
        let at = self.offset(number, block_bytes)?;
        let block = &mut self.destination[at..at + block_bytes];
        block.copy_from_slice(&self.source[at..at + block_bytes]);
        black_box(block);
        Ok(())
    }

    /// A new object each time that the number comes round: the old one is removed first.
    fn put(&mut self, number: u64, block_bytes: usize) -> Result<()> {
        let at = self.offset(number, block_bytes)?;
        let header = header(number % self.blocks(block_bytes), block_bytes);
        self.store.remove(&header.id(), None);
        let mut extent = self.store.reserve(block_bytes as u64, Instant(0))?;
        extent.copy_from_slice(&self.source[at..at + block_bytes]);
        let published = self.store.publish(extent, header.id(), header, Instant(0));
        ensure!(
            published == Published::Stored,
            "a put ended as {published:?}"
        );
        Ok(())
    }

    fn get(&mut self, number: u64, block_bytes: usize) -> Result<()> {
        let at = self.offset(number, block_bytes)?;
        let id = header(number % self.blocks(block_bytes), block_bytes).id();
        let pin = self
            .store
            .pin(&id, None, Instant(0))
            .context("a stored object is missing")?;
        let block = &mut self.destination[at..at + block_bytes];
        block.copy_from_slice(&pin);
        black_box(block);
        Ok(())
    }

    fn acquire_row(&mut self, block_bytes: usize) -> Result<()> {
        let ids: Vec<ObjectId> = (0..ACQUIRE_KEYS)
            .map(|number| header(number, block_bytes).id())
            .collect();
        let begun = Clock::now();
        let mut times = Vec::new();
        while begun.elapsed() < self.slice * REPEATS {
            let begun = Clock::now();
            let acquired = self
                .store
                .acquire(OwnerId(1), &ids, LEASE_NS, u64::MAX, Instant(0));
            times.push(begun.elapsed());
            if !acquired
                .items
                .iter()
                .all(|item| item.presence == Presence::Held)
            {
                bail!("an acquire of stored objects did not hold them all");
            }
            self.store.release_owner(OwnerId(1));
        }
        let value = median_us(&times) / 1e3;
        self.rows.push(Row {
            name: format!("store acquire {ACQUIRE_KEYS} keys"),
            value,
            unit: "ms",
            floor: None,
            must: None,
            reach: None,
            higher: false,
            absolute: format!("{value:.3} ms"),
        });
        Ok(())
    }
}

/// The store does not read the bytes, so the checksum may be anything.
fn header(number: u64, block_bytes: usize) -> ObjectHeader {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    ObjectHeader {
        namespace: NamespaceDigest([0xbe; 32]),
        key: KeyDigest(key),
        layout: 1,
        length_bytes: block_bytes as u64,
        checksum: 0,
        write: WriteId(number),
        tenant: TenantTag::NONE,
    }
}

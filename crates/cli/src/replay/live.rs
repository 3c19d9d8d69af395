//! A node as a cache, asked as an engine asks it.
//!
//! Called by the replay. A request is one lookup of all blocks, a read of each that is leased up to
//! the first that is missing, the end of the lease, and a store of all others, with a bounded
//! number of reads or stores in flight. Each replay has names of its own, so that it starts cold.
//! What the node refuses or loses is a miss, and is counted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tessera_client::{
    Address, Cluster, Expectation, FetchOutcome, KeyDigest, Lease, Lent, NamespaceDigest,
    ObjectHeader, Presence, Region, Segments, StoreOutcome, TenantTag, WriteId, checksum,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cache::Cache;
use super::latency::{Latencies, Operation};
use crate::commands::connect::{NODE, connect, deadline, explain};

const NAMESPACE: NamespaceDigest = NamespaceDigest([0x72; 32]);
const LEASE_MS: u32 = 60_000;
/// What an object takes of a node's memory beside its payload, and what that is rounded to: small
/// objects to units, large ones to pages.
const HEADER_BYTES: u64 = 128;
const UNIT_BYTES: u64 = 256;
const PAGE_BYTES: u64 = 4096;
const LARGE_BYTES: u64 = 64 << 10;

/// A node.
pub(super) struct Live {
    runtime: Runtime,
    cluster: Cluster,
    /// One place for each read in flight, behind the bytes that every store sends.
    memory: Arc<Region>,
    object_bytes: usize,
    in_flight: usize,
    /// Of this replay: part of the name of each object.
    start_nanos: u64,
    checksum: u64,
    pub(super) latencies: Latencies,
    pub(super) failed: u64,
}

impl Live {
    /// Connects, and reads how many objects the node's memory holds.
    pub(super) fn connect(
        node: &Address,
        object_bytes: u64,
        in_flight: usize,
    ) -> Result<(Self, u64)> {
        let (runtime, cluster) = connect(node)?;
        let stat = runtime.block_on(cluster.stat(NODE, deadline()));
        let stat = stat.map_err(|error| explain(&cluster, node, error))?;
        let capacity = stat.iter().find(|entry| entry.name == "capacity_bytes");
        let capacity = capacity
            .context("the node does not say how much it holds")?
            .value;
        let rounded = if object_bytes < LARGE_BYTES {
            UNIT_BYTES
        } else {
            PAGE_BYTES
        };
        let blocks = capacity / (object_bytes + HEADER_BYTES).next_multiple_of(rounded);
        let object_bytes = usize::try_from(object_bytes)?;
        let length_bytes = object_bytes
            .checked_mul(in_flight + 1)
            .context("too large")?;
        let memory = Region::allocate(length_bytes).context("memory for the objects")?;
        let payload: Vec<u8> = (0..=u8::MAX).cycle().take(object_bytes).collect();
        Lent::new(place(&memory, 0, object_bytes)?)?.copy_from(&payload)?;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let live = Self {
            runtime,
            cluster,
            memory,
            object_bytes,
            in_flight,
            start_nanos: u64::try_from(since.as_nanos())?,
            checksum: checksum(&payload),
            latencies: Latencies::new()?,
            failed: 0,
        };
        Ok((live, blocks))
    }

    /// Ends the connection.
    pub(super) fn shutdown(&self) {
        self.runtime.block_on(self.cluster.shutdown());
    }

    fn expectation(&self, block: u64) -> Expectation {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&block.to_le_bytes());
        key[8..16].copy_from_slice(&self.start_nanos.to_le_bytes());
        Expectation {
            namespace: NAMESPACE,
            key: KeyDigest(key),
            layout: 1,
            length_bytes: self.object_bytes as u64,
        }
    }

    fn header(&self, block: u64) -> ObjectHeader {
        let Expectation {
            namespace,
            key,
            layout,
            length_bytes,
        } = self.expectation(block);
        ObjectHeader {
            namespace,
            key,
            layout,
            length_bytes,
            checksum: self.checksum,
            write: WriteId(1),
            tenant: TenantTag::NONE,
        }
    }

    /// The leases that hold the first blocks, up to the first that is missing.
    async fn look_up(&mut self, blocks: &[u64]) -> Vec<Lease> {
        let ids = blocks
            .iter()
            .map(|block| self.header(*block).id())
            .collect();
        let begun = Instant::now();
        let outcome = self.cluster.acquire(ids, LEASE_MS, deadline()).await;
        self.latencies.record(Operation::Lookup, begun.elapsed());
        let held = outcome.items.iter().map_while(|item| match item {
            Presence::Held { lease, .. } => Some(*lease),
            _ => None,
        });
        held.collect()
    }

    /// Reads the leased blocks. Returns how many, from the first, came.
    async fn read(&mut self, blocks: &[u64], leases: &[Lease]) -> Result<usize> {
        let mut came = blocks.len();
        for (step, blocks) in blocks.chunks(self.in_flight).enumerate() {
            let mut reads = JoinSet::new();
            for (at, block) in blocks.iter().enumerate() {
                let number = step * self.in_flight + at;
                let (cluster, wanted) = (self.cluster.clone(), self.expectation(*block));
                let lease = leases[number];
                let lent = Lent::new(place(&self.memory, at + 1, self.object_bytes)?)?;
                reads.spawn(async move {
                    let begun = Instant::now();
                    let (outcome, _) = cluster.fetch(wanted, Some(lease), lent, deadline()).await;
                    (number, outcome == FetchOutcome::Loaded, begun.elapsed())
                });
            }
            while let Some(read) = reads.join_next().await {
                let (number, loaded, time) = read?;
                self.count(Operation::Get, loaded, time);
                came = if loaded { came } else { came.min(number) };
            }
        }
        Ok(came)
    }

    async fn store(&mut self, blocks: &[u64]) -> Result<()> {
        for blocks in blocks.chunks(self.in_flight) {
            let mut stores = JoinSet::new();
            for block in blocks {
                let (cluster, header) = (self.cluster.clone(), self.header(*block));
                let source = place(&self.memory, 0, self.object_bytes)?;
                stores.spawn(async move {
                    let begun = Instant::now();
                    let (outcome, _) = cluster.store(header, source, deadline()).await;
                    (outcome, begun.elapsed())
                });
            }
            while let Some(stored) = stores.join_next().await {
                let (outcome, time) = stored?;
                if outcome == StoreOutcome::TooLarge {
                    bail!(
                        "the node takes no object of {} bytes: choose less",
                        self.object_bytes
                    );
                }
                let stored = matches!(outcome, StoreOutcome::Stored | StoreOutcome::Existed);
                self.count(Operation::Put, stored, time);
            }
        }
        Ok(())
    }

    fn count(&mut self, operation: Operation, succeeded: bool, time: Duration) {
        self.failed += u64::from(!succeeded);
        self.latencies.record(operation, time);
    }

    async fn answer(&mut self, blocks: &[u64]) -> Result<usize> {
        let leases = self.look_up(blocks).await;
        let hits = self.read(&blocks[..leases.len()], &leases).await?;
        if let Some(lease) = leases.first() {
            self.cluster
                .release(vec![(*lease, Vec::new())], deadline())
                .await;
        }
        self.store(&blocks[hits..]).await?;
        Ok(hits)
    }
}

impl Cache for Live {
    fn request(&mut self, blocks: &[u64]) -> Result<usize> {
        let runtime = self.runtime.handle().clone();
        runtime.block_on(self.answer(blocks))
    }
}

/// The memory with this number.
fn place(memory: &Arc<Region>, number: usize, length: usize) -> Result<Segments> {
    let mut segments = Segments::with_capacity(1);
    segments.push(memory, number * length, length)?;
    Ok(segments)
}

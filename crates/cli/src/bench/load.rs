//! Keeps a number of requests in flight for a while and counts what came of them.
//!
//! Called by the wire family, once for each repeat. An outcome other than the good one ends the
//! bench: a figure over misses would be a figure about something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use tessera_client::{Cluster, FetchOutcome, Presence, StoreOutcome};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::objects::Objects;

/// An operation of the bench must end within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for any row; the bench releases what it acquires.
const LEASE_MS: u32 = 60_000;

/// What is kept in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Read the stored objects in turn.
    Get,
    /// Write new objects with the same bytes.
    Put,
}

/// A cluster under load.
pub(crate) struct Load {
    runtime: Runtime,
    cluster: Cluster,
    pub(crate) objects: Arc<Objects>,
    /// The next object to read or to write, over all repeats: each walks on.
    next: Arc<AtomicU64>,
}

impl Load {
    pub(crate) fn new(runtime: Runtime, cluster: Cluster, objects: Arc<Objects>) -> Self {
        Self {
            runtime,
            cluster,
            objects,
            next: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Stores the whole working set, so that reads find it.
    pub(crate) fn fill(&self) -> Result<()> {
        let numbers = self.objects.count();
        self.runtime.block_on(async {
            for number in 0..numbers {
                store(&self.cluster, &self.objects, number).await?;
            }
            self.next.store(numbers, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Bytes a second with `in_flight` requests for `time`.
    pub(crate) fn throughput(
        &self,
        operation: Operation,
        in_flight: usize,
        time: Duration,
    ) -> Result<f64> {
        let begun = Instant::now();
        let done = self.runtime.block_on(async {
            let mut workers = JoinSet::new();
            for _ in 0..in_flight {
                let (cluster, objects) = (self.cluster.clone(), Arc::clone(&self.objects));
                let next = Arc::clone(&self.next);
                workers.spawn(async move {
                    let mut done = 0_u64;
                    while begun.elapsed() < time {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        match operation {
                            Operation::Get => fetch(&cluster, &objects, number).await?,
                            Operation::Put => store(&cluster, &objects, number).await?,
                        }
                        done += 1;
                    }
                    anyhow::Ok(done)
                });
            }
            let mut done = 0;
            while let Some(worker) = workers.join_next().await {
                done += worker??;
            }
            anyhow::Ok(done)
        })?;
        let bytes = done * self.objects.block_bytes() as u64;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    /// The time of each ACQUIRE of `keys` stored objects, with `in_flight` of them at once, for
    /// `time`. What is acquired is released outside of the measured time.
    pub(crate) fn acquire(
        &self,
        keys: u64,
        in_flight: usize,
        time: Duration,
    ) -> Result<Vec<Duration>> {
        let begun = Instant::now();
        self.runtime.block_on(async {
            let mut workers = JoinSet::new();
            for worker in 0..in_flight as u64 {
                let (cluster, objects) = (self.cluster.clone(), Arc::clone(&self.objects));
                workers.spawn(async move {
                    let mut times = Vec::new();
                    let mut first = worker * keys;
                    while begun.elapsed() < time {
                        times.push(acquire(&cluster, &objects, first, keys).await?);
                        first += keys * in_flight as u64;
                    }
                    anyhow::Ok(times)
                });
            }
            let mut times = Vec::new();
            while let Some(worker) = workers.join_next().await {
                times.append(&mut worker??);
            }
            Ok(times)
        })
    }

    /// Ends the connections.
    pub(crate) fn shutdown(&self) {
        self.runtime.block_on(self.cluster.shutdown());
    }

    /// The time of each of `count` pings.
    pub(crate) fn ping(&self, count: usize) -> Result<Vec<Duration>> {
        self.runtime.block_on(async {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let node = tessera_client::NodeIndex(0);
                times.push(self.cluster.ping(node, Instant::now() + PATIENCE).await?);
            }
            Ok(times)
        })
    }
}

async fn fetch(cluster: &Cluster, objects: &Objects, number: u64) -> Result<()> {
    let number = number % objects.count();
    let (wanted, room) = (objects.expectation(number), objects.destination(number));
    match cluster
        .fetch(wanted, None, room, Instant::now() + PATIENCE)
        .await
    {
        (FetchOutcome::Loaded, _) => Ok(()),
        (outcome, _) => bail!("GET of a stored object ended as {outcome:?}"),
    }
}

async fn store(cluster: &Cluster, objects: &Objects, number: u64) -> Result<()> {
    let (header, source) = (objects.header(number), objects.source(number));
    match cluster
        .store(header, source, Instant::now() + PATIENCE)
        .await
    {
        (StoreOutcome::Stored, _) => Ok(()),
        (outcome, _) => bail!("PUT of a new object ended as {outcome:?}"),
    }
}

async fn acquire(cluster: &Cluster, objects: &Objects, first: u64, keys: u64) -> Result<Duration> {
    let ids = (first..first + keys)
        .map(|number| objects.id(number % objects.count()))
        .collect();
    let begun = Instant::now();
    let outcome = cluster.acquire(ids, LEASE_MS, begun + PATIENCE).await;
    let time = begun.elapsed();
    let lease = match outcome.items.first() {
        Some(Presence::Held { lease, .. }) => *lease,
        other => bail!("ACQUIRE of a stored object ended as {other:?}"),
    };
    if let Some(other) = outcome
        .items
        .iter()
        .find(|item| !matches!(item, Presence::Held { .. }))
    {
        bail!("ACQUIRE of a stored object ended as {other:?}");
    }
    cluster
        .release(vec![(lease, Vec::new())], Instant::now() + PATIENCE)
        .await;
    Ok(time)
}

//! A node of this binary in a process of its own, by the product's client, over TCP.
//!
//! Called by the session. What is read is verified by the client, as everywhere; the checksums of
//! what is written were computed before, since a connector does that while it gathers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tessera_client::{
    Cluster, ClusterConfig, Expectation, FetchOutcome, KeyDigest, Lent, NamespaceDigest, NodeSpec,
    ObjectHeader, Region, Segments, StoreOutcome, TenantTag, WriteId, checksum,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::payload::{SAMPLE, SET_BYTES, fill};
use super::session::Contestant;
use crate::bench::node_process::NodeProcess;

const PATIENCE: Duration = Duration::from_secs(30);
/// What is read and what is written, and room for the next writes to evict in.
const NODE_RAM_BYTES: u64 = 3 * SET_BYTES as u64;
const NAMESPACE: NamespaceDigest = NamespaceDigest([0xbe; 32]);
const LAYOUT: u64 = 1;

/// The arenas on this side.
struct Objects {
    source: Arc<Region>,
    destination: Arc<Region>,
    object_bytes: usize,
    checksums: Vec<u64>,
}

/// The node of the current object size, and the client.
pub(crate) struct Tessera {
    runtime: Runtime,
    node: Option<(NodeProcess, Cluster)>,
    objects: Arc<Objects>,
    /// Passes that have written: each writes new objects.
    written: u64,
}

/// What a pass does.
#[derive(Clone, Copy)]
enum Operation {
    Get,
    Put,
}

impl Tessera {
    pub(crate) fn start() -> Result<Self> {
        let region = || Region::allocate(SET_BYTES).context("memory for the bench");
        let (source, destination) = (region()?, region()?);
        let mut page = vec![0; 4096];
        for number in 0..SET_BYTES / page.len() {
            fill(&mut page, number);
            for region in [&source, &destination] {
                let place = segments(region, number * page.len(), page.len())?;
                Lent::new(place)?.copy_from(&page)?;
            }
        }
        let objects = Objects {
            source,
            destination,
            object_bytes: SET_BYTES,
            checksums: Vec::new(),
        };
        Ok(Self {
            runtime: Runtime::new().context("starting the runtime")?,
            node: None,
            objects: Arc::new(objects),
            written: 0,
        })
    }

    /// Moves all objects of a pass: those from `first` on.
    fn pass(&self, operation: Operation, first: u64, in_flight: usize) -> Result<Duration> {
        let (_, cluster) = self.node.as_ref().context("no size was ordered")?;
        let end = first + self.objects.count();
        let next = Arc::new(AtomicU64::new(first));
        let begun = Instant::now();
        self.runtime.block_on(async {
            let mut workers = JoinSet::new();
            for _ in 0..in_flight {
                let (cluster, next) = (cluster.clone(), Arc::clone(&next));
                let objects = Arc::clone(&self.objects);
                workers.spawn(async move {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= end {
                            return anyhow::Ok(());
                        }
                        match operation {
                            Operation::Get => objects.fetch(&cluster, number).await?,
                            Operation::Put => objects.store(&cluster, number).await?,
                        }
                    }
                });
            }
            while let Some(worker) = workers.join_next().await {
                worker??;
            }
            anyhow::Ok(())
        })?;
        Ok(begun.elapsed())
    }

    fn load(&self, first: u64, in_flight: usize) -> Result<Duration> {
        self.objects.forget()?;
        let time = self.pass(Operation::Get, first, in_flight)?;
        self.objects.check()?;
        Ok(time)
    }
}

impl Contestant for Tessera {
    fn size(&mut self, object_bytes: usize) -> Result<()> {
        if let Some((_node, cluster)) = self.node.take() {
            self.runtime.block_on(cluster.shutdown());
        }
        let objects = Objects::new(&self.objects, object_bytes)?;
        self.objects = Arc::new(objects);
        let node = NodeProcess::start(NODE_RAM_BYTES)?;
        let nodes = vec![NodeSpec::new(node.address().clone())];
        let cluster = Cluster::start(ClusterConfig::new(nodes), self.runtime.handle());
        self.node = Some((node, cluster));
        self.written = 0;
        self.pass(Operation::Put, 0, 1)?;
        Ok(())
    }

    fn get(&mut self, in_flight: usize) -> Result<Duration> {
        self.load(0, in_flight)
    }

    fn put(&mut self, in_flight: usize) -> Result<Duration> {
        self.written += 1;
        let first = self.written * self.objects.count();
        let time = self.pass(Operation::Put, first, in_flight)?;
        self.load(first, 1)?;
        Ok(time)
    }
}

impl Objects {
    /// The same memory, cut into objects of another size.
    fn new(before: &Self, object_bytes: usize) -> Result<Self> {
        let mut objects = Self {
            source: before.source.clone(),
            destination: before.destination.clone(),
            object_bytes,
            checksums: Vec::new(),
        };
        let mut bytes = vec![0; object_bytes];
        for number in 0..objects.count() {
            objects
                .place(&objects.source, number)?
                .copy_to(&mut bytes)?;
            objects.checksums.push(checksum(&bytes));
        }
        Ok(objects)
    }

    fn count(&self) -> u64 {
        (SET_BYTES / self.object_bytes) as u64
    }

    fn place(&self, region: &Arc<Region>, number: u64) -> Result<Segments> {
        let index = usize::try_from(number % self.count())?;
        segments(region, index * self.object_bytes, self.object_bytes)
    }

    fn key(number: u64) -> KeyDigest {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        KeyDigest(key)
    }

    async fn fetch(&self, cluster: &Cluster, number: u64) -> Result<()> {
        let wanted = Expectation {
            namespace: NAMESPACE,
            key: Self::key(number),
            layout: LAYOUT,
            length_bytes: self.object_bytes as u64,
        };
        let room = Lent::new(self.place(&self.destination, number)?)?;
        match cluster
            .fetch(wanted, None, room, Instant::now() + PATIENCE)
            .await
        {
            (FetchOutcome::Loaded, _) => Ok(()),
            (outcome, _) => bail!("a GET ended as {outcome:?}"),
        }
    }

    async fn store(&self, cluster: &Cluster, number: u64) -> Result<()> {
        let index = usize::try_from(number % self.count())?;
        let header = ObjectHeader {
            namespace: NAMESPACE,
            key: Self::key(number),
            layout: LAYOUT,
            length_bytes: self.object_bytes as u64,
            checksum: self.checksums[index],
            write: WriteId(number),
            tenant: TenantTag::NONE,
        };
        let source = self.place(&self.source, number)?;
        match cluster
            .store(header, source, Instant::now() + PATIENCE)
            .await
        {
            (StoreOutcome::Stored, _) => Ok(()),
            (outcome, _) => bail!("a PUT ended as {outcome:?}"),
        }
    }

    /// Makes sure that what is found later has arrived later.
    fn forget(&self) -> Result<()> {
        let nothing = vec![0; self.object_bytes];
        for number in (0..self.count()).step_by(SAMPLE) {
            Lent::new(self.place(&self.destination, number)?)?.copy_from(&nothing)?;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let (mut sent, mut arrived) = (vec![0; self.object_bytes], vec![0; self.object_bytes]);
        for number in (0..self.count()).step_by(SAMPLE) {
            self.place(&self.source, number)?.copy_to(&mut sent)?;
            self.place(&self.destination, number)?
                .copy_to(&mut arrived)?;
            ensure!(sent == arrived, "object {number} arrived with other bytes");
        }
        Ok(())
    }
}

fn segments(region: &Arc<Region>, offset: usize, length: usize) -> Result<Segments> {
    let mut segments = Segments::with_capacity(1);
    segments.push(region, offset, length)?;
    Ok(segments)
}

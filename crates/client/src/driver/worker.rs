//! Drives the worker's machine: moves objects between the engine's blocks and the nodes.
//!
//! Called by the Python module, once for each hook of the engine's worker. The invariants: block
//! memory is lent to one fetch at a time and reported only after it came back and the fence behind
//! it is over; a save reads blocks only inside `end_step`, behind a fence; the engine's thread
//! waits only in serialized mode, on a preemption, for the copies of a step, and at shutdown.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tessera_lifecycle::worker::TransferResults;
use tessera_lifecycle::{StepPlan, WorkerRoot};
use tessera_proto::TenantTag;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

use super::clock::Clock;
use super::config::EngineConfig;
use super::error::{DriverError, StartError};
use super::handover::{PeerPlace, Peers};
use super::metrics::WorkerMetrics;
use super::price::Meter;
use super::remote::{Remote, connect};
use super::staging::Staging;
use super::transfer::{Machine, Shared, Tally};
use crate::cluster::Cluster;
use crate::layout::{LayerMemory, Layout};
use crate::options::IoMode;

/// How long shutdown waits for the runtime's threads.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker's side of the connector.
#[derive(Debug)]
pub struct WorkerDriver<R: Remote = Cluster> {
    shared: Arc<Shared<R>>,
    /// Direct transfers, if this engine takes part in any.
    peers: Option<Peers>,
    runtime: Mutex<Option<Runtime>>,
}

impl WorkerDriver<Cluster> {
    /// Starts a worker's side over its block memory, with the nodes of the options.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &EngineConfig, layers: Vec<LayerMemory>) -> Result<Self, StartError> {
        Self::start_with(config, layers, |runtime| connect(&config.options, runtime))
    }
}

impl<R: Remote> WorkerDriver<R> {
    /// Starts a worker's side with the nodes that `connect` makes on the driver's runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(
        config: &EngineConfig,
        layers: Vec<LayerMemory>,
        connect: impl FnOnce(&Handle) -> Result<R, StartError>,
    ) -> Result<Self, StartError> {
        let worker = config.worker()?;
        let namespace = worker.namespace;
        let layout = Arc::new(Layout::new(&worker.shape, layers)?);
        let staging = new_staging(config.options.staging_bytes, layout.largest_object_bytes())?;
        for device in layout.devices() {
            if let Err(error) = device.pin(staging.region()) {
                tracing::warn!(%error, "copies from and to the device will be slower");
            }
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tessera-transfer")
            .enable_all()
            .build()?;
        let peers = Peers::start(config, &layout, runtime.handle())?;
        let meter = Meter::new(layout.largest_object_bytes());
        let stores = usize::try_from(config.options.max_saves).unwrap_or(Semaphore::MAX_PERMITS);
        let shared = Shared {
            remote: connect(runtime.handle())?,
            clock: Clock::new(),
            layout,
            namespace,
            tenant: TenantTag::of(&config.options.tenant),
            io: config.options.io,
            staging,
            stores: Semaphore::new(stores.min(Semaphore::MAX_PERMITS)),
            store_timeout: config.options.save_timeout,
            proof_timeout: config.options.proof_timeout,
            preempt_timeout: config.options.preempt_timeout,
            machine: Mutex::new(Machine::new(WorkerRoot::new(worker), meter)),
            changed: Condvar::new(),
            runtime: runtime.handle().clone(),
            tally: Tally::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            peers,
            runtime: Mutex::new(Some(runtime)),
        })
    }

    /// Where other engines find this worker, if they may.
    #[must_use]
    pub fn peer_place(&self) -> Option<PeerPlace> {
        self.peers.as_ref().map(Peers::place)
    }

    /// Takes the scheduler's plan and starts its loads. In serialized mode they are over when it
    /// returns.
    ///
    /// # Errors
    /// [`DriverError::Plan`], [`DriverError::Closed`], [`DriverError::Memory`].
    pub fn begin_step(&self, metadata: &[u8]) -> Result<(), DriverError> {
        let plan = StepPlan::decode(metadata)?;
        let shared = &self.shared;
        let _sentry = Shared::sentry(shared);
        let mut machine = shared.open()?;
        machine.root.begin_step(shared.clock.now(), &plan);
        Shared::execute(shared, &mut machine);
        if let Some(peers) = &self.peers {
            peers.begin_step(&plan);
        }
        if shared.io == IoMode::Serial {
            let over = |machine: &Machine| !machine.root.is_any_loading();
            Shared::wait_until(shared, &mut machine, None, over)?;
        }
        machine.meter.begin(shared.clock.now());
        Ok(())
    }

    /// The step's computation is over: copies what it completed, and what no node has said that it
    /// has, into staging memory and lets it be stored from there.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn end_step(&self) -> Result<(), DriverError> {
        let shared = &self.shared;
        let _sentry = Shared::sentry(shared);
        let mut machine = shared.open()?;
        machine.root.end_step();
        let saves = Shared::execute(shared, &mut machine);
        let admission = std::mem::take(&mut machine.admission);
        drop(machine);
        if saves.is_empty() {
            return Ok(());
        }
        let started = shared.clock.now();
        Shared::save_all(shared, saves, &admission);
        let copied = shared.clock.now().nanos_since(started);
        shared.tally.copy_ns.fetch_add(copied, Ordering::Relaxed);
        Ok(())
    }

    /// Blocks of preempted requests are about to be overwritten: returns when no load of theirs can
    /// write any more. Waits for nothing else; saves are copies.
    ///
    /// Parts that were not issued are dropped at once. Those under way may end by themselves for
    /// `preempt_timeout_ms`; then their memory is called back, which costs an answer that has begun
    /// its connection. Memory that does not come back even so, or a device that owes its fence,
    /// stops the worker.
    ///
    /// # Errors
    /// [`DriverError::Memory`]: the memory may be written for ever, and the step must not go on.
    /// [`DriverError::Plan`], [`DriverError::Closed`].
    pub fn preempt(&self, metadata: &[u8]) -> Result<(), DriverError> {
        let plan = StepPlan::decode(metadata)?;
        let shared = &self.shared;
        let _sentry = Shared::sentry(shared);
        let mut machine = shared.open()?;
        let loads = &plan.preempted;
        machine.root.preempt(loads);
        Shared::execute(shared, &mut machine);
        let over = |machine: &Machine| {
            let mut loads = loads.iter();
            !loads.any(|load| machine.root.is_loading(*load))
        };
        let limit = shared.preempt_timeout;
        if !Shared::wait_until(shared, &mut machine, Some(limit), over)? {
            tracing::warn!(
                ?limit,
                "loads of preempted requests go on: their memory is called back"
            );
            machine.recall(|load| loads.contains(&load));
            Shared::wait_until(shared, &mut machine, None, over)?;
        }
        Ok(())
    }

    /// The receives and sends that are over on this rank. Call
    /// [`take_invalid_blocks`](Self::take_invalid_blocks) in the same pass.
    ///
    /// # Errors
    /// [`DriverError::Closed`], [`DriverError::Peer`].
    pub fn poll(&self) -> Result<TransferResults, DriverError> {
        let shared = &self.shared;
        let _sentry = Shared::sentry(shared);
        let mut machine = shared.open()?;
        Shared::take_up(shared, &mut machine);
        let mut results = machine.root.take_results();
        if let Some(peers) = &self.peers {
            peers.collect(&mut results)?;
        }
        Ok(results)
    }

    /// Blocks without valid content. Empty for layouts of more than one group, always.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn take_invalid_blocks(&self) -> Result<Vec<u32>, DriverError> {
        let mut blocks = self.shared.open()?.root.take_invalid_blocks();
        blocks.extend(self.peers.iter().flat_map(Peers::take_invalid_blocks));
        Ok(blocks)
    }

    /// Whether a device owes a proof for so long that the worker has stopped. Memory that was
    /// registered must never be freed then.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let stopped = self.shared.machine.lock().stopped.is_some();
        stopped || self.peers.as_ref().is_some_and(Peers::is_stopped)
    }

    /// Whether no load, save, direct transfer or question about a step's saves is under way, and
    /// all staging memory is back: nothing changes any more before the next
    /// [`begin_step`](Self::begin_step), but for what is not collected.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let _sentry = Shared::sentry(&self.shared);
        let mut machine = self.shared.machine.lock();
        Shared::take_up(&self.shared, &mut machine);
        let is_answered = !machine.admission.is_open();
        let cache = machine.root.is_idle() && is_answered && self.shared.staging.used_bytes() == 0;
        cache && self.peers.as_ref().is_none_or(Peers::is_idle)
    }

    /// What happened so far. Also after shutdown.
    #[must_use]
    pub fn metrics(&self) -> WorkerMetrics {
        let shared = &self.shared;
        let tally = &shared.tally;
        WorkerMetrics {
            machine: shared.machine.lock().root.counters(),
            bytes_loaded: tally.bytes_loaded.load(Ordering::Relaxed),
            bytes_saved: tally.bytes_saved.load(Ordering::Relaxed),
            integrity_failures: tally.integrity_failures.load(Ordering::Relaxed),
            staging_bytes_used: shared.staging.used_bytes(),
            copy_ns: tally.copy_ns.load(Ordering::Relaxed),
            peers: self.peers.as_ref().map(Peers::metrics).unwrap_or_default(),
        }
    }

    /// Bytes of one object of `group`.
    #[must_use]
    pub fn object_bytes(&self, group: usize) -> u64 {
        self.shared.layout.object_bytes(group)
    }

    /// The nodes, for their own metrics.
    #[must_use]
    pub fn remote(&self) -> &R {
        &self.shared.remote
    }

    /// Starts nothing more, waits until loads and saves under way are over, ends the connections,
    /// and returns the outcomes that were not collected. Loads that take longer than a save may are
    /// called back; what a device still reads or writes in blocks is waited for until it has
    /// finished or stopped the worker. A second call does nothing.
    pub fn shutdown(&self) -> TransferResults {
        let Some(runtime) = self.runtime.lock().take() else {
            return TransferResults::default();
        };
        let shared = &self.shared;
        let _sentry = Shared::sentry(shared);
        let mut machine = shared.machine.lock();
        machine.closed = true;
        machine.root.close();
        Shared::execute(shared, &mut machine);
        let limit = Some(shared.store_timeout);
        let is_idle = |machine: &Machine| machine.root.is_idle();
        let ended = Shared::wait_until(shared, &mut machine, limit, is_idle);
        if ended == Ok(false) {
            machine.recall(|_| true);
        }
        let at_rest = |machine: &Machine| !machine.root.is_any_loading() && machine.copies_out == 0;
        if let Err(stopped) = Shared::wait_until(shared, &mut machine, None, at_rest) {
            tracing::debug!(%stopped, "shutdown waits for nothing more");
        }
        let results = machine.root.take_results();
        drop(machine);
        if let Some(peers) = &self.peers {
            runtime.block_on(peers.shutdown());
        }
        runtime.block_on(shared.remote.shutdown());
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        results
    }
}

impl<R: Remote> Drop for WorkerDriver<R> {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn new_staging(bytes: u64, object: u64) -> Result<Arc<Staging>, StartError> {
    let refused = |reason: String| StartError::Staging { bytes, reason };
    if bytes < object {
        return Err(refused(format!(
            "one object of this model has {object} bytes"
        )));
    }
    let length = usize::try_from(bytes).map_err(|error| refused(error.to_string()))?;
    Staging::new(length).map_err(|error| refused(error.to_string()))
}

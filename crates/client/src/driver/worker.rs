//! Drives the worker's machine: moves objects between the engine's blocks and the nodes.
//!
//! Called by the Python module, once for each hook of the engine's worker. The invariants: block
//! memory is lent to one fetch at a time and reported only after it came back; a save reads blocks
//! only inside `end_step`; the engine's thread waits only in serialized mode, on a preemption, and
//! at shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tessera_lifecycle::worker::{
    Fetch, LoadFailure, Save, SaveOutcome, TransferResults, WorkerCommand, WorkerEvent,
};
use tessera_lifecycle::{LoadMode, StepPlan, WorkerRoot};
use tessera_proto::{Expectation, NamespaceDigest, ObjectHeader, WriteId};
use tessera_transport::{Lent, Region};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

use super::clock::Clock;
use super::config::EngineConfig;
use super::error::{DriverError, StartError};
use super::metrics::WorkerMetrics;
use super::remote::{Remote, connect};
use super::scheduler::lease_of;
use super::staging::{Slot, Staging};
use crate::cluster::{Cluster, FetchOutcome, StoreOutcome};
use crate::layout::{Discard, LayerMemory, Layout};

/// How often a wait looks at the clock for loads whose deadline has come.
const TICK: Duration = Duration::from_millis(20);

/// How long shutdown waits for the runtime's threads.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker's side of the connector.
#[derive(Debug)]
pub struct WorkerDriver<R: Remote = Cluster> {
    shared: Arc<Shared<R>>,
    runtime: Mutex<Option<Runtime>>,
}

#[derive(Debug)]
struct Shared<R> {
    remote: R,
    clock: Clock,
    layout: Layout,
    namespace: NamespaceDigest,
    mode: LoadMode,
    staging: Arc<Staging>,
    stores: Semaphore,
    store_timeout: Duration,
    machine: Mutex<Machine>,
    changed: Condvar,
    runtime: Handle,
    tally: Tally,
}

#[derive(Debug)]
struct Machine {
    root: WorkerRoot,
    /// Completions that the model thread takes up by itself, in serialized mode.
    completions: Vec<WorkerEvent>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Tally {
    bytes_loaded: AtomicU64,
    bytes_saved: AtomicU64,
    integrity_failures: AtomicU64,
    copy_ns: AtomicU64,
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
        let layout = Layout::new(&worker.shape, layers)?;
        let staging = new_staging(config.options.staging_bytes, layout.largest_object_bytes())?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tessera-transfer")
            .enable_all()
            .build()?;
        let stores = usize::try_from(config.options.max_saves).unwrap_or(Semaphore::MAX_PERMITS);
        let shared = Shared {
            remote: connect(runtime.handle())?,
            clock: Clock::new(),
            layout,
            namespace,
            mode: config.mode(),
            staging,
            stores: Semaphore::new(stores.min(Semaphore::MAX_PERMITS)),
            store_timeout: config.options.save_timeout,
            machine: Mutex::new(Machine {
                root: WorkerRoot::new(worker),
                completions: Vec::new(),
                closed: false,
            }),
            changed: Condvar::new(),
            runtime: runtime.handle().clone(),
            tally: Tally::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            runtime: Mutex::new(Some(runtime)),
        })
    }

    /// Takes the scheduler's plan and starts its loads. In serialized mode they are over when it
    /// returns.
    ///
    /// # Errors
    /// [`DriverError::Load`]: a load that the step depends on failed and no block can name it, so
    /// the step must fail. [`DriverError::Plan`], [`DriverError::Closed`].
    pub fn begin_step(&self, metadata: &[u8]) -> Result<(), DriverError> {
        let plan = StepPlan::decode(metadata)?;
        let shared = &self.shared;
        let mut machine = shared.open()?;
        machine.root.begin_step(shared.clock.now(), &plan);
        Shared::execute(shared, &mut machine);
        if shared.mode == LoadMode::Serialized {
            Shared::wait_until(shared, &mut machine, |root| !root.is_any_loading());
        }
        match machine.root.take_unnamed_failure() {
            Some(failure) => Err(DriverError::Load(failure)),
            None => Ok(()),
        }
    }

    /// The step's computation is over: copies what it completed into staging memory and lets it be
    /// stored from there.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn end_step(&self) -> Result<(), DriverError> {
        let shared = &self.shared;
        let mut saves = Vec::new();
        let mut machine = shared.open()?;
        machine.root.end_step();
        while let Some(command) = machine.root.poll_command() {
            match command {
                WorkerCommand::Save(save) => saves.push(save),
                other => Shared::execute_one(shared, &mut machine, other),
            }
        }
        drop(machine);
        if saves.is_empty() {
            return Ok(());
        }
        let started = shared.clock.now();
        for save in &saves {
            Shared::save(shared, save);
        }
        let copied = shared.clock.now().nanos_since(started);
        shared.tally.copy_ns.fetch_add(copied, Ordering::Relaxed);
        Ok(())
    }

    /// Blocks of preempted requests are about to be overwritten: returns when no load of theirs can
    /// write any more. Waits for nothing else.
    ///
    /// # Errors
    /// [`DriverError::Plan`], [`DriverError::Closed`].
    pub fn preempt(&self, metadata: &[u8]) -> Result<(), DriverError> {
        let plan = StepPlan::decode(metadata)?;
        let shared = &self.shared;
        let mut machine = shared.open()?;
        machine.root.preempt(&plan.preempted);
        Shared::execute(shared, &mut machine);
        Shared::wait_until(shared, &mut machine, |root| {
            !plan.preempted.iter().any(|load| root.is_loading(*load))
        });
        Ok(())
    }

    /// The receives that are over on this rank. Call
    /// [`take_invalid_blocks`](Self::take_invalid_blocks) in the same pass.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn poll(&self) -> Result<TransferResults, DriverError> {
        let shared = &self.shared;
        let mut machine = shared.open()?;
        Shared::take_up(shared, &mut machine);
        Ok(machine.root.take_results())
    }

    /// Blocks without valid content. Empty for layouts of more than one group, always.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn take_invalid_blocks(&self) -> Result<Vec<u32>, DriverError> {
        Ok(self.shared.open()?.root.take_invalid_blocks())
    }

    /// Whether no load and no save is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let mut machine = self.shared.machine.lock();
        Shared::take_up(&self.shared, &mut machine);
        machine.root.is_idle()
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
    /// and returns the outcomes that were not collected. A second call does nothing.
    pub fn shutdown(&self) -> TransferResults {
        let Some(runtime) = self.runtime.lock().take() else {
            return TransferResults::default();
        };
        let shared = &self.shared;
        let mut machine = shared.machine.lock();
        machine.closed = true;
        machine.root.close();
        Shared::execute(shared, &mut machine);
        let limit = shared
            .clock
            .now()
            .after_millis(super::config::millis(shared.store_timeout));
        Shared::wait_until(shared, &mut machine, |root| {
            let over = shared.clock.now() >= limit;
            root.is_idle() || (over && !root.is_any_loading())
        });
        let results = machine.root.take_results();
        drop(machine);
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

impl<R: Remote> Shared<R> {
    fn open(&self) -> Result<MutexGuard<'_, Machine>, DriverError> {
        let machine = self.machine.lock();
        match machine.closed {
            true => Err(DriverError::Closed),
            false => Ok(machine),
        }
    }

    /// Gives the machine what came in, and the time.
    fn take_up(shared: &Arc<Self>, machine: &mut Machine) {
        for event in std::mem::take(&mut machine.completions) {
            machine.root.handle_event(event);
            Self::execute(shared, machine);
        }
        machine.root.handle_timeout(shared.clock.now());
        Self::execute(shared, machine);
    }

    /// Waits on the engine's thread, which goes on executing commands.
    fn wait_until(
        shared: &Arc<Self>,
        machine: &mut MutexGuard<'_, Machine>,
        over: impl Fn(&WorkerRoot) -> bool,
    ) {
        loop {
            Self::take_up(shared, machine);
            if over(&machine.root) {
                return;
            }
            shared.changed.wait_for(machine, TICK);
        }
    }

    /// Executes all commands of the machine; none of them waits.
    fn execute(shared: &Arc<Self>, machine: &mut Machine) {
        while let Some(command) = machine.root.poll_command() {
            Self::execute_one(shared, machine, command);
        }
    }

    fn execute_one(shared: &Arc<Self>, machine: &mut Machine, command: WorkerCommand) {
        match command {
            // Host memory is at rest and visible as soon as it is written.
            WorkerCommand::Fence { load, phase } => {
                machine
                    .root
                    .handle_event(WorkerEvent::Fenced { load, phase });
            }
            WorkerCommand::Fetch(fetch) => Self::fetch(shared, machine, fetch),
            WorkerCommand::Save(save) => {
                // Saves are handed out at the end of a step only, and taken there.
                let outcome = SaveOutcome::StagingFull;
                let save = save.save;
                machine
                    .root
                    .handle_event(WorkerEvent::Saved { save, outcome });
            }
        }
    }

    fn complete(shared: &Arc<Self>, event: WorkerEvent) {
        let mut machine = shared.machine.lock();
        if shared.mode == LoadMode::Serialized {
            machine.completions.push(event);
        } else {
            machine.root.handle_event(event);
            Self::execute(shared, &mut machine);
        }
        drop(machine);
        shared.changed.notify_all();
    }

    fn fetch(shared: &Arc<Self>, machine: &mut Machine, fetch: Fetch) {
        let (load, part) = (fetch.load, fetch.part);
        let (lent, discard) = match shared.lend(&fetch) {
            Ok(lent) => lent,
            Err(failure) => {
                let result = Err(failure);
                let event = WorkerEvent::Fetched { load, part, result };
                machine.root.handle_event(event);
                return;
            }
        };
        let own = Arc::clone(shared);
        shared.runtime.spawn(async move {
            let result = Self::fetch_into(&own, fetch, lent).await;
            drop(discard);
            Self::complete(&own, WorkerEvent::Fetched { load, part, result });
        });
    }

    /// The destination of a fetch, with memory of its own for what has no block.
    fn lend(&self, fetch: &Fetch) -> Result<(Lent, Option<Slot>), LoadFailure> {
        let Fetch {
            group,
            destinations,
            ..
        } = fetch;
        let discarded = self.layout.discarded_bytes(*group, destinations);
        let length = usize::try_from(discarded).map_err(|_| LoadFailure::Abnormal)?;
        let slot = match length {
            0 => None,
            _ => self.staging.take(length),
        };
        let discard = match &slot {
            Some(slot) => Some(slot.discard()),
            None if length == 0 => None,
            None => {
                let region = Region::allocate(length).map_err(|_| LoadFailure::Abnormal)?;
                Some(Discard { region, offset: 0 })
            }
        };
        let lent = self.layout.scatter(*group, destinations, discard.as_ref());
        let lent = lent.map_err(|_| LoadFailure::Unallocated)?;
        Ok((lent, slot))
    }

    async fn fetch_into(shared: &Arc<Self>, fetch: Fetch, lent: Lent) -> Result<(), LoadFailure> {
        let expectation = Expectation {
            namespace: shared.namespace,
            key: fetch.key,
            layout: shared.layout.fingerprint(fetch.group),
            length_bytes: lent.length_bytes(),
        };
        let length_bytes = expectation.length_bytes;
        let lease = fetch.lease.map(lease_of);
        let deadline = shared.clock.deadline(fetch.deadline);
        let own = Arc::clone(shared);
        let task = async move { own.remote.fetch(expectation, lease, lent, deadline).await };
        let Ok((outcome, _lent)) = shared.runtime.spawn(task).await else {
            // The fetch ended without giving its memory back. Ending all connections is the proof
            // that nothing writes to it any more; later loads fail as unreachable.
            shared.remote.shutdown().await;
            return Err(LoadFailure::Abnormal);
        };
        let tally = &shared.tally;
        match outcome {
            FetchOutcome::Loaded => {
                tally
                    .bytes_loaded
                    .fetch_add(length_bytes, Ordering::Relaxed);
                Ok(())
            }
            FetchOutcome::Missing => Err(LoadFailure::Miss),
            FetchOutcome::LeaseOver => Err(LoadFailure::LeaseOver),
            FetchOutcome::Length => Err(LoadFailure::Length),
            FetchOutcome::Corrupt { .. } => {
                tally.integrity_failures.fetch_add(1, Ordering::Relaxed);
                Err(LoadFailure::Corrupt)
            }
            FetchOutcome::Busy => Err(LoadFailure::Busy),
            FetchOutcome::Deadline => Err(LoadFailure::Deadline),
            FetchOutcome::Unreachable => Err(LoadFailure::Unreachable),
        }
    }

    /// Copies one object out of its blocks, on the calling thread, and stores it beside it.
    fn save(shared: &Arc<Self>, save: &Save) {
        let id = save.save;
        let Some((header, slot)) = shared.stage(save) else {
            let outcome = SaveOutcome::StagingFull;
            Self::complete(shared, WorkerEvent::Saved { save: id, outcome });
            return;
        };
        let own = Arc::clone(shared);
        shared.runtime.spawn(async move {
            let outcome = Self::store(&own, header, slot).await;
            Self::complete(&own, WorkerEvent::Saved { save: id, outcome });
        });
    }

    fn stage(&self, save: &Save) -> Option<(ObjectHeader, Slot)> {
        let source = self.layout.gather(save.group, &save.blocks).ok()?;
        let length_bytes = self.layout.object_bytes(save.group);
        if source.length_bytes() != length_bytes {
            return None;
        }
        let slot = self.staging.take(usize::try_from(length_bytes).ok()?)?;
        Lent::new(slot.segments())
            .copy_from_segments(&source)
            .ok()?;
        let header = ObjectHeader {
            namespace: self.namespace,
            key: save.key,
            layout: self.layout.fingerprint(save.group),
            length_bytes,
            checksum: 0,
            write: WriteId(0),
        };
        Some((header, slot))
    }

    async fn store(shared: &Arc<Self>, mut header: ObjectHeader, slot: Slot) -> SaveOutcome {
        let Ok(_permit) = shared.stores.acquire().await else {
            return SaveOutcome::Refused;
        };
        let deadline = tokio::time::Instant::now() + shared.store_timeout;
        let mut write = [0; 8];
        if getrandom::fill(&mut write).is_err() {
            return SaveOutcome::Refused;
        }
        let segments = slot.segments();
        header.checksum = segments.checksum();
        header.write = WriteId(u64::from_le_bytes(write));
        let own = Arc::clone(shared);
        let task = async move { own.remote.store(header, segments, deadline).await };
        match shared.runtime.spawn(task).await {
            Ok((StoreOutcome::Stored, _)) => {
                let saved = &shared.tally.bytes_saved;
                saved.fetch_add(header.length_bytes, Ordering::Relaxed);
                SaveOutcome::Stored
            }
            Ok((StoreOutcome::Existed, _)) => SaveOutcome::Existed,
            Ok(_) => SaveOutcome::Refused,
            Err(_) => {
                // As for a fetch: nothing reads the slot any more once all connections have ended.
                shared.remote.shutdown().await;
                SaveOutcome::Refused
            }
        }
    }
}

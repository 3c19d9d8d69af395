//! Moves objects between the engine's blocks and the nodes, as the worker's machine commands.
//!
//! Called by [`WorkerDriver`](super::WorkerDriver) on the engine's thread and by its own tasks when
//! a fetch or a store has ended. The invariants: a completion is given to the machine only after
//! the memory of its operation came back; if an operation ends without giving it back, all
//! connections are ended first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tessera_lifecycle::worker::{
    Fetch, LoadFailure, Phase, Save, SaveOutcome, WorkerCommand, WorkerEvent,
};
use tessera_lifecycle::{LoadId, WorkerRoot};
use tessera_proto::{Expectation, NamespaceDigest, ObjectHeader, TenantTag, WriteId};
use tessera_transport::{Lent, LentRanges, Segments};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::admission::Admission;
use super::clock::Clock;
use super::config::millis;
use super::error::{DriverError, MemoryFault};
use super::landing::{Copying, Landing};
use super::price::Meter;
use super::remote::Remote;
use super::scheduler::lease_of;
use super::staging::{Slot, Staging};
use crate::cluster::{FetchOutcome, StoreOutcome};
use crate::layout::Layout;
use crate::options::IoMode;
use crate::until::{Recall, Until};

/// How often a wait looks at the clock for loads whose deadline has come.
const TICK: Duration = Duration::from_millis(20);

/// What the engine's thread and the transfers share.
#[derive(Debug)]
pub(super) struct Shared<R> {
    pub(super) remote: R,
    pub(super) clock: Clock,
    /// Registered once: direct transfers use the same.
    pub(super) layout: Arc<Layout>,
    pub(super) namespace: NamespaceDigest,
    pub(super) tenant: TenantTag,
    pub(super) io: IoMode,
    pub(super) staging: Arc<Staging>,
    pub(super) stores: Semaphore,
    pub(super) store_timeout: Duration,
    pub(super) proof_timeout: Duration,
    pub(super) preempt_timeout: Duration,
    pub(super) machine: Mutex<Machine>,
    pub(super) changed: Condvar,
    pub(super) runtime: Handle,
    pub(super) tally: Tally,
}

/// The machine and what waits for it, under one lock.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) root: WorkerRoot,
    /// Completions that the model thread takes up by itself, in serialized mode.
    pub(super) completions: Vec<WorkerEvent>,
    pub(super) closed: bool,
    /// What it costs to compute what is saved.
    pub(super) meter: Meter,
    /// What nodes have said of the objects that the end of this step saves.
    pub(super) admission: Admission,
    /// Calls back what a load's transfers hold, for each load that has begun some.
    recalls: BTreeMap<LoadId, Recall>,
    /// Device memory that was written for a load and is not behind its fence.
    unfenced: BTreeMap<LoadId, Vec<LentRanges>>,
    /// Copies out of blocks that a device has not finished.
    pub(super) copies_out: usize,
    /// Memory may be written for ever.
    pub(super) stopped: Option<MemoryFault>,
}

impl Machine {
    pub(super) fn new(root: WorkerRoot, meter: Meter) -> Self {
        Self {
            root,
            completions: Vec::new(),
            closed: false,
            meter,
            admission: Admission::default(),
            recalls: BTreeMap::new(),
            unfenced: BTreeMap::new(),
            copies_out: 0,
            stopped: None,
        }
    }

    /// Keeps what was written for a load from everybody else until its fence.
    pub(super) fn hold(&mut self, load: LoadId, written: LentRanges) {
        self.unfenced.entry(load).or_default().push(written);
    }

    /// Takes what is over. Behind the fence of a load, what was written for it is free again.
    fn take(&mut self, event: WorkerEvent) {
        if let WorkerEvent::Fenced {
            load,
            phase: Phase::After,
        } = event
        {
            self.unfenced.remove(&load);
        }
        self.root.handle_event(event);
    }

    /// Calls back what the transfers of `loads` hold.
    pub(super) fn recall(&self, loads: impl Fn(LoadId) -> bool) {
        for (load, recall) in &self.recalls {
            if loads(*load) {
                recall.call();
            }
        }
    }
}

/// An object on its way from its blocks to a slot.
enum Staged {
    Copied(Copied),
    Copying(Copying),
}

/// An object in its slot.
struct Copied {
    slot: Slot,
    /// Of its bytes, where the copy was ours and took it along; a device says nothing of them.
    checksum: Option<u64>,
}

/// Counts that are not the machine's.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) bytes_loaded: AtomicU64,
    pub(super) bytes_saved: AtomicU64,
    pub(super) integrity_failures: AtomicU64,
    pub(super) copy_ns: AtomicU64,
    /// When the log last said that a save was refused.
    refused: Mutex<Option<Instant>>,
}

/// The log says no more often than this that saves are refused.
const REFUSED_EVERY: Duration = Duration::from_secs(60);

impl Tally {
    /// Says in the log, once a minute at most, that saves do not reach their node.
    fn stored(&self, outcome: StoreOutcome) {
        if matches!(outcome, StoreOutcome::Stored | StoreOutcome::Existed) {
            return;
        }
        let mut refused = self.refused.lock();
        if refused.is_none_or(|at| at.elapsed() >= REFUSED_EVERY) {
            *refused = Some(Instant::now());
            tracing::warn!(
                ?outcome,
                "an object was not saved; `saves_refused` counts them"
            );
        }
    }
}

impl<R: Remote> Shared<R> {
    pub(super) fn open(&self) -> Result<MutexGuard<'_, Machine>, DriverError> {
        let machine = self.machine.lock();
        match (machine.closed, &machine.stopped) {
            (true, _) => Err(DriverError::Closed),
            (false, Some(fault)) => Err(DriverError::Memory(fault.clone())),
            (false, None) => Ok(machine),
        }
    }

    /// Gives the machine what came in, and the time.
    pub(super) fn take_up(shared: &Arc<Self>, machine: &mut Machine) {
        for event in std::mem::take(&mut machine.completions) {
            machine.take(event);
            Self::execute(shared, machine);
        }
        machine.root.handle_timeout(shared.clock.now());
        Self::execute(shared, machine);
    }

    /// Waits on the engine's thread, which goes on executing commands. Whether it is over, or the
    /// time of `limit` is.
    ///
    /// # Errors
    /// [`DriverError::Memory`]: what is waited for will not come.
    pub(super) fn wait_until(
        shared: &Arc<Self>,
        machine: &mut MutexGuard<'_, Machine>,
        limit: Option<Duration>,
        over: impl Fn(&Machine) -> bool,
    ) -> Result<bool, DriverError> {
        let limit = limit.map(|limit| shared.clock.now().after_millis(millis(limit)));
        loop {
            Self::take_up(shared, machine);
            if over(machine) {
                return Ok(true);
            }
            if limit.is_some_and(|limit| shared.clock.now() >= limit) {
                return Ok(false);
            }
            if let Some(fault) = &machine.stopped {
                return Err(DriverError::Memory(fault.clone()));
            }
            shared.changed.wait_for(machine, TICK);
        }
    }

    /// Executes all commands of the machine, one mutation after the other; none of them waits.
    /// Returns the saves: the caller, at the end of a step, copies them without holding the lock.
    pub(super) fn execute(shared: &Arc<Self>, machine: &mut Machine) -> Vec<Save> {
        let mut saves = Vec::new();
        let mut answers = VecDeque::new();
        loop {
            while let Some(command) = machine.root.poll_command() {
                match command {
                    WorkerCommand::Fence { load, phase } => {
                        answers.extend(Self::fence(shared, load, phase));
                    }
                    WorkerCommand::Fetch(fetch) => {
                        let recall = machine.recalls.entry(fetch.load).or_default().clone();
                        Self::fetch(shared, fetch, &recall);
                    }
                    WorkerCommand::Probe(keys) => {
                        Self::probe(shared, &mut machine.admission, keys);
                    }
                    WorkerCommand::Save(save) => saves.push(save),
                }
            }
            match answers.pop_front() {
                Some(answer) => machine.take(answer),
                None => {
                    let Machine { root, recalls, .. } = machine;
                    recalls.retain(|load, _| root.is_loading(*load));
                    return saves;
                }
            }
        }
    }

    pub(super) fn complete(shared: &Arc<Self>, event: WorkerEvent) {
        let mut machine = shared.machine.lock();
        if shared.io == IoMode::Serial {
            machine.completions.push(event);
        } else {
            machine.take(event);
            Self::execute(shared, &mut machine);
        }
        drop(machine);
        shared.changed.notify_all();
    }

    /// Starts a fetch. Its memory is lent beside the engine's thread, which does not wait for that.
    fn fetch(shared: &Arc<Self>, fetch: Fetch, recall: &Recall) {
        let (load, part) = (fetch.load, fetch.part);
        let own = Arc::clone(shared);
        let until = Until::new(shared.clock.deadline(fetch.deadline), recall);
        Self::spawn(shared, async move {
            let fetched = match own.lend(&fetch) {
                Ok(landing) => Self::fetch_into(&own, &fetch, landing, until).await,
                Err(failure) => Ok(Err(failure)),
            };
            match fetched {
                Ok(result) => Self::complete(&own, WorkerEvent::Fetched { load, part, result }),
                Err(fault) => Self::stop(&own, fault),
            }
        });
    }

    /// Receives one object and copies it to where it belongs. An error of the inner result fails
    /// the load, one of the outer stops the worker: the part is never over.
    async fn fetch_into(
        shared: &Arc<Self>,
        fetch: &Fetch,
        landing: Landing,
        until: Until,
    ) -> Result<Result<(), LoadFailure>, MemoryFault> {
        let Landing { lent, slot, places } = landing;
        let landed = match Self::receive(shared, fetch, lent, until).await {
            Ok(Ok(payload)) => shared.land(fetch.load, payload, places).await,
            Ok(Err(failure)) => Ok(Err(failure)),
            Err(fault) => Err(fault),
        };
        if landed.is_err() {
            // It may be in use for ever.
            std::mem::forget(slot);
        }
        landed
    }

    /// Receives and verifies one object. Gives back what holds it. An error of the inner result
    /// fails the load, one of the outer stops the worker.
    async fn receive(
        shared: &Arc<Self>,
        fetch: &Fetch,
        lent: Lent,
        until: Until,
    ) -> Result<Result<Segments, LoadFailure>, MemoryFault> {
        let expectation = Expectation {
            namespace: shared.namespace,
            key: fetch.key,
            layout: shared.layout.fingerprint(fetch.group),
            length_bytes: lent.length_bytes(),
        };
        let length_bytes = expectation.length_bytes;
        let lease = fetch.lease.map(lease_of);
        let (own, limit) = (Arc::clone(shared), shared.proof_timeout);
        let task = {
            let until = until.clone();
            async move { own.remote.fetch(expectation, lease, lent, until).await }
        };
        let late = async {
            until.passed().await;
            tokio::time::sleep(limit).await;
        };
        let ended = tokio::select! {
            biased;
            ended = shared.runtime.spawn(task) => ended,
            () = late => return Err(MemoryFault::Transfer { limit }),
        };
        let Ok((outcome, mut lent)) = ended else {
            // The fetch ended without giving its memory back. Ending all connections is the proof
            // that nothing writes to it any more; later loads fail as unreachable.
            shared.remote.shutdown().await;
            shared.clear(fetch);
            return Ok(Err(LoadFailure::Abnormal));
        };
        if outcome != FetchOutcome::Loaded {
            // What was not verified must not stay in a block: engines hand blocks out again without
            // overwriting them, and a value that is no number spoils what is multiplied with zero.
            lent.clear();
        }
        let tally = &shared.tally;
        Ok(match outcome {
            FetchOutcome::Loaded => {
                tally
                    .bytes_loaded
                    .fetch_add(length_bytes, Ordering::Relaxed);
                Ok(lent.into_segments())
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
            FetchOutcome::Recalled => Err(LoadFailure::Cancelled),
            FetchOutcome::Unreachable => Err(LoadFailure::Unreachable),
        })
    }

    /// Copies objects out of their blocks behind one fence, but for those that a node has already,
    /// and stores the copies beside the engine's work. Returns when no block is read any more, or
    /// nobody will store what is read.
    pub(super) fn save_all(shared: &Arc<Self>, saves: Vec<Save>, admission: &Admission) {
        let is_present = |save: &Save| admission.is_present(&save.key);
        let (present, saves): (Vec<_>, Vec<_>) = saves.into_iter().partition(is_present);
        for save in &present {
            Self::saved(shared, save, SaveOutcome::Existed);
        }
        if saves.is_empty() {
            return;
        }
        let deadline = tokio::time::Instant::now() + shared.store_timeout;
        let computed = present.iter().chain(&saves);
        let bytes = computed.map(|save| shared.layout.object_bytes(save.group));
        let bytes = bytes.sum();
        if let Err(fault) = shared.rest(deadline) {
            tracing::warn!(%fault, "a step's objects are not saved");
            for save in &saves {
                Self::saved(shared, save, SaveOutcome::Device);
            }
            return;
        }
        // Behind the fence: until here, the device has computed.
        let now = shared.clock.now();
        if let Some(price) = shared.machine.lock().meter.end(now, bytes) {
            shared.remote.price(price);
        }
        let staged: Vec<_> = saves.iter().map(|save| Self::stage(shared, save)).collect();
        for (save, staged) in saves.iter().zip(staged) {
            let copied = staged.and_then(|staged| match staged {
                Staged::Copied(copied) => Ok(copied),
                Staged::Copying(copying) => {
                    let (slot, checksum) = (shared.copied(copying, deadline)?, None);
                    Ok(Copied { slot, checksum })
                }
            });
            match copied {
                Err(outcome) => Self::saved(shared, save, outcome),
                Ok(copied) => Self::start_store(shared, save, copied, admission.clone()),
            }
        }
    }

    fn saved(shared: &Arc<Self>, save: &Save, outcome: SaveOutcome) {
        let save = save.save;
        Self::complete(shared, WorkerEvent::Saved { save, outcome });
    }

    fn start_store(shared: &Arc<Self>, save: &Save, copied: Copied, admission: Admission) {
        let header = ObjectHeader {
            namespace: shared.namespace,
            key: save.key,
            layout: shared.layout.fingerprint(save.group),
            length_bytes: shared.layout.object_bytes(save.group),
            checksum: 0,
            write: WriteId(0),
            tenant: shared.tenant,
        };
        let (own, save) = (Arc::clone(shared), save.save);
        Self::spawn(shared, async move {
            // A node that says it has the object spares the sending, and half the time of a save is
            // enough to say so. Who has not said so is sent it.
            let limit = tokio::time::Instant::now() + own.store_timeout / 2;
            let outcome = if admission.proves_present(&header.key, limit).await {
                drop(copied);
                SaveOutcome::Existed
            } else {
                Self::store(&own, header, copied).await
            };
            Self::complete(&own, WorkerEvent::Saved { save, outcome });
        });
    }

    fn stage(shared: &Arc<Self>, save: &Save) -> Result<Staged, SaveOutcome> {
        let full = SaveOutcome::StagingFull;
        let (layout, blocks) = (&shared.layout, &save.blocks);
        let length = layout.object_bytes(save.group);
        if layout.payload_bytes(save.group, blocks.len()) != length {
            return Err(full);
        }
        let slot = usize::try_from(length).ok();
        let slot = slot.and_then(|length| shared.staging.take(length));
        let slot = slot.ok_or(full)?;
        if !layout.is_in_place() {
            let copying = Self::copy_out(shared, save, slot);
            return copying.map(Staged::Copying).ok_or(full);
        }
        let source = layout.gather(save.group, blocks).map_err(|_| full)?;
        let mut lent = Lent::new(slot.segments()).map_err(|_| full)?;
        let checksum = lent.copy_from_segments(&source).map_err(|_| full)?;
        let checksum = Some(checksum);
        Ok(Staged::Copied(Copied { slot, checksum }))
    }

    async fn store(shared: &Arc<Self>, mut header: ObjectHeader, copied: Copied) -> SaveOutcome {
        let Copied { slot, checksum } = copied;
        let Ok(_permit) = shared.stores.acquire().await else {
            return SaveOutcome::Refused;
        };
        let deadline = tokio::time::Instant::now() + shared.store_timeout;
        let mut write = [0; 8];
        if getrandom::fill(&mut write).is_err() {
            return SaveOutcome::Refused;
        }
        let segments = slot.segments();
        header.checksum = checksum.unwrap_or_else(|| segments.checksum());
        header.write = WriteId(u64::from_le_bytes(write));
        let own = Arc::clone(shared);
        let task = async move { own.remote.store(header, segments, deadline).await };
        let ended = shared.runtime.spawn(task).await;
        if let Ok((outcome, _)) = &ended {
            shared.tally.stored(*outcome);
        }
        match ended {
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

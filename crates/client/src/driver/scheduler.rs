//! Drives the scheduler's machine: one thread of the engine calls, the nodes answer beside it.
//!
//! Called by the Python module, once for each hook of the engine's scheduler. The invariants: the
//! engine's thread waits for the nodes only inside a lookup, and only within the step's budget;
//! every question to the nodes is answered to the machine once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tessera_lifecycle::handover::{Offered, Refused};
use tessera_lifecycle::scheduler::{
    Found, Held, LeaseGrant, LookupAnswer, LookupInput, NodeIndex, SchedulerCommand,
    SchedulerEvent, StepInput,
};
use tessera_lifecycle::{HandoverRoot, LookupId, SchedulerRoot};
use tessera_proto::peer::TransferId;
use tessera_proto::ticket::{Prompt, TicketWorker};
use tessera_proto::{Instant, ObjectId};
use tessera_transport::Address;
use tokio::runtime::{Handle, Runtime};

use super::clock::Clock;
use super::config::EngineConfig;
use super::error::{DriverError, StartError};
use super::inbox::{self, Waiting};
use super::metrics::SchedulerMetrics;
use super::remote::{Remote, connect};
use crate::cluster::{AcquireOutcome, Cluster, Lease, Presence};

/// How long all lookups of one step together may wait on the engine's thread. An answer of a near
/// node comes within it, so that most requests need no second step.
const LOOKUP_BUDGET: Duration = Duration::from_millis(3);

/// For the return of leases, which nobody waits for.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long shutdown waits for the runtime's threads.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The scheduler's side of the connector.
#[derive(Debug)]
pub struct SchedulerDriver<R: Remote = Cluster> {
    pub(super) shared: Arc<Shared<R>>,
    runtime: Mutex<Option<Runtime>>,
    /// Where tickets are taken, if this engine writes prompts to others.
    pub(super) inbox: Option<Address>,
}

/// A finished request whose blocks a router wants for another engine.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'a> {
    /// Its prompt.
    pub prompt: Prompt<'a>,
    /// Tokens that the engine has computed of it.
    pub computed_tokens: u64,
    /// Block ids for each group, 0 where there is none.
    pub tables: &'a [Vec<u32>],
}

#[derive(Debug)]
pub(super) struct Shared<R> {
    remote: R,
    pub(super) clock: Clock,
    pub(super) state: Mutex<State>,
    answered: Condvar,
    pub(super) runtime: Handle,
    lookup_wait_ns: AtomicU64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) root: SchedulerRoot,
    /// Direct transfers, if this engine takes part in any.
    pub(super) handover: Option<HandoverRoot>,
    /// Connections by which tickets came that are not answered.
    pub(super) waiting: Waiting,
    budget: Duration,
    closed: bool,
}

impl SchedulerDriver<Cluster> {
    /// Starts the scheduler's side with the nodes of the options.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &EngineConfig) -> Result<Self, StartError> {
        Self::start_with(config, |runtime| connect(&config.options, runtime))
    }
}

impl<R: Remote> SchedulerDriver<R> {
    /// Starts the scheduler's side with the nodes that `connect` makes on the driver's runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(
        config: &EngineConfig,
        connect: impl FnOnce(&Handle) -> Result<R, StartError>,
    ) -> Result<Self, StartError> {
        let mut incarnation = [0; 16];
        getrandom::fill(&mut incarnation)
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        let root = SchedulerRoot::new(config.scheduler(u128::from_le_bytes(incarnation))?);
        let handover = config.handover()?.map(HandoverRoot::new);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tessera-lookup")
            .enable_all()
            .build()?;
        let shared = Shared {
            remote: connect(runtime.handle())?,
            clock: Clock::new(),
            state: Mutex::new(State {
                root,
                handover,
                waiting: Waiting::default(),
                budget: LOOKUP_BUDGET,
                closed: false,
            }),
            answered: Condvar::new(),
            runtime: runtime.handle().clone(),
            lookup_wait_ns: AtomicU64::new(0),
        };
        let shared = Arc::new(shared);
        let inbox = runtime.block_on(inbox::open(&shared, config))?;
        Ok(Self {
            shared,
            runtime: Mutex::new(Some(runtime)),
            inbox,
        })
    }

    /// How many tokens beyond `computed_tokens` will be loaded: `None` while undecided. Waits for
    /// the nodes within the step's budget. `can_load` is false if the engine could not compute a
    /// tail over loaded tokens.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn lookup(
        &self,
        request: &str,
        num_tokens: u64,
        computed_tokens: u64,
        block_hashes: &[&[u8]],
        can_load: bool,
    ) -> Result<LookupAnswer, DriverError> {
        let shared = &self.shared;
        let mut state = shared.open()?;
        let now = shared.clock.now();
        let input = LookupInput {
            request,
            num_tokens,
            computed_tokens,
            block_hashes,
            can_load,
        };
        if let Some(handover) = &mut state.handover
            && let Some(answer) = handover.lookup(now, request, computed_tokens, can_load)
        {
            return Ok(answer);
        }
        loop {
            let answer = state.root.lookup(shared.clock.now(), input);
            Shared::execute(shared, &mut state);
            if answer.tokens.is_some() || state.budget.is_zero() {
                return Ok(answer);
            }
            let started = shared.clock.now();
            let budget = state.budget;
            shared.answered.wait_for(&mut state, budget);
            let waited = shared.clock.now().nanos_since(started);
            shared.lookup_wait_ns.fetch_add(waited, Ordering::Relaxed);
            state.budget = budget.saturating_sub(Duration::from_nanos(waited));
        }
    }

    /// The engine has allocated blocks; `tables` are whole, one for each group.
    ///
    /// # Errors
    /// [`DriverError::NotPromised`]: the step must fail. [`DriverError::Closed`].
    pub fn allocated(
        &self,
        request: &str,
        tables: &[Vec<u32>],
        external_tokens: u64,
    ) -> Result<(), DriverError> {
        let mut state = self.shared.open()?;
        let taken = match &mut state.handover {
            Some(handover) => handover.allocated(request, tables, external_tokens)?,
            None => false,
        };
        let cached = if taken { 0 } else { external_tokens };
        let allocated = state.root.allocated(request, tables, cached);
        Shared::execute(&self.shared, &mut state);
        Ok(allocated?)
    }

    /// Plans one step; the bytes are for every worker. `None`: they have nothing to do in it, as in
    /// most steps.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn step(&self, input: &StepInput) -> Result<Option<Vec<u8>>, DriverError> {
        let mut state = self.shared.open()?;
        let mut plan = state.root.step(self.shared.clock.now(), input);
        if let Some(handover) = &mut state.handover {
            handover.expire(self.shared.clock.now());
            (plan.handovers, plan.handovers_cancelled) = handover.take_orders();
        }
        state.budget = LOOKUP_BUDGET;
        Shared::execute(&self.shared, &mut state);
        Ok((!plan.is_empty()).then(|| plan.encode()))
    }

    /// Hashes of a request that are known, in the engine's units: a step needs to give only later
    /// ones.
    #[must_use]
    pub fn known_hashes(&self, request: &str) -> u64 {
        self.shared.state.lock().root.known_hashes(request)
    }

    /// What the engine has gathered from all workers.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn worker_output(
        &self,
        finished_recving: &[&str],
        failed_recving: &[&str],
        invalid_blocks: &[u32],
    ) -> Result<(), DriverError> {
        let mut state = self.shared.open()?;
        let State { root, handover, .. } = &mut *state;
        let (mut finished, mut failed) = (finished_recving.to_vec(), failed_recving.to_vec());
        if let Some(handover) = handover {
            // What came by a ticket is none of the cache's business.
            failed.retain(|request| !handover.is_taking(request));
            finished.retain(|request| !handover.received(request));
        }
        root.worker_output(&finished, &failed, invalid_blocks);
        Shared::execute(&self.shared, &mut state);
        Ok(())
    }

    /// Where this engine's own workers listen, in rank order: known once they have started.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn meet(&self, workers: Vec<TicketWorker>) -> Result<(), DriverError> {
        if let Some(handover) = &mut self.shared.open()?.handover {
            handover.meet(workers);
        }
        Ok(())
    }

    /// How many tokens of a prompt that is to be handed over must not be computed here.
    #[must_use]
    pub fn left_to_decode(&self) -> u64 {
        let state = self.shared.state.lock();
        state
            .handover
            .as_ref()
            .map_or(0, HandoverRoot::left_to_decode)
    }

    /// A request has come with a ticket. Refused, it computes.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn admit(
        &self,
        request: &str,
        ticket: &str,
        prompt: Prompt<'_>,
    ) -> Result<Result<(), Refused>, DriverError> {
        let mut state = self.shared.open()?;
        let now = (self.shared.clock.now(), unix_ms());
        Ok(match &mut state.handover {
            Some(handover) => handover.admit(now, request, ticket, prompt),
            None => Err(Refused::Role),
        })
    }

    /// The engine has finished with a request. `wanted` says what others may take of it.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn finished(
        &self,
        request: &str,
        wanted: Option<Finished<'_>>,
    ) -> Result<Option<String>, DriverError> {
        let mut state = self.shared.open()?;
        state.root.finished(request);
        let mut ticket = None;
        if let Some(handover) = &mut state.handover {
            handover.finished(request);
            ticket = wanted.and_then(|wanted| {
                let offered = Offered {
                    request,
                    transfer: random_transfer()?,
                    prompt: wanted.prompt,
                    computed_tokens: wanted.computed_tokens,
                    tables: wanted.tables,
                };
                handover.offer(unix_ms(), &offered)
            });
        }
        Shared::execute(&self.shared, &mut state);
        Ok(ticket)
    }

    /// What happened so far. Also after shutdown.
    #[must_use]
    pub fn metrics(&self) -> SchedulerMetrics {
        let state = self.shared.state.lock();
        let handover = state.handover.as_ref().map(HandoverRoot::counters);
        let (machine, handover) = (state.root.counters(), handover.unwrap_or_default());
        SchedulerMetrics {
            machine,
            handover,
            lookup_wait_ns: self.shared.lookup_wait_ns.load(Ordering::Relaxed),
        }
    }

    /// The nodes, for their own metrics.
    #[must_use]
    pub fn remote(&self) -> &R {
        &self.shared.remote
    }

    /// Ends connections, and with them all leases. A second call does nothing.
    pub fn shutdown(&self) {
        self.shared.state.lock().closed = true;
        if let Some(runtime) = self.runtime.lock().take() {
            let ended = async {
                tokio::time::timeout(SHUTDOWN_TIMEOUT, self.shared.remote.shutdown()).await
            };
            // Memory is lent to loads only, and there is none here: a late end harms nobody.
            let _ = runtime.block_on(ended);
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}

impl<R: Remote> Drop for SchedulerDriver<R> {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl<R: Remote> Shared<R> {
    pub(super) fn open(&self) -> Result<MutexGuard<'_, State>, DriverError> {
        let state = self.state.lock();
        match state.closed {
            true => Err(DriverError::Closed),
            false => Ok(state),
        }
    }

    /// Executes all commands of the machines; none of them waits.
    pub(super) fn execute(shared: &Arc<Self>, state: &mut State) {
        inbox::post(shared, state);
        while let Some(command) = state.root.poll_command() {
            match command {
                SchedulerCommand::Acquire {
                    lookup,
                    ids,
                    lease_ms,
                    deadline,
                } => Self::acquire(shared, lookup, ids, lease_ms, deadline),
                SchedulerCommand::Release { grants } => Self::release(shared, grants),
            }
        }
    }

    fn acquire(
        shared: &Arc<Self>,
        lookup: LookupId,
        ids: Vec<ObjectId>,
        lease_ms: u32,
        deadline: Instant,
    ) {
        let (own, deadline) = (Arc::clone(shared), shared.clock.deadline(deadline));
        shared.runtime.spawn(async move {
            let outcome = own.remote.acquire(ids, lease_ms, deadline).await;
            let mut state = own.state.lock();
            let event = acquired(lookup, &outcome, lease_ms);
            state.root.handle_event(own.clock.now(), event);
            Self::execute(&own, &mut state);
            drop(state);
            own.answered.notify_all();
        });
    }

    fn release(shared: &Arc<Self>, grants: Vec<LeaseGrant>) {
        let own = Arc::clone(shared);
        let leases = grants
            .into_iter()
            .map(|grant| (lease_of(grant.held), grant.ids))
            .collect();
        shared.runtime.spawn(async move {
            let deadline = tokio::time::Instant::now() + RELEASE_TIMEOUT;
            own.remote.release(leases, deadline).await;
        });
    }
}

/// The wall clock, which tickets are written by: other machines read them.
pub(super) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// A name that nobody can guess; `None` if the system has no randomness.
fn random_transfer() -> Option<TransferId> {
    let mut name = [0; 16];
    getrandom::fill(&mut name).ok()?;
    Some(TransferId(u128::from_le_bytes(name)))
}

fn acquired(lookup: LookupId, outcome: &AcquireOutcome, asked_ms: u32) -> SchedulerEvent {
    let found = |presence: &Presence| match presence {
        Presence::Held { lease, .. } => {
            u32::try_from(lease.node.0).map_or(Found::Missing, |node| {
                Found::Held(Held {
                    node: NodeIndex(node),
                    incarnation: lease.incarnation,
                    lease: lease.id,
                })
            })
        }
        Presence::Missing | Presence::Refused | Presence::Unreachable => Found::Missing,
    };
    SchedulerEvent::Acquired {
        lookup,
        found: outcome.items.iter().map(found).collect(),
        lease_ms: outcome.lease_ms.min(asked_ms),
    }
}

/// The client's words for a lease that the machine holds.
pub(super) fn lease_of(held: Held) -> Lease {
    Lease {
        node: crate::routing::NodeIndex(usize::try_from(held.node.0).unwrap_or(usize::MAX)),
        incarnation: held.incarnation,
        id: held.lease,
    }
}

//! The node itself: start, accept, expire leases, stop.
//!
//! Called by `tessera node` and by tests. Invariants: the claim on the address outlives the
//! listener and every connection; the accept loop ends only by an order or by idleness, never by
//! what a client sends; when `wait` returns, nothing of the node runs any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tessera_proto::Incarnation;
use tessera_proto::message::{Refusal, Refused, StatEntry};
use tessera_proto::{FrameHeader, Kind};
use tessera_store::{OwnerId, Store};
use tessera_transport::{Address, Listener, Payload, Receiver, Reserved, Sender};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::budget::Budget;
use crate::clock::Clock;
use crate::config::{NodeConfig, check_lifetimes, check_tenants};
use crate::connection;
use crate::counters::Counters;
use crate::data;
use crate::error::StartError;
use crate::listen::{Claim, Standing};
use crate::scrub;
use crate::sending::Sending;
use crate::shared::{Shared, stopped};
use crate::silence::Silences;

/// How often leases that ran out are given back.
const EXPIRE_EVERY: Duration = Duration::from_millis(100);
/// How often a node makes sure that its socket file is there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failed `accept`: time for descriptors to come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Starts nodes.
#[derive(Debug)]
pub struct Node;

/// A node that accepts connections. Dropping it lets the node run on with the runtime.
#[derive(Debug)]
pub struct RunningNode {
    address: Address,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    running: JoinHandle<StopReason>,
}

/// Why a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// [`RunningNode::shutdown`] was called.
    Ordered,
    /// No connection for the configured time.
    Idle,
    /// Its socket or its locks were removed or replaced: nobody would find it any more.
    Lost,
}

impl Node {
    /// Takes the address, then the memory, and begins to accept. Must be called within a tokio
    /// runtime that runs as long as the node.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left behind.
    pub async fn start(config: NodeConfig) -> Result<RunningNode, StartError> {
        config.limits.check(config.ram_bytes)?;
        check_tenants(&config)?;
        check_lifetimes(&config.lifetimes)?;
        let mut claim = Claim::take(&config)?;
        let wanted = config.listen.to_string();
        let bind = |source| StartError::Bind {
            address: wanted.clone(),
            source,
        };
        // The address first, since a mistake there should not cost the time that memory takes; but
        // whoever connects before the node can answer is refused and not kept waiting.
        let reserved = Reserved::take(&config.listen).await.map_err(bind)?;
        claim.made();
        let limits = config.limits.clone();
        let idle_exit = config.idle_exit;
        let scrub_bytes_s = config.data.as_ref().map_or(0, |data| data.scrub_bytes_s);
        let store = open_store(config).await?;
        let listener = reserved.listen().map_err(bind)?;
        let address = listener.address().map_err(bind)?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(StartError::Random)?;
        let shared = Arc::new(Shared {
            store,
            incarnation: Incarnation(u128::from_le_bytes(random)),
            clock: Clock::start(),
            counters: Counters::default(),
            unpublished: Budget::new(limits.unpublished_bytes),
            sending: Sending::new(limits.sending_bytes),
            connections: AtomicU64::new(0),
            limits,
        });
        let (stop, stopping) = watch::channel(false);
        let accepting = Accepting {
            shared: Arc::clone(&shared),
            listener,
            order: stopping,
            stop: watch::Sender::new(false),
            idle_exit,
            scrub_bytes_s,
            connections: JoinSet::new(),
            silences: Silences::default(),
            claim,
        };
        let running = tokio::spawn(accepting.run());
        Ok(RunningNode {
            address,
            shared,
            stop,
            running,
        })
    }
}

impl RunningNode {
    /// Where the node listens, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The numbers that STAT answers with.
    pub fn stat(&self) -> Vec<StatEntry> {
        self.shared.stat()
    }

    /// Orders the node to stop: no new connection, no new request; answers that are on their way
    /// are finished within the drain timeout.
    pub fn shutdown(&self) {
        self.stop.send_replace(true);
    }

    /// Returns when the node is over: all tasks joined, the socket and the lock given back.
    ///
    /// # Panics
    /// If the accept loop panicked, which is a bug of the node.
    pub async fn wait(&mut self) -> StopReason {
        (&mut self.running)
            .await
            .expect("the accept loop neither panics nor is aborted")
    }
}

/// Faulting gigabytes in and reading a disk takes seconds: not on a thread that serves others.
async fn open_store(config: NodeConfig) -> Result<Store, StartError> {
    apart(move || data::open(&config)).await
}

/// Runs what blocks, apart from the threads that serve.
pub(crate) async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// The accept loop and what it owns. Fields drop in this order: the claim last.
struct Accepting {
    shared: Arc<Shared>,
    /// To the node.
    order: watch::Receiver<bool>,
    /// To its connections, and to what runs beside them.
    stop: watch::Sender<bool>,
    idle_exit: Option<Duration>,
    scrub_bytes_s: u64,
    connections: JoinSet<()>,
    silences: Silences,
    listener: Listener,
    claim: Claim,
}

impl Accepting {
    async fn run(mut self) -> StopReason {
        let ended = self.stop.subscribe();
        let scrub = self.shared.store.scrub().filter(|_| self.scrub_bytes_s > 0);
        let scrub = scrub.map(|scrub| tokio::spawn(scrub::run(scrub, self.scrub_bytes_s, ended)));
        let reason = self.accept().await;
        tracing::info!(?reason, connections = self.connections.len(), "stopping");
        let Self {
            shared,
            stop,
            mut connections,
            listener,
            claim: _claim,
            ..
        } = self;
        drop(listener);
        stop.send_replace(true);
        if let Some(scrub) = scrub
            && let Err(error) = scrub.await
        {
            tracing::error!(%error, "the scrub ended by a bug");
        }
        let drained = timeout(shared.limits.drain_timeout, drain(&mut connections)).await;
        if drained.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "answers did not drain in time"
            );
            connections.shutdown().await;
        }
        // What was acknowledged from memory goes to disk now, however long that takes.
        apart(move || shared.store.close()).await;
        reason
    }

    async fn accept(&mut self) -> StopReason {
        let mut expire = interval(EXPIRE_EVERY);
        expire.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut order = self.order.clone();
        let mut next_owner = 0;
        let mut idle_since = Instant::now();
        loop {
            let idle_until = self.idle_exit.map(|idle| idle_since + idle);
            let idle = self.connections.is_empty();
            tokio::select! {
                biased;
                () = stopped(&mut order) => return StopReason::Ordered,
                _ = expire.tick() => {
                    self.shared.store.expire(self.shared.clock.now());
                }
                _ = look.tick() => {
                    if !self.is_found().await {
                        return StopReason::Lost;
                    }
                }
                Some(_) = self.connections.join_next(), if !idle => idle_since = Instant::now(),
                accepted = self.listener.accept() => match accepted {
                    Ok(link) => {
                        next_owner += 1;
                        self.admit(link, OwnerId(next_owner)).await;
                    }
                    Err(error) => {
                        self.shared.counters.accept_failures.count();
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = sleep_until(idle_until.unwrap_or_else(Instant::now)),
                    if idle && idle_until.is_some() => return StopReason::Idle,
            }
        }
    }

    /// Whether clients find this node, if need be by a new socket in the place of the one that
    /// somebody removed.
    async fn is_found(&mut self) -> bool {
        match self.claim.standing() {
            Standing::Found => return true,
            Standing::Lost => {
                tracing::warn!("the socket or its lock was removed or replaced: ending");
                return false;
            }
            Standing::Gone => {}
        }
        match bind_again(&self.listener).await {
            Ok(listener) => {
                self.claim.made();
                self.listener = listener;
                tracing::warn!("the socket was removed: made again");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the socket was removed and cannot be made again: ending");
                false
            }
        }
    }

    async fn admit(&mut self, link: (Sender, Receiver), owner: OwnerId) {
        let shared = Arc::clone(&self.shared);
        let full = self.connections.len() >= shared.limits.connections as usize;
        if full && !self.silences.break_oldest(shared.limits.silent_timeout) {
            shared.counters.connections_refused_full.count();
            return refuse(link).await;
        }
        shared.counters.connections_accepted.count();
        let open = OpenConnection::new(Arc::clone(&shared));
        let stop = self.stop.subscribe();
        let silence = self.silences.begin();
        self.connections.spawn(async move {
            let _open = open;
            connection::serve(shared, link, (owner, silence), stop).await;
        });
    }
}

async fn bind_again(listener: &Listener) -> std::io::Result<Listener> {
    Listener::bind(&listener.address()?).await
}

/// The buffer of a new socket takes the refusal at once or the client is not told.
async fn refuse((mut sender, _receiver): (Sender, Receiver)) {
    let mut body = Vec::new();
    let message = "the node has as many connections as it takes".to_owned();
    Refused {
        reason: Refusal::Full,
        message,
    }
    .encode(&mut body);
    let header = FrameHeader {
        kind: Kind::Refused,
        request: 0,
        deadline_ms: 0,
        body_bytes: u32::try_from(body.len()).expect("a short message"),
        payload_bytes: 0,
    };
    let _ = sender
        .send(&header, &body, Payload::None, Instant::now())
        .await;
}

/// Joins every connection. One that panicked is a bug that ends with its connection.
async fn drain(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a connection ended by a bug");
        }
    }
}

/// Counts a connection while it is open.
struct OpenConnection(Arc<Shared>);

impl OpenConnection {
    fn new(shared: Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

//! What a worker calls: orders of transfers, their results, and the end.
//!
//! Called by the worker of an engine. The invariants: no call waits for a peer, a socket or a
//! device, but for [`PeerDriver::shutdown`]; memory of a transfer is the caller's again only when
//! it was reported, or when [`PeerDriver::is_open`] says so for one that is reported to nobody.

use std::sync::Arc;

use parking_lot::Mutex;
use tessera_lifecycle::peer::{
    PartId, PeerConfig, PeerEvent, PeerResults, PeerStop, PeerTables, Side, StepFailure,
    TransferId, TransferOrder,
};
use tessera_lifecycle::{PeerRoot, RequestKey};
use tessera_proto::Incarnation;
use tessera_transport::{Address, Listener};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::config::{PeerOptions, PeerStartError};
use super::core::{Core, Road, Stopped};
use super::counts::PeerMetrics;
use super::link::Link;
use super::memory::Memory;
use super::shares::Shares;
use super::{listener, offered, setup};
use crate::driver::MemoryFault;
use crate::health::Backoff;
use crate::layout::Layout;

/// One worker's side of direct transfers.
#[derive(Debug)]
pub struct PeerDriver {
    core: Arc<Core>,
    address: Address,
    /// The listener, the clock, and the checksums of what is offered.
    tasks: Mutex<JoinSet<()>>,
}

/// Why results cannot be had. The engine's step must not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// A transfer that the step waits for has failed. Nothing was changed; after the step has been
    /// failed, name the transfer to [`PeerDriver::step_failed`].
    #[error(transparent)]
    Step(#[from] StepFailure),
    /// Nothing can prove any more that memory is at rest.
    #[error("the worker stops: {0}")]
    Stopped(PeerStop),
    /// A device owes an answer for ever.
    #[error("the worker stops, because {0}; restart the engine")]
    Memory(MemoryFault),
}

impl PeerDriver {
    /// Listens, and takes part from now on. Called within the runtime that it is to run on.
    ///
    /// # Errors
    /// See [`PeerStartError`].
    pub async fn start(options: &PeerOptions, layout: Arc<Layout>) -> Result<Self, PeerStartError> {
        let address = options.listen.to_string();
        if !options.insecure && !options.listen.is_loopback() {
            return Err(PeerStartError::NotLoopback { address });
        }
        let failed = |source| PeerStartError::Listen { address, source };
        let listener = Listener::bind(&options.listen).await;
        let bound = listener.and_then(|listener| Ok((listener.address()?, listener)));
        let (address, listener) = bound.map_err(failed)?;
        let root = PeerRoot::new(PeerConfig {
            incarnation: options.incarnation,
            rank: options.rank,
            class: options.shape.class(),
            times: options.times,
            limits: options.limits,
        });
        let setup = setup::setup(options, &layout);
        let shares = Shares::new(options, &layout);
        let memory = Memory {
            layout,
            proof_timeout: options.bounds.proof_timeout,
        };
        let core = Core::new(
            root,
            options.incarnation,
            options.rank,
            options.limits.peers,
            setup,
            options.bounds,
            shares,
            memory,
            Handle::current(),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(listener::run(Arc::clone(&core), listener));
        tasks.spawn(keep_time(Arc::clone(&core)));
        tasks.spawn(offered::run(Arc::clone(&core)));
        Ok(Self {
            core,
            address,
            tasks: Mutex::new(tasks),
        })
    }

    /// This process start, as tickets name it.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.core.incarnation
    }

    /// Where it listens, as tickets name it.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// The ranks of another engine with which this worker has parts of a transfer.
    #[must_use]
    pub fn others(&self, side: Side) -> Vec<u16> {
        self.core.shares.others(side)
    }

    /// Bytes of a block of `group` that pass between this worker and rank `other`; `None` if its
    /// blocks are no part of what passes.
    #[must_use]
    pub fn block_bytes(&self, side: Side, other: u16, group: u16) -> Option<u64> {
        self.core.shares.block_bytes(side, other, group)
    }

    /// Says where a process listens, before an order that needs it. Whoever has no address is not
    /// dialled; it must dial.
    pub fn introduce(&self, peer: Incarnation, address: &Address) {
        let core = &self.core;
        core.with(|state| {
            if state.roads.len() >= core.peers && !state.roads.contains_key(&peer) {
                // Those that nobody speaks with are introduced again when they are needed.
                let (links, dials) = (&state.links, &state.dials);
                state
                    .roads
                    .retain(|peer, _| links.contains_key(peer) || dials.contains_key(peer));
            }
            let new = || Road {
                address: address.clone(),
                backoff: Backoff::new(&core.bounds.pauses),
                rested: true,
            };
            state.roads.entry(peer).or_insert_with(new).address = address.clone();
        });
    }

    /// Begins a transfer; what cannot begin is reported as failed.
    pub fn order(&self, order: &TransferOrder) {
        let parts = order.parts.iter().map(|part| part.part);
        let change = |root: &mut PeerRoot, now| root.order(now, order);
        self.core.turn_and_offer(change, order.transfer, parts);
    }

    /// The source's bytes of a part are in its blocks.
    pub fn ready(&self, transfer: TransferId, part: PartId) {
        let ready = PeerEvent::Ready { transfer, part };
        let change = |root: &mut PeerRoot, now| root.handle_event(now, ready);
        self.core.turn_and_offer(change, transfer, [part]);
    }

    /// The request is gone. Its transfer is reported when nothing touches its memory any more.
    pub fn cancel(&self, transfer: TransferId) {
        self.core.turn(|root, now| root.cancel(now, transfer));
    }

    /// The request loses its blocks: as [`cancel`](Self::cancel), and reported to nobody. They may
    /// be used again when [`is_open`](Self::is_open) is false.
    pub fn preempt(&self, transfer: TransferId) {
        self.core.turn(|root, now| root.preempt(now, transfer));
    }

    /// Whether the memory of a transfer may still be touched, or its end is not told yet.
    #[must_use]
    pub fn is_open(&self, transfer: TransferId) -> bool {
        self.core
            .with(|state| state.root.is_open(transfer) || state.offers.is_reading(transfer))
    }

    /// The engine has forgotten the request.
    pub fn request_ended(&self, request: RequestKey) {
        self.core.turn(|root, _| root.request_ended(request));
    }

    /// What is over and was not collected before.
    ///
    /// # Errors
    /// See [`PeerError`]: nothing at all was changed.
    pub fn collect(&self) -> Result<PeerResults, PeerError> {
        let core = &self.core;
        if let Some(stopped) = core.with(|state| state.stopped.clone()) {
            return Err(match stopped {
                Stopped::Machine(why) => PeerError::Stopped(why),
                Stopped::Memory(fault) => PeerError::Memory(fault),
            });
        }
        core.turn(|root, now| root.collect(now))?;
        Ok(core.with(|state| {
            Core::forget_offers(state);
            let reading = state.offers.reading();
            // Our own pass over blocks is a matter of one piece; until then they are not given out.
            match reading.is_some_and(|transfer| !state.root.is_open(transfer)) {
                true => PeerResults::default(),
                false => state.root.take_results(),
            }
        }))
    }

    /// Whether nothing can prove any more that memory is at rest: it must never be freed then.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.core.with(|state| state.stopped.is_some())
    }

    /// The step of a synchronous transfer has been failed.
    pub fn step_failed(&self, transfer: TransferId) {
        self.core.turn(|root, now| root.step_failed(now, transfer));
    }

    /// How full the machine's tables are.
    #[must_use]
    pub fn tables(&self) -> PeerTables {
        self.core.with(|state| state.root.tables())
    }

    /// Whether nothing is open, here or as far as this side knows on another.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.core.with(|state| {
            state.root.is_idle() && state.written.is_empty() && state.offers.is_idle()
        })
    }

    /// What happened so far, and what is open.
    #[must_use]
    pub fn metrics(&self) -> PeerMetrics {
        let core = &self.core;
        let mut metrics = core.with(|state| {
            let links = state.links.len();
            PeerMetrics {
                machine: state.root.counters(),
                gauges: state.root.gauges(),
                connections: u64::try_from(links).unwrap_or(u64::MAX),
                ..PeerMetrics::default()
            }
        });
        let oldest = metrics.gauges.oldest;
        metrics.oldest_ns = oldest.map_or(0, |began| core.clock.now().nanos_since(began));
        core.counts.read(&mut metrics);
        metrics
    }

    /// Takes no new connection, ends all there are, and returns when nothing of this process
    /// touches block memory for a peer any more, what devices were given to write shows or the
    /// worker has stopped, and the address is free.
    pub async fn shutdown(&self) {
        for link in self.close() {
            link.over.waited().await;
        }
        self.core.rest().await;
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
    }

    fn close(&self) -> Vec<Arc<Link>> {
        self.core.ended.set();
        let links = self.core.with(|state| {
            state.closed = true;
            state.links.values().cloned().collect::<Vec<_>>()
        });
        for link in &links {
            link.close();
        }
        links
    }
}

impl Drop for PeerDriver {
    fn drop(&mut self) {
        self.close();
    }
}

/// Wakes the machine when it is due.
async fn keep_time(core: Arc<Core>) {
    loop {
        let due = core.with(|state| state.root.poll_timeout());
        let slept = async {
            match due {
                Some(at) => sleep_until(core.clock.deadline(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = core.ended.waited() => return,
            () = core.alarm.notified() => {}
            () = slept => core.turn(|root, now| root.handle_timeout(now)),
        }
    }
}

//! The machine, the connections, and what the driver knows of other processes.
//!
//! Shared by all tasks of a driver. The invariants: the machine changes under one lock, one
//! mutation at a time, and its commands are carried out before the next; nothing waits under that
//! lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tessera_lifecycle::PeerRoot;
use tessera_lifecycle::peer::{
    BlockRef, Drain, FenceId, PartId, PeerEvent, PeerFailure, PeerStop, TransferId,
};
use tessera_proto::message::{PartName, PartStatus, PeerSetup};
use tessera_proto::{Incarnation, Instant};
use tessera_transport::{Address, FenceSide, LentRanges, LinkError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::config::PeerBounds;
use super::counts::Counts;
use super::link::{self, End, Link, Shaken};
use super::memory::{Broken, Memory};
use super::offered::Offers;
use super::shares::Shares;
use crate::driver::{Clock, Fences, MemoryFault};
use crate::health::Backoff;
use crate::latch::Latch;
use crate::sentry::Sentry;

/// What all tasks of a driver share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) incarnation: Incarnation,
    pub(super) rank: u16,
    pub(super) setup: PeerSetup,
    pub(super) bounds: PeerBounds,
    pub(super) peers: usize,
    pub(super) memory: Memory,
    pub(super) clock: Clock,
    pub(super) runtime: Handle,
    pub(super) counts: Counts,
    /// A place for each connection, from its first byte to its end.
    pub(super) places: Arc<Semaphore>,
    /// What passes between this worker and each other.
    pub(super) shares: Shares,
    /// Something is offered.
    pub(super) offering: Notify,
    /// The machine's next deadline may be another one.
    pub(super) alarm: Notify,
    pub(super) ended: Latch,
    /// Half of the highest number of a connection so far.
    newest: AtomicU64,
    state: Mutex<State>,
}

/// What changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) root: PeerRoot,
    /// What has happened and was not told to the machine yet.
    pub(super) events: VecDeque<PeerEvent>,
    /// Connections whose tasks are not over; one with a process at a time.
    pub(super) links: BTreeMap<Incarnation, Arc<Link>>,
    /// Where processes listen, and how often they were dialled.
    pub(super) roads: BTreeMap<Incarnation, Road>,
    /// Who is being dialled, and how to end that.
    pub(super) dials: BTreeMap<Incarnation, (u64, Latch)>,
    pub(super) next_dial: u64,
    /// Who may not connect, until this fence is complete.
    pub(super) fences: BTreeMap<Incarnation, FenceId>,
    /// What this side is the source of.
    pub(super) offers: Offers,
    /// What devices may still write, until their fence.
    pub(super) written: BTreeMap<TransferId, Vec<LentRanges>>,
    pub(super) stopped: Option<Stopped>,
    pub(super) closed: bool,
}

/// Why the worker has stopped.
#[derive(Clone, Debug)]
pub(super) enum Stopped {
    Machine(PeerStop),
    Memory(MemoryFault),
}

/// The way to a process.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) address: Address,
    pub(super) backoff: Backoff,
    /// Whether the next try needs no pause before it.
    pub(super) rested: bool,
}

impl Core {
    #[expect(clippy::too_many_arguments, reason = "all of it is one start")]
    pub(super) fn new(
        root: PeerRoot,
        incarnation: Incarnation,
        rank: u16,
        peers: usize,
        setup: PeerSetup,
        bounds: PeerBounds,
        shares: Shares,
        memory: Memory,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            incarnation,
            rank,
            setup,
            bounds,
            peers,
            shares,
            memory,
            clock: Clock::new(),
            runtime,
            counts: Counts::default(),
            places: Arc::new(Semaphore::new(
                bounds.connections.min(Semaphore::MAX_PERMITS),
            )),
            offering: Notify::new(),
            alarm: Notify::new(),
            ended: Latch::default(),
            newest: AtomicU64::new(0),
            state: Mutex::new(State {
                root,
                events: VecDeque::new(),
                links: BTreeMap::new(),
                roads: BTreeMap::new(),
                dials: BTreeMap::new(),
                next_dial: 0,
                fences: BTreeMap::new(),
                offers: Offers::default(),
                written: BTreeMap::new(),
                stopped: None,
                closed: false,
            }),
        })
    }

    /// Looks at the state, or changes what the machine does not hang on.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock())
    }

    /// One mutation of the machine, and all that follows from it.
    pub(super) fn turn<T>(self: &Arc<Self>, change: impl FnOnce(&mut PeerRoot, Instant) -> T) -> T {
        let _sentry = Sentry::here(self.alarm());
        let mut state = self.state.lock();
        let changed = change(&mut state.root, self.clock.now());
        self.settle(&mut state);
        changed
    }

    /// Tells the machine what has happened.
    pub(super) fn report(self: &Arc<Self>, events: impl IntoIterator<Item = PeerEvent>) {
        let _sentry = Sentry::here(self.alarm());
        let mut state = self.state.lock();
        state.events.extend(events);
        self.settle(&mut state);
    }

    /// As [`turn`](Self::turn), when it may say that bytes of these parts are in their blocks.
    pub(super) fn turn_and_offer(
        self: &Arc<Self>,
        change: impl FnOnce(&mut PeerRoot, Instant),
        transfer: TransferId,
        parts: impl IntoIterator<Item = PartId>,
    ) {
        let _sentry = Sentry::here(self.alarm());
        let mut state = self.state.lock();
        change(&mut state.root, self.clock.now());
        self.offer(&mut state, transfer, parts);
        self.settle(&mut state);
    }

    /// Our blocks of a part that the peer of a connection may touch now.
    pub(super) fn lent(&self, link: &Link, named: PartName) -> Option<Vec<BlockRef>> {
        let state = self.state.lock();
        let lent = state
            .root
            .lent(link.peer, link.connection, named.transfer, named.at);
        lent.map(<[BlockRef]>::to_vec)
    }

    /// Whether the peer of a connection may touch a part now.
    pub(super) fn is_lent(&self, link: &Link, named: PartName) -> bool {
        let (root, at) = (&self.state.lock().root, named.at);
        let lent = root.lent(link.peer, link.connection, named.transfer, at);
        lent.is_some()
    }

    /// A piece has come: counts it, and keeps what a device may still write.
    pub(super) fn landed(
        &self,
        transfer: TransferId,
        length_bytes: u64,
        status: &PartStatus,
        written: Vec<LentRanges>,
    ) {
        self.counts.bytes_received.add(length_bytes);
        if *status == PartStatus::Corrupt {
            self.counts.integrity_failures.add(1);
        }
        if !written.is_empty() {
            let mut state = self.state.lock();
            state.written.entry(transfer).or_default().extend(written);
        }
    }

    /// Every operation of a part that we move has ended: well, or without harm to the connection.
    pub(super) fn part_over(
        self: &Arc<Self>,
        link: &Link,
        named: PartName,
        failure: Option<PeerFailure>,
    ) {
        if !link.finish(named, failure.is_none()) {
            return;
        }
        let PartName { transfer, at } = named;
        let failed = failure.map(|failure| PeerEvent::PartFailed {
            transfer,
            at,
            failure,
        });
        let drain = Drain::Clean;
        let drained = PeerEvent::PartDrained {
            transfer,
            at,
            drain,
        };
        self.report(failed.into_iter().chain([drained]));
    }

    /// The lowest number that we take for a new connection.
    pub(super) fn lowest_connection(&self) -> u64 {
        2 * (self.newest.load(Ordering::Relaxed) + 1)
    }

    /// A number that neither side has used, not even for a connection that is made the other way
    /// round at the same time. `None` if the other side asks for one that nobody comes to.
    pub(super) fn number(&self, dialler: Incarnation, lowest: u64) -> Option<u64> {
        const FAR: u64 = 1 << 48;
        let side = u64::from(self.incarnation > dialler);
        let lowest = lowest.div_ceil(2);
        if lowest > FAR {
            return None;
        }
        let higher = |newest: u64| Some(lowest.max(newest + 1));
        let newest = &self.newest;
        let before = newest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, higher);
        before.ok().map(|newest| 2 * lowest.max(newest + 1) + side)
    }

    /// Takes a connection that has shaken hands, once the one before it with the same process is
    /// over: until then its bytes may still move, whatever the peer says on this one.
    pub(super) async fn adopt(self: &Arc<Self>, shaken: Shaken, place: OwnedSemaphorePermit) {
        let link = Link::new(&shaken);
        self.newest
            .fetch_max(shaken.connection.0 / 2, Ordering::Relaxed);
        loop {
            let before = {
                let mut state = self.state.lock();
                match state.links.get(&link.peer) {
                    None => return self.enter(&mut state, &link, shaken, place),
                    // Both sides dialled: both keep the one with the higher number.
                    Some(before) if before.connection > link.connection => return,
                    Some(before) => Arc::clone(before),
                }
            };
            before.close();
            before.over.waited().await;
        }
    }

    fn enter(
        self: &Arc<Self>,
        state: &mut State,
        link: &Arc<Link>,
        shaken: Shaken,
        place: OwnedSemaphorePermit,
    ) {
        if state.closed || state.stopped.is_some() || state.fences.contains_key(&link.peer) {
            self.counts.refused_fenced.add(1);
            return;
        }
        self.counts.connected.add(1);
        if let Some((_, stop)) = state.dials.remove(&link.peer) {
            stop.set();
        }
        state.links.insert(link.peer, Arc::clone(link));
        let Shaken {
            sender, receiver, ..
        } = shaken;
        let (core, own) = (Arc::clone(self), Arc::clone(link));
        self.spawn(async move {
            link::run(core, own, sender, receiver).await;
            drop(place);
        });
        let (peer, rank, connection) = (link.peer, link.rank, link.connection);
        state.events.push_back(PeerEvent::Connected {
            peer,
            rank,
            connection,
        });
        self.settle(state);
        if state.root.connection(peer) != Some(connection) {
            link.close();
        }
    }

    /// Counts why a connection ends.
    pub(super) fn ended_with(&self, link: &Link, end: &End) {
        let count = match end {
            End::Malformed(_) => &self.counts.closed_malformed,
            End::Idle | End::Broken(Broken::Link(LinkError::Deadline)) => &self.counts.closed_late,
            _ => &self.counts.closed,
        };
        count.add(1);
        let (peer, connection) = (link.peer, link.connection.0);
        tracing::debug!(?peer, connection, %end, "a peer's connection ends");
    }

    /// A fence is complete: its peer may connect again when the machine has heard so.
    pub(super) fn fenced(self: &Arc<Self>, peer: Incarnation, fence: FenceId) {
        let mut state = self.state.lock();
        state.events.push_back(PeerEvent::Fenced { peer, fence });
        self.settle(&mut state);
        if state.fences.get(&peer) == Some(&fence) {
            state.fences.remove(&peer);
        }
    }

    /// Both tasks of a connection are over: nothing of this process touches memory for it.
    pub(super) fn link_over(self: &Arc<Self>, link: &Arc<Link>) {
        let mut state = self.state.lock();
        let (peer, connection) = (link.peer, link.connection);
        let moved = link.give_up();
        // What a fence ends is proven by the fence. Otherwise the part that moved has failed, and
        // the fence that it needs ends all others.
        if let Some(PartName { transfer, at }) = moved
            && !state.fences.contains_key(&peer)
        {
            let drain = Drain::Dirty;
            state.events.push_back(PeerEvent::PartDrained {
                transfer,
                at,
                drain,
            });
        }
        if state.root.connection(peer) == Some(connection) {
            let lost = PeerEvent::Disconnected { peer, connection };
            state.events.push_back(lost);
        }
        state.links.remove(&peer);
        if link.was_useful()
            && let Some(road) = state.roads.get_mut(&peer)
        {
            road.backoff.reset();
            road.rested = true;
        }
        self.settle(&mut state);
        drop(state);
        link.over.set();
    }

    /// Returns when devices have written what they were given, or cannot prove it.
    pub(super) async fn rest(self: &Arc<Self>) {
        if self.with(|state| state.written.is_empty() || state.stopped.is_some()) {
            return;
        }
        let (devices, limit) = (self.memory.layout.devices(), self.memory.proof_timeout);
        let fences = Fences::ask(devices, FenceSide::After);
        match fences.prove(devices, FenceSide::After, limit, || ()).await {
            Ok(()) => self.with(|state| state.written.clear()),
            Err(fault) => self.stop(fault),
        }
    }

    /// Fail-stop: nothing is reported from now on, and block memory is never unmapped.
    pub(super) fn stop(self: &Arc<Self>, fault: MemoryFault) {
        tracing::error!(%fault, "the worker stops: block memory may be touched for ever");
        let mut state = self.state.lock();
        self.halt(&mut state, Stopped::Memory(fault));
    }

    pub(super) fn halt(self: &Arc<Self>, state: &mut State, why: Stopped) {
        if state.stopped.is_some() {
            return;
        }
        state.stopped = Some(why);
        for link in state.links.values() {
            link.close();
        }
        std::mem::forget(Arc::clone(self));
    }

    /// Starts a task of the driver's own.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let sentry = Sentry::of_task(self.alarm());
        self.runtime.spawn(async move {
            let _sentry = sentry;
            task.await;
        });
    }

    pub(super) fn alarm(self: &Arc<Self>) -> impl Fn() + Send + use<> {
        let own = Arc::clone(self);
        move || own.stop(MemoryFault::Panicked)
    }
}

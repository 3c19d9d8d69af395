//! A small world of prefill and decode workers: its settings, its state, and what can happen.
//!
//! The world knows what no machine knows: which operations really touch whose memory, which process
//! starts are alive, and what has landed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use tessera_lifecycle::LayoutClass;
use tessera_lifecycle::peer::{
    ConnectionId, FenceId, FenceKind, Frame, Mode, PartAttempt, PartId, PeerConfig, PeerLimits,
    PeerRoot, PeerTimes, TransferId,
};
use tessera_proto::{Incarnation, Instant};

use crate::law::Broken;
use crate::reached::Reached;

/// A request's time, and that of an offer.
pub(crate) const TIMEOUT_MS: u64 = 20;
pub(crate) const LEASE_MS: u64 = 15;
/// A fence that takes longer stops a worker.
pub(crate) const STOP_MS: u64 = 100_000;
/// Bytes of a part.
pub(crate) const BYTES: u64 = 8;
/// A second transfer for the request of the first has its number and this.
pub(crate) const AGAIN: u128 = 1_000;

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Frames that never come, come twice, or come before an earlier one.
    pub(crate) lost: u8,
    pub(crate) doubled: u8,
    pub(crate) early: u8,
    /// Connections that end, each side learning of it when it does.
    pub(crate) breaks: u8,
    /// Operations that end with an error on a connection that is whole.
    pub(crate) errors: u8,
    pub(crate) ticks: u8,
    pub(crate) aborts: u8,
    pub(crate) preemptions: u8,
    /// Processes that die, and come back on their address.
    pub(crate) restarts: u8,
    /// Dials that are given up.
    pub(crate) unreachable: u8,
    /// Failed requests that are ordered once more.
    pub(crate) again: u8,
    /// Devices that fail before they prove.
    pub(crate) devices: u8,
}

/// The settings of a world.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The mode of the first transfer, and of all if they are not mixed.
    pub(crate) mode: Mode,
    /// Every second transfer has the other mode.
    pub(crate) mixed: bool,
    /// Whether decode writes a ticket of what is to be written, and prefill claims by it, which may
    /// be before decode's workers know of it; else decode's workers offer.
    pub(crate) ticketed: bool,
    /// Whether decode does not see the end of what is written and must be told, as of a part
    /// without bytes; else it sees it first, and prefill has its answer.
    pub(crate) unseen: bool,
    pub(crate) class: LayoutClass,
    pub(crate) synchronous: bool,
    /// Workers on each side.
    pub(crate) prefill: usize,
    pub(crate) decode: usize,
    /// Parts between each two workers.
    pub(crate) parts: u16,
    pub(crate) transfers: usize,
    pub(crate) quarantine_bytes: u64,
    pub(crate) budget: Budget,
}

/// A world: what does not change.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) setup: Setup,
    /// Digests of states from which everything is known to end.
    pub(crate) ending: Arc<Mutex<BTreeSet<u64>>>,
    pub(crate) reached: Arc<[AtomicU64; Reached::COUNT]>,
}

/// Where a request stands in one worker's engine. Its memory there is reused once it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stand {
    Absent,
    Open { aborted: bool, raised: bool },
    Preempted,
    Over,
}

impl Stand {
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Open { .. } | Self::Preempted)
    }
}

/// One worker.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Worker {
    pub(crate) root: Arc<PeerRoot>,
    pub(crate) incarnation: Incarnation,
    pub(crate) stands: Vec<Stand>,
    pub(crate) fences: Vec<(Incarnation, FenceId, FenceKind)>,
    pub(crate) devices: Vec<TransferId>,
    pub(crate) dialing: BTreeSet<Incarnation>,
    /// Requests that a source has failed.
    pub(crate) failed: BTreeSet<usize>,
    /// Requests that were ordered once more.
    pub(crate) again: BTreeSet<usize>,
    /// Deaths that it has learned of.
    pub(crate) mourned: BTreeSet<Incarnation>,
}

/// The newest connection of a prefill and a decode worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) connection: ConnectionId,
    /// Whether bytes flow.
    pub(crate) whole: bool,
    /// Ends that still hold it for whole: prefill, decode.
    pub(crate) trusted: [bool; 2],
}

/// What was posted and may still touch memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) transfer: usize,
    pub(crate) at: PartAttempt,
    pub(crate) mover: Incarnation,
    pub(crate) lender: Incarnation,
    pub(crate) connection: ConnectionId,
    /// It may read the source's memory.
    pub(crate) reads: bool,
    /// It may write the destination's memory.
    pub(crate) writes: bool,
    /// The lender of a WRITE has seen its end, and the answer is on its way.
    pub(crate) landed: bool,
    /// Its mover knows how it ended, or is dead, or has fenced it.
    pub(crate) settled: bool,
}

/// One state of a world.
#[derive(Clone, Debug, Hash)]
#[expect(
    clippy::derived_hash_with_manual_eq,
    reason = "states are equal if their digests are, and equal digests are equal hashes"
)]
pub(crate) struct State {
    pub(crate) now: Instant,
    /// Prefill, then decode.
    pub(crate) workers: Vec<Worker>,
    /// Frames on their way, each to a worker's address, the oldest first.
    pub(crate) net: Vec<(usize, Arc<Frame>)>,
    pub(crate) links: BTreeMap<(usize, usize), Link>,
    pub(crate) ops: Vec<Op>,
    /// For each transfer the lending processes that its ticket names.
    pub(crate) tickets: Vec<Option<Vec<Incarnation>>>,
    /// Parts whose bytes are whole at their destination.
    pub(crate) landed: BTreeSet<(usize, PartId)>,
    /// Workers and transfers whose writes their device has not proven.
    pub(crate) unproven: BTreeSet<(usize, usize)>,
    /// Transfers of which an operation has failed.
    pub(crate) spoiled: BTreeSet<usize>,
    pub(crate) dead: BTreeSet<Incarnation>,
    pub(crate) names: u64,
    pub(crate) left: Budget,
    pub(crate) broken: Option<Broken>,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// An engine orders a transfer of its worker.
    Order(usize, usize),
    Deliver(usize),
    Lose(usize),
    Double(usize),
    Connect(usize, usize),
    /// A worker gives a dial up.
    GiveUp(usize, Incarnation),
    Break(usize, usize),
    /// One end learns that its connection is gone.
    Notice(usize, usize, usize),
    /// All of a WRITE is at its destination, which sees it.
    Land(usize),
    Done(usize),
    Error(usize),
    Fenced(usize),
    Proven(usize),
    DeviceFails(usize),
    Tick,
    Abort(usize, usize),
    Preempt(usize, usize),
    Restart(usize),
    /// A worker learns of a death.
    Mourn(usize, Incarnation),
    /// A decode engine orders another transfer for a request that has failed.
    Again(usize, usize),
}

/// A digest that does not change from run to run.
pub(crate) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        digest(self) == digest(other)
    }
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        Self {
            setup,
            ending: Arc::default(),
            reached: Arc::default(),
        }
    }

    pub(crate) fn initial(&self) -> State {
        let workers = self.setup.prefill + self.setup.decode;
        let mut state = State {
            now: Instant(1),
            workers: Vec::new(),
            net: Vec::new(),
            links: BTreeMap::new(),
            ops: Vec::new(),
            tickets: vec![None; self.setup.transfers],
            landed: BTreeSet::new(),
            unproven: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            dead: BTreeSet::new(),
            names: 0,
            left: self.setup.budget,
            broken: None,
        };
        for at in 0..workers {
            let worker = self.start(&mut state, at);
            state.workers.push(worker);
        }
        state
    }

    /// A process starts at an address.
    pub(crate) fn start(&self, state: &mut State, at: usize) -> Worker {
        state.names += 1;
        let incarnation = Incarnation(u128::from(state.names));
        let config = PeerConfig {
            incarnation,
            rank: self.rank(at),
            class: self.setup.class,
            times: PeerTimes {
                ping_ms: 30,
                drain_ms: 10,
                abort_ms: 10,
                fence_ms: 10,
                stop_ms: STOP_MS,
            },
            limits: PeerLimits {
                transfers: 4 * self.setup.transfers,
                peers: 8,
                offers: self.setup.transfers * self.setup.decode,
                tickets: 4 * self.setup.transfers,
                retries: 1,
                quarantine_bytes: self.setup.quarantine_bytes,
                quarantine_stop_bytes: u64::MAX,
            },
        };
        Worker {
            root: Arc::new(PeerRoot::new(config)),
            incarnation,
            stands: vec![Stand::Absent; self.setup.transfers],
            fences: Vec::new(),
            devices: Vec::new(),
            dialing: BTreeSet::new(),
            failed: BTreeSet::new(),
            again: BTreeSet::new(),
            mourned: BTreeSet::new(),
        }
    }

    pub(crate) fn mode(&self, transfer: usize) -> Mode {
        let other = self.setup.mixed && transfer % 2 == 1;
        match (self.setup.mode, other) {
            (Mode::Read, false) | (Mode::Write, true) => Mode::Read,
            (Mode::Write, false) | (Mode::Read, true) => Mode::Write,
        }
    }

    /// Whether the step of a worker waits for a transfer.
    pub(crate) fn is_synchronous(&self, at: usize, transfer: usize) -> bool {
        self.setup.synchronous && !self.is_prefill(at) && self.mode(transfer) == Mode::Read
    }

    pub(crate) fn is_prefill(&self, at: usize) -> bool {
        at < self.setup.prefill
    }

    pub(crate) fn rank(&self, at: usize) -> u16 {
        let rank = if self.is_prefill(at) {
            at
        } else {
            at - self.setup.prefill
        };
        u16::try_from(rank).expect("few")
    }

    /// The addresses of the two sides of a part: source, destination.
    pub(crate) fn sides(&self, part: PartId) -> (usize, usize) {
        let destination = self.setup.prefill + usize::from(part.destination);
        (usize::from(part.source), destination)
    }
}

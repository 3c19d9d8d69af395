//! One node: its connections, its circuit, and one request to it.
//!
//! Called by the cluster handle and the supervisors. Invariant: a request is sent only over a
//! connection that is up; with none up it fails at once, except while a first attempt (at start, or
//! right after a useful connection was lost) is still running: that is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tessera_proto::Kind;
use tessera_transport::Address;
use tokio::sync::watch;
use tokio::time::Instant;

use super::counters::{NodeCounters, NodeMetrics};
use crate::connection::{Cargo, Completion, Connection, Failure};
use crate::health::{Circuit, CircuitState, HealthConfig};
use crate::until::{Over, Until};

/// What a supervisor says of its connection.
#[derive(Debug, Clone)]
pub(super) enum Slot {
    /// An attempt is running that is worth waiting for.
    Connecting,
    /// Requests may be sent.
    Up(Arc<Connection>),
    /// The pause between attempts.
    Down,
    /// An attempt after a pause: the circuit is half open.
    Probing,
}

/// One configured node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) counters: Arc<NodeCounters>,
    slots: watch::Sender<Vec<Slot>>,
    turn: AtomicUsize,
    circuit: Mutex<Circuit>,
    /// Why the last attempt to connect failed, for people.
    why_down: Mutex<Option<String>>,
}

impl Node {
    pub(super) fn new(address: Address, connections: usize, health: &HealthConfig) -> Self {
        Self {
            address,
            counters: Arc::default(),
            slots: watch::Sender::new(vec![Slot::Connecting; connections.max(1)]),
            turn: AtomicUsize::new(0),
            circuit: Mutex::new(Circuit::new(health)),
            why_down: Mutex::new(None),
        }
    }

    /// A supervisor's attempt to connect failed, or succeeded.
    pub(super) fn tried(&self, failure: Option<String>) {
        *self.why_down.lock() = failure;
    }

    /// Why the last attempt to connect failed; `None` if it did not.
    pub(super) fn why_down(&self) -> Option<String> {
        self.why_down.lock().clone()
    }

    /// A supervisor's connection changed.
    pub(super) fn set(&self, slot: usize, state: Slot) {
        self.slots.send_modify(|slots| slots[slot] = state);
    }

    /// Whether the circuit took a supervisor's connection down.
    pub(super) fn was_opened(&self, slot: usize) -> bool {
        matches!(self.slots.borrow()[slot], Slot::Down)
    }

    /// Sends a request over the next connection that is up and waits for its end.
    pub(super) async fn call(
        &self,
        kind: Kind,
        body: &[u8],
        cargo: Cargo,
        until: &Until,
    ) -> Completion {
        match self.connection(until).await {
            Ok(connection) => self.call_over(&connection, kind, body, cargo, until).await,
            Err(failure) => Completion {
                answer: Err(failure),
                cargo,
            },
        }
    }

    /// Sends a request over `connection` and tells the circuit what came of it.
    pub(super) async fn call_over(
        &self,
        connection: &Connection,
        kind: Kind,
        body: &[u8],
        cargo: Cargo,
        until: &Until,
    ) -> Completion {
        if let Some(over) = until.over() {
            return Completion {
                answer: Err(over.into()),
                cargo,
            };
        }
        let received_bytes = connection.received_bytes();
        let mut completion = connection.call(kind, body, cargo, until).await;
        match &completion.answer {
            Ok(_) => self.circuit.lock().answered(),
            Err(Failure::Crowded | Failure::Recalled) => {}
            // Its connection was ended for it.
            Err(_) if until.over() == Some(Over::Recalled) => {
                completion.answer = Err(Failure::Recalled);
            }
            // A payload that stops in the middle ends with its connection, at the deadline.
            Err(Failure::Deadline | Failure::Lost) if Instant::now() >= until.deadline() => {
                completion.answer = Err(Failure::Deadline);
                // A node that sends to others meanwhile is slow, not dead.
                let silent = connection.received_bytes() == received_bytes;
                if silent && self.circuit.lock().silent() {
                    self.open();
                }
            }
            Err(_) => {}
        }
        completion
    }

    /// A connection that is up, in turn.
    pub(super) async fn connection(&self, until: &Until) -> Result<Arc<Connection>, Failure> {
        if let Some(settled) = self.pick(&self.slots.borrow()) {
            return settled;
        }
        let mut changes = self.slots.subscribe();
        let settled = changes.wait_for(|slots| self.pick(slots).is_some());
        match until.limit(settled).await {
            Ok(Ok(slots)) => self.pick(&slots).unwrap_or(Err(Failure::Lost)),
            Ok(Err(_ended)) => Err(Failure::Lost),
            Err(over) => Err(over.into()),
        }
    }

    /// The next connection that is up, or that there is none; nothing while that is open.
    fn pick(&self, slots: &[Slot]) -> Option<Result<Arc<Connection>, Failure>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let up = (0..slots.len()).find_map(|step| match &slots[(turn + step) % slots.len()] {
            Slot::Up(connection) if !connection.is_ending() => Some(Arc::clone(connection)),
            _ => None,
        });
        let opens = |slot: &Slot| match slot {
            Slot::Connecting => true,
            Slot::Up(connection) => connection.is_ending(),
            Slot::Down | Slot::Probing => false,
        };
        match up {
            Some(connection) => Some(Ok(connection)),
            None if slots.iter().any(opens) => None,
            None => Some(Err(Failure::Lost)),
        }
    }

    /// The node is silent: ends its connections, so that every later request is a miss at once
    /// until a new handshake succeeds. Requests that were in flight together find it out together:
    /// the first one opens the circuit, the others change nothing.
    fn open(&self) {
        let opened = self.slots.send_if_modified(|slots| {
            let mut closed = false;
            for slot in slots {
                if let Slot::Up(connection) = slot {
                    connection.close();
                    *slot = Slot::Down;
                    closed = true;
                }
            }
            closed
        });
        if opened {
            self.counters.circuits_opened.add(1);
            let node = &self.address;
            tracing::warn!(%node, "cache node is silent: treated as a miss until it answers");
        }
    }

    pub(super) fn circuit(&self) -> CircuitState {
        let slots = self.slots.borrow();
        let any = |wanted: fn(&Slot) -> bool| slots.iter().any(wanted);
        if any(|slot| matches!(slot, Slot::Up(_))) {
            CircuitState::Closed
        } else if any(|slot| matches!(slot, Slot::Connecting | Slot::Probing)) {
            CircuitState::HalfOpen
        } else {
            CircuitState::Open
        }
    }

    pub(super) fn metrics(&self) -> NodeMetrics {
        let in_flight = |slot: &Slot| match slot {
            Slot::Up(connection) => connection.in_flight() as u64,
            _ => 0,
        };
        let in_flight = self.slots.borrow().iter().map(in_flight).sum();
        self.counters
            .snapshot(self.address.clone(), self.circuit(), in_flight)
    }
}

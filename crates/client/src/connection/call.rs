//! A live connection as callers see it: one call a request, until its completion or its deadline.
//!
//! Called by the cluster. Invariant: a call returns the memory it was given, and not before writer
//! and reader are done with it. When a call is dropped, whoever holds the memory frees it after its
//! last use.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use tessera_proto::limits::{DEADLINE_MS_MAX, IN_FLIGHT_MAX};
use tessera_proto::message::{AcquireAnswer, Features, HelloAnswer, Release};
use tessera_proto::{FrameHeader, Incarnation, Kind, LeaseId};
use tessera_transport::{Address, Closer, Progress, Receiver};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::handshake::ConnectSpec;
use super::queue::Queue;
use super::table::{Answer, Cargo, Completion, Failure, Request, Table};
use crate::cluster::NodeCounters;
use crate::latch::Latch;
use crate::until::{Over, Until};

/// One connection, shared by callers, reader and writer.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) table: Mutex<Table>,
    pub(super) queue: Queue,
    pub(super) closer: Closer,
    pub(super) lost: Latch,
    pub(super) node: Address,
    pub(super) counters: Arc<NodeCounters>,
    incarnation: Incarnation,
    object_bytes_max: u64,
    features: Features,
    /// The price that the node was told last; 0 for none.
    price: AtomicU32,
    progress: Progress,
    in_flight: Arc<Semaphore>,
    useful: AtomicBool,
    ending: AtomicBool,
    /// Leases that nobody wants and that could not be given back yet.
    owed: Mutex<Vec<LeaseId>>,
}

impl Connection {
    pub(super) fn new(spec: &ConnectSpec, hello: &HelloAnswer, link: &Receiver) -> Self {
        let in_flight = hello.in_flight_max.clamp(1, IN_FLIGHT_MAX);
        Self {
            table: Mutex::new(Table::new()),
            queue: Queue::default(),
            closer: link.closer(),
            lost: Latch::default(),
            node: spec.address.clone(),
            counters: Arc::clone(&spec.counters),
            incarnation: hello.incarnation,
            object_bytes_max: hello.object_bytes_max,
            features: hello.features,
            price: AtomicU32::new(0),
            progress: link.progress(),
            in_flight: Arc::new(Semaphore::new(in_flight as usize)),
            useful: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            owed: Mutex::default(),
        }
    }

    /// The node's process start: leases of another one are over.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Largest object that the node takes.
    pub(crate) fn object_bytes_max(&self) -> u64 {
        self.object_bytes_max
    }

    /// What the node can do beyond the base.
    pub(crate) fn features(&self) -> Features {
        self.features
    }

    /// Whether the node was not told this price yet. It is told now, by whoever asks.
    pub(crate) fn is_new_price(&self, ns_per_kib: NonZeroU32) -> bool {
        let price = ns_per_kib.get();
        self.price.swap(price, Ordering::Relaxed) != price
    }

    /// Bytes that the node has sent so far. A node that sends anything is not silent.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.progress.bytes()
    }

    /// Whether the node has answered anything beside the handshake.
    pub(crate) fn was_useful(&self) -> bool {
        self.useful.load(Ordering::Relaxed)
    }

    /// Whether it was ended for the memory of one request. The node is well, and may be asked for
    /// the others over another connection.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// One request's memory is needed back, and its payload is in the middle.
    pub(super) fn end_for_memory(&self) {
        self.ending.store(true, Ordering::Release);
        self.close();
    }

    /// Ends the connection; everything in flight completes as lost.
    pub(crate) fn close(&self) {
        self.closer.close();
    }

    /// Requests in flight, those given up included.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.lock().len()
    }

    /// Sends a request and waits for its end, or for that of its time.
    pub(crate) async fn call(
        &self,
        kind: Kind,
        body: &[u8],
        cargo: Cargo,
        until: &Until,
    ) -> Completion {
        let deadline = until.deadline();
        let room = Arc::clone(&self.in_flight).acquire_owned();
        let failure = match until.limit(room).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_closed)) => Err(Failure::Lost),
            Err(Over::Deadline) => Err(Failure::Crowded),
            Err(Over::Recalled) => Err(Failure::Recalled),
        };
        let permit = match failure {
            Ok(permit) => permit,
            Err(failure) => {
                return Completion {
                    answer: Err(failure),
                    cargo,
                };
            }
        };
        let payload_bytes = match &cargo {
            Cargo::Source(segments) => segments.length_bytes(),
            _ => 0,
        };
        let (reply, completion) = oneshot::channel();
        let entered = self.table.lock().enter(Request {
            kind,
            deadline,
            cargo,
            reply: Some(reply),
            permit: Some(permit),
        });
        let id = match entered {
            Ok(id) => id,
            Err(cargo) => {
                return Completion {
                    answer: Err(Failure::Lost),
                    cargo,
                };
            }
        };
        let mut waiting = Waiting {
            connection: self,
            id,
            kind,
            completion,
            over: false,
        };
        self.push(kind, id, body, payload_bytes, deadline);
        let ended = match until.limit(&mut waiting.completion).await {
            Ok(ended) => ended,
            Err(over) => match waiting.give_up() {
                Some(cargo) => {
                    return Completion {
                        answer: Err(over.into()),
                        cargo,
                    };
                }
                // The reader or the writer has the memory, under the same deadline. Sooner it comes
                // back only with the end of the connection.
                None => {
                    if over == Over::Recalled && self.table.lock().has(id) {
                        self.end_for_memory();
                    }
                    (&mut waiting.completion).await
                }
            },
        };
        waiting.over = true;
        ended.expect("every request that was entered is completed by the table")
    }

    fn push(&self, kind: Kind, id: u64, body: &[u8], payload_bytes: u64, deadline: Instant) {
        let header = FrameHeader {
            kind,
            request: id,
            deadline_ms: remaining_ms(deadline),
            body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
            payload_bytes,
        };
        self.queue.push(header, body);
    }

    /// Gives back a lease that came after its caller had left, if there is one.
    pub(crate) fn release_unused(&self, lease: Option<LeaseId>) {
        if let Some(lease) = lease {
            self.owed.lock().push(lease);
            self.release_owed();
        }
    }

    /// Sends what is owed while there is room in flight; the reader calls it after every answer,
    /// since each makes room. Nobody waits for these releases.
    pub(super) fn release_owed(&self) {
        let mut owed = self.owed.lock();
        while let Some(lease) = owed.last().copied() {
            let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
                return;
            };
            owed.pop();
            self.release_now(lease, permit);
        }
    }

    fn release_now(&self, lease: LeaseId, permit: OwnedSemaphorePermit) {
        let ids = Vec::new();
        let mut body = Vec::new();
        Release { lease, ids }.encode(&mut body);
        let deadline = Instant::now();
        let entered = self.table.lock().enter(Request {
            kind: Kind::Release,
            deadline,
            cargo: Cargo::None,
            reply: None,
            permit: Some(permit),
        });
        if let Ok(id) = entered {
            self.push(Kind::Release, id, &body, 0, deadline);
        }
    }

    /// Gives back the lease of an answer to an ACQUIRE that nobody has read.
    pub(super) fn release_unread(&self, answer: Option<Answer>) {
        if let Some(Answer::Body(body)) = answer
            && let Ok(answer) = AcquireAnswer::decode(&body)
        {
            self.release_unused(answer.lease);
        }
    }

    /// The node answered something.
    pub(super) fn useful(&self) {
        self.useful.store(true, Ordering::Relaxed);
    }

    /// The connection is over: no request may enter, and all that are in flight complete.
    pub(super) fn lose(&self) {
        self.in_flight.close();
        self.table.lock().lose();
        self.lost.set();
    }
}

impl From<Over> for Failure {
    fn from(over: Over) -> Self {
        match over {
            Over::Deadline => Self::Deadline,
            Over::Recalled => Self::Recalled,
        }
    }
}

/// A call in progress. Dropped early, it gives the request up, so that its memory is freed as soon
/// as nobody uses it, and gives back the lease of an answer that nobody will read.
struct Waiting<'c> {
    connection: &'c Connection,
    id: u64,
    kind: Kind,
    completion: oneshot::Receiver<Completion>,
    over: bool,
}

impl Waiting<'_> {
    fn give_up(&mut self) -> Option<Cargo> {
        let cargo = self.connection.table.lock().give_up(self.id);
        self.over = cargo.is_some();
        cargo
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.over || self.give_up().is_some() || self.kind != Kind::Acquire {
            return;
        }
        // The table completes under its lock: an answer that it had is in the channel by now.
        let unread = self.completion.try_recv().ok();
        let unread = unread.and_then(|completion| completion.answer.ok());
        self.connection.release_unread(unread);
    }
}

/// What a frame says of its deadline: at least one millisecond, at most what the wire allows.
pub(super) fn remaining_ms(deadline: Instant) -> u32 {
    let remaining = deadline
        .saturating_duration_since(Instant::now())
        .as_millis();
    u32::try_from(remaining)
        .unwrap_or(DEADLINE_MS_MAX)
        .clamp(1, DEADLINE_MS_MAX)
}

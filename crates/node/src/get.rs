//! GET: an object is looked for when its answer is sent, and not before.
//!
//! Received by the reader of a connection, answered by its writer. Invariants: a request that waits
//! behind others holds an id and no memory, whatever is asked for and however slowly it is read;
//! what is pinned to be sent stays within one limit over all connections.

use std::ops::Deref;
use std::sync::Arc;

use tessera_proto::message::{Get, GetAnswer, GetStatus, Refusal};
use tessera_proto::{FrameHeader, Kind};
use tessera_store::{Fetched, ReadPin};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::reply::Reply;
use crate::sending::Turn;
use crate::shared::Shared;
use crate::writer::Answer;

/// An object while it is sent, within the limit on bytes that are being sent.
#[derive(Debug)]
pub(crate) struct Pinned {
    pin: ReadPin,
    _turn: Turn,
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pin
    }
}

/// A GET whose turn to be answered has not come.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) get: Get,
    /// The object came into memory for this request, which was counted then.
    pub(crate) was_read: bool,
    pub(crate) request: FrameHeader,
    /// When the client stops to wait; a payload is not begun after it.
    pub(crate) deadline: Option<Instant>,
    /// The place among the requests in flight.
    pub(crate) place: OwnedSemaphorePermit,
}

/// Serves one GET. What is in memory waits for its turn; what is not is looked for on the disks
/// now, so that they work while earlier answers are sent.
pub(crate) fn receive(shared: &Arc<Shared>, reply: Reply, get: Get) {
    shared.counters.requests_get.count();
    if shared.store.ram().contains(&get.id) {
        return reply.send_object(get, false);
    }
    let served = Arc::clone(shared);
    let now = shared.clock.now();
    let done = move |fetched| match fetched {
        // It stays in memory for a while, and is read again if that was not long enough.
        Fetched::Found(_) => reply.send_object(get, true),
        Fetched::Missing => reply.send(Kind::GetAnswer, missing(&served, &get)),
        Fetched::Busy => reply.refuse(Refusal::Busy, without_room(&served)),
    };
    shared.store.fetch(get.id, get.lease, now, done);
}

impl Wanted {
    /// The answer, now that it can be sent. Only `alone` it may wait for a disk, or for others to
    /// have sent theirs; else it comes back, to be asked again when nothing else is ready.
    pub(crate) async fn answer(self, shared: &Arc<Shared>, alone: bool) -> Result<Answer, Self> {
        // Nobody waits any more past the deadline: the payload would only delay the others.
        if self.deadline.is_some_and(|end| end <= Instant::now()) {
            shared.counters.refused_deadline.count();
            let message = "the deadline passed before the answer was begun";
            return Ok(self.refuse(Refusal::Deadline, message));
        }
        if !alone && !shared.store.ram().contains(&self.get.id) {
            return Err(self);
        }
        // An object of another length is not sent, whatever the request says.
        let bytes = self.get.length_bytes.min(shared.limits.object_bytes);
        let turn = match alone {
            true => shared.sending.turn(bytes, self.waits_until(shared)).await,
            false => shared.sending.now(bytes),
        };
        let Some(turn) = turn else {
            if !alone {
                return Err(self);
            }
            shared.counters.refused_busy_sending.count();
            let message = "too many bytes are being sent: try again later";
            return Ok(self.refuse(Refusal::Busy, message));
        };
        Ok(match self.fetch(shared).await {
            Fetched::Found(pin) => self.found(shared, pin, turn),
            Fetched::Missing => {
                let body = missing(shared, &self.get);
                self.ready(body, None)
            }
            Fetched::Busy => self.refuse(Refusal::Busy, without_room(shared)),
        })
    }

    /// When it stops to wait for others, whatever it says: its client may be gone.
    fn waits_until(&self, shared: &Shared) -> Instant {
        let limit = Instant::now() + shared.limits.frame_timeout;
        self.deadline.map_or(limit, |deadline| deadline.min(limit))
    }

    async fn fetch(&self, shared: &Shared) -> Fetched {
        if self.was_read
            && let Some(pin) = shared.store.ram().pin_again(&self.get.id)
        {
            return Fetched::Found(pin);
        }
        let (tell, told) = oneshot::channel();
        let done = move |fetched| {
            // Whoever waited may be gone with the connection; then nothing is held.
            let _ = tell.send(fetched);
        };
        let now = shared.clock.now();
        shared.store.fetch(self.get.id, self.get.lease, now, done);
        told.await.unwrap_or(Fetched::Missing)
    }

    fn found(self, shared: &Shared, pin: ReadPin, turn: Turn) -> Answer {
        let header = *pin.header();
        let fits = header.length_bytes == self.get.length_bytes;
        let (answer, payload) = match fits {
            true => {
                shared.counters.get_found.count();
                let pinned = Pinned { pin, _turn: turn };
                (GetAnswer::Found(header), Some(pinned))
            }
            false => {
                shared.counters.get_length.count();
                (GetAnswer::Absent(GetStatus::Length), None)
            }
        };
        self.ready(body(answer), payload)
    }

    fn ready(self, body: Vec<u8>, payload: Option<Pinned>) -> Answer {
        Answer {
            payload,
            _place: Some(self.place),
            ..Answer::new(&self.request, Kind::GetAnswer, body)
        }
    }

    fn refuse(self, reason: Refusal, message: &str) -> Answer {
        Answer {
            _place: Some(self.place),
            ..Answer::refusal(self.request.request, reason, message)
        }
    }
}

/// The body of the answer that there is no such object, which is counted.
fn missing(shared: &Shared, get: &Get) -> Vec<u8> {
    let (counter, status) = match get.lease {
        Some(_) => (&shared.counters.get_lease_over, GetStatus::LeaseOver),
        None => (&shared.counters.get_missing, GetStatus::Missing),
    };
    counter.count();
    body(GetAnswer::Absent(status))
}

fn body(answer: GetAnswer) -> Vec<u8> {
    let mut body = Vec::new();
    answer.encode(&mut body);
    body
}

/// Why an object on disk is not given out, which is counted.
fn without_room(shared: &Shared) -> &'static str {
    shared.counters.refused_busy_memory.count();
    "memory has no room to read the object into: try again later"
}

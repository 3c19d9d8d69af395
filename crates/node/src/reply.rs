//! The right to answer one request, whenever and on whatever thread the answer is there.
//!
//! Made by the reader of a connection for each request. It holds the room for the answer in the
//! queue of the writer, so that a thread of a disk never waits for a client, and the place among
//! the requests in flight. Invariant: a connection ends only when each of its replies was sent or
//! dropped.

use std::time::Duration;

use tessera_proto::message::{Get, Refusal};
use tessera_proto::{FrameHeader, Kind};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::Instant;

use crate::backlog::Waiting;
use crate::get::Wanted;
use crate::writer::{Answer, Queued};

/// One answer that is still to be given.
#[derive(Debug)]
pub(crate) struct Reply {
    request: FrameHeader,
    room: OwnedPermit<Queued>,
    place: OwnedSemaphorePermit,
    waiting: Waiting,
    /// When the client stops to wait.
    deadline: Option<Instant>,
}

impl Reply {
    /// The reply to a request whose header was just read.
    pub(crate) fn new(
        request: FrameHeader,
        room: OwnedPermit<Queued>,
        place: OwnedSemaphorePermit,
        waiting: Waiting,
    ) -> Self {
        let patience = Duration::from_millis(u64::from(request.deadline_ms));
        Self {
            request,
            room,
            place,
            waiting,
            deadline: (request.deadline_ms > 0).then(|| Instant::now() + patience),
        }
    }

    /// The header of the request.
    pub(crate) fn request(&self) -> &FrameHeader {
        &self.request
    }

    /// An answer of so many bytes will come, but not at once.
    pub(crate) fn expect(&mut self, body_bytes: usize) {
        self.waiting.of(body_bytes);
    }

    /// Answers with a body.
    pub(crate) fn send(self, kind: Kind, body: Vec<u8>) {
        let answer = Answer::new(&self.request, kind, body);
        self.queue(answer);
    }

    /// Leaves it to the writer to find the object and to answer with it. `was_read`: it came into
    /// memory for this request.
    pub(crate) fn send_object(self, get: Get, was_read: bool) {
        self.room.send(Queued::Object(Wanted {
            get,
            was_read,
            request: self.request,
            deadline: self.deadline,
            place: self.place,
        }));
    }

    /// Answers that the request is not served.
    pub(crate) fn refuse(self, reason: Refusal, message: &str) {
        let answer = Answer::refusal(self.request.request, reason, message);
        self.queue(answer);
    }

    fn queue(mut self, answer: Answer) {
        self.waiting.of(answer.body.len());
        self.room.send(Queued::Answer(Answer {
            _place: Some(self.place),
            _waiting: Some(self.waiting),
            ..answer
        }));
    }
}

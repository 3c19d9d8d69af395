//! The right to answer one request, whenever and on whatever thread the answer is there.
//!
//! Made by the reader of a connection for each request. It holds the room for the answer in the
//! queue of the writer, so that a thread of a disk never waits for a client, and the place among
//! the requests in flight. Invariant: a connection ends only when each of its replies was sent or
//! dropped.

use std::time::Duration;

use tessera_proto::message::Refusal;
use tessera_proto::{FrameHeader, Kind};
use tessera_store::ReadPin;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::Instant;

use crate::writer::Answer;

/// One answer that is still to be given.
#[derive(Debug)]
pub(crate) struct Reply {
    request: FrameHeader,
    room: OwnedPermit<Answer>,
    place: OwnedSemaphorePermit,
    /// When the client stops to wait.
    deadline: Option<Instant>,
}

impl Reply {
    /// The reply to a request whose header was just read.
    pub(crate) fn new(
        request: FrameHeader,
        room: OwnedPermit<Answer>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let patience = Duration::from_millis(u64::from(request.deadline_ms));
        Self {
            request,
            room,
            place,
            deadline: (request.deadline_ms > 0).then(|| Instant::now() + patience),
        }
    }

    /// The header of the request.
    pub(crate) fn request(&self) -> &FrameHeader {
        &self.request
    }

    /// Answers with a body.
    pub(crate) fn send(self, kind: Kind, body: Vec<u8>) {
        let answer = Answer::new(&self.request, kind, body);
        self.queue(answer);
    }

    /// Answers with a body and the bytes of an object, or of none.
    pub(crate) fn send_object(self, kind: Kind, body: Vec<u8>, payload: Option<ReadPin>) {
        let answer = Answer {
            payload,
            deadline: self.deadline,
            ..Answer::new(&self.request, kind, body)
        };
        self.queue(answer);
    }

    /// Answers that the request is not served.
    pub(crate) fn refuse(self, reason: Refusal, message: &str) {
        let answer = Answer::refusal(self.request.request, reason, message);
        self.queue(answer);
    }

    fn queue(self, answer: Answer) {
        self.room.send(Answer {
            place: Some(self.place),
            ..answer
        });
    }
}

//! The right to answer one request, whenever and on whatever thread the answer is there.
//!
//! Made by the reader of a connection for each request. It holds the room for the answer in the
//! queue of the writer, so that a thread of a disk never waits for a client, and the place among
//! the requests in flight. Invariant: a connection ends only when each of its replies was sent or
//! dropped.

use std::time::Duration;

use tessera_proto::message::{Features, Get, Refusal};
use tessera_proto::{FrameHeader, Kind};
use tessera_store::Unrecorded;
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
    /// What the client can do beyond the base.
    features: Features,
    /// When the client stops to wait.
    deadline: Option<Instant>,
}

impl Reply {
    /// The reply to a request whose header was just read.
    pub(crate) fn new(
        request: FrameHeader,
        room: OwnedPermit<Queued>,
        place: OwnedSemaphorePermit,
        (waiting, features): (Waiting, Features),
    ) -> Self {
        let patience = Duration::from_millis(u64::from(request.deadline_ms));
        Self {
            request,
            room,
            place,
            waiting,
            features,
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

    /// Answers that what was to be removed may come back. A client that has no word for that is
    /// told that it was not done in time, with the same message.
    pub(crate) fn unrecorded(self, error: Unrecorded) {
        let reason = match self.features.has(Features::UNRECORDED) {
            true => Refusal::Unrecorded,
            false => Refusal::Deadline,
        };
        self.refuse(reason, &error.to_string());
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tessera_proto::message::Refused;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;
    use crate::backlog::Backlog;

    /// How a client with these features is told that a removal may not last.
    async fn told(features: Features) -> Refused {
        let (answers, mut queue) = mpsc::channel(1);
        let room = answers.reserve_owned().await.expect("a queue");
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned();
        let request = FrameHeader {
            kind: Kind::Remove,
            request: 7,
            deadline_ms: 0,
            body_bytes: 0,
            payload_bytes: 0,
        };
        let waiting = Arc::new(Backlog::default()).answer();
        let place = place.expect("a place");
        Reply::new(request, room, place, (waiting, features)).unrecorded(Unrecorded);
        let Some(Queued::Answer(answer)) = queue.recv().await else {
            panic!("no answer");
        };
        assert_eq!((answer.request, answer.kind), (7, Kind::Refused));
        Refused::decode(&answer.body).expect("a refusal")
    }

    #[tokio::test]
    async fn a_client_without_the_word_for_it_is_told_of_a_deadline_and_the_same_message() {
        let others = [Features::default(), Features::DROP];
        let known = told(Features::ALL).await;
        assert_eq!(known.reason, Refusal::Unrecorded);
        assert!(known.message.contains("tessera clean"), "{known:?}");
        for features in others {
            let refused = told(features).await;
            assert_eq!(refused.reason, Refusal::Deadline);
            assert_eq!(refused.message, known.message);
        }
    }
}

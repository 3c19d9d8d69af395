//! The requests in flight on one connection, and who owns the memory that each brought.
//!
//! Called by callers (enter, give up), the writer (start and end of a send) and the reader (start
//! of a receive, completion, loss). Invariants: a request completes at most once; its cargo is in
//! the table, with the writer or with the reader, never in two places; a request that was given up
//! after it was sent leaves a mark that keeps its place until the late answer, so that the node's
//! bound on requests in flight holds.

use std::collections::HashMap;

use tessera_proto::message::Refusal;
use tessera_proto::{Expectation, Kind};
use tessera_transport::{Lent, Segments};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::cluster::FetchOutcome;

/// The request id of the handshake. Zero stands for the connection itself.
pub(crate) const HELLO_REQUEST: u64 = 1;

/// The memory of a request.
#[derive(Debug)]
pub(crate) enum Cargo {
    /// None: a message without payload.
    None,
    /// Where the payload of a GET goes, and what it must be.
    Destination(Lent, Box<Expectation>),
    /// What a PUT sends.
    Source(Segments),
}

/// What a node said.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The body of the answer to the request's kind, not decoded yet.
    Body(Vec<u8>),
    /// A GET ended: received and verified, or not sent.
    Fetched(FetchOutcome),
    /// The request was refused.
    Refused(Refusal),
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The deadline passed.
    Deadline,
    /// The deadline passed before there was room to send the request: too many are in flight.
    Crowded,
    /// The caller wanted its memory back sooner.
    Recalled,
    /// The connection is gone.
    Lost,
}

/// How a request ended, with its memory.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) answer: Result<Answer, Failure>,
    pub(crate) cargo: Cargo,
}

/// Who has the request now.
#[derive(Debug)]
enum State {
    /// Its frame is in the queue.
    Queued,
    /// The writer reads its source; an answer that came early waits here.
    Sending(Option<Answer>),
    /// Sent; the answer has not begun.
    Waiting,
    /// The reader writes its destination.
    Receiving,
    /// Given up after it was sent.
    Abandoned,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    deadline: Instant,
    state: State,
    cargo: Cargo,
    reply: Option<oneshot::Sender<Completion>>,
    /// Keeps the request's place among those in flight until the entry is gone.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Entry {
    /// Tells the caller. Returns the answer when the caller is gone; its memory is freed here,
    /// after its last use.
    fn complete(self, answer: Result<Answer, Failure>) -> Option<Answer> {
        let completion = Completion {
            answer,
            cargo: self.cargo,
        };
        match self.reply {
            Some(reply) => reply.send(completion).err()?.answer.ok(),
            None => completion.answer.ok(),
        }
    }
}

/// What a caller enters.
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) deadline: Instant,
    pub(crate) cargo: Cargo,
    pub(crate) reply: Option<oneshot::Sender<Completion>>,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// What the writer does with a queued frame.
#[derive(Debug)]
pub(crate) enum Departure {
    /// The request was given up: leave the frame out.
    Skip,
    /// Send the frame.
    Send,
    /// Send the frame with this payload by the deadline, then call [`Table::end_send`].
    SendSource(Segments, Instant),
}

/// What the reader does with an answer.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Nobody asked.
    Unknown,
    /// The caller gave up; the kind of its request.
    Late(Kind),
    /// Complete the request with the body.
    Message(Kind),
    /// The GET's destination is the reader's until [`Table::end_receive`].
    Payload(Lent, Box<Expectation>, Instant),
}

/// The requests of one connection.
#[derive(Debug)]
pub(crate) struct Table {
    entries: HashMap<u64, Entry>,
    last_id: u64,
    lost: bool,
}

impl Table {
    /// No requests yet. Ids begin after that of the handshake.
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            last_id: HELLO_REQUEST,
            lost: false,
        }
    }

    /// Enters a request under a new id, or gives it back when the connection is gone.
    pub(crate) fn enter(&mut self, request: Request) -> Result<u64, Cargo> {
        if self.lost {
            return Err(request.cargo);
        }
        self.last_id += 1;
        let Request {
            kind,
            deadline,
            cargo,
            reply,
            permit,
        } = request;
        let state = State::Queued;
        let entry = Entry {
            kind,
            deadline,
            state,
            cargo,
            reply,
            _permit: permit,
        };
        self.entries.insert(self.last_id, entry);
        Ok(self.last_id)
    }

    /// The caller stops waiting. Returns its memory, or nothing while the writer or the reader has
    /// it: then the completion is near, because their deadline is the request's.
    pub(crate) fn give_up(&mut self, id: u64) -> Option<Cargo> {
        let entry = self.entries.get_mut(&id)?;
        match entry.state {
            State::Sending(_) | State::Receiving | State::Abandoned => None,
            State::Queued => self.entries.remove(&id).map(|entry| entry.cargo),
            State::Waiting => {
                entry.state = State::Abandoned;
                entry.reply = None;
                Some(std::mem::replace(&mut entry.cargo, Cargo::None))
            }
        }
    }

    /// The writer takes a queued frame.
    pub(crate) fn start_send(&mut self, id: u64) -> Departure {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Departure::Skip;
        };
        match std::mem::replace(&mut entry.cargo, Cargo::None) {
            Cargo::Source(segments) => {
                entry.state = State::Sending(None);
                Departure::SendSource(segments, entry.deadline)
            }
            cargo => {
                entry.cargo = cargo;
                entry.state = State::Waiting;
                Departure::Send
            }
        }
    }

    /// The writer gives a source back; it reads it no more.
    pub(crate) fn end_send(&mut self, id: u64, segments: Segments) {
        let lost = self.lost;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.cargo = Cargo::Source(segments);
        let early = match std::mem::replace(&mut entry.state, State::Waiting) {
            State::Sending(early) => early,
            _ => None,
        };
        if let Some(answer) = early {
            self.complete(id, Ok(answer));
        } else if lost {
            self.complete(id, Err(Failure::Lost));
        }
    }

    /// An answer of `kind` has begun to arrive.
    pub(crate) fn start_receive(&mut self, id: u64, kind: Kind) -> Arrival {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Arrival::Unknown;
        };
        match entry.state {
            State::Queued | State::Receiving => return Arrival::Unknown,
            State::Abandoned => {
                let kind = entry.kind;
                self.entries.remove(&id);
                return Arrival::Late(kind);
            }
            State::Sending(_) => return Arrival::Message(entry.kind),
            State::Waiting => {}
        }
        if kind != Kind::GetAnswer {
            return Arrival::Message(entry.kind);
        }
        match std::mem::replace(&mut entry.cargo, Cargo::None) {
            Cargo::Destination(lent, expectation) => {
                entry.state = State::Receiving;
                Arrival::Payload(lent, expectation, entry.deadline)
            }
            cargo => {
                entry.cargo = cargo;
                Arrival::Message(entry.kind)
            }
        }
    }

    /// The reader gives a destination back; it writes it no more.
    pub(crate) fn end_receive(&mut self, id: u64, cargo: Cargo, answer: Result<Answer, Failure>) {
        if let Some(mut entry) = self.entries.remove(&id) {
            entry.cargo = cargo;
            entry.complete(answer);
        }
    }

    /// A whole answer without payload is here. Returns it when nobody waits for it any more.
    pub(crate) fn complete(&mut self, id: u64, answer: Result<Answer, Failure>) -> Option<Answer> {
        let entry = self.entries.get_mut(&id)?;
        if let (State::Sending(early), Ok(_)) = (&mut entry.state, &answer) {
            *early = answer.ok();
            return None;
        }
        self.entries.remove(&id)?.complete(answer)
    }

    /// The connection is gone: completes all but those whose memory the writer or the reader has,
    /// who end them.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        let ended = |_: &u64, entry: &mut Entry| {
            !matches!(entry.state, State::Sending(_) | State::Receiving)
        };
        for (_, entry) in self.entries.extract_if(ended) {
            entry.complete(Err(Failure::Lost));
        }
    }

    /// Whether the request is still in flight.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.entries.contains_key(&id)
    }

    /// Requests in flight, those given up included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tessera_proto::{KeyDigest, NamespaceDigest};
    use tessera_transport::Region;

    use super::*;

    fn segments() -> Segments {
        Segments::whole(&Region::allocate(8).unwrap())
    }

    fn destination() -> Cargo {
        let expectation = Expectation {
            namespace: NamespaceDigest([0; 32]),
            key: KeyDigest([0; 32]),
            layout: 0,
            length_bytes: 8,
        };
        Cargo::Destination(Lent::new(segments()).unwrap(), Box::new(expectation))
    }

    fn enter(table: &mut Table, kind: Kind, cargo: Cargo) -> (u64, oneshot::Receiver<Completion>) {
        let (reply, completion) = oneshot::channel();
        let deadline = Instant::now() + Duration::from_secs(60);
        let request = Request {
            kind,
            deadline,
            cargo,
            reply: Some(reply),
            permit: None,
        };
        (
            table.enter(request).expect("the connection is up"),
            completion,
        )
    }

    #[test]
    fn a_destination_cannot_be_taken_back_while_the_reader_has_it() {
        let mut table = Table::new();
        let (id, mut completion) = enter(&mut table, Kind::Get, destination());
        table.start_send(id);
        let Arrival::Payload(lent, expectation, _) = table.start_receive(id, Kind::GetAnswer)
        else {
            panic!("the destination stayed in the table")
        };
        assert!(table.give_up(id).is_none());
        table.lose();
        completion
            .try_recv()
            .expect_err("completed without the memory");
        table.end_receive(
            id,
            Cargo::Destination(lent, expectation),
            Err(Failure::Lost),
        );
        assert!(matches!(
            completion.try_recv().unwrap().cargo,
            Cargo::Destination(..)
        ));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_source_cannot_be_taken_back_while_the_writer_has_it() {
        let mut table = Table::new();
        let (id, mut completion) = enter(&mut table, Kind::Put, Cargo::Source(segments()));
        let Departure::SendSource(source, _) = table.start_send(id) else {
            panic!("no source")
        };
        assert!(table.give_up(id).is_none());
        table.complete(id, Ok(Answer::Body(vec![1])));
        completion
            .try_recv()
            .expect_err("answered early, the writer still reads");
        table.lose();
        completion
            .try_recv()
            .expect_err("lost, the writer still reads");
        table.end_send(id, source);
        let done = completion.try_recv().unwrap();
        assert!(matches!(done.answer, Ok(Answer::Body(_))));
        assert!(matches!(done.cargo, Cargo::Source(_)));
    }

    #[test]
    fn a_request_given_up_keeps_its_place_until_its_late_answer() {
        let mut table = Table::new();
        let (id, _completion) = enter(&mut table, Kind::Get, destination());
        table.start_send(id);
        assert!(matches!(table.give_up(id), Some(Cargo::Destination(..))));
        assert!(table.give_up(id).is_none(), "memory comes back once");
        assert_eq!(table.len(), 1);
        assert!(matches!(
            table.start_receive(id, Kind::GetAnswer),
            Arrival::Late(Kind::Get)
        ));
        assert!(matches!(
            table.start_receive(id, Kind::GetAnswer),
            Arrival::Unknown
        ));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_request_given_up_in_the_queue_is_never_sent() {
        let mut table = Table::new();
        let (id, _completion) = enter(&mut table, Kind::Put, Cargo::Source(segments()));
        assert!(matches!(table.give_up(id), Some(Cargo::Source(_))));
        assert!(matches!(table.start_send(id), Departure::Skip));
    }

    #[test]
    fn nothing_enters_a_lost_connection() {
        let mut table = Table::new();
        let (_, mut waiting) = enter(&mut table, Kind::Get, destination());
        table.lose();
        assert_eq!(
            waiting.try_recv().unwrap().answer.unwrap_err(),
            Failure::Lost
        );
        let deadline = Instant::now();
        let cargo = destination();
        let request = Request {
            kind: Kind::Get,
            deadline,
            cargo,
            reply: None,
            permit: None,
        };
        assert!(matches!(table.enter(request), Err(Cargo::Destination(..))));
    }
}

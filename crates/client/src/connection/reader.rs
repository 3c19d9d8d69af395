//! The task that receives answers and payloads.
//!
//! Started by the handshake, ends when the connection is lost. Invariants: lent memory is written
//! only for an answer whose header is the expected one; it goes back to its caller after the last
//! write, also when the task is dropped; bytes are verified where they landed.

use std::sync::Arc;
use std::time::Duration;

use tessera_proto::message::{AcquireAnswer, GetAnswer, GetStatus, Refused};
use tessera_proto::{Expectation, FrameHeader, Kind, ObjectHeader};
use tessera_transport::{Lent, LinkError, Receiver};
use tokio::time::Instant;

use super::call::Connection;
use super::table::{Answer, Arrival, Cargo, Failure};
use crate::cluster::FetchOutcome;

/// Why the reader ends.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    /// The link broke or was closed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The node sent a body that cannot be read: it speaks another version or is damaged.
    #[error("the node sent a message that cannot be read: {0}")]
    Decode(#[from] tessera_proto::DecodeError),
    /// The node answered with the wrong kind.
    #[error("the node answered {request:?} with {answer:?}")]
    Kind { request: Kind, answer: Kind },
    /// The node ended the connection and said why.
    #[error("the node closed the connection: {reason}")]
    Refused { reason: String },
}

/// A destination in the reader's hands.
struct Holding {
    request: u64,
    lent: Lent,
    expectation: Box<Expectation>,
}

struct Reader {
    connection: Arc<Connection>,
    link: Receiver,
    holding: Option<Holding>,
    frame: Duration,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.connection.closer.close();
        self.give_back(Err(Failure::Lost));
        self.connection.lose();
    }
}

/// Runs until the link breaks or is closed, then completes everything in flight.
pub(super) async fn run(connection: Arc<Connection>, link: Receiver, frame: Duration) {
    let mut reader = Reader {
        connection,
        link,
        holding: None,
        frame,
    };
    loop {
        if let Err(error) = reader.next().await {
            let node = &reader.connection.node;
            tracing::debug!(%node, %error, "connection to cache node ended");
            return;
        }
        reader.connection.release_owed();
    }
}

impl Reader {
    /// One frame.
    async fn next(&mut self) -> Result<(), ReadError> {
        self.link.begin().await?;
        let until = Instant::now() + self.frame;
        let header = self.link.header(until).await?;
        if header.request == 0 {
            let refused = Refused::decode(self.link.body(until).await?)?;
            return Err(ReadError::Refused {
                reason: refused.message,
            });
        }
        let arrival = self
            .connection
            .table
            .lock()
            .start_receive(header.request, header.kind);
        match arrival {
            Arrival::Unknown => {
                self.connection.counters.unknown_answers.add(1);
                self.skip(until).await
            }
            Arrival::Late(kind) => {
                self.connection.counters.late_answers.add(1);
                self.late(kind, header, until).await
            }
            Arrival::Message(kind) => self.message(kind, header, until).await,
            Arrival::Payload(lent, expectation, deadline) => {
                let request = header.request;
                self.holding = Some(Holding {
                    request,
                    lent,
                    expectation,
                });
                // The caller waits for the memory: its deadline covers all of the answer.
                let received = self.payload(header, until.min(deadline), deadline).await;
                if received.is_err() && Instant::now() >= deadline {
                    self.connection.end_for_memory();
                }
                let outcome = received?;
                self.connection.useful();
                self.give_back(Ok(Answer::Fetched(outcome)));
                Ok(())
            }
        }
    }

    async fn skip(&mut self, until: Instant) -> Result<(), ReadError> {
        self.link.body(until).await?;
        Ok(self.link.payload_discard(until).await?)
    }

    /// The caller is gone. A lease that it will never use goes back at once.
    async fn late(
        &mut self,
        kind: Kind,
        header: FrameHeader,
        until: Instant,
    ) -> Result<(), ReadError> {
        if kind == Kind::Acquire && header.kind == Kind::AcquireAnswer {
            let answer = AcquireAnswer::decode(self.link.body(until).await?)?;
            self.connection.release_unused(answer.lease);
            return Ok(self.link.payload_discard(until).await?);
        }
        self.skip(until).await
    }

    /// An answer without payload.
    async fn message(
        &mut self,
        kind: Kind,
        header: FrameHeader,
        until: Instant,
    ) -> Result<(), ReadError> {
        let body = self.link.body(until).await?;
        let answer = if header.kind == Kind::Refused {
            Answer::Refused(Refused::decode(body)?.reason)
        } else if header.kind.number() == kind.number() | ANSWER_BIT {
            Answer::Body(body.to_vec())
        } else {
            return Err(ReadError::Kind {
                request: kind,
                answer: header.kind,
            });
        };
        self.link.payload_discard(until).await?;
        self.connection.useful();
        let mut table = self.connection.table.lock();
        let unread = table.complete(header.request, Ok(answer));
        drop(table);
        if kind == Kind::Acquire {
            self.connection.release_unread(unread);
        }
        Ok(())
    }

    /// The answer to a GET whose destination is in `self.holding`.
    async fn payload(
        &mut self,
        header: FrameHeader,
        until: Instant,
        deadline: Instant,
    ) -> Result<FetchOutcome, ReadError> {
        let Some(holding) = &mut self.holding else {
            return Ok(FetchOutcome::Missing);
        };
        let object = match GetAnswer::decode(self.link.body(until).await?)? {
            GetAnswer::Found(object) => object,
            GetAnswer::Absent(status) => {
                self.link.payload_discard(until).await?;
                return Ok(absent(status));
            }
        };
        if let Some(outcome) = differs(&object, &holding.expectation, header.payload_bytes) {
            self.link.payload_discard(until).await?;
            return Ok(outcome);
        }
        let checksum = self
            .link
            .payload_scatter(&mut holding.lent, deadline)
            .await?;
        Ok(match object.check_payload(checksum) {
            Ok(()) => FetchOutcome::Loaded,
            Err(mismatch) => FetchOutcome::Corrupt {
                mismatch,
                write: object.write,
            },
        })
    }

    /// Ends the receive: the destination is written no more.
    fn give_back(&mut self, answer: Result<Answer, Failure>) {
        if let Some(Holding {
            request,
            lent,
            expectation,
        }) = self.holding.take()
        {
            let cargo = Cargo::Destination(lent, expectation);
            self.connection
                .table
                .lock()
                .end_receive(request, cargo, answer);
        }
    }
}

/// The bit that turns the number of a request into that of its answer.
const ANSWER_BIT: u16 = 0x8000;

fn absent(status: GetStatus) -> FetchOutcome {
    match status {
        GetStatus::LeaseOver => FetchOutcome::LeaseOver,
        GetStatus::Length => FetchOutcome::Length,
        GetStatus::Missing => FetchOutcome::Missing,
    }
}

/// Why an object is not written into the destination at all.
fn differs(
    object: &ObjectHeader,
    expected: &Expectation,
    payload_bytes: u64,
) -> Option<FetchOutcome> {
    if let Err(mismatch) = object.check(expected) {
        return Some(FetchOutcome::Corrupt {
            mismatch,
            write: object.write,
        });
    }
    (payload_bytes != expected.length_bytes).then_some(FetchOutcome::Length)
}

//! The body of an answer on its way from an engine to a client.
//!
//! Made by `dispatch`. It holds what the request holds, the engine's turn and the room for it, and
//! gives them back when it is dropped: at the end, or when the client goes. An answer that breaks
//! off never looks whole: the client's connection ends without the end of the body, and a stream
//! of events says why before.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::{Body, Frame, Incoming};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

use crate::failure::{LegError, document};
use crate::parallel::Writing;
use crate::pool::Turn;
use crate::record::Record;

/// An answer that goes on.
pub(crate) struct Relay {
    first: Option<Bytes>,
    rest: Incoming,
    broken: Option<Broken>,
    silence: Pin<Box<Sleep>>,
    limit: Duration,
    events: bool,
    record: Record,
    turn: Turn,
    _held: Held,
}

/// What a request has until its answer is over.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The room for it.
    #[expect(dead_code, reason = "held to be given back")]
    pub(crate) room: Option<OwnedSemaphorePermit>,
    /// The leg of a prefill engine that is asked at once, and ends with the answer.
    pub(crate) beside: Option<Writing>,
}

/// How far a client was told that its answer broke off.
struct Broken {
    reason: LegError,
    shown: bool,
}

impl Relay {
    /// `events` says that the answer is a stream of events; `limit` is for the time between pieces.
    pub(crate) fn new(
        (first, rest): (Option<Bytes>, Incoming),
        events: bool,
        limit: Duration,
        record: Record,
        turn: Turn,
        held: Held,
    ) -> Self {
        Self {
            first,
            rest,
            broken: None,
            silence: Box::pin(sleep(limit)),
            limit,
            events,
            record,
            turn,
            _held: held,
        }
    }

    fn piece(&mut self, data: Bytes) -> Poll<Option<Result<Frame<Bytes>, LegError>>> {
        self.silence.as_mut().reset(Instant::now() + self.limit);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn cut(&mut self, reason: LegError) -> Poll<Option<Result<Frame<Bytes>, LegError>>> {
        let said = format!("{}: {reason}", self.turn.engine().authority());
        self.record.cut(&said);
        if !self.events {
            return Poll::Ready(Some(Err(reason)));
        }
        self.broken = Some(Broken {
            reason,
            shown: false,
        });
        let event = format!("data: {}\n\n", document(StatusCode::BAD_GATEWAY, &said));
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = LegError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, LegError>>> {
        let this = self.get_mut();
        if let Some(broken) = &mut this.broken {
            // The event is written when there is nothing else to ask for: so once there is not.
            if !broken.shown {
                broken.shown = true;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(Some(Err(broken.reason.clone())));
        }
        if let Some(first) = this.first.take() {
            return this.piece(first);
        }
        loop {
            match Pin::new(&mut this.rest).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return this.piece(data);
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    return this.cut(LegError::BrokenOff(error.to_string()));
                }
                Poll::Ready(None) => {
                    this.record.answered();
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    ready!(this.silence.as_mut().poll(context));
                    return this.cut(LegError::Silent(this.limit));
                }
            }
        }
    }
}

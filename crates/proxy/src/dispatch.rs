//! A request's way over the engines.
//!
//! Called by `routes`. In READ mode prefill is asked first, for one token, and what it answers goes
//! on to decode with the request; WRITE is in `parallel`. An engine that fails is followed by
//! another one, as long as the client has had nothing. A ticket that was given to an engine that
//! failed may be given to the next: it is good once, and who finds it used computes.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;

use crate::asked::{Asked, Handover};
use crate::config::{Limits, Mode};
use crate::failure::{Failure, LegError};
use crate::health;
use crate::legs::{Answer, Legs};
use crate::pool::{Engine, Pool, Role, Turn};
use crate::record::Record;
use crate::relay::{Held, Relay};

/// Bytes of prefill's answer: the blocks of every group, and a ticket.
pub(crate) const PREFILL_ANSWER_BYTES: usize = 16 << 20;
/// What of an answer's headers concerns the client.
const RETURNED: [HeaderName; 4] = [CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE];

/// The engines, and how they are asked.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) mode: Mode,
    pub(crate) prefill: Pool,
    pub(crate) decode: Pool,
    pub(crate) legs: Arc<Legs>,
    pub(crate) limits: Limits,
}

/// A request as both engines get it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) asked: Asked,
}

/// What came of prefill.
enum Prefilled {
    /// What decode takes; None if there is nothing, for whatever reason.
    Handover(Option<Handover>),
    /// The client's own mistake, said by the engine.
    Refused(Turn, Answer),
}

impl Dispatch {
    /// Answers a request. `room` is held until the answer is over.
    pub(crate) async fn answer(
        &self,
        call: &Call,
        mut record: Record,
        room: OwnedSemaphorePermit,
    ) -> Result<Response, (Failure, Record)> {
        let held = Held {
            room: Some(room),
            beside: None,
        };
        let handover = match &self.mode {
            Mode::Read => match self.prefilled(call, &mut record).await {
                Prefilled::Handover(handover) => handover,
                Prefilled::Refused(turn, answer) => {
                    return Ok(self.relay(turn, answer, record, held));
                }
            },
            Mode::Write(passes) => return self.in_parallel(passes, call, record, held).await,
        };
        self.last_leg(call, handover.as_ref(), record, held).await
    }

    /// Has decode answer.
    pub(crate) async fn last_leg(
        &self,
        call: &Call,
        handover: Option<&Handover>,
        mut record: Record,
        held: Held,
    ) -> Result<Response, (Failure, Record)> {
        record.handed_over(handover.is_some());
        let body = call.asked.of_decode(handover);
        match self.leg(&self.decode, call, body, &mut record).await {
            Ok((turn, answer)) => Ok(self.relay(turn, answer, record, held)),
            Err(failure) => Err((failure, record)),
        }
    }

    /// Asks a decode engine for something that needs no prefill.
    pub(crate) async fn get(
        &self,
        path: &str,
        headers: &HeaderMap,
        mut record: Record,
    ) -> Result<Response, (Failure, Record)> {
        match self
            .ask(&self.decode, path, headers, None, &mut record)
            .await
        {
            Ok((turn, answer)) => Ok(self.relay(turn, answer, record, Held::default())),
            Err(failure) => Err((failure, record)),
        }
    }

    /// The first leg. That there is none, or that it fails, is no failure of the request.
    async fn prefilled(&self, call: &Call, record: &mut Record) -> Prefilled {
        let Some(body) = call.asked.of_prefill(None) else {
            return Prefilled::Handover(None);
        };
        let begun = Instant::now();
        let (turn, answer) = match self.leg(&self.prefill, call, body, record).await {
            Ok(found) => found,
            Err(failure) => {
                warn!(%failure, "decode computes a prompt");
                return Prefilled::Handover(None);
            }
        };
        let status = answer.head.status;
        if status.is_client_error() && !is_passing(status) {
            return Prefilled::Refused(turn, answer);
        }
        let engine = Arc::clone(turn.engine());
        let whole = answer.whole(PREFILL_ANSWER_BYTES, self.limits.answer).await;
        let handover = match whole {
            Ok((_, body)) if status.is_success() => Handover::of_answer(&body),
            Ok(_) => None,
            Err(reason) => {
                warn!(engine = engine.authority(), %reason, "decode computes a prompt");
                None
            }
        };
        record.prefilled(engine.authority(), begun.elapsed());
        Prefilled::Handover(handover)
    }

    pub(crate) async fn leg(
        &self,
        pool: &Pool,
        call: &Call,
        body: Bytes,
        record: &mut Record,
    ) -> Result<(Turn, Answer), Failure> {
        self.ask(pool, &call.path, &call.headers, Some(body), record)
            .await
    }

    /// Asks one engine after another until one answers with more than that it cannot. What the last
    /// one said is the answer if all fail.
    async fn ask(
        &self,
        pool: &Pool,
        path: &str,
        headers: &HeaderMap,
        body: Option<Bytes>,
        record: &mut Record,
    ) -> Result<(Turn, Answer), Failure> {
        let mut tried = Vec::new();
        let mut last = Err(Failure::NoEngine(pool.role));
        while tried.len() < self.limits.attempts {
            let Some(turn) = pool.turn(&tried) else { break };
            if !tried.is_empty() {
                record.retried(&said(&last));
            }
            let engine = Arc::clone(turn.engine());
            tried.push(Arc::clone(&engine));
            let asked = self.legs.ask(
                engine.authority(),
                path,
                headers,
                body.clone(),
                self.limits.answer,
            );
            last = match asked.await {
                Ok(answer) if is_passing(answer.head.status) => Ok((turn, answer)),
                Ok(answer) => return Ok((turn, answer)),
                Err(reason) => Err(failed(&engine, pool.role, reason)),
            };
        }
        last
    }

    /// An engine's answer as the client gets it.
    pub(crate) fn relay(
        &self,
        turn: Turn,
        answer: Answer,
        mut record: Record,
        held: Held,
    ) -> Response {
        let Answer { head, first, rest } = answer;
        record.answering(turn.engine().authority(), head.status);
        let kind = head.headers.get(CONTENT_TYPE);
        let events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let relay = Relay::new(
            (first, rest),
            events,
            self.limits.silence,
            record,
            turn,
            held,
        );
        let mut response = Response::new(Body::new(relay));
        *response.status_mut() = head.status;
        for name in RETURNED {
            if let Some(value) = head.headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }
}

/// Whether another engine may well answer otherwise.
pub(crate) fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// What was wrong with the engine that was asked last.
fn said(last: &Result<(Turn, Answer), Failure>) -> String {
    match last {
        Ok((turn, answer)) => answered(turn.engine(), answer.head.status),
        Err(failure) => failure.to_string(),
    }
}

pub(crate) fn answered(engine: &Engine, status: StatusCode) -> String {
    format!("{} answered {status}", engine.authority())
}

pub(crate) fn failed(engine: &Engine, role: Role, reason: LegError) -> Failure {
    if matches!(reason, LegError::Unreachable(_)) {
        health::tell(engine, role, false);
    }
    Failure::Engine {
        engine: format!("{role} {}", engine.authority()),
        reason,
    }
}

//! A request's way over two engines that are asked at once: WRITE.
//!
//! Called by `dispatch`. Both legs bear one pass, by which the engines meet; decode's answer is the
//! client's, and prefill's says only that it did its part. Decode waits for a prefill engine that
//! has failed until a clock of its own ends that, so it is not left to wait: as long as the client
//! has had nothing, decode is asked anew, with another prefill engine or to compute by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use tokio::task::JoinSet;
use tracing::warn;

use crate::asked::Handover;
use crate::config::Passes;
use crate::dispatch::{Call, Dispatch, PREFILL_ANSWER_BYTES, answered, failed, is_passing};
use crate::failure::Failure;
use crate::legs::Answer;
use crate::pool::{Engine, Role, Turn};
use crate::record::Record;
use crate::relay::Held;

/// A prefill engine's leg. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Writing {
    engine: Arc<Engine>,
    handover: Handover,
    begun: Instant,
    leg: JoinSet<Written>,
}

/// How such a leg ends.
#[derive(Debug)]
enum Written {
    /// The prompt is computed.
    Well,
    /// The client's own mistake, said by the engine.
    Refused(Turn, Answer),
    /// Decode would wait for nothing.
    Failed(String),
}

/// What is known first.
enum First {
    /// Decode answers, or none can. Prefill may have ended by then, after this long.
    Decode(Result<(Turn, Answer), Failure>, Option<Duration>),
    /// Prefill says that the client is wrong.
    Refused(Turn, Answer),
    /// Prefill has failed.
    Failed(String),
}

impl Dispatch {
    /// Asks one prefill engine after another at once with decode, until decode answers.
    pub(crate) async fn in_parallel(
        &self,
        passes: &Passes,
        call: &Call,
        mut record: Record,
        mut held: Held,
    ) -> Result<Response, (Failure, Record)> {
        let mut tried = Vec::new();
        while let Some(mut writing) = self.write(passes, call, &tried) {
            tried.push(Arc::clone(&writing.engine));
            record.asking(writing.engine.authority());
            match self.first(call, &mut writing, &mut record).await {
                First::Decode(answer, prefilled) => {
                    record.handed_over(answer.is_ok());
                    if let Some(time) = prefilled {
                        record.prefilled(writing.engine.authority(), time);
                    }
                    held.beside = Some(writing);
                    return match answer {
                        Ok((turn, answer)) => Ok(self.relay(turn, answer, record, held)),
                        Err(failure) => Err((failure, record)),
                    };
                }
                First::Refused(turn, answer) => {
                    return Ok(self.relay(turn, answer, record, held));
                }
                First::Failed(reason) => {
                    warn!(%reason, "prefill writes nothing: decode is asked anew");
                    record.retried(&reason);
                }
            }
        }
        self.last_leg(call, None, record, held).await
    }

    /// Begins a leg of prefill. None if decode is to compute: the request is of several prompts, or
    /// nobody is left to ask, or no pass can be written.
    fn write(&self, passes: &Passes, call: &Call, tried: &[Arc<Engine>]) -> Option<Writing> {
        if tried.len() >= self.limits.attempts {
            return None;
        }
        let turn = self.prefill.turn(tried)?;
        let engine = Arc::clone(turn.engine());
        let minted = passes.mint(engine.inbox()?);
        let pass = minted.inspect_err(|error| warn!(%error, "no pass: decode computes a prompt"));
        let pass = pass.ok()?;
        let body = call.asked.of_prefill(Some(&pass))?;
        let (legs, limit) = (Arc::clone(&self.legs), self.limits.answer);
        let (path, headers) = (call.path.clone(), call.headers.clone());
        let mut leg = JoinSet::new();
        leg.spawn(async move {
            let at = turn.engine().authority();
            match legs.ask(at, &path, &headers, Some(body), limit).await {
                Ok(answer) => written(turn, answer, limit).await,
                Err(reason) => {
                    Written::Failed(failed(turn.engine(), Role::Prefill, reason).to_string())
                }
            }
        });
        Some(Writing {
            engine,
            handover: Handover::of_pass(&pass),
            begun: Instant::now(),
            leg,
        })
    }

    /// Has decode answer, unless prefill fails before.
    async fn first(&self, call: &Call, writing: &mut Writing, record: &mut Record) -> First {
        let body = call.asked.of_decode(Some(&writing.handover));
        let mut decode = std::pin::pin!(self.leg(&self.decode, call, body, record));
        let written = tokio::select! {
            biased;
            answer = &mut decode => return First::Decode(answer, None),
            written = writing.leg.join_next() => written,
        };
        match written {
            Some(Ok(Written::Well)) | None => {
                let time = writing.begun.elapsed();
                First::Decode(decode.await, Some(time))
            }
            Some(Ok(Written::Refused(turn, answer))) => First::Refused(turn, answer),
            Some(Ok(Written::Failed(reason))) => First::Failed(reason),
            Some(Err(error)) => First::Failed(error.to_string()),
        }
    }
}

/// What an engine's answer says of its leg.
async fn written(turn: Turn, answer: Answer, limit: Duration) -> Written {
    let status = answer.head.status;
    if status.is_client_error() && !is_passing(status) {
        return Written::Refused(turn, answer);
    }
    if !status.is_success() {
        return Written::Failed(answered(turn.engine(), status));
    }
    match answer.whole(PREFILL_ANSWER_BYTES, limit).await {
        Ok(_) => Written::Well,
        Err(reason) => Written::Failed(failed(turn.engine(), Role::Prefill, reason).to_string()),
    }
}

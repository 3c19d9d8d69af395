//! Sends the answers of one connection, in the order in which they became ready.
//!
//! Runs beside the reader of the same connection. An answer holds what it sends (the pin of an
//! object) and its place among the requests in flight until the system has taken its last byte.
//! Small answers that are ready together leave in one system call. Invariant: what waits in the
//! queue pins nothing, so a client that does not read holds one batch in memory and no more.

use std::sync::Arc;
use std::time::Duration;

use tessera_proto::message::{Refusal, Refused};
use tessera_proto::{FrameHeader, Kind};
use tessera_transport::{Frame, LinkError, Payload, Sender};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Receiver as Queue;
use tokio::time::Instant;

use crate::backlog::Waiting;
use crate::get::{Pinned, Wanted};
use crate::shared::Shared;

/// A batch is closed when it holds this many payload bytes: the frame deadline then covers little
/// more than one object.
const BATCH_PAYLOAD_BYTES: u64 = 1 << 20;
/// Most answers in one batch.
const BATCH_ANSWERS: usize = 64;

/// What waits in the queue of a connection.
#[derive(Debug)]
pub(crate) enum Queued {
    /// Ready to be sent.
    Answer(Answer),
    /// An object that is looked for when its turn comes.
    Object(Wanted),
}

/// One answer, complete but for its sending.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) request: u64,
    pub(crate) kind: Kind,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Option<Pinned>,
    /// The place among the requests in flight.
    pub(crate) _place: Option<OwnedSemaphorePermit>,
    /// Its bytes among those that wait.
    pub(crate) _waiting: Option<Waiting>,
}

impl Answer {
    /// An answer that is only a body.
    pub(crate) fn new(request: &FrameHeader, kind: Kind, body: Vec<u8>) -> Self {
        let request = request.request;
        Self {
            request,
            kind,
            body,
            payload: None,
            _place: None,
            _waiting: None,
        }
    }

    /// Refuses a request; with `request` zero, the connection.
    pub(crate) fn refusal(request: u64, reason: Refusal, message: &str) -> Self {
        let mut body = Vec::new();
        Refused {
            reason,
            message: message.to_owned(),
        }
        .encode(&mut body);
        Self {
            request,
            kind: Kind::Refused,
            body,
            payload: None,
            _place: None,
            _waiting: None,
        }
    }

    fn payload_bytes(&self) -> u64 {
        self.payload.as_ref().map_or(0, |pin| pin.len() as u64)
    }

    fn frame(&self) -> Frame<'_> {
        let header = FrameHeader {
            kind: self.kind,
            request: self.request,
            deadline_ms: 0,
            body_bytes: u32::try_from(self.body.len())
                .expect("bodies are bounded by BODY_BYTES_MAX"),
            payload_bytes: self.payload_bytes(),
        };
        let payload = self
            .payload
            .as_ref()
            .map_or(Payload::None, |pin| Payload::Bytes(pin));
        Frame {
            header,
            body: &self.body,
            payload,
        }
    }
}

/// Sends until the queue is closed and empty, or the link fails.
pub(crate) async fn write_answers(
    shared: &Arc<Shared>,
    mut sender: Sender,
    mut queue: Queue<Queued>,
) -> Result<(), LinkError> {
    let timeout = shared.limits.frame_timeout;
    let mut batch = Vec::with_capacity(BATCH_ANSWERS);
    let mut kept = None;
    loop {
        let mut next = kept.take();
        if next.is_none() {
            next = queue.recv().await;
        }
        if next.is_none() {
            return Ok(());
        }
        let mut payload_bytes = 0;
        while let Some(queued) = next {
            let answer = match queued {
                Queued::Answer(answer) => answer,
                Queued::Object(wanted) => match wanted.answer(shared, batch.is_empty()).await {
                    Ok(answer) => answer,
                    Err(wanted) => {
                        kept = Some(Queued::Object(wanted));
                        break;
                    }
                },
            };
            payload_bytes += answer.payload_bytes();
            batch.push(answer);
            let full = batch.len() == BATCH_ANSWERS || payload_bytes >= BATCH_PAYLOAD_BYTES;
            next = if full { None } else { queue.try_recv().ok() };
        }
        send(&mut sender, &batch, timeout).await?;
        shared.counters.sent_bytes.add(payload_bytes);
        batch.clear();
    }
}

async fn send(sender: &mut Sender, batch: &[Answer], timeout: Duration) -> Result<(), LinkError> {
    let frames: Vec<Frame<'_>> = batch.iter().map(Answer::frame).collect();
    sender.send_batch(&frames, Instant::now() + timeout).await
}

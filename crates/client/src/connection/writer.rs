//! The task that sends what callers queued.
//!
//! Started by the handshake, ends when the connection is lost. Invariant: a source that the writer
//! took goes back to the table when its send is over, also when the task is dropped.

use std::sync::Arc;
use std::time::Duration;

use tessera_transport::{Frame, LinkError, Payload, Segments, Sender};
use tokio::time::Instant;

use super::call::Connection;
use super::queue::Batch;
use super::table::Departure;

/// Frames are sent together until their payloads reach this: large payloads gain nothing from
/// company, and their callers would wait for one another.
const TOGETHER_BYTES: u64 = 256 << 10;

/// What one vectored send holds at the moment.
struct Departing {
    connection: Arc<Connection>,
    /// Place in the batch and, for a PUT, the payload.
    frames: Vec<(usize, Option<(u64, Segments)>)>,
}

impl Departing {
    /// Gives every source back.
    fn end(&mut self) {
        let mut table = self.connection.table.lock();
        for (_, source) in self.frames.drain(..) {
            if let Some((request, segments)) = source {
                table.end_send(request, segments);
            }
        }
    }
}

impl Drop for Departing {
    fn drop(&mut self) {
        self.connection.closer.close();
        self.end();
    }
}

/// Runs until the link breaks or is closed.
pub(super) async fn run(connection: Arc<Connection>, mut sender: Sender, frame: Duration) {
    let lost = connection.lost.clone();
    let mut departing = Departing {
        connection,
        frames: Vec::new(),
    };
    let mut batch = Batch::default();
    loop {
        tokio::select! {
            biased;
            () = departing.connection.queue.take(&mut batch) => {}
            () = lost.waited() => break,
        }
        if send(&mut departing, &mut sender, &batch, frame)
            .await
            .is_err()
        {
            break;
        }
    }
}

/// Sends one batch in as many vectored sends as its payloads ask for.
async fn send(
    departing: &mut Departing,
    sender: &mut Sender,
    batch: &Batch,
    frame: Duration,
) -> Result<(), LinkError> {
    let mut next = 0;
    while next < batch.len() {
        let frame_end = Instant::now() + frame;
        let mut deadline = frame_end;
        let mut together = 0;
        while next < batch.len() && together < TOGETHER_BYTES {
            let (header, _) = batch.frame(next);
            match departing.connection.table.lock().start_send(header.request) {
                Departure::Skip => {}
                Departure::Send => departing.frames.push((next, None)),
                Departure::SendSource(segments, until) => {
                    together += segments.length_bytes();
                    deadline = deadline.min(until);
                    departing
                        .frames
                        .push((next, Some((header.request, segments))));
                }
            }
            next += 1;
        }
        let outcome = {
            let frames: Vec<Frame<'_>> = departing
                .frames
                .iter()
                .map(|(index, source)| {
                    let (header, body) = batch.frame(*index);
                    let payload = source
                        .as_ref()
                        .map_or(Payload::None, |(_, segments)| Payload::Segments(segments));
                    Frame {
                        header,
                        body,
                        payload,
                    }
                })
                .collect();
            sender.send_batch(&frames, deadline).await
        };
        // A source that is needed back costs the connection; the node may be well.
        if outcome.is_err() && deadline < frame_end && Instant::now() >= deadline {
            departing.connection.end_for_memory();
        }
        departing.end();
        outcome?;
    }
    Ok(())
}

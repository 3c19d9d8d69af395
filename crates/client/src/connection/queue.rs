//! Frames that wait for the writer, encoded by their callers into one shared buffer.
//!
//! Called by callers (push) and the writer (take). Invariant: the queue holds at most as many
//! frames as requests may be in flight; in steady state neither side allocates, because the writer
//! swaps its emptied buffers for the full ones.

use std::ops::Range;

use parking_lot::Mutex;
use tessera_proto::FrameHeader;
use tokio::sync::Notify;

/// Frames in the order of their callers.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bodies: Vec<u8>,
    frames: Vec<(FrameHeader, Range<usize>)>,
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Header and body of one frame.
    pub(crate) fn frame(&self, index: usize) -> (FrameHeader, &[u8]) {
        let (header, range) = &self.frames[index];
        (*header, &self.bodies[range.clone()])
    }

    fn clear(&mut self) {
        self.bodies.clear();
        self.frames.clear();
    }
}

/// The queue of one connection.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Batch>,
    wake: Notify,
}

impl Queue {
    /// Appends a frame; `header.body_bytes` must be the length of `body`.
    pub(crate) fn push(&self, header: FrameHeader, body: &[u8]) {
        let mut waiting = self.waiting.lock();
        let start = waiting.bodies.len();
        waiting.bodies.extend_from_slice(body);
        let end = waiting.bodies.len();
        waiting.frames.push((header, start..end));
        let first = waiting.frames.len() == 1;
        drop(waiting);
        // The writer takes all that waits: only the first frame has to wake it.
        if first {
            self.wake.notify_one();
        }
    }

    /// Waits until something is queued and moves all of it into `batch`, whose buffers it reuses.
    pub(crate) async fn take(&self, batch: &mut Batch) {
        batch.clear();
        loop {
            {
                let mut waiting = self.waiting.lock();
                if waiting.len() > 0 {
                    std::mem::swap(&mut *waiting, batch);
                    return;
                }
            }
            self.wake.notified().await;
        }
    }
}

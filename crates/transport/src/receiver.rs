//! The receiving half of a link. Owned by one reader task of the client or the node, which calls
//! `begin`, `header`, `body` and one of the `payload_*` methods for each frame, in this order.
//!
//! Invariants: no byte of a payload is read before its length was compared with the destination;
//! lent memory is written only inside `payload_scatter`; a receiver that was stopped inside a frame
//! is broken and refuses everything after it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_proto::{Checksum, FRAME_HEADER_BYTES, FrameHeader};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};

use crate::destination::{Buffer, Destination, Discard, Scatter, SliceList};
use crate::error::LinkError;
use crate::lent::Lent;
use crate::link::Closer;
use crate::socket::Socket;

/// Bytes read along with a header, and along with the end of a payload for the header after it.
/// What is read along of a payload is copied once more, so it stays small.
const AHEAD_BYTES: usize = 8 << 10;

/// Most payload bytes in one read: the checksum then finds them in the cache.
const QUANTUM_BYTES: usize = 256 << 10;

/// What a receiver keeps of its buffer between frames: bodies of everyday size need no other.
const KEPT_BYTES: usize = 128 << 10;

/// Receives frames.
#[derive(Debug)]
pub struct Receiver {
    socket: Arc<Socket>,
    ahead: Ahead,
    body: Vec<u8>,
    /// What the last header declared and nobody took yet.
    body_left: usize,
    payload_left: u64,
    inside_payload: bool,
    received: Arc<AtomicU64>,
}

/// How much a receiver has received, for those who watch it from other tasks.
#[derive(Debug, Clone)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Bytes that arrived so far, whatever they were part of.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Receiver {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self {
            socket,
            ahead: Ahead::new(),
            body: Vec::new(),
            body_left: 0,
            payload_left: 0,
            inside_payload: false,
            received: Arc::default(),
        }
    }

    /// A view on the bytes received, that outlives the receiver.
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.received))
    }

    /// A handle that ends this link from elsewhere.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.socket))
    }

    /// Waits for the first byte of the next frame. Safe to cancel: an idle peer is waited for
    /// without a deadline, and the caller may select over it.
    ///
    /// # Errors
    /// [`LinkError::Closed`] when the peer closed between two frames.
    pub async fn begin(&mut self) -> Result<(), LinkError> {
        self.between_frames()?;
        self.give_back();
        while self.ahead.is_empty() {
            if self.read(&mut Buffer::new(&mut []), None).await? == 0 {
                return Err(LinkError::Closed);
            }
        }
        Ok(())
    }

    /// Reads the next header. Safe to cancel.
    ///
    /// # Errors
    /// [`LinkError::Closed`] when the peer closed between two frames, [`LinkError::Cut`] inside the
    /// header, [`LinkError::Header`] when the bytes are no header, [`LinkError::Deadline`].
    pub async fn header(&mut self, deadline: Instant) -> Result<FrameHeader, LinkError> {
        self.between_frames()?;
        self.give_back();
        loop {
            if let Some(bytes) = self.ahead.bytes().first_chunk::<FRAME_HEADER_BYTES>() {
                let header = FrameHeader::decode(bytes)?;
                self.ahead.consume(FRAME_HEADER_BYTES);
                self.body_left = header.body_bytes as usize;
                self.payload_left = header.payload_bytes;
                return Ok(header);
            }
            if self.read(&mut Buffer::new(&mut []), Some(deadline)).await? == 0 {
                let clean = self.ahead.is_empty();
                return Err(if clean {
                    LinkError::Closed
                } else {
                    LinkError::Cut
                });
            }
        }
    }

    /// Reads the body that the last header declared. The bytes are valid until the next call.
    ///
    /// # Errors
    /// [`LinkError::Cut`] or [`LinkError::Deadline`]; the receiver is broken afterwards, as it is
    /// when the future is dropped.
    pub async fn body(&mut self, deadline: Instant) -> Result<&[u8], LinkError> {
        if self.inside_payload {
            return Err(LinkError::Cut);
        }
        let length = std::mem::take(&mut self.body_left);
        if self.ahead.bytes().len() >= length {
            return Ok(self.ahead.take(length));
        }
        let mut body = std::mem::take(&mut self.body);
        if body.len() < length {
            body.resize(length, 0);
        }
        let filled = self.fill(Buffer::new(&mut body[..length]), deadline).await;
        self.body = body;
        filled?;
        Ok(&self.body[..length])
    }

    /// Reads the payload into `destination` and returns its checksum.
    ///
    /// # Errors
    /// [`LinkError::PayloadLength`] before anything was read, when the lengths differ: discard the
    /// payload and go on. [`LinkError::Cut`] or [`LinkError::Deadline`] break the receiver.
    pub async fn payload_into(
        &mut self,
        destination: &mut [u8],
        deadline: Instant,
    ) -> Result<u64, LinkError> {
        self.start_payload(destination.len() as u64)?;
        self.fill(Buffer::new(destination), deadline).await
    }

    /// Reads the payload into lent memory and returns its checksum. When the call is over, with
    /// whatever outcome, nothing writes the memory any more.
    ///
    /// # Errors
    /// As [`Receiver::payload_into`].
    pub async fn payload_scatter(
        &mut self,
        destination: &mut Lent,
        deadline: Instant,
    ) -> Result<u64, LinkError> {
        self.start_payload(destination.length_bytes())?;
        self.fill(Scatter::new(destination), deadline).await
    }

    /// Reads the payload and forgets it.
    ///
    /// # Errors
    /// [`LinkError::Cut`] or [`LinkError::Deadline`]; the receiver is broken afterwards.
    pub async fn payload_discard(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let length = self.payload_left;
        self.start_payload(length)?;
        if length == 0 {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.body);
        scratch.resize(scratch.len().max(QUANTUM_BYTES), 0);
        let outcome = self
            .fill(Discard::new(&mut scratch, length), deadline)
            .await;
        self.body = scratch;
        outcome.map(drop)
    }

    fn between_frames(&self) -> Result<(), LinkError> {
        if self.inside_payload {
            return Err(LinkError::Cut);
        }
        if self.body_left > 0 || self.payload_left > 0 {
            return Err(LinkError::Order);
        }
        Ok(())
    }

    /// A large body is rare, and there are many links: its memory does not stay with this one.
    fn give_back(&mut self) {
        if self.body.capacity() > KEPT_BYTES {
            self.body = Vec::new();
        }
    }

    fn start_payload(&mut self, room: u64) -> Result<(), LinkError> {
        if self.inside_payload {
            return Err(LinkError::Cut);
        }
        if self.body_left > 0 {
            return Err(LinkError::Order);
        }
        if self.payload_left != room {
            return Err(LinkError::PayloadLength {
                declared: self.payload_left,
                room,
            });
        }
        self.payload_left = 0;
        Ok(())
    }

    /// Fills `destination` to its end. The receiver counts as broken until this succeeds.
    async fn fill(
        &mut self,
        mut destination: impl Destination,
        deadline: Instant,
    ) -> Result<u64, LinkError> {
        self.inside_payload = true;
        let mut checksum = Checksum::new();
        let copied = destination.copy_in(self.ahead.bytes(), &mut checksum);
        self.ahead.consume(copied);
        while destination.remaining() > 0 {
            let count = self.read(&mut destination, Some(deadline)).await?;
            if count == 0 {
                return Err(LinkError::Cut);
            }
            let remaining = usize::try_from(destination.remaining()).unwrap_or(usize::MAX);
            let own = count.min(remaining);
            destination.taken(own, &mut checksum);
            self.ahead.filled(count - own);
            if destination.remaining() > 0 && Instant::now() >= deadline {
                return Err(LinkError::Deadline);
            }
        }
        self.inside_payload = false;
        Ok(checksum.finish())
    }

    /// Reads once, first into `destination` and then ahead. Returns all bytes read, of which those
    /// ahead are recorded only when the destination takes none.
    async fn read(
        &mut self,
        destination: &mut impl Destination,
        deadline: Option<Instant>,
    ) -> Result<usize, LinkError> {
        let only_ahead = destination.remaining() == 0;
        loop {
            match try_read(&self.socket, &mut self.ahead, destination) {
                Ok(count) => {
                    self.received.fetch_add(count as u64, Ordering::Relaxed);
                    if only_ahead {
                        self.ahead.filled(count);
                    }
                    consume_budget().await;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match deadline {
                    Some(deadline) => timeout_at(deadline, self.socket.readable())
                        .await
                        .map_err(|_| LinkError::Deadline)??,
                    None => self.socket.readable().await?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// One system call. Reads ahead only when the destination can be filled by it.
fn try_read(
    socket: &Socket,
    ahead: &mut Ahead,
    destination: &mut impl Destination,
) -> io::Result<usize> {
    let remaining = destination.remaining();
    let mut list = SliceList::new();
    destination.offer(&mut list, QUANTUM_BYTES);
    if list.bytes() as u64 == remaining {
        list.push(ahead.room());
    }
    let room = list.bytes();
    socket.try_read(list.as_mut(), room)
}

/// Bytes that were read along and belong to what comes next.
#[derive(Debug)]
struct Ahead {
    buffer: Box<[u8; AHEAD_BYTES]>,
    start: usize,
    end: usize,
}

impl Ahead {
    fn new() -> Self {
        Self {
            buffer: Box::new([0; AHEAD_BYTES]),
            start: 0,
            end: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
    }

    fn take(&mut self, count: usize) -> &[u8] {
        let start = self.start;
        self.consume(count);
        &self.buffer[start..self.start]
    }

    /// The free end of the buffer, never empty: what is left of a header moves to the front first.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.buffer[self.end..]
    }

    fn filled(&mut self, count: usize) {
        self.end += count;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tessera_proto::Kind;

    use super::*;
    use crate::gather::Payload;
    use crate::link::Link;
    use crate::listener::Listener;

    #[tokio::test]
    async fn memory_of_a_large_body_or_a_discarded_payload_is_given_back_before_the_next_frame() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.address().unwrap();
        let far = Instant::now() + Duration::from_secs(30);
        let (near, accepted) = tokio::join!(Link::connect(&address, far), listener.accept());
        let (mut sender, _) = near.unwrap();
        let (_, mut receiver) = accepted.unwrap();
        let frames = [(1 << 20, 0), (0, 1 << 20), (50 << 10, 0)];
        let sending = tokio::spawn(async move {
            for (body, payload) in frames {
                let header = FrameHeader {
                    kind: Kind::Put,
                    request: 1,
                    deadline_ms: 0,
                    body_bytes: body,
                    payload_bytes: payload,
                };
                let body = vec![1; body as usize];
                let payload = vec![2; usize::try_from(payload).unwrap()];
                let payload = Payload::Bytes(&payload);
                sender.send(&header, &body, payload, far).await.unwrap();
            }
            sender
        });
        for (body, _) in frames {
            receiver.header(far).await.unwrap();
            assert!(receiver.body.capacity() <= KEPT_BYTES);
            let received = receiver.body(far).await.unwrap();
            assert!(received.len() == body as usize && received.iter().all(|byte| *byte == 1));
            receiver.payload_discard(far).await.unwrap();
        }
        // A body of everyday size finds the buffer of the one before.
        assert!(receiver.body.capacity() >= 50 << 10);
        let _sender = sending.await.unwrap();
    }
}

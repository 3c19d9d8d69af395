//! The sending half of a link. Owned by one writer task of the client or the node.
//!
//! Invariant: frames leave whole and in order. A sender that was stopped inside a frame is broken
//! and refuses everything after it.

use std::io::{self, IoSlice};
use std::sync::Arc;

use tessera_proto::FrameHeader;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};

use crate::error::LinkError;
use crate::gather::{Cursor, Frame, Headers, Payload, VECTOR_SLICES};
use crate::link::Closer;
use crate::socket::Socket;

/// Sends frames.
#[derive(Debug)]
pub struct Sender {
    socket: Arc<Socket>,
    headers: Headers,
    inside_frame: bool,
}

impl Sender {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self {
            socket,
            headers: Headers::new(),
            inside_frame: false,
        }
    }

    /// A handle that ends this link from elsewhere.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.socket))
    }

    /// Sends one frame, see [`Sender::send_batch`].
    ///
    /// # Errors
    /// As [`Sender::send_batch`].
    pub async fn send(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        payload: Payload<'_>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        self.send_batch(
            &[Frame {
                header: *header,
                body,
                payload,
            }],
            deadline,
        )
        .await
    }

    /// Sends `frames` with as few system calls as the socket allows; returns when the system has
    /// taken the last byte, and does not touch the frames afterwards.
    ///
    /// # Errors
    /// [`LinkError::Deadline`] when the peer did not take the bytes in time; any error but one with
    /// [`Sender::is_broken`] false means that a frame was cut and the link is over. The same holds
    /// when the future is dropped before it completes.
    ///
    /// # Panics
    /// When a header does not declare the lengths of its body and payload.
    pub async fn send_batch(
        &mut self,
        frames: &[Frame<'_>],
        deadline: Instant,
    ) -> Result<(), LinkError> {
        if self.inside_frame {
            return Err(LinkError::Cut);
        }
        assert!(
            frames.iter().all(Frame::is_consistent),
            "a header declares other lengths"
        );
        self.headers.clear();
        self.headers
            .extend(frames.iter().map(|frame| frame.header.encode()));
        let mut cursor = Cursor::default();
        loop {
            match self.try_send(&mut cursor, frames) {
                Ok(true) => break,
                Ok(false) => {
                    self.inside_frame = true;
                    if Instant::now() >= deadline {
                        return Err(LinkError::Deadline);
                    }
                    consume_budget().await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    timeout_at(deadline, self.socket.writable())
                        .await
                        .map_err(|_| LinkError::Deadline)??;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.inside_frame = true;
                    return Err(error.into());
                }
            }
        }
        self.inside_frame = false;
        Ok(())
    }

    /// Whether a frame was cut: nothing more can be sent.
    pub fn is_broken(&self) -> bool {
        self.inside_frame
    }

    /// One system call. Returns whether everything was sent.
    fn try_send(&self, cursor: &mut Cursor, frames: &[Frame<'_>]) -> io::Result<bool> {
        let mut slices = [IoSlice::new(&[]); VECTOR_SLICES];
        let (count, bytes) = cursor.fill(frames, &self.headers, &mut slices);
        if count == 0 {
            return Ok(true);
        }
        let sent = self.socket.try_write(&slices[..count], bytes)?;
        cursor.advance(frames, &self.headers, sent);
        let mut next = [IoSlice::new(&[])];
        Ok(cursor.fill(frames, &self.headers, &mut next).0 == 0)
    }
}

//! What wakes a driver that sleeps: a descriptor that becomes readable with a completion.
//!
//! Used by [`QueuePair`](super::QueuePair) only. The invariant: every event that is taken is
//! acknowledged at once, since the completion queue cannot be destroyed before.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::{ibv_ack_cq_events, ibv_cq, ibv_get_cq_event, ibv_req_notify_cq};
use sideway::ibverbs::completion::{BasicCompletionQueue, CompletionChannel, CompletionQueue};

use super::error::VerbsError;
use super::rail::Rail;

/// The bell of one completion queue.
#[derive(Debug)]
pub(super) struct Bell {
    channel: Arc<CompletionChannel>,
}

impl Bell {
    pub(super) fn new(rail: &Arc<Rail>) -> Result<Self, VerbsError> {
        let refused = |error: &dyn std::error::Error| {
            VerbsError::refused("ibv_create_comp_channel", rail.name(), error)
        };
        let channel = CompletionChannel::new(&rail.context).map_err(|error| refused(&error))?;
        channel
            .set_nonblocking(true)
            .map_err(|error| refused(&error))?;
        Ok(Self { channel })
    }

    /// For the completion queue that is to ring it.
    pub(super) const fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    /// Readable once it has rung.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor, and is kept as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_raw_fd()) }
    }

    /// Silences it, and lets the next completion of `queue` ring it.
    pub(super) fn arm(&self, queue: &BasicCompletionQueue) -> io::Result<()> {
        let (mut from, mut context) = (ptr::null_mut::<ibv_cq>(), ptr::null_mut::<c_void>());
        // SAFETY: the channel and the queue live as long as their borrows; the queue is the only
        // one that rings this channel, so what is acknowledged is its own.
        unsafe {
            let channel = self.channel.comp_channel().as_ptr();
            while ibv_get_cq_event(channel, &raw mut from, &raw mut context) == 0 {
                ibv_ack_cq_events(from, 1);
            }
            match ibv_req_notify_cq(queue.cq().as_ptr(), 0) {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(code)),
            }
        }
    }
}

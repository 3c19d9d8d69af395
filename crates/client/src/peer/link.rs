//! One connection with one process: what waits to be sent on it, what is open on it, and its end.
//!
//! Made by a handshake, used by the driver's core and by the connection's reader and writer. The
//! invariants: what was posted is open until it ended or the connection did; the connection is over
//! only when both of its tasks are, and then nothing of this process touches memory for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tessera_lifecycle::peer::{ConnectionId, Frame, Move};
use tessera_proto::Incarnation;
use tessera_proto::message::{PartName, PartStatus, PeerPushAnswer};
use tessera_transport::{Closer, Receiver, Sender};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::core::Core;
use super::memory::{Broken, Place};
use super::pieces::Piece;
use super::{reader, writer};
use crate::driver::MemoryFault;
use crate::latch::Latch;

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Incarnation,
    pub(super) rank: u16,
    pub(super) connection: ConnectionId,
    closer: Closer,
    queue: Mutex<Queue>,
    /// Something waits to be sent, or the connection ends.
    pub(super) wake: Notify,
    /// The connection ends.
    pub(super) closing: Latch,
    /// Both tasks are over.
    pub(super) over: Latch,
    /// A part has moved on it.
    useful: AtomicBool,
}

/// What waits.
#[derive(Debug, Default)]
struct Queue {
    closed: bool,
    /// Messages of the machine; they go before everything else.
    control: VecDeque<Frame>,
    jobs: VecDeque<Job>,
    /// Parts that we move, the oldest first: from the order until they have ended.
    open: VecDeque<PartName>,
    /// Parts that were asked for, in the order in which they come.
    pulls: VecDeque<Pull>,
    /// Parts that were pushed whole, in the order in which they are answered.
    pushes: VecDeque<PartName>,
}

/// What the writer has to do beside the machine's messages.
#[derive(Debug)]
pub(super) enum Job {
    /// Ask for a part, or push it.
    Move(Move),
    /// Send a part that was asked for.
    Serve(PartName),
    /// Answer a part that was pushed.
    Answer(PeerPushAnswer),
}

/// A part that was asked for.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) named: PartName,
    /// What comes, and where it goes; the next is the first.
    pub(super) left: VecDeque<(Piece, Place)>,
    /// Which the next is.
    pub(super) next: u32,
    /// How it went so far.
    pub(super) status: PartStatus,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("the peer broke the protocol: {0}")]
    Malformed(String),
    #[error("nothing came for too long")]
    Idle,
    #[error("memory for it cannot be read")]
    Unreadable,
    #[error("it was closed here")]
    Closed,
}

/// The sides of a connection that has shaken hands.
#[derive(Debug)]
pub(super) struct Shaken {
    pub(super) peer: Incarnation,
    pub(super) rank: u16,
    pub(super) connection: ConnectionId,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

impl Link {
    pub(super) fn new(shaken: &Shaken) -> Arc<Self> {
        Arc::new(Self {
            peer: shaken.peer,
            rank: shaken.rank,
            connection: shaken.connection,
            closer: shaken.sender.closer(),
            queue: Mutex::default(),
            wake: Notify::new(),
            closing: Latch::default(),
            over: Latch::default(),
            useful: AtomicBool::new(false),
        })
    }

    /// Ends the connection. Its tasks end by themselves; see [`Link::over`].
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.closing.set();
        self.closer.close();
        self.wake.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closing.is_set()
    }

    /// Lets a message of the machine be sent. A peer that makes so many of them that they do not
    /// fit loses its connection.
    pub(super) fn say(&self, frame: Frame, limit: usize) {
        let mut queue = self.queue.lock();
        if queue.control.len() >= limit {
            drop(queue);
            self.close();
            return;
        }
        queue.control.push_back(frame);
        drop(queue);
        self.wake.notify_one();
    }

    /// Takes a part that we move. False if the connection has ended: nothing was posted.
    pub(super) fn post(&self, order: Move) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed {
            return false;
        }
        queue.open.push_back(PartName {
            transfer: order.transfer,
            at: order.at,
        });
        queue.jobs.push_back(Job::Move(order));
        drop(queue);
        self.wake.notify_one();
        true
    }

    /// Takes work that the peer asks for.
    pub(super) fn owe(&self, job: Job, limit: usize) -> Result<(), End> {
        let mut queue = self.queue.lock();
        let owed = queue.jobs.iter().filter(|job| !matches!(job, Job::Move(_)));
        if owed.count() >= limit {
            return Err(End::Malformed("too many parts at once".into()));
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    /// The next message of the machine.
    pub(super) fn next_control(&self) -> Option<Frame> {
        self.queue.lock().control.pop_front()
    }

    /// The next job.
    pub(super) fn next_job(&self) -> Option<Job> {
        self.queue.lock().jobs.pop_front()
    }

    /// A part is asked for: what comes next is its pieces.
    pub(super) fn expect_pieces(&self, pull: Pull) {
        self.queue.lock().pulls.push_back(pull);
    }

    /// The part of which pieces come now.
    pub(super) fn next_pull(&self) -> Option<Pull> {
        self.queue.lock().pulls.pop_front()
    }

    /// A part is pushed whole: it will be answered.
    pub(super) fn expect_answer(&self, named: PartName) {
        self.queue.lock().pushes.push_back(named);
    }

    /// The part that is answered now.
    pub(super) fn next_push(&self) -> Option<PartName> {
        self.queue.lock().pushes.pop_front()
    }

    /// A part has ended. False if it had before.
    pub(super) fn finish(&self, named: PartName, well: bool) -> bool {
        self.useful.fetch_or(well, Ordering::Relaxed);
        let open = &mut self.queue.lock().open;
        let at = open.iter().position(|other| *other == named);
        at.and_then(|at| open.remove(at)).is_some()
    }

    /// A part was served: the peer is one that is worth its connection.
    pub(super) fn served(&self) {
        self.useful.store(true, Ordering::Relaxed);
    }

    pub(super) fn was_useful(&self) -> bool {
        self.useful.load(Ordering::Relaxed)
    }

    /// Gives up what is left when both tasks are over: lent memory comes back. The oldest part that
    /// was open is the one that moved.
    pub(super) fn give_up(&self) -> Option<PartName> {
        let last = Queue {
            closed: true,
            ..Queue::default()
        };
        let queue = std::mem::replace(&mut *self.queue.lock(), last);
        queue.open.front().copied()
    }
}

/// Runs a connection to its end: until both of its tasks are over.
pub(super) async fn run(core: Arc<Core>, link: Arc<Link>, sender: Sender, receiver: Receiver) {
    let mut tasks = JoinSet::new();
    tasks.spawn(reader::run(Arc::clone(&core), Arc::clone(&link), receiver));
    tasks.spawn(writer::run(Arc::clone(&core), Arc::clone(&link), sender));
    while let Some(ended) = tasks.join_next().await {
        let closed = link.is_closed();
        link.close();
        match ended {
            Ok(End::Broken(Broken::Fault(fault))) => core.stop(fault),
            Ok(end) if !closed => core.ended_with(&link, &end),
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "a task of a peer's connection failed");
                core.stop(MemoryFault::Panicked);
            }
        }
    }
    core.link_over(&link);
}

//! One connection from its first byte to its last: HELLO, then frames until one side ends it.
//!
//! Run as one task by the accept loop. Reading and writing take turns inside it, because a request
//! that is answered at once needs no other thread to wake up; many connections use many cores.
//! Invariants: nothing is served before HELLO; every frame has an absolute deadline from its first
//! byte on; the leases of a connection end with it, however it ends.

use std::pin::pin;
use std::sync::Arc;

use tessera_proto::message::{Features, Hello, HelloAnswer, Refusal};
use tessera_proto::{DecodeError, FrameHeader, Kind, PROTOCOL_VERSION, limits};
use tessera_store::OwnerId;
use tessera_transport::{LinkError, Receiver, Sender};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::backlog::Backlog;
use crate::budget::Budget;
use crate::counters::Counters;
use crate::reply::Reply;
use crate::shared::{Shared, stopped};
use crate::silence::Silence;
use crate::writer::{Answer, Queued, write_answers};
use crate::{put, requests};

/// A HELLO is small; its sender is nobody yet.
const HELLO_BODY_BYTES_MAX: u32 = limits::TEXT_BYTES_MAX + 64;

/// Why a connection is over. The text is what the client is told, if it can be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The client closed it between two frames.
    #[error("the client closed the connection")]
    ByClient,
    /// The node is stopping.
    #[error("the node is stopping: connect again")]
    Stopping,
    /// Bytes that are no frame or no message of this protocol.
    #[error("{0}")]
    Malformed(DecodeError),
    /// Frames in an order that the protocol does not have.
    #[error("{0}")]
    Order(&'static str),
    /// The versions of both sides do not overlap.
    #[error("{0}")]
    Version(String),
    /// It asked for nothing, and others were waiting for its place.
    #[error("this connection asked for nothing and the node is full: connect again with a request")]
    Silent,
    /// A frame did not end in time, in either direction.
    #[error("a frame took too long: send and read frames without a pause inside")]
    Deadline,
    /// The connection broke.
    #[error("{0}")]
    Broken(LinkError),
}

impl From<LinkError> for End {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed => Self::ByClient,
            LinkError::Deadline => Self::Deadline,
            LinkError::Header(error @ DecodeError::Version { .. }) => {
                Self::Version(error.to_string())
            }
            LinkError::Header(error) => Self::Malformed(error),
            other => Self::Broken(other),
        }
    }
}

impl From<DecodeError> for End {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

impl End {
    fn count(&self, counters: &Counters) {
        match self {
            Self::ByClient => &counters.closed_by_client,
            Self::Stopping => &counters.closed_stopping,
            Self::Malformed(_) => &counters.closed_malformed,
            Self::Order(_) => &counters.closed_order,
            Self::Version(_) => &counters.closed_version,
            Self::Silent => &counters.closed_silent,
            Self::Deadline => &counters.closed_deadline,
            Self::Broken(_) => &counters.closed_broken,
        }
        .count();
    }

    /// The last frame, if the other side can still be told why.
    fn farewell(&self) -> Option<Answer> {
        let reason = match self {
            Self::ByClient | Self::Broken(_) => return None,
            Self::Stopping => Refusal::Closing,
            Self::Malformed(_) => Refusal::Malformed,
            Self::Order(_) => Refusal::Order,
            Self::Version(_) => Refusal::Version,
            Self::Silent => Refusal::Full,
            Self::Deadline => Refusal::Deadline,
        };
        Some(Answer::refusal(0, reason, &self.to_string()))
    }
}

/// The reading side of one connection, and what it needs to serve requests.
struct Connection {
    shared: Arc<Shared>,
    receiver: Receiver,
    owner: OwnerId,
    answers: mpsc::Sender<Queued>,
    places: Arc<Semaphore>,
    backlog: Arc<Backlog>,
    /// What the client said that it can do.
    features: Features,
    /// Bytes of objects that this connection has in reception.
    unpublished: Arc<Budget>,
    silence: Arc<Silence>,
}

/// Serves one connection until it ends, and counts why it did.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    (sender, receiver): (Sender, Receiver),
    (owner, silence): (OwnerId, Arc<Silence>),
    stop: watch::Receiver<bool>,
) {
    let _leases = OwnedLeases {
        shared: Arc::clone(&shared),
        owner,
    };
    let in_flight = shared.limits.in_flight as usize;
    // Twice the agreed number: answers to requests in flight, and the refusals of those beyond.
    let (answers, queue) = mpsc::channel(in_flight * 2);
    let places = Arc::new(Semaphore::new(in_flight));
    let connection = Connection {
        shared: Arc::clone(&shared),
        receiver,
        owner,
        answers,
        places,
        backlog: Arc::default(),
        features: Features::default(),
        unpublished: Budget::new(shared.limits.own_unpublished_bytes()),
        silence,
    };
    let mut writing = pin!(write_answers(&shared, sender, queue));
    let (end, written) = tokio::select! {
        end = connection.read(stop) => (end, writing.await),
        // The queue outlives its reader, so a writer that ended has failed.
        written = &mut writing => (End::ByClient, written),
    };
    let end = match written {
        Ok(()) => end,
        Err(LinkError::Deadline) => End::Deadline,
        Err(error) => End::Broken(error),
    };
    end.count(&shared.counters);
    tracing::debug!(connection = owner.0, %end, "connection closed");
}

impl Connection {
    /// Reads until the connection is over. The queue of answers closes with it.
    async fn read(mut self, mut stop: watch::Receiver<bool>) -> End {
        let end = match self.frames(&mut stop).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        if let Some(farewell) = end.farewell() {
            // The writer may have failed at the same moment; then nobody is left to be told.
            let _ = self.answers.send(Queued::Answer(farewell)).await;
        }
        end
    }

    async fn frames(&mut self, stop: &mut watch::Receiver<bool>) -> Result<Never, End> {
        self.hello(stop).await?;
        tokio::select! {
            biased;
            () = self.silence.broken() => {}
            begun = until_stopped(stop, self.receiver.begin()) => begun?,
        }
        if !self.silence.end() {
            return Err(End::Silent);
        }
        loop {
            until_stopped(stop, self.receiver.begin()).await?;
            let deadline = Instant::now() + self.shared.limits.frame_timeout;
            let header = self.receiver.header(deadline).await?;
            self.request(&header, deadline).await?;
        }
    }

    async fn hello(&mut self, stop: &mut watch::Receiver<bool>) -> Result<(), End> {
        let deadline = Instant::now() + self.shared.limits.hello_timeout;
        let header = until_stopped(stop, self.receiver.header(deadline)).await?;
        if header.kind != Kind::Hello || header.body_bytes > HELLO_BODY_BYTES_MAX {
            return Err(End::Order("the first frame must be HELLO"));
        }
        let hello = Hello::decode(self.receiver.body(deadline).await?)?;
        if !(hello.version_min..=hello.version_max).contains(&PROTOCOL_VERSION) {
            return Err(End::Version(format!(
                "the client speaks versions {} to {}, this node speaks {PROTOCOL_VERSION}: \
                 upgrade the older side",
                hello.version_min, hello.version_max
            )));
        }
        tracing::debug!(connection = self.owner.0, client = hello.name, "connected");
        self.features = hello.features.and(Features::ALL);
        let answer = HelloAnswer {
            version: PROTOCOL_VERSION,
            features: self.features,
            incarnation: self.shared.incarnation,
            object_bytes_max: self.shared.limits.object_bytes,
            in_flight_max: self.shared.limits.in_flight,
        };
        let mut body = Vec::new();
        answer.encode(&mut body);
        let answer = Answer::new(&header, Kind::HelloAnswer, body);
        self.room().await?.send(Queued::Answer(answer));
        Ok(())
    }

    /// Serves the request whose header was read; `deadline` is that of its frame.
    async fn request(&mut self, header: &FrameHeader, deadline: Instant) -> Result<(), End> {
        let room = self.room().await?;
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.shared.counters.refused_busy_in_flight.count();
            self.receiver.body(deadline).await?;
            self.receiver.payload_discard(deadline).await?;
            let received = &self.shared.counters.received_bytes;
            received.add(header.payload_bytes);
            let message = "more requests in flight than HELLO agreed: wait for answers";
            let refusal = Answer::refusal(header.request, Refusal::Busy, message);
            room.send(Queued::Answer(refusal));
            return Ok(());
        };
        let reply = Reply::new(*header, room, place, (self.backlog.answer(), self.features));
        if header.kind == Kind::Put {
            let (shared, own) = (&self.shared, &self.unpublished);
            return put::receive(shared, own, &mut self.receiver, reply, deadline).await;
        }
        let body = self.receiver.body(deadline).await?;
        requests::answer(&self.shared, self.owner, reply, body)
    }

    /// Waits for room: a client that does not read its answers is not read either, until the
    /// deadline of the answer at the front ends the connection.
    async fn room(&self) -> Result<OwnedPermit<Queued>, End> {
        self.backlog.small().await;
        let room = self.answers.clone().reserve_owned().await;
        room.map_err(|_| End::Broken(LinkError::Cut))
    }
}

/// What `frames` never returns.
enum Never {}

/// Runs `step` unless the node stops first; only for steps that can be cancelled.
async fn until_stopped<T>(
    stop: &mut watch::Receiver<bool>,
    step: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, End> {
    tokio::select! {
        biased;
        () = stopped(stop) => Err(End::Stopping),
        done = step => Ok(done?),
    }
}

/// Ends the leases of a connection when the connection ends, also when its task is aborted.
struct OwnedLeases {
    shared: Arc<Shared>,
    owner: OwnerId,
}

impl Drop for OwnedLeases {
    fn drop(&mut self) {
        self.shared.store.release_owner(self.owner);
    }
}

//! Connecting: socket, HELLO, and the two tasks of a connection.
//!
//! Called by the supervisor of each connection. Invariant: one deadline of our own covers all of
//! it, whatever the patience of the operating system.

use std::sync::Arc;
use std::time::Duration;

use tessera_proto::message::{Features, Hello, HelloAnswer, Refused};
use tessera_proto::{DecodeError, FrameHeader, Incarnation, Kind, PROTOCOL_VERSION};
use tessera_transport::{Address, Link, LinkError, Payload, Receiver, Sender};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::call::Connection;
use super::table::HELLO_REQUEST;
use super::{reader, writer};
use crate::cluster::NodeCounters;

/// What a connection needs to know.
#[derive(Debug, Clone)]
pub(crate) struct ConnectSpec {
    /// Where the node listens.
    pub(crate) address: Address,
    /// This process start.
    pub(crate) incarnation: Incarnation,
    /// This client in the node's log.
    pub(crate) name: String,
    /// For the socket and the handshake together.
    pub(crate) connect_timeout: Duration,
    /// For one frame once its first byte is there.
    pub(crate) frame_timeout: Duration,
    /// Where this node's events are counted.
    pub(crate) counters: Arc<NodeCounters>,
}

/// Why there is no connection. The supervisor tries again after a pause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Nobody listens, or nobody answers.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The node does not take us; its message says what to do.
    #[error("the node refused the connection: {0}")]
    Refused(String),
    /// The answer is not one to HELLO.
    #[error("the node answered HELLO with {0:?}: is it a Tessera node of this version?")]
    Kind(Kind),
    /// The answer cannot be read.
    #[error("the node's answer to HELLO cannot be read: {0}")]
    Decode(#[from] DecodeError),
    /// The node chose a version that was not offered.
    #[error("the node chose version {0}, which was not offered")]
    Version(u16),
}

/// Connects and starts reader and writer, which end together when the connection is lost.
pub(crate) async fn connect(
    spec: &ConnectSpec,
) -> Result<(Arc<Connection>, JoinSet<()>), ConnectError> {
    let deadline = Instant::now() + spec.connect_timeout;
    let (mut sender, mut receiver) = Link::connect(&spec.address, deadline).await?;
    let hello = shake_hands(spec, &mut sender, &mut receiver, deadline).await?;
    let connection = Arc::new(Connection::new(spec, &hello, &receiver));
    let mut tasks = JoinSet::new();
    tasks.spawn(reader::run(
        Arc::clone(&connection),
        receiver,
        spec.frame_timeout,
    ));
    tasks.spawn(writer::run(
        Arc::clone(&connection),
        sender,
        spec.frame_timeout,
    ));
    Ok((connection, tasks))
}

async fn shake_hands(
    spec: &ConnectSpec,
    sender: &mut Sender,
    receiver: &mut Receiver,
    deadline: Instant,
) -> Result<HelloAnswer, ConnectError> {
    let hello = Hello {
        version_min: PROTOCOL_VERSION,
        version_max: PROTOCOL_VERSION,
        features: Features::ALL,
        incarnation: spec.incarnation,
        name: spec.name.clone(),
    };
    let mut body = Vec::new();
    hello.encode(&mut body);
    let header = FrameHeader {
        kind: Kind::Hello,
        request: HELLO_REQUEST,
        deadline_ms: super::call::remaining_ms(deadline),
        body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
        payload_bytes: 0,
    };
    sender.send(&header, &body, Payload::None, deadline).await?;
    let header = receiver.header(deadline).await?;
    let body = receiver.body(deadline).await?;
    match header.kind {
        Kind::HelloAnswer => {
            let answer = HelloAnswer::decode(body)?;
            if answer.version != PROTOCOL_VERSION {
                return Err(ConnectError::Version(answer.version));
            }
            Ok(answer)
        }
        Kind::Refused => Err(ConnectError::Refused(Refused::decode(body)?.message)),
        kind => Err(ConnectError::Kind(kind)),
    }
}

//! The first words of two engines: each says who it is and what it is, before any address is
//! named.
//!
//! Called by the task that dials and by the listener. The invariants: one deadline covers all of
//! it; whatever differs is refused with both values, on both sides; nothing is allocated for a
//! HELLO that is too long.

use std::sync::Arc;

use tessera_lifecycle::peer::ConnectionId;
use tessera_proto::limits::PEER_HELLO_BYTES_MAX;
use tessera_proto::message::{PEER_QUIESCENCE, PeerHello, PeerHelloAnswer, Refusal, Refused};
use tessera_proto::{DecodeError, FrameHeader, Incarnation, Kind};
use tessera_transport::{Address, Link, LinkError, Payload, Receiver, Sender};
use tokio::time::Instant;

use super::core::Core;
use super::link::Shaken;
use super::setup::difference;

/// Why two engines do not speak with each other.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the other engine refused: {}", .0.message)]
    Refused(Refused),
    #[error("the engines differ in {0}")]
    Mismatch(String),
    #[error("{0:?} came where HELLO or its answer belongs, or it was too long")]
    Kind(Kind),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("the answer is of process start {0:?} and connection {1}: neither was asked for")]
    Answer(Incarnation, u64),
}

impl HandshakeError {
    /// Whether another try would end no better.
    pub(super) const fn is_final(&self) -> bool {
        match self {
            Self::Refused(refused) => matches!(
                refused.reason,
                Refusal::Mismatch | Refusal::Version | Refusal::Malformed
            ),
            Self::Mismatch(_) | Self::Kind(_) | Self::Decode(_) | Self::Answer(..) => true,
            Self::Link(error) => matches!(error, LinkError::Header(_)),
        }
    }
}

/// Dials a process and shakes hands with it.
pub(super) async fn greet(
    core: &Core,
    peer: Incarnation,
    address: &Address,
) -> Result<Shaken, HandshakeError> {
    let deadline = Instant::now() + core.bounds.hello_timeout;
    let (mut sender, mut receiver) = Link::connect(address, deadline).await?;
    let lowest = core.lowest_connection();
    let hello = PeerHello {
        features: PEER_QUIESCENCE,
        from: core.incarnation,
        to: peer,
        rank: core.rank,
        connection_min: lowest,
        setup: core.setup.clone(),
    };
    let mut body = Vec::new();
    hello.encode(&mut body);
    send(&mut sender, Kind::PeerHello, &body, deadline).await?;
    let header = receiver.header(deadline).await?;
    check_length(&header)?;
    let body = receiver.body(deadline).await?;
    let answer = match header.kind {
        Kind::PeerHelloAnswer => PeerHelloAnswer::decode(body)?,
        Kind::Refused => return Err(HandshakeError::Refused(Refused::decode(body)?)),
        kind => return Err(HandshakeError::Kind(kind)),
    };
    if answer.from != peer || answer.connection < lowest {
        return Err(HandshakeError::Answer(answer.from, answer.connection));
    }
    if let Some(difference) = difference(&core.setup, &answer.setup, answer.features) {
        return Err(HandshakeError::Mismatch(difference));
    }
    Ok(Shaken {
        peer,
        rank: answer.rank,
        connection: ConnectionId(answer.connection),
        sender,
        receiver,
    })
}

/// Answers a process that has connected.
pub(super) async fn welcome(
    core: &Core,
    mut sender: Sender,
    mut receiver: Receiver,
) -> Result<Shaken, HandshakeError> {
    let deadline = Instant::now() + core.bounds.hello_timeout;
    let outcome = match hear(&mut receiver, deadline).await {
        Ok(hello) => admit(core, &hello).map(|connection| (hello, connection)),
        Err(HandshakeError::Link(error @ LinkError::Header(_))) => Err(malformed(&error)),
        Err(error @ HandshakeError::Link(_)) => return Err(error),
        Err(error) => Err(malformed(&error)),
    };
    let mut body = Vec::new();
    let (hello, connection) = match outcome {
        Ok(admitted) => admitted,
        Err(refused) => {
            refused.encode(&mut body);
            send(&mut sender, Kind::Refused, &body, deadline).await?;
            return Err(HandshakeError::Refused(refused));
        }
    };
    let answer = PeerHelloAnswer {
        features: PEER_QUIESCENCE,
        from: core.incarnation,
        rank: core.rank,
        connection,
        setup: core.setup.clone(),
    };
    answer.encode(&mut body);
    send(&mut sender, Kind::PeerHelloAnswer, &body, deadline).await?;
    Ok(Shaken {
        peer: hello.from,
        rank: hello.rank,
        connection: ConnectionId(connection),
        sender,
        receiver,
    })
}

async fn hear(receiver: &mut Receiver, deadline: Instant) -> Result<PeerHello, HandshakeError> {
    let header = receiver.header(deadline).await?;
    if header.kind != Kind::PeerHello {
        return Err(HandshakeError::Kind(header.kind));
    }
    check_length(&header)?;
    Ok(PeerHello::decode(receiver.body(deadline).await?)?)
}

fn check_length(header: &FrameHeader) -> Result<(), HandshakeError> {
    match header.body_bytes <= PEER_HELLO_BYTES_MAX && header.payload_bytes == 0 {
        true => Ok(()),
        false => Err(HandshakeError::Kind(header.kind)),
    }
}

fn malformed(error: &dyn std::error::Error) -> Refused {
    refused(Refusal::Malformed, error.to_string())
}

fn refused(reason: Refusal, message: impl Into<String>) -> Refused {
    let message = message.into();
    Refused { reason, message }
}

/// The number of the connection, or why there is none.
fn admit(core: &Core, hello: &PeerHello) -> Result<u64, Refused> {
    if hello.to != core.incarnation {
        let message = format!(
            "process start {:032x} was meant, and this is {:032x}: it has ended",
            hello.to.0, core.incarnation.0
        );
        return Err(refused(Refusal::Stranger, message));
    }
    if let Some(difference) = difference(&core.setup, &hello.setup, hello.features) {
        let message = format!("the engines differ in {difference}");
        return Err(refused(Refusal::Mismatch, message));
    }
    if hello.from == core.incarnation {
        return Err(refused(Refusal::Malformed, "an engine dials itself"));
    }
    if core.with(|state| state.fences.contains_key(&hello.from)) {
        let message = "a fence of the last connection runs: try again";
        return Err(refused(Refusal::Busy, message));
    }
    let number = core.number(hello.from, hello.connection_min);
    number.ok_or_else(|| refused(Refusal::Malformed, "no connection has such a number"))
}

async fn send(
    sender: &mut Sender,
    kind: Kind,
    body: &[u8],
    deadline: Instant,
) -> Result<(), LinkError> {
    let header = FrameHeader {
        kind,
        request: 0,
        deadline_ms: 0,
        body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
        payload_bytes: 0,
    };
    sender.send(&header, body, Payload::None, deadline).await
}

/// Counts why a handshake failed on the side that was dialled.
pub(super) fn count(core: &Arc<Core>, error: &HandshakeError) {
    let counts = &core.counts;
    let count = match error {
        HandshakeError::Link(LinkError::Deadline) => &counts.refused_late,
        HandshakeError::Refused(refused) => match refused.reason {
            Refusal::Mismatch => &counts.refused_mismatch,
            Refusal::Stranger => &counts.refused_stranger,
            Refusal::Busy => &counts.refused_fenced,
            _ => &counts.refused_malformed,
        },
        _ => &counts.refused_malformed,
    };
    count.add(1);
}

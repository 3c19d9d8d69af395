//! What can end a link. Client and node decide what it means for requests; here it only says whose
//! doing it was and whether the link can go on.

use std::io;

use tessera_proto::DecodeError;

/// Why a link operation did not complete.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer ended the connection between two frames: nothing is half done.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection ended inside a frame, or an earlier operation was given up inside one. The
    /// half of the link is broken: drop it and connect again.
    #[error("the connection was cut inside a frame: connect again")]
    Cut,
    /// The deadline passed. Inside a frame the half of the link is broken afterwards.
    #[error("the deadline passed before the peer was done: the peer is slow, paused or gone")]
    Deadline,
    /// The operating system refused or lost the connection.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer sent bytes that are no frame of this protocol: drop the link.
    #[error("the peer sent no valid frame header: {0}")]
    Header(#[from] DecodeError),
    /// The frame carries another number of payload bytes than the destination takes. Nothing was
    /// read: discard the payload and go on.
    #[error("the frame carries {declared} payload bytes where {room} were expected")]
    PayloadLength {
        /// Bytes that the frame header declares and that were not read yet.
        declared: u64,
        /// Bytes that the destination holds.
        room: u64,
    },
    /// The caller did not take body and payload in the order of the wire. A bug of the caller.
    #[error("body or payload of the frame before was not taken: a bug in the caller")]
    Order,
}

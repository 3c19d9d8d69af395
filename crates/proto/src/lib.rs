//! The bytes that two Tessera processes must agree on.
//!
//! Holds: identity (namespace, object key, object id), the stored object header, the wire frame
//! header and its messages, what engines say to each other about direct transfers and the ticket
//! that admits to one, ring placement, and the limits that bound all of them. May import: no other
//! crate of ours. Never sees: a runtime, a socket, a file, a clock, randomness, `unsafe`.
//!
//! Every decoder takes bytes from an untrusted party: it checks each declared length against a
//! named limit before it allocates or does arithmetic, consumes its input exactly, and answers with
//! a [`DecodeError`] that names the field. Encoding what was decoded gives the same bytes back.
#![forbid(unsafe_code)]

mod appended;
mod checksum;
mod codec;
mod frame;
pub mod identity;
pub mod limits;
pub mod message;
mod object;
pub mod peer;
pub mod ring;
pub mod ticket;
mod time;

pub use appended::Appended;
pub use checksum::{Checksum, checksum};
pub use codec::{DecodeError, Reader, Writer};
pub use frame::{FRAME_HEADER_BYTES, FrameHeader, Kind, PROTOCOL_VERSION};
pub use identity::{
    BlockHash, Component, Coordinate, Coordinates, KeyDigest, Namespace, NamespaceDigest, ObjectId,
    ObjectKey, TenantTag, Topology,
};
pub use message::{Incarnation, LeaseId};
pub use object::{Expectation, OBJECT_HEADER_BYTES, ObjectHeader, ObjectMismatch, WriteId};
pub use time::Instant;

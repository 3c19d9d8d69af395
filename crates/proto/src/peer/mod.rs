//! What two engines say to each other about a direct transfer: names, messages, and their bytes.
//!
//! Called by the machine of transfers, which speaks these types, and by the client, which puts them
//! on a connection. The invariant: a frame decodes only if it encodes to the same bytes, and every
//! list that it declares is bounded by a limit before anything is allocated for it.

mod decode;
mod encode;
mod ids;
mod message;

pub use ids::{Attempt, BlockRef, ConnectionId, Generation, PartAttempt, PartId, TransferId};
pub use message::{Frame, LentPart, Message, Proof, Refusal};

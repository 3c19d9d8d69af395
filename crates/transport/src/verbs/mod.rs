//! RDMA through libibverbs, which is found at run time: reliable connections over which this
//! process reads and writes a peer's memory, and by which a peer reaches ours.
//!
//! Called by whoever moves bytes between hosts; a link of another kind carries the [`Card`]s by
//! which two pairs find each other. It reports completions and gives proofs, and judges nothing.
//!
//! - F1, posted = finished: [`QueuePair::is_drained`], as every request has its own completion;
//! - F2, the initiator closes its side: [`QueuePair::close`], then events until it is drained;
//! - F3, the target takes access away: [`Exposed::revoke`] for one loan, [`QueuePair::reset`] for
//!   all that a peer reached through a pair.
//!
//! The invariant: memory that the hardware may read or write is owned by a value of this module,
//! and leaves it only with one of these proofs. Where a proof fails, the memory is kept for ever.

mod bell;
mod card;
mod error;
mod memory;
mod pair;
mod rail;
mod request;

pub use card::{CARD_BYTES, Card, CardError};
pub use error::VerbsError;
pub use memory::{Exposed, Loaned, Registered, Remote, Rights};
pub use pair::QueuePair;
pub use rail::{LinkState, Rail};
pub use request::{Ended, Event, Failure, PostError, Request, Work};

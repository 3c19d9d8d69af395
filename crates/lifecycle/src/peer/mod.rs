//! Direct transfers between engines, prefill to decode: who may touch memory, and when it is over.
//!
//! ```text
//!             the side that lends its memory     the side that moves the bytes
//!   READ      prefill (source)                   decode (destination)
//!   WRITE     decode (destination)               prefill (source)
//!
//!   a part    offered ─ claim ─▶ live            none ─▶ claiming ─▶ granted ─▶ live
//!   there        │ lease, failure │ proof          └─ failure ─┴──────┘           │ proof
//!                ▼                ▼                ▼                               ▼
//!             at rest          at rest           at rest: never posted          at rest
//! ```
//!
//! [`PeerRoot`] is one machine for both sides and both modes; one per worker, driven by the
//! client's peer driver. A transfer has one outcome, set by the first fact that decides it, and
//! each of its parts comes to rest by itself: *drained* with success (F1), or behind a *fence* (F2,
//! F3), or because nothing was ever posted. Clocks set outcomes and choose the next proof to seek.
//! They end offers; they never end a claim.
//!
//! The driving contract is the crate's, with one addition: after each mutation,
//! [`PeerRoot::collect`].

mod claimant;
mod collect;
mod command;
mod config;
mod fences;
mod ids;
mod lender;
mod order;
mod part;
mod receive;
mod root;
mod session;
mod tables;
mod tell;
mod tickets;
mod transfer;

#[cfg(test)]
mod tests;

pub use command::{Drain, FenceKind, Move, PeerCommand, PeerEvent, PeerResults, StepFailure};
pub use config::{
    EARLY_CLAIM_MS, PeerConfig, PeerCounters, PeerFailure, PeerGauges, PeerLimits, PeerStop,
    PeerTimes,
};
pub use ids::FenceId;
pub use order::{Mode, PartOrder, Side, TransferOrder};
pub use root::PeerRoot;
pub use tables::PeerTables;
pub use tessera_proto::peer::{
    Attempt, BlockRef, ConnectionId, Frame, Generation, LentPart, Message, PartAttempt, PartId,
    Proof, Refusal, TransferId,
};

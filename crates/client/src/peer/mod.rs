//! Direct transfers between engines over TCP: the driver of the lifecycle's peer machine.
//!
//! One [`PeerDriver`] runs in each worker, beside its block memory. It listens, dials, shakes
//! hands, carries the machine's messages and moves bytes straight between the block memories of
//! two processes. It decides nothing: what may be touched, when a transfer has failed and which
//! proof is sought next is the machine's; the driver reports what has happened to sockets, bytes
//! and devices. Its one promise is what a fence means: when one is reported complete, no task of
//! this process reads or writes block memory for that peer any more.

mod config;
mod core;
mod counts;
mod dial;
mod driver;
mod execute;
mod handshake;
mod key;
mod link;
mod listener;
mod memory;
mod offered;
mod pass;
mod pieces;
mod reader;
mod setup;
mod shares;
mod writer;

pub use config::{PeerBounds, PeerOptions, PeerStartError};
pub use counts::PeerMetrics;
pub use driver::{PeerDriver, PeerError};
pub use key::{KEY_VARIABLE, KeyError, ticket_key};
pub use pass::mint_pass;
pub use tessera_lifecycle::RequestKey;
pub use tessera_lifecycle::peer::{
    BlockRef, Generation, Mode, PartId, PartOrder, PeerCounters, PeerFailure, PeerGauges,
    PeerLimits, PeerResults, PeerStop, PeerTimes, Side, StepFailure, TransferId, TransferOrder,
};
pub use tessera_proto::ticket::{Pass, TicketKey};

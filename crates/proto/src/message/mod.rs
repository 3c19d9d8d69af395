//! The bodies of all messages, one type each, with `encode` and `decode`.
//!
//! Called by node and client. Requests and answers stand beside each other by operation; every
//! decoder consumes its body exactly.

mod drop;
mod lease;
mod object;
mod peer;
mod price;
mod session;
mod stat;

pub use drop::{Drop, DropAnswer};
pub use lease::{Acquire, AcquireAnswer, AcquireItem, LeaseId, Presence, Release, ReleaseAnswer};
pub use object::{
    Get, GetAnswer, GetStatus, Put, PutAnswer, PutStatus, Remove, RemoveAnswer, RemoveItem,
};
pub use peer::{
    PEER_QUIESCENCE, PartName, PartStatus, PeerGroup, PeerHello, PeerHelloAnswer, PeerPull,
    PeerPullAnswer, PeerPush, PeerPushAnswer, PeerSetup, PeerTicket, PeerTicketAnswer,
};
pub use price::{Price, PriceAnswer};
pub use session::{Features, Hello, HelloAnswer, Incarnation, Ping, Refusal, Refused};
pub use stat::{Stat, StatAnswer, StatEntry};

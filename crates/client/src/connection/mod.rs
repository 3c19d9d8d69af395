//! One connection to one node: many requests in flight, answers in any order.
//!
//! A caller (always the cluster) enters a request into the *table*, its frame into the *queue*, and
//! waits. The *writer* task sends what is queued in batches; the *reader* task matches answers with
//! the table, receives payloads straight into lent memory and verifies them. Memory that a request
//! brings is owned by exactly one of table, writer and reader, and goes back to the caller through
//! the request's one completion.

mod call;
mod handshake;
mod queue;
mod reader;
mod table;
mod writer;

pub(crate) use call::Connection;
pub(crate) use handshake::{ConnectSpec, connect};
pub(crate) use table::{Answer, Cargo, Completion, Failure};

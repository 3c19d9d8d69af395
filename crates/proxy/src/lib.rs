//! Sends each prompt to a prefill engine, and what comes of it to a decode engine.
//!
//! Called by the binary (`tessera proxy`). It speaks the OpenAI interface on both sides and knows
//! nothing of blocks: tickets and passes in `kv_transfer_params` go through it as they are, and
//! whoever starts it keeps the key of passes. Invariants: an engine is asked again, or another one,
//! only before the client has had a byte of an answer; what is asked of an engine for a client ends
//! when that client goes; every wait has a bound, and so has everything that is kept for a client.
#![forbid(unsafe_code)]

mod asked;
mod config;
mod dispatch;
mod failure;
mod health;
mod legs;
mod metrics;
mod parallel;
mod pool;
mod record;
mod relay;
mod routes;
mod server;

pub use config::{
    Inbox, InvalidInbox, InvalidUpstream, Limits, Mode, Passes, ProxyConfig, Upstream,
};
pub use server::{Proxy, RunningProxy, StartError};

//! Sends each prompt to a prefill engine, and what comes of it to a decode engine.
//!
//! Called by the binary (`tessera proxy`). It speaks the OpenAI interface on both sides and knows
//! nothing of blocks: the ticket in `kv_transfer_params` passes through it as it is. Invariants: an
//! engine is asked again, or another one, only before the client has had a byte of an answer; what
//! is asked of an engine for a client ends when that client goes; every wait has a bound, and so
//! has everything that is kept for a client.
#![forbid(unsafe_code)]

mod asked;
mod config;
mod dispatch;
mod failure;
mod health;
mod legs;
mod metrics;
mod pool;
mod record;
mod relay;
mod routes;
mod server;

pub use config::{InvalidUpstream, Limits, Mode, ProxyConfig, Upstream};
pub use server::{Proxy, RunningProxy, StartError};

//! The RDMA transport on real verbs: bytes, each fence, each failure.
//!
//! `cargo xtask rdma-test` runs them in a guest that makes its devices of Ethernet ones; elsewhere
//! they are ignored. `TESSERA_RDMA_DEVICES` names three devices: one that reaches itself, and the
//! two ends of a cable, which the script of `TESSERA_RDMA_CABLE` cuts and mends.

mod failures;
mod fences;
mod moves;
mod support;

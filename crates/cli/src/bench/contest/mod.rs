//! One system under the same load as others: what `cargo xtask bench --peers` starts once for each
//! of ours, and gives an order for each repeat, so that repeats of all systems alternate.
//!
//! | file | holds |
//! |---|---|
//! | `session.rs` | orders in, answers out |
//! | `payload.rs` | the bytes of the objects, and whether they arrived |
//! | `tessera.rs` | a node of this binary, by the product's client |
//! | `redis.rs` | Redis, by pipelined requests on one socket |
//! | `floors.rs` | a raw socket, and a copy in memory |

mod floors;
mod payload;
mod redis;
mod session;
mod tessera;

pub(crate) use session::{SUBCOMMAND, serve};

//! One file for each subcommand. `main` calls `run` of the one that was asked for.

pub(crate) mod clean;
pub(crate) mod connect;
pub(crate) mod drop;
pub(crate) mod node;
pub(crate) mod ping;
pub(crate) mod proxy;
pub(crate) mod stat;
pub(crate) mod verify;

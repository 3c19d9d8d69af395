//! The one name within direct transfers that never leaves its process; the others are
//! [`tessera_proto::peer`]'s.
//!
//! Called by everything under `peer`.

/// One fence of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceId(pub u64);

//! The seam to a disk tier. None exists yet: a store without one evicts for good.
//!
//! Called, once there is one, by the store: before an eviction it offers the victim, after a miss
//! in the index it asks for the object. The types carry the ownership: the tier reads from a pin
//! and writes into an extent, so neither can be reused before the tier lets go of it.

use tessera_proto::{ObjectId, WriteId};

use crate::guard::{ReadPin, WriteExtent};

/// Keeps objects after RAM has no room for them.
pub trait DiskTier: Send + Sync + 'static {
    /// Payload bytes of an object that the tier has whole.
    fn locate(&self, id: &ObjectId) -> Option<u64>;

    /// Takes over an object that is about to leave RAM. The object stays visible through every
    /// hand-over: it leaves the RAM index when the tier drops the pin, and `locate` finds it
    /// before that unless the tier declined.
    fn demote(&self, object: ReadPin);

    /// Reads an object into an extent of its length and calls `done` with the extent, to be
    /// published if it is `true`.
    fn promote(
        &self,
        id: &ObjectId,
        into: WriteExtent,
        done: Box<dyn FnOnce(WriteExtent, bool) + Send>,
    );

    /// Removes an object for good, only this write of it if one is named. True if it was there.
    fn remove(&self, id: &ObjectId, write: Option<WriteId>) -> bool;
}

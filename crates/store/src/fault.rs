//! Damage on purpose, for tests of how damage is found; compiled only with the feature
//! `fault-injection`.
//!
//! Called by tests of the node and of the whole system. It does what a failing memory module
//! does, no more: one bit of the arena's copy changes, and nothing in the store knows.

use tessera_proto::{OBJECT_HEADER_BYTES, ObjectId};

use crate::ram::RamStore;

impl RamStore {
    /// Flips bit `bit` of the stored copy of an object: of the payload, or beyond it of the
    /// 128-byte header. False, and nothing changed, if the object is not here, is being read
    /// (pinned), or has no such bit.
    #[must_use]
    pub fn flip_bit(&self, id: &ObjectId, bit: u64) -> bool {
        let core = &self.core;
        // Under the space lock the object stays; nobody can pin it under a shard's write lock.
        let space = core.space.lock();
        let Some(slot) = core.index.visit(&core.slots, id, |slot, _| slot) else {
            return false;
        };
        let mut flipped = false;
        core.index.leave(&core.slots, slot, |record| {
            let (payload, length) = core.payload(slot);
            let Ok(at) = usize::try_from(bit / 8) else {
                return false;
            };
            if record.state().pins() > 0 || at >= length + OBJECT_HEADER_BYTES {
                return false;
            }
            let byte = match at.checked_sub(length) {
                None => payload.as_ptr().wrapping_add(at),
                Some(at) => core.header_address(slot).as_ptr().wrapping_add(at),
            };
            // SAFETY: the byte is inside the object's extent. The object is in the index and not
            // pinned, and nobody can pin it or read its header while we have both locks.
            unsafe { byte.write(byte.read() ^ (1 << (bit % 8))) };
            flipped = true;
            false // It stays in the index.
        });
        drop(space);
        flipped
    }
}

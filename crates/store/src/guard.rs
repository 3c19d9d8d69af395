//! The two ways to touch the arena: [`WriteExtent`], which owns memory that nobody else sees, and
//! [`ReadPin`], which keeps a published object where it is.
//!
//! Called by the node: it receives a payload straight into the one and sends from the other. Both
//! keep the arena alive and give back what they hold when dropped. Invariant: an extent's bytes
//! are written only through the one `WriteExtent` that owns it, and read only through pins of its
//! object, which exist from publication on; so no byte is ever written while it is read.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use tessera_proto::{OBJECT_HEADER_BYTES, ObjectHeader};

use crate::core::Core;
use crate::slots::SlotId;
use crate::stamp::read_stamped;
use crate::state::State;

/// Memory for one object, owned by one writer. It reads as whatever lay there before. Dropped, it
/// gives the memory back; published, it is the object.
pub struct WriteExtent {
    core: Arc<Core>,
    /// None once it is published.
    slot: Option<SlotId>,
    payload: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: a `WriteExtent` is the only way to its bytes, as a `Box<[u8]>` is to its.
unsafe impl Send for WriteExtent {}
// SAFETY: `&WriteExtent` gives `&[u8]` only.
unsafe impl Sync for WriteExtent {}

impl WriteExtent {
    pub(crate) fn new(core: Arc<Core>, slot: SlotId) -> Self {
        let (payload, length_bytes) = core.payload(slot);
        Self {
            core,
            slot: Some(slot),
            payload,
            length_bytes,
        }
    }

    /// The whole extent: payload, what rounding loses, and where the header will be. What is there
    /// of a header is overwritten when the object is published.
    pub(crate) fn image_mut(&mut self) -> &mut [u8] {
        let slot = self.slot.expect("taken only when the extent is published");
        let (start, length) = self.core.image(slot);
        // SAFETY: as in `deref_mut`: the extent is ours to its last byte.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), length) }
    }

    /// The record, whose extent the caller now has to publish.
    pub(crate) fn into_slot(mut self, core: &Arc<Core>) -> Option<SlotId> {
        let ours = Arc::ptr_eq(core, &self.core);
        ours.then(|| self.slot.take()).flatten()
    }
}

impl Deref for WriteExtent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the extent is inside the arena, which `core` keeps mapped; its memory was
        // initialised when it was faulted in; it is `Reserved` in our name, so nobody writes it.
        unsafe { slice::from_raw_parts(self.payload.as_ptr(), self.length_bytes) }
    }
}

impl DerefMut for WriteExtent {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; and `&mut self` is the only way to these bytes, because the
        // allocator gives an extent to one owner and the index does not have it.
        unsafe { slice::from_raw_parts_mut(self.payload.as_ptr(), self.length_bytes) }
    }
}

impl Drop for WriteExtent {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.core.give_back(slot);
        }
    }
}

impl fmt::Debug for WriteExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteExtent")
            .field("length_bytes", &self.length_bytes)
            .finish_non_exhaustive()
    }
}

/// A published object, kept alive and unmoved until this is dropped, whatever happens to its lease
/// or to its place in the index meanwhile.
pub struct ReadPin {
    core: Arc<Core>,
    slot: SlotId,
    header: ObjectHeader,
    payload: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: a pin is a shared reference to immutable bytes and a hold that any thread may give back.
unsafe impl Send for ReadPin {}
// SAFETY: as above.
unsafe impl Sync for ReadPin {}

impl ReadPin {
    /// Takes over one hold of kind pin on `slot`.
    pub(crate) fn new(core: Arc<Core>, slot: SlotId, header: ObjectHeader) -> Self {
        let (payload, length_bytes) = core.payload(slot);
        Self {
            core,
            slot,
            header,
            payload,
            length_bytes,
        }
    }

    /// What the object says of itself.
    #[must_use]
    pub fn header(&self) -> &ObjectHeader {
        &self.header
    }

    /// When the object was stored, seconds since the start of 1970.
    pub(crate) fn stored_s(&self) -> u32 {
        let image = self.image();
        let kept = &image[image.len() - OBJECT_HEADER_BYTES..];
        read_stamped(kept).map_or(0, |(_, stored_s)| stored_s)
    }

    /// The record.
    pub(crate) fn slot(&self) -> SlotId {
        self.slot
    }

    /// The whole extent: payload, what rounding lost, and the header.
    pub(crate) fn image(&self) -> &[u8] {
        let (start, length) = self.core.image(self.slot);
        // SAFETY: as in `deref`; the header was written before the object was published, and what
        // is between was initialised with the arena and is written by nobody.
        unsafe { slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// One more pin of the same object. None if 16 million readers hold it already.
    pub(crate) fn again(&self) -> Option<Self> {
        self.core.slots[self.slot].change(State::pinned).ok()?;
        self.core.counters.pins.add(1);
        Some(Self::new(Arc::clone(&self.core), self.slot, self.header))
    }
}

impl Deref for ReadPin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the extent is inside the arena, which `core` keeps mapped; the object was
        // published, so its writer is gone; our hold keeps the allocator from giving it away.
        unsafe { slice::from_raw_parts(self.payload.as_ptr(), self.length_bytes) }
    }
}

impl Drop for ReadPin {
    fn drop(&mut self) {
        self.core.counters.pins.sub(1);
        self.core.drop_hold(self.slot, State::PIN);
    }
}

impl fmt::Debug for ReadPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPin")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

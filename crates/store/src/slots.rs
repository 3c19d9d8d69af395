//! The records of the store: one for each extent of the arena, free or not.
//!
//! Called by the allocator, the order of eviction, the index and the pins. A record is 48 bytes and
//! serves all of them: neighbours by address for the allocator, list links for the free lists or
//! the order of eviction, id and holds for the index. Records never move.
//!
//! Invariant: every field but `state` is written only under the space lock, or before the record
//! is entered in the index; who may read them: anyone under the space lock, and anyone who found
//! the record in the index for as long as he holds it (pin, lease, or the shard's lock). The
//! fields are atomic so that this contract, if ever broken, gives a wrong number and not
//! undefined behaviour.

use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tessera_proto::ObjectId;

use crate::state::{Kind, State};

const CHUNK_SLOTS: u32 = 4_096;

/// Names a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotId(pub(crate) u32);

impl SlotId {
    /// No record.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// The record, if this names one.
    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// A number that is written under the space lock.
#[derive(Debug, Default)]
pub(crate) struct Field(AtomicU32);

impl Field {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A link to another record, written under the space lock.
#[derive(Debug, Default)]
pub(crate) struct Link(Field);

impl Link {
    pub(crate) fn get(&self) -> SlotId {
        SlotId(self.0.get())
    }

    pub(crate) fn set(&self, slot: SlotId) {
        self.0.set(slot.0);
    }
}

/// One record.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    id: [AtomicU64; 2],
    /// Holds, kind, list and last use; see [`State`].
    state: AtomicU64,
    /// First unit of the extent.
    pub(crate) start: Field,
    /// Units of a free extent; payload bytes of any other.
    pub(crate) measure: Field,
    /// Neighbour at the lower address.
    pub(crate) before: Link,
    /// Neighbour at the higher address.
    pub(crate) after: Link,
    /// Towards the head of its list.
    pub(crate) prev: Link,
    /// Towards the tail of its list.
    pub(crate) next: Link,
}

const _: () = assert!(size_of::<Slot>() == 48);

impl Slot {
    pub(crate) fn id(&self) -> ObjectId {
        let [high, low] = [&self.id[0], &self.id[1]].map(|half| half.load(Ordering::Relaxed));
        ObjectId(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
    }

    pub(crate) fn set_id(&self, id: &ObjectId) {
        let (high, low) = id.0.split_at(8);
        for (half, bytes) in self.id.iter().zip([high, low]) {
            let bytes = bytes.try_into().expect("half of sixteen bytes");
            half.store(u64::from_be_bytes(bytes), Ordering::Relaxed);
        }
    }

    pub(crate) fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn kind(&self) -> Kind {
        self.state().kind()
    }

    /// Sets the state of a record that nobody else can change now.
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state.0, Ordering::Release);
    }

    /// Changes the state in one step, unless `change` declines. Returns what was there before.
    pub(crate) fn change(&self, change: impl Fn(State) -> Option<State>) -> Result<State, State> {
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                change(State(state)).map(|state| state.0)
            })
            .map(State)
            .map_err(State)
    }

    /// Marks the object as used since it entered its list.
    pub(crate) fn mark(&self) {
        let marked = self.change(|state| Some(state.touched()));
        debug_assert!(marked.is_ok());
    }

    /// Changes the state from exactly `from`.
    pub(crate) fn exchange(&self, from: State, to: State) -> bool {
        self.state
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Gives one hold back. Returns what was there before.
    pub(crate) fn drop_hold(&self, hold: State) -> State {
        State(self.state.fetch_sub(hold.0, Ordering::AcqRel))
    }
}

/// All records, in chunks that are made when first needed and stay.
#[derive(Debug)]
pub(crate) struct Slots {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Slots {
    /// Room for `most` records.
    pub(crate) fn new(most: u32) -> Self {
        let chunks = (0..most.div_ceil(CHUNK_SLOTS)).map(|_| OnceLock::new());
        Self {
            chunks: chunks.collect(),
        }
    }

    /// Makes sure that the record exists.
    pub(crate) fn make(&self, slot: SlotId) {
        self.chunks[place(slot).0]
            .get_or_init(|| (0..CHUNK_SLOTS).map(|_| Slot::default()).collect());
    }
}

impl Index<SlotId> for Slots {
    type Output = Slot;

    fn index(&self, slot: SlotId) -> &Slot {
        let (chunk, at) = place(slot);
        let chunk = self.chunks[chunk]
            .get()
            .expect("a record is made before it is named");
        &chunk[at]
    }
}

fn place(slot: SlotId) -> (usize, usize) {
    let (chunk, at) = (slot.0 / CHUNK_SLOTS, slot.0 % CHUNK_SLOTS);
    (chunk as usize, at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_comes_back_as_it_was_set() {
        let slot = Slot::default();
        let id = ObjectId(*b"0123456789abcdef");
        slot.set_id(&id);
        assert_eq!(slot.id(), id);
    }
}

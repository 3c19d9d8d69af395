//! Names within direct transfers between engines. None of them is ever used twice.
//!
//! Called by everything that speaks of a transfer. The invariant: a part is named with both of its
//! ranks, so that an acknowledgement without a rank cannot be written down.

/// One transfer: random 128 bits, made by the side that wrote the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

/// One part of a transfer: what moves from one rank to another in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId {
    /// The rank whose memory is read.
    pub source: u16,
    /// The rank whose memory is written.
    pub destination: u16,
    /// Which of the parts between these two.
    pub index: u16,
}

/// Counts the claims on one part, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u32);

/// One claim on a part: a part that is claimed again has a higher attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartAttempt {
    /// The part.
    pub part: PartId,
    /// Which claim on it.
    pub attempt: Attempt,
}

/// Counts the lives of one block: bumped when the block returns to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// One life of one block in the memory of the process that a message is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRef {
    /// The cache group.
    pub group: u16,
    /// The block within the group, or [`BlockRef::NULL`].
    pub block: u32,
    /// Its life.
    pub generation: Generation,
}

impl BlockRef {
    /// The number of a block that is none: it holds a place in a table, and has no memory.
    ///
    /// A null block of the lender moves no bytes; what moves for a null block of the destination is
    /// forgotten.
    pub const NULL: u32 = u32::MAX;

    /// Whether it has no memory.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.block == Self::NULL
    }
}

/// One connection between two processes, agreed in its handshake; later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

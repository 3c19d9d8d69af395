//! Every bound that two processes share, with the relations between them asserted at compile time.
//!
//! Called by encoders, decoders, the node and the client. A limit is stated here once; what is not
//! bounded here does not cross the wire.

use crate::frame::FRAME_HEADER_BYTES;
use crate::object::OBJECT_HEADER_BYTES;

/// Largest payload of one object, bytes.
pub const OBJECT_BYTES_MAX: u64 = 1 << 30;
/// Largest message body (everything but the payload), bytes.
pub const BODY_BYTES_MAX: u32 = 1 << 20;
/// Most object ids in one ACQUIRE, RELEASE or REMOVE.
pub const BATCH_ITEMS_MAX: u32 = 16_384;
/// Most requests in flight on one connection.
pub const IN_FLIGHT_MAX: u32 = 1_024;
/// Longest lease that a node grants, milliseconds.
pub const LEASE_MS_MAX: u32 = 10 * 60 * 1_000;
/// Longest deadline that a frame may declare, milliseconds.
pub const DEADLINE_MS_MAX: u32 = LEASE_MS_MAX;
/// Longest text field of an identity or a message, bytes of UTF-8.
pub const TEXT_BYTES_MAX: u32 = 4_096;
/// Most counters in one STAT answer.
pub const STAT_ENTRIES_MAX: u32 = 1_024;
/// Longest name of a counter, bytes of UTF-8.
pub const STAT_NAME_BYTES_MAX: u32 = 256;
/// Longest block hash that an engine may use, bytes.
pub const BLOCK_HASH_BYTES_MAX: u32 = 64;
/// Most ranks along one axis of a topology.
pub const RANKS_MAX: u32 = 4_096;
/// Most cache groups that an engine names in its HELLO to another.
pub const PEER_GROUPS_MAX: u32 = 64;
/// Longest text in a HELLO between engines, bytes of UTF-8.
pub const PEER_TEXT_BYTES_MAX: u32 = 512;
/// Largest body of a HELLO between engines, and of its answer, bytes.
pub const PEER_HELLO_BYTES_MAX: u32 = 64 << 10;
/// Most tokens of one chunk.
pub const CHUNK_TOKENS_MAX: u32 = 1 << 20;
/// Most parts in one message between engines.
pub const PEER_PARTS_MAX: u32 = 8_192;
/// Most blocks in one message between engines, over all of its parts.
pub const PEER_BLOCKS_MAX: u32 = 65_536;
/// Most entries of an open set, or of its answer, in one message between engines.
pub const PEER_ENTRIES_MAX: u32 = 32_768;

const ID_BYTES: u32 = 16;
/// Bytes that an ACQUIRE answer spends on one item: status and length.
pub(crate) const ACQUIRE_ITEM_BYTES: u32 = 9;
/// Bytes that a REMOVE spends on one item: id, whether a write is named, and the write.
pub(crate) const REMOVE_ITEM_BYTES: u32 = 25;
/// Bytes that a STAT answer spends on one counter beside its name: length and value.
pub(crate) const STAT_ITEM_BYTES: u32 = 12;
/// Bytes that an OFFER or a CLAIM spends on one part beside its blocks: part, attempt and count. No
/// other list of parts spends more on one.
pub(crate) const PEER_PART_BYTES: u32 = 14;
/// Bytes of one block: group, number and generation.
pub(crate) const PEER_BLOCK_BYTES: u32 = 14;
/// Bytes of one entry of an open set: transfer and part.
pub(crate) const PEER_ENTRY_BYTES: u32 = 22;
/// Bytes of a body beside its items; no message needs more.
const BODY_FIXED_BYTES: u32 = 256;

const _: () = assert!(BATCH_ITEMS_MAX * ID_BYTES + BODY_FIXED_BYTES <= BODY_BYTES_MAX);
const _: () = assert!(BATCH_ITEMS_MAX * ACQUIRE_ITEM_BYTES + BODY_FIXED_BYTES <= BODY_BYTES_MAX);
const _: () = assert!(BATCH_ITEMS_MAX * REMOVE_ITEM_BYTES + BODY_FIXED_BYTES <= BODY_BYTES_MAX);
const _: () = assert!(
    STAT_ENTRIES_MAX * (STAT_ITEM_BYTES + STAT_NAME_BYTES_MAX) + BODY_FIXED_BYTES <= BODY_BYTES_MAX
);
const _: () = assert!(
    PEER_PARTS_MAX * PEER_PART_BYTES + PEER_BLOCKS_MAX * PEER_BLOCK_BYTES + BODY_FIXED_BYTES
        <= BODY_BYTES_MAX
);
const _: () = assert!(PEER_ENTRIES_MAX * PEER_ENTRY_BYTES + BODY_FIXED_BYTES <= BODY_BYTES_MAX);
const _: () = assert!(
    (6 + PEER_GROUPS_MAX) * (4 + PEER_TEXT_BYTES_MAX) + PEER_GROUPS_MAX * 36 + BODY_FIXED_BYTES
        <= PEER_HELLO_BYTES_MAX
);
const _: () = assert!(PEER_HELLO_BYTES_MAX <= BODY_BYTES_MAX);
const _: () = assert!(TEXT_BYTES_MAX + BODY_FIXED_BYTES <= BODY_BYTES_MAX);
const _: () = assert!(
    DEADLINE_MS_MAX <= LEASE_MS_MAX,
    "a read may not outlive any lease"
);
const _: () = assert!(FRAME_HEADER_BYTES == 64);
const _: () = assert!(OBJECT_HEADER_BYTES == 128);
const _: () = assert!(OBJECT_HEADER_BYTES < BODY_FIXED_BYTES as usize);

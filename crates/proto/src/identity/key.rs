//! The key of an object within a namespace, and the digests made of it.
//!
//! Called for each object that is saved, looked up or loaded. Replication is a property of the
//! group: a group whose content is equal on all ranks of an axis has no coordinate on that axis, so
//! that one stored object serves every rank.

use crate::codec::Writer;
use crate::identity::NamespaceDigest;
use crate::limits::BLOCK_HASH_BYTES_MAX;

/// Separates key digests from all other uses of the hash.
const DOMAIN: &[u8] = b"tessera object key v1";

/// The engine's own hash of a block and all tokens before it, taken as given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash(Box<[u8]>);

impl BlockHash {
    /// The hash in `bytes`, or `None` if it is empty or over [`BLOCK_HASH_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let fits = !bytes.is_empty() && bytes.len() <= BLOCK_HASH_BYTES_MAX as usize;
        fits.then(|| Self(bytes.into()))
    }

    /// The hash as the engine gave it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Where a shard stands along one axis of the engine's parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coordinate {
    /// The group is equal on all ranks of this axis; encoded as rank -1.
    Replicated,
    /// The shard of one rank.
    Shard {
        /// Ranks along the axis.
        size: u32,
        /// This shard's rank, below `size`.
        rank: u32,
    },
}

/// Where a shard stands along every axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coordinates {
    /// Tensor parallel.
    pub tp: Coordinate,
    /// Pipeline parallel.
    pub pp: Coordinate,
    /// Decode context parallel.
    pub dcp: Coordinate,
    /// Prefill context parallel.
    pub pcp: Coordinate,
}

impl Coordinates {
    /// The only shard of a group that is equal on all ranks.
    pub const REPLICATED: Self = Self {
        tp: Coordinate::Replicated,
        pp: Coordinate::Replicated,
        dcp: Coordinate::Replicated,
        pcp: Coordinate::Replicated,
    };
}

/// Which part of a shard the object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Component {
    /// All layers of the group.
    Layers = 0,
}

/// The key of an object within its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    /// The engine's hash of the last block of the chunk.
    pub block_hash: BlockHash,
    /// The cache group.
    pub group: u32,
    /// The rank shard.
    pub coordinates: Coordinates,
    /// The part of the shard.
    pub component: Component,
}

/// 256-bit digest of namespace and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyDigest(pub [u8; 32]);

impl KeyDigest {
    /// The first 128 bits: the name under which nodes index the object.
    #[must_use]
    pub fn object_id(&self) -> ObjectId {
        let (id, _) = self.0.split_first_chunk().expect("a digest has 32 bytes");
        ObjectId(*id)
    }
}

/// 128 bits that name an object on the wire and in an index. Two keys with one id are told apart
/// by the 256 bits of the stored header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub [u8; 16]);

impl ObjectKey {
    /// The canonical encoding: fields in the order of the type, the hash framed by its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.framed(self.block_hash.as_bytes());
        writer.u32(self.group);
        let Coordinates { tp, pp, dcp, pcp } = self.coordinates;
        for coordinate in [tp, pp, dcp, pcp] {
            let (size, rank) = match coordinate {
                Coordinate::Replicated => (0, u32::MAX),
                Coordinate::Shard { size, rank } => (size, rank),
            };
            writer.u32(size);
            writer.u32(rank);
        }
        writer.u16(self.component as u16);
    }

    /// BLAKE3 over a domain tag, the namespace digest and the canonical encoding: the one function
    /// that names an object for save, lookup and load.
    #[must_use]
    pub fn digest(&self, namespace: &NamespaceDigest) -> KeyDigest {
        let mut bytes = Vec::with_capacity(192);
        bytes.extend_from_slice(DOMAIN);
        bytes.extend_from_slice(&namespace.0);
        self.encode(&mut bytes);
        KeyDigest(blake3::hash(&bytes).into())
    }
}

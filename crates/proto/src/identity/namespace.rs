//! The namespace: everything that must be equal before two engines may share a block.
//!
//! Called at engine start. Its canonical encoding frames every field, so that no two different
//! namespaces give the same bytes, and its digest is part of every key.

use std::fmt;

use crate::codec::Writer;

/// Separates namespace digests from all other uses of the hash.
const DOMAIN: &[u8] = b"tessera namespace v1";

/// Ranks along each axis of the engine's parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Tensor parallel size.
    pub tp: u32,
    /// Pipeline parallel size.
    pub pp: u32,
    /// Decode context parallel size.
    pub dcp: u32,
    /// Prefill context parallel size.
    pub pcp: u32,
}

impl Topology {
    /// One rank.
    pub const SINGLE: Self = Self {
        tp: 1,
        pp: 1,
        dcp: 1,
        pcp: 1,
    };
}

/// What must be equal before two engines may share a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Who owns the objects; `default` where tenancy is not used.
    pub tenant: String,
    /// The model's id as the engine was given it.
    pub model: String,
    /// Revision of the model, empty if unknown.
    pub revision: String,
    /// Fingerprint of the weights where they can be read, empty otherwise.
    pub weights: Vec<u8>,
    /// Version of the connector's object layout: raised whenever payload order changes.
    pub connector_layout: u32,
    /// Element type of the cache as the engine names it, such as `bfloat16` or `fp8_e4m3`.
    pub dtype: String,
    /// Digest over group specs, strides and content sizes.
    pub layout_fingerprint: [u8; 32],
    /// Tokens of one chunk.
    pub chunk_tokens: u32,
    /// Sizes of the engine's parallelism.
    pub topology: Topology,
}

/// 256-bit digest of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceDigest(pub [u8; 32]);

/// As 64 hexadecimal digits, for people who compare two engines.
impl fmt::Display for NamespaceDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl Namespace {
    /// The canonical encoding: fields in the order of the type, each framed by its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.framed(self.tenant.as_bytes());
        writer.framed(self.model.as_bytes());
        writer.framed(self.revision.as_bytes());
        writer.framed(&self.weights);
        writer.framed(&self.connector_layout.to_le_bytes());
        writer.framed(self.dtype.as_bytes());
        writer.framed(&self.layout_fingerprint);
        writer.framed(&self.chunk_tokens.to_le_bytes());
        let Topology { tp, pp, dcp, pcp } = self.topology;
        for size in [tp, pp, dcp, pcp] {
            writer.framed(&size.to_le_bytes());
        }
    }

    /// BLAKE3 over a domain tag and the canonical encoding.
    #[must_use]
    pub fn digest(&self) -> NamespaceDigest {
        let mut bytes = DOMAIN.to_vec();
        self.encode(&mut bytes);
        NamespaceDigest(blake3::hash(&bytes).into())
    }
}

//! Reads the golden files: their types, and bytes spelled in hex.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error};

/// Bytes that a golden file spells in hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl Hex {
    /// The bytes, which must be `N`.
    pub(crate) fn array<const N: usize>(&self) -> [u8; N] {
        self.0
            .as_slice()
            .try_into()
            .expect("golden bytes of this length")
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let byte = |at| {
            let digits = text
                .get(at..at + 2)
                .ok_or_else(|| D::Error::custom("odd hex"))?;
            u8::from_str_radix(digits, 16).map_err(D::Error::custom)
        };
        (0..text.len())
            .step_by(2)
            .map(byte)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

macro_rules! rows {
    ($($row:ident { $($field:ident: $type:ty,)* })*) => {
        $(#[derive(Debug, serde::Deserialize)]
        pub(crate) struct $row { $(pub(crate) $field: $type,)* })*
    };
}

rows! {
    Identity { namespaces: Vec<NamespaceRow>, keys: Vec<KeyRow>, rings: Vec<RingRow>, }
    NamespaceRow {
        name: String, tenant: String, model: String, revision: String, weights: Hex,
        connector_layout: u32, dtype: String, layout_fingerprint: Hex, chunk_tokens: u32,
        topology: TopologyRow, encoding: Hex, digest: Hex,
    }
    TopologyRow { tp: u32, pp: u32, dcp: u32, pcp: u32, }
    KeyRow {
        name: String, namespace: String, block_hash: Hex, group: u32, coordinates: CoordinatesRow,
        component: u16, encoding: Hex, digest: Hex, id: Hex,
    }
    CoordinatesRow {
        tp: Option<ShardRow>, pp: Option<ShardRow>, dcp: Option<ShardRow>, pcp: Option<ShardRow>,
    }
    ShardRow { size: u32, rank: u32, }
    RingRow { name: String, nodes: Vec<NodeRow>, owners: BTreeMap<String, String>, }
    NodeRow { name: String, weight: f64, }
    Wire { version: u16, frames: Vec<FrameRow>, refused: Vec<RefusedRow>, }
    FrameRow {
        name: String, message: String, kind: String, request: u64, deadline_ms: u32, header: Hex,
        body: Hex, payload: Hex,
    }
    RefusedRow { name: String, message: String, bytes: Hex, error: String, }
    PeerWire { version: u16, frames: Vec<PeerFrameRow>, refused: Vec<PeerRefusedRow>, }
    PeerFrameRow { name: String, body: Hex, }
    PeerRefusedRow { name: String, body: Hex, error: String, }
}

/// The golden file `name`.
pub(crate) fn read<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    let text = std::fs::read(&path).expect("the golden file is there");
    serde_json::from_slice(&text).expect("the golden file has these fields")
}

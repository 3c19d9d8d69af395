//! An object whose bytes follow from a number, saved from and loaded into memory in two pieces.

use std::sync::Arc;
use std::time::Duration;

use tessera_client::{Cluster, FetchOutcome, Lease, Presence, StoreOutcome};
use tessera_proto::{
    BlockHash, Component, Coordinates, Expectation, Namespace, NamespaceDigest, ObjectHeader,
    ObjectId, ObjectKey, TenantTag, Topology, WriteId, checksum,
};
use tessera_transport::{Lent, Region, Segments};
use tokio::time::Instant;

/// How long anything may take that must happen at all; the machine may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes between the two pieces that a load must not touch.
const GAP: usize = 64;
const GAP_BYTE: u8 = 0x5a;

/// The deadline of an operation that should succeed.
pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The namespace of a model.
pub(crate) fn namespace(model: &str) -> NamespaceDigest {
    let namespace = Namespace {
        tenant: "default".to_owned(),
        model: model.to_owned(),
        revision: String::new(),
        weights: Vec::new(),
        connector_layout: 1,
        dtype: "float32".to_owned(),
        layout_fingerprint: [7; 32],
        chunk_tokens: 128,
        topology: Topology::SINGLE,
    };
    namespace.digest()
}

/// An object and its bytes.
#[derive(Clone)]
pub(crate) struct Tile {
    pub(crate) header: ObjectHeader,
    pub(crate) bytes: Arc<[u8]>,
}

impl Tile {
    /// The object number `number` of one model.
    pub(crate) fn new(number: u64, length: usize) -> Self {
        Self::of(&namespace("a model"), &number.to_le_bytes(), number, length)
    }

    /// The object of `block_hash` in `namespace`, with the bytes of `seed`.
    pub(crate) fn of(
        namespace: &NamespaceDigest,
        block_hash: &[u8],
        seed: u64,
        length: usize,
    ) -> Self {
        let key = ObjectKey {
            block_hash: BlockHash::new(block_hash).expect("a short hash"),
            group: 0,
            coordinates: Coordinates::REPLICATED,
            component: Component::Layers,
        };
        let bytes = pattern(seed, length);
        let header = ObjectHeader {
            namespace: *namespace,
            key: key.digest(namespace),
            layout: 1,
            length_bytes: length as u64,
            checksum: checksum(&bytes),
            write: WriteId(seed ^ 0x77),
            tenant: TenantTag::NONE,
        };
        Self { header, bytes }
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.header.id()
    }

    pub(crate) fn expectation(&self) -> Expectation {
        Expectation {
            namespace: self.header.namespace,
            key: self.header.key,
            layout: self.header.layout,
            length_bytes: self.header.length_bytes,
        }
    }

    /// Memory for this object in two pieces with a gap.
    pub(crate) fn memory(&self) -> (Arc<Region>, Segments) {
        let region = Region::allocate(self.bytes.len() + GAP).expect("memory");
        let mut whole = Lent::new(Segments::whole(&region)).expect("lent to nobody");
        let poison = vec![GAP_BYTE; region.length_bytes()];
        whole.copy_from(&poison).expect("the same length");
        let first = self.bytes.len() / 3;
        let mut segments = Segments::with_capacity(2);
        segments.push(&region, 0, first).expect("inside");
        segments
            .push(&region, first + GAP, self.bytes.len() - first)
            .expect("inside");
        (region, segments)
    }

    pub(crate) async fn save(&self, client: &Cluster, deadline: Instant) -> StoreOutcome {
        let (_region, segments) = self.memory();
        let mut lent = Lent::new(segments).expect("lent to nobody");
        lent.copy_from(&self.bytes).expect("the same length");
        let (outcome, _) = client
            .store(self.header, lent.into_segments(), deadline)
            .await;
        outcome
    }

    /// Loads the object and, if that succeeded, compares every byte and the gap.
    pub(crate) async fn load(
        &self,
        client: &Cluster,
        lease: Option<Lease>,
        deadline: Instant,
    ) -> FetchOutcome {
        let (region, segments) = self.memory();
        let lent = Lent::new(segments).expect("lent to nobody");
        let (outcome, lent) = client
            .fetch(self.expectation(), lease, lent, deadline)
            .await;
        let mut arrived = vec![0; self.bytes.len()];
        lent.copy_to(&mut arrived).expect("the same length");
        if outcome == FetchOutcome::Loaded {
            assert!(
                arrived == *self.bytes,
                "a load was reported that brought other bytes"
            );
        }
        let mut whole = vec![0; region.length_bytes()];
        Segments::whole(&region)
            .copy_to(&mut whole)
            .expect("the same length");
        let first = self.bytes.len() / 3;
        assert!(
            whole[first..first + GAP]
                .iter()
                .all(|byte| *byte == GAP_BYTE),
            "a load wrote memory that it was not lent"
        );
        outcome
    }

    /// Looks the object up and returns the lease that holds it.
    pub(crate) async fn acquire(&self, client: &Cluster, deadline: Instant) -> Presence {
        let outcome = client.acquire(vec![self.id()], 60_000, deadline).await;
        outcome.items[0]
    }
}

/// The lease of a lookup that must have found its object.
pub(crate) fn held(presence: Presence) -> Lease {
    match presence {
        Presence::Held { lease, .. } => lease,
        other => panic!("expected a held object, found {other:?}"),
    }
}

/// Bytes that follow from `seed`, different in every eight.
fn pattern(seed: u64, length: usize) -> Arc<[u8]> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

//! Which node holds an object: weighted rendezvous hashing over a list of nodes.
//!
//! Called by the client for every object. Pure: the same list gives the same owner in every
//! process, whatever the order of the list; a node that leaves moves only its own objects, and the
//! share of a node is proportional to its weight.
//!
//! The score of a node is `-weight / ln(u)` with `u` uniform in (0, 1) from a hash of node and
//! object (Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005).

use crate::identity::ObjectId;

/// A node as the ring sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct RingNode {
    seed: u64,
    weight: f64,
}

impl RingNode {
    /// A node with this name (its address) and a weight above zero; other weights count as one.
    #[must_use]
    pub fn new(name: &str, weight: f64) -> Self {
        let digest = blake3::hash(name.as_bytes());
        let (seed, _) = digest
            .as_bytes()
            .split_first_chunk()
            .expect("a digest has 32 bytes");
        let weight = if weight.is_finite() && weight > 0.0 {
            weight
        } else {
            1.0
        };
        Self {
            seed: u64::from_le_bytes(*seed),
            weight,
        }
    }

    fn score(&self, object: u64) -> f64 {
        // 53 bits fill the mantissa; the half keeps u away from 0 and 1.
        let bits = mix(self.seed ^ object) >> 11;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
        let uniform = (bits as f64 + 0.5) / (1_u64 << 53) as f64;
        -self.weight / uniform.ln()
    }
}

/// The index of the node that owns `id`, or `None` if there is no node.
#[must_use]
pub fn owner(nodes: &[RingNode], id: &ObjectId) -> Option<usize> {
    let (low, _) = id.0.split_first_chunk().expect("an id has 16 bytes");
    let object = u64::from_le_bytes(*low);
    let score = |(index, node): (usize, &RingNode)| (index, node.score(object), node.seed);
    nodes
        .iter()
        .enumerate()
        .map(score)
        .max_by(|left, right| left.1.total_cmp(&right.1).then(left.2.cmp(&right.2)))
        .map(|(index, _, _)| index)
}

/// The finalizer of `SplitMix64`: every input bit reaches every output bit.
const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

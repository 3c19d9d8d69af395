//! Which node an object lives on: weighted rendezvous over the configured list.
//!
//! Called by the cluster for every object. Invariant: the answer depends only on the addresses, the
//! weights and the object id, so that every process with the same list agrees; a node that is down
//! keeps its objects (a miss is cheaper than a copy that nobody finds after it returns).

use tessera_proto::ObjectId;
use tessera_proto::ring::{RingNode, owner};
use tessera_transport::Address;

/// A node of the configured list, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub usize);

/// A node as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSpec {
    /// Where it listens.
    pub address: Address,
    /// Its share of the objects relative to the others, above zero.
    pub weight: f64,
}

impl NodeSpec {
    /// A node with the weight of one.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            weight: 1.0,
        }
    }
}

/// The list as placement sees it.
#[derive(Debug)]
pub(crate) struct Ring(Vec<RingNode>);

impl Ring {
    pub(crate) fn new(nodes: &[NodeSpec]) -> Self {
        let node = |spec: &NodeSpec| RingNode::new(&spec.address.to_string(), spec.weight);
        Self(nodes.iter().map(node).collect())
    }

    /// The node of `id`; none only when no node is configured.
    pub(crate) fn owner(&self, id: &ObjectId) -> Option<NodeIndex> {
        owner(&self.0, id).map(NodeIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> impl Iterator<Item = ObjectId> {
        (0..10_000u64).map(|n| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            ObjectId(id)
        })
    }

    fn spec(port: u16, weight: f64) -> NodeSpec {
        NodeSpec {
            address: Address::Tcp(format!("127.0.0.1:{port}")),
            weight,
        }
    }

    #[test]
    fn a_node_that_leaves_moves_only_its_own_objects() {
        let three = [spec(1, 1.0), spec(2, 1.0), spec(3, 1.0)];
        let (all, two) = (Ring::new(&three), Ring::new(&three[..2]));
        for id in ids() {
            let before = all.owner(&id).unwrap();
            if before != NodeIndex(2) {
                assert_eq!(two.owner(&id), Some(before));
            }
        }
    }

    #[test]
    fn the_share_of_a_node_follows_its_weight() {
        let ring = Ring::new(&[spec(1, 1.0), spec(2, 3.0)]);
        let second = ids()
            .filter(|id| ring.owner(id) == Some(NodeIndex(1)))
            .count();
        assert!((7_200..7_800).contains(&second), "{second} of 10000");
    }

    #[test]
    fn an_empty_list_owns_nothing() {
        assert_eq!(Ring::new(&[]).owner(&ObjectId([0; 16])), None);
    }
}

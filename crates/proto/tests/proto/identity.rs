//! Names of objects: the golden vectors, and that no two things share a name.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_proto::{
    BlockHash, Component, Coordinate, Coordinates, Namespace, NamespaceDigest, ObjectId, ObjectKey,
    Topology, ring,
};

use crate::golden::{CoordinatesRow, Identity, KeyRow, NamespaceRow, ShardRow, read};
use crate::strategies;

fn namespace(row: &NamespaceRow) -> Namespace {
    Namespace {
        tenant: row.tenant.clone(),
        model: row.model.clone(),
        revision: row.revision.clone(),
        weights: row.weights.0.clone(),
        connector_layout: row.connector_layout,
        dtype: row.dtype.clone(),
        layout_fingerprint: row.layout_fingerprint.array(),
        chunk_tokens: row.chunk_tokens,
        topology: Topology {
            tp: row.topology.tp,
            pp: row.topology.pp,
            dcp: row.topology.dcp,
            pcp: row.topology.pcp,
        },
    }
}

fn key(row: &KeyRow) -> ObjectKey {
    let coordinate = |row: &Option<ShardRow>| match row {
        None => Coordinate::Replicated,
        Some(ShardRow { size, rank }) => Coordinate::Shard {
            size: *size,
            rank: *rank,
        },
    };
    let CoordinatesRow { tp, pp, dcp, pcp } = &row.coordinates;
    assert_eq!(row.component, Component::Layers as u16);
    ObjectKey {
        block_hash: BlockHash::new(&row.block_hash.0).expect("golden hashes are within the limit"),
        group: row.group,
        coordinates: Coordinates {
            tp: coordinate(tp),
            pp: coordinate(pp),
            dcp: coordinate(dcp),
            pcp: coordinate(pcp),
        },
        component: Component::Layers,
    }
}

#[test]
fn namespaces_encode_and_digest_as_the_golden_file_says() {
    let golden: Identity = read("identity.json");
    for row in &golden.namespaces {
        let mut encoding = Vec::new();
        namespace(row).encode(&mut encoding);
        assert_eq!(encoding, row.encoding.0, "{}", row.name);
        assert_eq!(
            namespace(row).digest(),
            NamespaceDigest(row.digest.array()),
            "{}",
            row.name
        );
    }
}

#[test]
fn keys_encode_and_digest_as_the_golden_file_says() {
    let golden: Identity = read("identity.json");
    let digests: BTreeMap<_, _> = golden
        .namespaces
        .iter()
        .map(|row| (&row.name, NamespaceDigest(row.digest.array())))
        .collect();
    for row in &golden.keys {
        let mut encoding = Vec::new();
        key(row).encode(&mut encoding);
        assert_eq!(encoding, row.encoding.0, "{}", row.name);
        let digest = key(row).digest(&digests[&row.namespace]);
        assert_eq!(digest.0, row.digest.array(), "{}", row.name);
        assert_eq!(digest.object_id(), ObjectId(row.id.array()), "{}", row.name);
    }
}

#[test]
fn golden_names_are_all_different() {
    let golden: Identity = read("identity.json");
    let mut names: Vec<_> = golden
        .namespaces
        .iter()
        .map(|row| row.digest.0.clone())
        .collect();
    names.extend(golden.keys.iter().map(|row| row.digest.0.clone()));
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn rings_place_objects_as_the_golden_file_says() {
    let golden: Identity = read("identity.json");
    let ids: BTreeMap<_, _> = golden
        .keys
        .iter()
        .map(|row| (&row.name, ObjectId(row.id.array())))
        .collect();
    for row in &golden.rings {
        let nodes: Vec<_> = row
            .nodes
            .iter()
            .map(|node| ring::RingNode::new(&node.name, node.weight))
            .collect();
        for (key, owner) in &row.owners {
            let index = ring::owner(&nodes, &ids[key]).expect("the ring has nodes");
            assert_eq!(&row.nodes[index].name, owner, "{} of {}", key, row.name);
        }
    }
}

#[test]
fn block_hashes_are_bounded() {
    assert!(BlockHash::new(&[]).is_none());
    assert!(BlockHash::new(&[0; 64]).is_some());
    assert!(BlockHash::new(&[0; 65]).is_none());
}

proptest! {
    #[test]
    fn different_namespaces_have_different_encodings(
        (left, right) in strategies::alike_namespaces(),
    ) {
        let [mut a, mut b] = [Vec::new(), Vec::new()];
        left.encode(&mut a);
        right.encode(&mut b);
        prop_assert_eq!(left == right, a == b);
        prop_assert_eq!(left == right, left.digest() == right.digest());
    }

    #[test]
    fn different_keys_have_different_encodings((left, right) in strategies::alike_keys()) {
        let [mut a, mut b] = [Vec::new(), Vec::new()];
        left.encode(&mut a);
        right.encode(&mut b);
        prop_assert_eq!(left == right, a == b);
    }

    #[test]
    fn the_namespace_is_part_of_every_name(key in strategies::object_key(), other: [u8; 32]) {
        let here = key.digest(&NamespaceDigest([0; 32]));
        prop_assert_eq!(other == [0; 32], here == key.digest(&NamespaceDigest(other)));
    }
}

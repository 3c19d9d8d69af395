//! Properties of placement.

use proptest::collection::{hash_set, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use tessera_proto::ring::{RingNode, owner};
use tessera_proto::{KeyDigest, ObjectId};

use crate::strategies;

/// Names and weights of up to eight nodes.
fn nodes() -> impl Strategy<Value = Vec<(String, f64)>> {
    hash_set("[a-z]{1,3}", 1..8).prop_flat_map(|names| {
        let count = names.len();
        (Just(names), vec(0.25..8.0_f64, count))
            .prop_map(|(names, weights)| names.into_iter().zip(weights).collect())
    })
}

fn ring(nodes: &[(String, f64)]) -> Vec<RingNode> {
    nodes
        .iter()
        .map(|(name, weight)| RingNode::new(name, *weight))
        .collect()
}

fn owner_name<'a>(nodes: &'a [(String, f64)], id: &ObjectId) -> Option<&'a str> {
    owner(&ring(nodes), id).map(|index| nodes[index].0.as_str())
}

proptest! {
    #[test]
    fn the_order_of_the_list_changes_nothing(
        list in nodes().prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
        id in strategies::id(),
    ) {
        prop_assert_eq!(owner_name(&list.0, &id), owner_name(&list.1, &id));
    }

    #[test]
    fn a_node_that_leaves_moves_only_its_own_objects(
        list in nodes(),
        leaving: Index,
        ids in vec(strategies::id(), 50),
    ) {
        let mut rest = list.clone();
        let (gone, _) = rest.remove(leaving.index(list.len()));
        for id in &ids {
            match owner_name(&list, id) {
                Some(before) if before != gone => {
                    prop_assert_eq!(owner_name(&rest, id), Some(before));
                }
                _ => prop_assert_eq!(owner_name(&rest, id).is_none(), rest.is_empty()),
            }
        }
    }

    #[test]
    fn a_heavier_node_only_gains_objects(
        list in nodes(),
        heavier: Index,
        ids in vec(strategies::id(), 50),
    ) {
        let mut changed = list.clone();
        let at = heavier.index(list.len());
        changed[at].1 *= 2.0;
        for id in &ids {
            let (before, after) = (owner_name(&list, id), owner_name(&changed, id));
            prop_assert!(before == after || after == Some(&list[at].0));
        }
    }
}

#[test]
fn shares_are_proportional_to_weights() {
    const OBJECTS: u32 = 100_000;
    let list = [
        ("a".to_owned(), 1.0),
        ("b".to_owned(), 2.0),
        ("c".to_owned(), 5.0),
    ];
    let ring = ring(&list);
    let mut owned = [0_u32; 3];
    for number in 0..OBJECTS {
        let digest = blake3::hash(&number.to_le_bytes());
        let id = KeyDigest(digest.into()).object_id();
        owned[owner(&ring, &id).expect("there are nodes")] += 1;
    }
    for ((name, weight), owned) in list.iter().zip(owned) {
        let share = f64::from(owned) / f64::from(OBJECTS);
        let expected = weight / 8.0;
        assert!(
            (share - expected).abs() < 0.01,
            "{name} owns {share}, expected {expected}"
        );
    }
}

/// Weights so large that most scores are infinite, and equal.
#[test]
fn equal_scores_are_decided_by_the_node_and_not_by_its_place() {
    let list: Vec<_> = ["a", "b", "c"]
        .map(|name| (name.to_owned(), f64::MAX))
        .into();
    let reversed: Vec<_> = list.iter().rev().cloned().collect();
    for number in 0..100 {
        let id = ObjectId([number; 16]);
        assert_eq!(owner_name(&list, &id), owner_name(&reversed, &id));
    }
}

#[test]
fn an_empty_ring_has_no_owner() {
    assert_eq!(owner(&[], &ObjectId([1; 16])), None);
}

#[test]
fn a_weight_that_makes_no_sense_counts_as_one() {
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(RingNode::new("a", weight), RingNode::new("a", 1.0));
    }
}

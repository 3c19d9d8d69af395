//! The plan against a naive model that looks at every token.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tessera_proto::{KeyDigest, NamespaceDigest};

use super::*;
use crate::shape::GroupSpec;

/// A random shape over small sizes: every kind of group, every axis, replicated or not.
pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let kind = prop_oneof![
        Just(GroupKind::Full),
        (1_u64..40).prop_map(|tokens| GroupKind::Window { tokens }),
        Just(GroupKind::State),
    ];
    let axes = any::<[bool; 4]>().prop_map(|[tp, pp, dcp, pcp]| Axes { tp, pp, dcp, pcp });
    let group = (kind, prop::sample::select(vec![2_u64, 4, 8]), axes);
    let group = group.prop_map(|(kind, block_tokens, replicated)| GroupSpec {
        kind,
        block_tokens,
        replicated,
    });
    let sizes = (1_u32..3, 1_u32..3, 1_u32..3, any::<bool>());
    (prop::collection::vec(group, 1..4), 1_u64..3, sizes).prop_map(|(groups, times, sizes)| {
        let (tp, pp, pcp, dcp) = sizes;
        let topology = Topology {
            tp,
            pp,
            dcp: if dcp { tp } else { 1 },
            pcp,
        };
        Shape::new(groups, Some(8 * times), 2, topology).unwrap()
    })
}

/// Which tokens of a group must be there, besides the computed ones, to continue at `boundary`.
fn tokens_needed(kind: GroupKind, computed: u64, boundary: u64) -> BTreeSet<u64> {
    let seen = |token: &u64| match kind {
        GroupKind::Full => true,
        // The token at `boundary` is computed next and sees the last `tokens` with itself.
        GroupKind::Window { tokens } => boundary - *token < tokens,
        GroupKind::State => *token == boundary - 1,
    };
    let old = |token: &u64| kind != GroupKind::State && *token < computed;
    (0..boundary)
        .filter(|token| seen(token) && !old(token))
        .collect()
}

fn hash(chunk: u64) -> BlockHash {
    BlockHash::new(&(chunk + 1).to_le_bytes()).unwrap()
}

fn keys(shape: &Shape, pieces: &[Piece], rank: Rank) -> BTreeSet<KeyDigest> {
    let namespace = NamespaceDigest([7; 32]);
    let key = |piece: &Piece| {
        let at = coordinates(shape, piece.group, rank);
        key(&namespace, piece.group, at, &hash(piece.chunk))
    };
    pieces.iter().map(key).collect()
}

proptest! {
    #[test]
    fn l16_needed_pieces_are_the_chunks_of_the_tokens_that_a_boundary_sees(
        shape in shapes(), chunks in 1_u64..6, computed in 0_u64..60,
    ) {
        let boundary = chunks * shape.chunk_tokens();
        let mut naive = BTreeSet::new();
        if computed < boundary {
            for (group, spec) in shape.groups().iter().enumerate() {
                let tokens = tokens_needed(spec.kind, computed, boundary);
                let chunk = |token| Piece { group, chunk: token / shape.chunk_tokens() };
                naive.extend(tokens.into_iter().map(chunk));
            }
        }
        let pieces = needed(&shape, computed, boundary);
        prop_assert!(pieces.is_sorted());
        prop_assert_eq!(pieces.len(), naive.len());
        prop_assert_eq!(pieces.into_iter().collect::<BTreeSet<_>>(), naive);
    }

    /// Probe set = load set = save set, over all ranks, for every shape.
    #[test]
    fn l16_what_is_probed_is_what_is_loaded_is_what_is_saved(
        shape in shapes(), chunks in 1_u64..5, computed in 0_u64..30,
    ) {
        let boundary = chunks * shape.chunk_tokens();
        let shards = Shards::new(&shape);
        let pieces = needed(&shape, computed, boundary);
        let namespace = NamespaceDigest([7; 32]);
        let mut probed = BTreeSet::new();
        for piece in &pieces {
            for at in shards.of(piece.group) {
                let fresh = probed.insert(key(&namespace, piece.group, at, &hash(piece.chunk)));
                prop_assert!(fresh, "an object is probed twice");
            }
        }
        let mut loaded = BTreeSet::new();
        let mut saved = BTreeSet::new();
        for rank in shape.ranks() {
            loaded.extend(keys(&shape, &pieces, rank));
            let own = |piece: &&Piece| {
                let position = shards.position(&shape, piece.group, rank);
                position.is_some_and(|(_, saves)| saves)
            };
            let own: Vec<Piece> = pieces.iter().filter(own).copied().collect();
            for key in keys(&shape, &own, rank) {
                prop_assert!(saved.insert(key), "an object is saved by two ranks");
            }
        }
        prop_assert_eq!(&probed, &loaded);
        prop_assert_eq!(&probed, &saved);
    }

    /// A lookup asks for every piece of every boundary that it may promise, and for no other.
    #[test]
    fn l16_what_a_lookup_asks_for_is_what_some_boundary_needs(
        shape in shapes(), limit in 0_u64..100, computed in 0_u64..60,
    ) {
        let boundaries = (1..=limit / shape.chunk_tokens()).map(|n| n * shape.chunk_tokens());
        let naive: BTreeSet<_> =
            boundaries.flat_map(|boundary| needed(&shape, computed, boundary)).collect();
        let asked = candidates(&shape, computed, limit);
        prop_assert_eq!(asked.len(), naive.len(), "a piece is asked for twice");
        prop_assert_eq!(asked.into_iter().collect::<BTreeSet<_>>(), naive);
    }

    #[test]
    fn l16_the_longest_boundary_is_the_last_whose_pieces_are_all_held(
        shape in shapes(), limit in 0_u64..6, computed in 0_u64..30, missing in any::<u64>(),
    ) {
        let limit = limit * shape.chunk_tokens();
        let held = |piece: Piece| {
            let bit = (piece.chunk * 7 + u64::try_from(piece.group).unwrap() * 13) % 64;
            missing >> bit & missing >> (63 - bit) & 1 == 0
        };
        let boundaries = (1..=limit / shape.chunk_tokens()).map(|n| n * shape.chunk_tokens());
        let good = |boundary: &u64| {
            *boundary > computed && needed(&shape, computed, *boundary).into_iter().all(held)
        };
        let naive = boundaries.filter(good).max();
        prop_assert_eq!(longest(&shape, computed, limit, held), naive);
    }

    /// Every needed token lands in its block, and no block that is there already is written.
    #[test]
    fn l16_destinations_fill_what_is_needed_and_nothing_that_is_there(
        shape in shapes(), chunks in 1_u64..5, computed in 0_u64..20,
    ) {
        let boundary = chunks * shape.chunk_tokens();
        // An engine's own hit ends with a whole block in every group.
        let computed = computed / 8 * 8;
        prop_assume!(computed < boundary);
        let span = Span { computed, limit: boundary, boundary };
        for (group, spec) in shape.groups().iter().enumerate() {
            let needed_tokens = tokens_needed(spec.kind, computed, boundary);
            let size = spec.block_tokens;
            // The engine's table: a block where a token is seen, null elsewhere.
            let id = |index: u64| {
                let seen = needed_tokens.iter().any(|token| token / size == index);
                if seen || index * size < computed { u32::try_from(index + 1).unwrap() } else { 0 }
            };
            let table: Vec<u32> = (0..boundary / size).map(id).collect();
            let mut filled = BTreeSet::new();
            for piece in needed(&shape, computed, boundary) {
                if piece.group != group { continue; }
                let blocks = shape.object_blocks(group, piece.chunk);
                let to = destinations(&shape, piece, span, &table).unwrap();
                prop_assert_eq!(u64::try_from(to.len()).unwrap(), blocks.end - blocks.start);
                for (index, to) in blocks.zip(to) {
                    if let Destination::Block(block) = to {
                        prop_assert_eq!(u64::from(block), index + 1);
                        prop_assert!(filled.insert(index));
                    }
                }
            }
            let naive: BTreeSet<u64> = needed_tokens.iter().map(|token| token / size).collect();
            prop_assert_eq!(filled, naive);
        }
    }
}

#[test]
fn a_needed_block_without_memory_is_refused_and_an_unneeded_one_is_discarded() {
    let spec = GroupSpec {
        kind: GroupKind::Window { tokens: 9 },
        block_tokens: 4,
        replicated: Axes::default(),
    };
    let shape = Shape::new(vec![spec], Some(16), 4, Topology::SINGLE).unwrap();
    let span = Span {
        computed: 0,
        limit: 32,
        boundary: 32,
    };
    let piece = Piece { group: 0, chunk: 1 };
    // The boundary at 32 sees tokens 24..32, blocks 6 and 7: all that the object holds.
    let table = [0, 0, 0, 0, 0, 0, 61, 71];
    let to = destinations(&shape, piece, span, &table);
    assert_eq!(to, Ok(vec![Destination::Block(61), Destination::Block(71)]));
    assert_eq!(
        destinations(&shape, piece, span, &table[..7]),
        Err(Unallocated)
    );
    let nulled = [0, 0, 0, 0, 0, 0, 61, 0];
    assert_eq!(destinations(&shape, piece, span, &nulled), Err(Unallocated));
    let half = Span {
        computed: 28,
        ..span
    };
    let to = destinations(&shape, piece, half, &table);
    assert_eq!(to, Ok(vec![Destination::Discard, Destination::Block(71)]));
}

#[test]
fn l15_null_missing_and_given_up_blocks_are_no_sources() {
    let spec = |kind| GroupSpec {
        kind,
        block_tokens: 4,
        replicated: Axes::default(),
    };
    let groups = vec![spec(GroupKind::Full), spec(GroupKind::Window { tokens: 6 })];
    let shape = Shape::new(groups, Some(8), 4, Topology::SINGLE).unwrap();
    let full = Piece { group: 0, chunk: 1 };
    assert_eq!(sources(&shape, full, 8, &[1, 2, 3, 4]), Some(vec![3, 4]));
    assert_eq!(sources(&shape, full, 8, &[1, 2, 3, 0]), None);
    assert_eq!(sources(&shape, full, 8, &[1, 2, 3]), None);
    let window = Piece { group: 1, chunk: 0 };
    // Tokens 0..8; the object holds blocks 0 and 1. At 9 computed tokens the engine's next token
    // sees 4.., so block 0 is given up.
    assert_eq!(sources(&shape, window, 8, &[5, 6]), Some(vec![5, 6]));
    assert_eq!(sources(&shape, window, 9, &[5, 6]), None);
}

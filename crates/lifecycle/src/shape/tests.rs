//! Tables for classification, refusals and the blocks of an object.

use tessera_proto::Topology;

use super::*;

const FULL: GroupKind = GroupKind::Full;

fn group(kind: GroupKind, block_tokens: u64) -> GroupSpec {
    GroupSpec {
        kind,
        block_tokens,
        replicated: Axes::default(),
    }
}

fn shape(groups: &[(GroupKind, u64)], chunk: Option<u64>) -> Result<Shape, ShapeError> {
    let groups = groups.iter().map(|(kind, size)| group(*kind, *size));
    Shape::new(groups.collect(), chunk, 4, Topology::SINGLE)
}

#[test]
fn l01_only_a_single_full_group_names_failures_by_block() {
    let window = GroupKind::Window { tokens: 8 };
    let cases: [(&[(GroupKind, u64)], LayoutClass); 5] = [
        (&[(FULL, 4)], LayoutClass::Block),
        (&[(FULL, 4), (FULL, 4)], LayoutClass::Request),
        (&[(window, 4)], LayoutClass::Request),
        (&[(GroupKind::State, 4)], LayoutClass::Request),
        (&[(FULL, 4), (GroupKind::State, 8)], LayoutClass::Request),
    ];
    for (groups, class) in cases {
        let shape = shape(groups, None).unwrap();
        assert_eq!(shape.class(), class, "{groups:?}");
    }
}

#[test]
fn a_chunk_is_the_least_common_multiple_of_all_blocks_unless_a_multiple_is_asked_for() {
    let groups = [(FULL, 16), (GroupKind::State, 24)];
    assert_eq!(shape(&groups, None).unwrap().chunk_tokens(), 48);
    let twice = shape(&groups, Some(96)).unwrap();
    assert_eq!((twice.chunk_tokens(), twice.hashes_per_chunk()), (96, 24));
    let error = shape(&groups, Some(64)).unwrap_err();
    assert!(error.to_string().contains("multiple of 48"), "{error}");
}

#[test]
fn impossible_shapes_are_refused() {
    let refused = [
        shape(&[], None),
        shape(&[(FULL, 0)], None),
        shape(&[(GroupKind::Window { tokens: 0 }, 4)], None),
        shape(&[(FULL, 4)], Some(0)),
        shape(&[(FULL, 4)], Some(1 << 21)),
        shape(&[(FULL, (1 << 20) - 1), (FULL, (1 << 20) - 3)], None),
        shape(&[(FULL, 6)], Some(6)),
        shape(&[(FULL, 4); 65], None),
    ];
    for (index, case) in refused.into_iter().enumerate() {
        assert!(case.is_err(), "case {index}");
    }
    for sizes in [
        [0, 1, 1, 1],
        [3, 1, 2, 1],
        [5000, 1, 1, 1],
        [100, 100, 1, 1],
    ] {
        let [tp, pp, dcp, pcp] = sizes;
        let topology = Topology { tp, pp, dcp, pcp };
        assert!(
            Shape::new(vec![group(FULL, 4)], None, 4, topology).is_err(),
            "{sizes:?}"
        );
    }
}

#[test]
fn the_largest_shapes_are_taken() {
    let longest = u64::from(limits::CHUNK_TOKENS_MAX);
    assert!(shape(&[(FULL, 4); 64], None).is_ok());
    assert!(shape(&[(FULL, 4)], Some(longest)).is_ok());
    assert!(shape(&[(FULL, longest)], None).is_ok());
    let most = limits::RANKS_MAX;
    for (tp, pp) in [(most, 1), (1, most), (most / 2, 2)] {
        let topology = Topology {
            tp,
            pp,
            ..Topology::SINGLE
        };
        assert!(Shape::new(vec![group(FULL, 4)], None, 4, topology).is_ok());
    }
}

#[test]
fn an_object_holds_what_the_boundary_behind_it_can_see() {
    let window = |tokens| GroupKind::Window { tokens };
    // Blocks of 4 tokens in chunks of 16; chunk 2 is tokens 32..48, blocks 8..12.
    let cases = [
        (FULL, 8..12),
        (GroupKind::State, 11..12),
        (window(1), 11..12),
        (window(2), 11..12),
        (window(5), 11..12),
        (window(6), 10..12),
        (window(17), 8..12),
        (window(1000), 8..12),
    ];
    for (kind, blocks) in cases {
        let shape = shape(&[(kind, 4)], Some(16)).unwrap();
        assert_eq!(shape.object_blocks(0, 2), blocks, "{kind:?}");
    }
}

#[test]
fn ranks_of_decode_context_parallel_follow_the_tensor_ranks() {
    let topology = Topology {
        tp: 4,
        pp: 2,
        dcp: 2,
        pcp: 1,
    };
    let shape = Shape::new(vec![group(FULL, 4)], None, 4, topology).unwrap();
    let ranks = shape.ranks();
    assert_eq!(ranks.len(), 8);
    let dcp: Vec<u32> = ranks.iter().map(|rank| rank.dcp).collect();
    assert_eq!(dcp, [0, 1, 0, 1, 0, 1, 0, 1]);
}

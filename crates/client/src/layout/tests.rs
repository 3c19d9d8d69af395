//! Every refusal with its shape, and bytes against a naive walk.

use std::sync::Arc;

use proptest::prelude::*;
use tessera_lifecycle::plan::Destination;
use tessera_lifecycle::{Axes, GroupKind, GroupSpec, Shape};
use tessera_proto::Topology;
use tessera_transport::{Lent, Region, Segments};

use super::*;

fn shape(groups: usize) -> Shape {
    let group = GroupSpec {
        kind: GroupKind::Full,
        block_tokens: 4,
        replicated: Axes::default(),
    };
    Shape::new(vec![group; groups], Some(8), 4, Topology::SINGLE).unwrap()
}

fn region(length: usize) -> Arc<Region> {
    Region::allocate(length).unwrap()
}

fn layer(name: &str, group: usize, region: &Arc<Region>, runs: &[(u64, u64, u64)]) -> LayerMemory {
    let run = |(offset_bytes, block_stride_bytes, length_bytes): &(u64, u64, u64)| BlockRun {
        region: Arc::clone(region),
        offset_bytes: *offset_bytes,
        block_stride_bytes: *block_stride_bytes,
        length_bytes: *length_bytes,
    };
    LayerMemory {
        name: name.into(),
        group,
        format: "f".into(),
        num_blocks: 4,
        runs: runs.iter().map(run).collect(),
        heads: None,
    }
}

fn refused(groups: usize, layers: Vec<LayerMemory>) -> LayoutError {
    Layout::new(&shape(groups), layers).unwrap_err()
}

#[test]
fn l17_impossible_memory_is_refused_with_its_shape() {
    let region = region(400);
    let one = |runs: &[(u64, u64, u64)]| vec![layer("x", 0, &region, runs)];
    let cases = [
        (one(&[]), "no bytes"),
        (one(&[(0, 100, 0)]), "no bytes"),
        (one(&[(0, 0, 10)]), "crosses"),
        (one(&[(0, 9, 10)]), "crosses"),
        (one(&[(1, 100, 100)]), "400 registered bytes"),
        (one(&[(u64::MAX, 100, 100)]), "400 registered bytes"),
        (one(&[(0, u64::MAX, 100)]), "400 registered bytes"),
        (one(&[(0, 100, 60), (59, 100, 10)]), "overlap"),
        (one(&[(0, 100, 60), (150, 60, 10)]), "overlap"),
        (one(&[(0, 50, 20), (110, 50, 20)]), "overlap"),
    ];
    for (layers, word) in cases {
        let shown = describe(&layers[0]);
        let error = refused(1, layers).to_string();
        assert!(
            error.contains(word) && error.contains("layer"),
            "{word}: {error}"
        );
        assert!(error.contains(&shown), "{shown}: {error}");
    }
}

#[test]
fn l17_layers_of_one_group_may_interleave_and_not_overlap() {
    let region = region(400);
    let a = layer("a", 0, &region, &[(0, 100, 40)]);
    let beside = layer("b", 0, &region, &[(40, 100, 60)]);
    assert!(Layout::new(&shape(1), vec![a.clone(), beside]).is_ok());
    let over = layer("b", 0, &region, &[(39, 100, 60)]);
    let error = refused(1, vec![a.clone(), over.clone()]);
    assert!(error.to_string().contains("a and b"), "{error}");
    // The same memory in two groups is one storage that the engine shares between them.
    let mut other = over;
    other.group = 1;
    assert!(Layout::new(&shape(2), vec![a, other]).is_ok());
}

#[test]
fn groups_and_names_that_do_not_fit_are_refused() {
    let region = region(400);
    let a = layer("a", 0, &region, &[(0, 100, 40)]);
    let b = layer("a", 0, &region, &[(50, 100, 40)]);
    assert!(matches!(
        refused(1, vec![a.clone(), b]),
        LayoutError::Twice { .. }
    ));
    assert!(matches!(
        refused(2, vec![a.clone()]),
        LayoutError::Empty { group: 1 }
    ));
    let far = layer("b", 7, &region, &[(50, 100, 40)]);
    assert!(matches!(
        refused(1, vec![a, far]),
        LayoutError::Group { group: 7, .. }
    ));
}

#[test]
fn objects_of_other_layouts_have_other_fingerprints() {
    let region = region(400);
    let base = layer("a", 0, &region, &[(0, 100, 40)]);
    let fingerprint = |layer: LayerMemory| {
        let layout = Layout::new(&shape(1), vec![layer]).unwrap();
        layout.fingerprint(0)
    };
    let same = fingerprint(base.clone());
    // Where memory lies is nobody's business but this engine's.
    let mut moved = base.clone();
    moved.runs[0].offset_bytes = 7;
    moved.num_blocks = 3;
    assert_eq!(fingerprint(moved), same);
    let changes: [fn(&mut LayerMemory); 4] = [
        |layer| layer.name = "b".into(),
        |layer| layer.format = "g".into(),
        |layer| layer.runs[0].length_bytes = 41,
        |layer| {
            layer.runs[0].length_bytes = 20;
            let mut second = layer.runs[0].clone();
            second.offset_bytes = 20;
            layer.runs.push(second);
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = base.clone();
        change(&mut changed);
        assert_ne!(fingerprint(changed), same, "change {index}");
    }
}

#[test]
fn a_block_that_does_not_exist_is_no_destination_and_no_source() {
    let region = region(400);
    let layout = Layout::new(&shape(1), vec![layer("a", 0, &region, &[(0, 100, 40)])]).unwrap();
    assert!(layout.gather(0, &[0, 3]).is_ok());
    let error = layout.gather(0, &[0, 4]).unwrap_err();
    assert_eq!((error.block, error.num_blocks), (4, 4));
    assert!(layout.scatter(0, &[Destination::Block(9)], None).is_err());
}

proptest! {
    /// Gathered bytes are those of a walk in payload order, and scattering them elsewhere touches
    /// exactly the blocks that have a destination.
    #[test]
    fn l17_bytes_go_round_through_any_fragmented_table(
        first in 1_u64..30, gap in 0_u64..9, second in 1_u64..30, pad in 0_u64..20,
        from in Just((0_u32..12).collect::<Vec<_>>()).prop_shuffle(),
        discard in any::<[bool; 2]>(),
    ) {
        let stride = first + gap + second + pad;
        let blocks = 12_u64;
        let length = usize::try_from(blocks * stride).unwrap();
        let memory = [region(length), region(length)];
        let mut layers = Vec::new();
        for (name, memory) in ["b", "a"].into_iter().zip(&memory) {
            let runs = [(first + gap, stride, second), (0, stride, first)];
            let mut layer = layer(name, 0, memory, &runs);
            layer.num_blocks = blocks;
            layers.push(layer);
        }
        let layout = Layout::new(&shape(1), layers).unwrap();
        let fill = |memory: &Arc<Region>, seed: usize| {
            let bytes: Vec<u8> = (0..length).map(|at| {
                u8::try_from((at * 7 + seed) % 251).unwrap()
            }).collect();
            Lent::new(Segments::whole(memory)).unwrap().copy_from(&bytes).unwrap();
            bytes
        };
        let contents = [fill(&memory[0], 3), fill(&memory[1], 100)];
        let piece = |bytes: &[u8], block: u32| {
            let start = usize::try_from(u64::from(block) * stride).unwrap();
            let at = |offset: u64| start + usize::try_from(offset).unwrap();
            let second = &bytes[at(first + gap)..at(first + gap + second)];
            [second, &bytes[at(0)..at(first)]].concat()
        };
        let sources = &from[..2];
        // Layer `a`, the second region, comes first.
        let naive: Vec<u8> = [&contents[1], &contents[0]].into_iter().flat_map(|bytes| {
            sources.iter().flat_map(|block| piece(bytes, *block)).collect::<Vec<_>>()
        }).collect();
        let gathered = layout.gather(0, sources).unwrap();
        prop_assert_eq!(gathered.length_bytes(), layout.object_bytes(0));
        let mut payload = vec![0; naive.len()];
        gathered.copy_to(&mut payload).unwrap();
        prop_assert_eq!(&payload, &naive);
        let to = &from[2..4];
        let destinations: Vec<Destination> = to.iter().zip(discard).map(|(block, drop)| {
            if drop { Destination::Discard } else { Destination::Block(*block) }
        }).collect();
        let bytes = usize::try_from(layout.discarded_bytes(0, &destinations)).unwrap();
        let trash = Discard { region: region(bytes + 5), offset: 5 };
        let mut lent = layout.scatter(0, &destinations, Some(&trash)).unwrap();
        lent.copy_from(&payload).unwrap();
        prop_assert_eq!(lent.checksum(), tessera_proto::checksum(&payload));
        for (memory, before) in memory.iter().zip(&contents) {
            let mut after = vec![0; length];
            Segments::whole(memory).copy_to(&mut after).unwrap();
            for block in 0..12 {
                let slot = to.iter().position(|to| *to == block).filter(|slot| !discard[*slot]);
                let expected = slot.map_or(block, |slot| sources[slot]);
                prop_assert_eq!(piece(&after, block), piece(before, expected));
            }
            let holes = |bytes: &[u8]| {
                let hole = |(at, byte): (usize, &u8)| {
                    let at = u64::try_from(at).unwrap() % stride;
                    let inside = at < first || (first + gap..first + gap + second).contains(&at);
                    (!inside).then_some(*byte)
                };
                bytes.iter().enumerate().filter_map(hole).collect::<Vec<_>>()
            };
            prop_assert_eq!(holes(&after), holes(before));
        }
    }

    /// Registration agrees with a walk over every byte of every block.
    #[test]
    fn l17_overlap_is_found_exactly_where_two_runs_share_a_byte(
        strides in prop::collection::vec(prop::sample::select(vec![20_u64, 20, 20, 33]), 1..4),
        offsets in prop::collection::vec(0_u64..120, 3),
        lengths in prop::collection::vec(1_u64..12, 3),
    ) {
        let region = region(400);
        let count = strides.len();
        let mut layers = Vec::new();
        let mut used = vec![0_u32; 400];
        for index in 0..count {
            let run = (offsets[index], strides[index], lengths[index]);
            layers.push(layer(&format!("l{index}"), 0, &region, &[run]));
            for block in 0..4 {
                let start = usize::try_from(run.0 + block * run.1).unwrap();
                let length = usize::try_from(run.2).unwrap();
                used[start..start + length].iter_mut().for_each(|byte| *byte += 1);
            }
        }
        let shared = used.iter().any(|count| *count > 1);
        let accepted = Layout::new(&shape(1), layers).is_ok();
        if strides.iter().all(|stride| *stride == strides[0]) {
            // Runs that are shifted by whole blocks meet in one period without sharing a byte.
            let shifted = offsets[..count].iter().any(|offset| offset.abs_diff(offsets[0]) >= 20);
            prop_assert!(accepted != shared || (shifted && !accepted && !shared));
        } else {
            prop_assert!(!(accepted && shared), "shared bytes are accepted");
        }
    }
}

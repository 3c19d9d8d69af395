//! Every layout that an engine produces, compared with a naive walk over all elements.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{BlockGeometry, Reason, TILE_AXIS, TensorView};

/// A view whose strides follow from the memory order of its axes, outermost first.
fn ordered(shape: &[u64], order: &[usize], item_bytes: u64) -> TensorView {
    let mut strides_bytes = vec![0; shape.len()];
    let mut stride = item_bytes;
    for &axis in order.iter().rev() {
        strides_bytes[axis] = i64::try_from(stride).unwrap();
        stride *= shape[axis];
    }
    let storage_bytes = stride;
    let shape = shape.to_vec();
    TensorView {
        address: 4096,
        shape,
        strides_bytes,
        item_bytes,
        storage_address: 4096,
        storage_bytes,
    }
}

fn dense(shape: &[u64], item_bytes: u64) -> TensorView {
    let order: Vec<usize> = (0..shape.len()).collect();
    ordered(shape, &order, item_bytes)
}

/// The bytes of one block by visiting every element, whatever the layout.
fn naive_bytes(view: &TensorView, axis: usize, num_blocks: u64, block: u64) -> BTreeSet<u64> {
    let tiles = view.shape[axis] / num_blocks;
    let mut offsets = vec![view.address - view.storage_address];
    for (index, (&size, &stride)) in view.shape.iter().zip(&view.strides_bytes).enumerate() {
        let stride = u64::try_from(stride).unwrap();
        let range = if index == axis {
            block * tiles..(block + 1) * tiles
        } else {
            0..size
        };
        offsets = offsets
            .iter()
            .flat_map(|&offset| range.clone().map(move |step| offset + step * stride))
            .collect();
    }
    offsets
        .iter()
        .flat_map(|&offset| offset..offset + view.item_bytes)
        .collect()
}

fn derived_bytes(geometry: &BlockGeometry, block: u64) -> BTreeSet<u64> {
    let mut bytes = BTreeSet::new();
    for run in &geometry.runs {
        let start = run.offset_bytes + block * geometry.block_stride_bytes;
        for byte in start..start + run.length_bytes {
            assert!(bytes.insert(byte), "byte {byte} is in two runs");
        }
    }
    bytes
}

fn assert_exact(view: &TensorView, axis: usize, num_blocks: u64) -> BlockGeometry {
    let geometry = BlockGeometry::derive(view, num_blocks).unwrap();
    for block in 0..num_blocks {
        let expected = naive_bytes(view, axis, num_blocks, block);
        assert_eq!(
            derived_bytes(&geometry, block),
            expected,
            "block {block} of {view}"
        );
        assert_eq!(geometry.content_bytes, expected.len() as u64);
    }
    geometry
}

#[test]
fn blocks_first_dense_block_is_one_run() {
    let geometry = assert_exact(&dense(&[7, 2, 4, 6], 2), 0, 7);
    assert_eq!((geometry.runs.len(), geometry.block_stride_bytes), (1, 96));
    assert_eq!(geometry.order, [(1, 2), (2, 4), (3, 6)]);
}

#[test]
fn keys_and_values_first_block_is_two_runs() {
    let geometry = assert_exact(&dense(&[2, 7, 4, 3, 8], 2), 1, 7);
    assert_eq!(geometry.runs.len(), 2);
    assert_eq!(geometry.runs[1].offset_bytes, 7 * 4 * 3 * 8 * 2);
}

#[test]
fn padded_block_leaves_the_padding_out() {
    let mut view = dense(&[5, 2, 4, 6], 4);
    view.strides_bytes[0] += 40;
    view.storage_bytes += 5 * 40;
    let geometry = assert_exact(&view, 0, 5);
    assert_eq!((geometry.runs.len(), geometry.content_bytes), (1, 192));
}

#[test]
fn transposed_heads_keep_their_memory_order() {
    let geometry = assert_exact(&ordered(&[5, 2, 4, 6], &[0, 2, 1, 3], 2), 0, 5);
    assert_eq!(geometry.runs.len(), 1);
    assert_eq!(geometry.order, [(2, 4), (1, 2), (3, 6)]);
}

#[test]
fn heads_outside_of_blocks_are_one_run_each() {
    let geometry = assert_exact(&ordered(&[5, 3, 4, 6], &[1, 0, 2, 3], 2), 0, 5);
    assert_eq!(geometry.runs.len(), 3);
}

#[test]
fn kernel_tiles_belong_to_their_block() {
    let geometry = assert_exact(&dense(&[12, 2, 4, 6], 2), 0, 3);
    assert_eq!(geometry.order[0], (TILE_AXIS, 4));
    let tiled_pair = assert_exact(&dense(&[2, 12, 4, 3, 8], 2), 1, 3);
    assert_eq!(tiled_pair.runs.len(), 2);
}

#[test]
fn state_table_with_a_stride_above_its_content_is_one_run() {
    let view = TensorView {
        address: 1_000,
        shape: vec![4, 1, 1, 268_288],
        strides_bytes: vec![327_680, 268_288, 268_288, 1],
        item_bytes: 1,
        storage_address: 1_000,
        storage_bytes: 4 * 327_680,
    };
    let geometry = BlockGeometry::derive(&view, 4).unwrap();
    assert_eq!((geometry.runs.len(), geometry.content_bytes), (1, 268_288));
    assert_eq!(geometry.block_stride_bytes, 327_680);
}

#[test]
fn layers_packed_into_a_block_are_disjoint_and_aliases_are_not() {
    let layer = |offset: u64| {
        let mut view = dense(&[4, 2, 3, 8], 2);
        view.strides_bytes[0] = 400;
        view.address += offset;
        view.storage_bytes = 4 * 400;
        BlockGeometry::derive(&view, 4).unwrap()
    };
    assert!(layer(0).is_disjoint(&layer(96)));
    assert!(layer(0).is_disjoint(&layer(304)));
    assert!(!layer(0).is_disjoint(&layer(95)));
    assert!(!layer(0).is_disjoint(&layer(0)));
    let apart = |offset: u64| {
        let mut view = dense(&[4, 2, 3, 8], 2);
        view.address += offset;
        view.storage_bytes = 4000;
        BlockGeometry::derive(&view, 4).unwrap()
    };
    assert!(apart(0).is_disjoint(&apart(4 * 96)));
    assert!(!apart(0).is_disjoint(&apart(3 * 96)));
    assert!(
        !apart(0).is_disjoint(&layer(96)),
        "different strides in one range cannot be told"
    );
}

#[test]
fn what_cannot_be_expressed_is_refused_with_its_shape() {
    let refused = |change: fn(&mut TensorView), num_blocks: u64| {
        let mut view = dense(&[5, 2, 4, 6], 2);
        change(&mut view);
        let error = BlockGeometry::derive(&view, num_blocks).unwrap_err();
        assert!(
            error.to_string().contains(&format!("{:?}", view.shape)),
            "{error}"
        );
        error.reason
    };
    assert_eq!(
        refused(|view| view.strides_bytes[3] = -2, 5),
        Reason::NegativeStride
    );
    assert_eq!(
        refused(|view| view.strides_bytes[1] = 0, 5),
        Reason::Overlap
    );
    assert_eq!(
        refused(|view| view.strides_bytes[2] = 10, 5),
        Reason::Overlap
    );
    assert_eq!(
        refused(|view| view.strides_bytes[0] = 94, 5),
        Reason::CrossesBlock
    );
    assert_eq!(
        refused(|view| view.strides_bytes[0] = 0, 5),
        Reason::CrossesBlock
    );
    assert_eq!(
        refused(|view| view.storage_bytes -= 1, 5),
        Reason::OutsideStorage
    );
    assert_eq!(refused(|view| view.address -= 1, 5), Reason::OutsideStorage);
    assert_eq!(
        refused(|view| view.strides_bytes[0] = i64::MAX, 5),
        Reason::OutsideStorage
    );
    assert_eq!(refused(|_| (), 4), Reason::NoBlockAxis);
    assert_eq!(refused(|view| view.shape[1] = 0, 5), Reason::Malformed);
    assert_eq!(refused(|view| view.item_bytes = 0, 5), Reason::Malformed);
    assert_eq!(refused(|_| (), 0), Reason::Malformed);
    let pair = dense(&[2, 2, 4, 3, 8], 2);
    let error = BlockGeometry::derive(&pair, 2).unwrap_err();
    assert_eq!(error.reason, Reason::AmbiguousBlockAxis);
    let scattered = TensorView {
        address: 0,
        shape: vec![2, 1 << 17],
        strides_bytes: vec![1 << 20, 4],
        item_bytes: 2,
        storage_address: 0,
        storage_bytes: 1 << 21,
    };
    assert_eq!(
        BlockGeometry::derive(&scattered, 2).unwrap_err().reason,
        Reason::TooManyRuns
    );
}

proptest! {
    /// Any memory order, any padding, any tiling: exactly the bytes of the block, once.
    #[test]
    fn any_order_and_padding_addresses_each_byte_once(
        sizes in prop::collection::vec(1_u64..4, 3),
        blocks in 3_u64..6,
        tiles in 1_u64..3,
        item_bytes in prop::sample::select(vec![1_u64, 2, 4]),
        order in Just(vec![0_usize, 1, 2, 3]).prop_shuffle(),
        padding in prop::collection::vec(0_u64..3, 4),
    ) {
        let shape = [vec![blocks * tiles], sizes].concat();
        let mut strides_bytes = vec![0; 4];
        let mut stride = item_bytes;
        for (&axis, pad) in order.iter().rev().zip(padding) {
            stride += pad * item_bytes;
            strides_bytes[axis] = i64::try_from(stride).unwrap();
            stride *= shape[axis];
        }
        let view = TensorView {
            address: 64, shape, strides_bytes, item_bytes, storage_address: 0,
            storage_bytes: 64 + stride,
        };
        assert_exact(&view, 0, blocks);
    }
}

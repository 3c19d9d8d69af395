//! Whether the blocks of one group share a byte.
//!
//! Called once at registration for each group. Layers of different groups may lie in one storage,
//! since the engine gives a block to one group at a time; layers of one group may not.

use super::{LayerMemory, LayoutError, describe};

/// One run over all of its blocks.
struct Extent<'a> {
    layer: &'a LayerMemory,
    first: u64,
    end: u64,
    stride: u64,
    length: u64,
}

/// Refuses layers of one group that share a byte, or of which that cannot be told.
pub(super) fn check(layers: &[LayerMemory]) -> Result<(), LayoutError> {
    let mut extents: Vec<Extent<'_>> = layers.iter().flat_map(extents).collect();
    extents.sort_by_key(|extent| extent.first);
    // Runs whose ranges touch one another interleave; each such cluster is looked at by itself.
    let mut start = 0;
    while start < extents.len() {
        let mut reach = extents[start].end;
        let mut end = start + 1;
        while end < extents.len() && extents[end].first < reach {
            reach = reach.max(extents[end].end);
            end += 1;
        }
        check_cluster(&extents[start..end])?;
        start = end;
    }
    Ok(())
}

fn extents(layer: &LayerMemory) -> impl Iterator<Item = Extent<'_>> {
    layer.runs.iter().map(move |run| {
        let base = u64::try_from(run.region.base().addr()).unwrap_or(u64::MAX);
        let first = base.saturating_add(run.offset_bytes);
        let last = first.saturating_add((layer.num_blocks - 1) * run.block_stride_bytes);
        Extent {
            layer,
            first,
            end: last.saturating_add(run.length_bytes),
            stride: run.block_stride_bytes,
            length: run.length_bytes,
        }
    })
}

/// All runs of a cluster must repeat with one stride; then one period shows all there is.
fn check_cluster(cluster: &[Extent<'_>]) -> Result<(), LayoutError> {
    let [head, rest @ ..] = cluster else {
        return Ok(());
    };
    let stride = head.stride;
    if let Some(other) = rest.iter().find(|extent| extent.stride != stride) {
        return Err(overlap(head.layer, other.layer));
    }
    let mut pieces: Vec<(u64, u64, &LayerMemory)> = Vec::with_capacity(cluster.len() + 1);
    for extent in cluster {
        let start = (extent.first - head.first) % stride;
        let end = start + extent.length;
        pieces.push((start, end.min(stride), extent.layer));
        if end > stride {
            pieces.push((0, end - stride, extent.layer));
        }
    }
    pieces.sort_by_key(|(start, ..)| *start);
    match pieces.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => Err(overlap(pair[0].2, pair[1].2)),
        None => Ok(()),
    }
}

fn overlap(layer: &LayerMemory, other: &LayerMemory) -> LayoutError {
    LayoutError::Overlap {
        layer: layer.name.clone(),
        other: other.name.clone(),
        shape: describe(layer),
    }
}

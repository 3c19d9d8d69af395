//! Where the bytes of one block of one layer lie, derived from how the engine describes a tensor.
//!
//! Called once per layer when block memory is registered. Pure arithmetic over address, shape and
//! strides: no memory is touched. The invariant: what is derived addresses every byte of every
//! block exactly once, inside the tensor's storage. A tensor for which that does not hold (overlap,
//! negative stride, a block that reaches into the next one) is refused with its shape.
//!
//! Every layout of an engine is one case: an axis of blocks, perhaps split into kernel tiles, and
//! any number of other axes in any memory order, with or without padding. The payload of a block is
//! its bytes in memory order, so that contiguous blocks stay one run. [`BlockGeometry::order`] says
//! which order that is and belongs into the layout fingerprint; distances between blocks do not.

use std::fmt;

/// The most runs that one block of one tensor may consist of.
pub const RUNS_MAX: u64 = 1 << 16;

/// The most axes that a tensor may have.
pub const AXES_MAX: usize = 16;

/// Stands for the axis of kernel tiles inside a block.
pub const TILE_AXIS: u32 = u32::MAX;

/// A tensor as the engine describes it. All sizes in bytes; strides may be anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorView {
    /// Address of the first element.
    pub address: u64,
    /// Elements along each axis.
    pub shape: Vec<u64>,
    /// Bytes between neighbours along each axis.
    pub strides_bytes: Vec<i64>,
    /// Bytes of one element.
    pub item_bytes: u64,
    /// Address of the storage that the tensor is a view of.
    pub storage_address: u64,
    /// Bytes of that storage.
    pub storage_bytes: u64,
}

/// One contiguous piece of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where it begins in block 0, in bytes from the start of the storage.
    pub offset_bytes: u64,
    /// Its bytes.
    pub length_bytes: u64,
}

/// Where the blocks of one tensor lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockGeometry {
    /// Bytes from a run of one block to the same run of the next.
    pub block_stride_bytes: u64,
    /// The pieces of a block, in payload order.
    pub runs: Vec<Run>,
    /// The axes inside a block in payload order, with their sizes; axes of size one are left out.
    pub order: Vec<(u32, u64)>,
    /// Bytes of one element.
    pub item_bytes: u64,
    /// Bytes of one block, all runs together.
    pub content_bytes: u64,
    /// The first and the end of all bytes of all blocks, from the start of the storage.
    extent: (u64, u64),
}

/// Why a tensor cannot be saved block by block. The message holds its shape and strides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {view}. Use another KV cache layout, or report this shape")]
pub struct GeometryError {
    /// What is wrong.
    pub reason: Reason,
    /// The tensor in words.
    pub view: String,
}

/// What is wrong with a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Shape and strides do not describe a tensor.
    #[error("this is not a tensor of 1 to 16 axes with elements")]
    Malformed,
    /// No axis counts blocks.
    #[error("no leading axis is a multiple of the number of blocks")]
    NoBlockAxis,
    /// Two axes may count blocks.
    #[error("two axes may count blocks; raise the number of KV cache blocks above two")]
    AmbiguousBlockAxis,
    /// A stride below zero.
    #[error("a stride is negative")]
    NegativeStride,
    /// Two elements of one block at the same place.
    #[error("elements of one block overlap")]
    Overlap,
    /// A block that reaches into the next.
    #[error("a block crosses into the next block")]
    CrossesBlock,
    /// Bytes outside the storage.
    #[error("the tensor reaches outside its storage")]
    OutsideStorage,
    /// More runs than [`RUNS_MAX`].
    #[error("a block is scattered over too many pieces")]
    TooManyRuns,
}

/// An axis with more than one element.
#[derive(Debug, Clone, Copy)]
struct Axis {
    name: u32,
    size: u64,
    stride: u64,
    counts_blocks: bool,
}

impl TensorView {
    /// The same tensor with one element only along an axis.
    fn narrowed(&self, axis: usize, index: u64) -> Result<Self, Reason> {
        let mut view = self.clone();
        let stride = view.strides_bytes.get(axis).ok_or(Reason::Malformed)?;
        let stride = u64::try_from(*stride).map_err(|_| Reason::NegativeStride)?;
        *view.shape.get_mut(axis).ok_or(Reason::Malformed)? = 1;
        let offset = index.checked_mul(stride);
        let address = offset.and_then(|offset| view.address.checked_add(offset));
        view.address = address.ok_or(Reason::OutsideStorage)?;
        Ok(view)
    }
}

impl BlockGeometry {
    /// Derives the geometry of `num_blocks` blocks from the engine's description.
    ///
    /// # Errors
    ///
    /// When a block is not a fixed set of bytes of its own inside the storage.
    pub fn derive(view: &TensorView, num_blocks: u64) -> Result<Self, GeometryError> {
        derive(view, num_blocks).map_err(|reason| GeometryError {
            reason,
            view: view.to_string(),
        })
    }

    /// The geometry of each element along `axis` by itself, such as of each head.
    ///
    /// # Errors
    ///
    /// As [`derive`](Self::derive), or when the axis counts blocks or does not exist.
    pub fn of_each(
        view: &TensorView,
        axis: usize,
        num_blocks: u64,
    ) -> Result<Vec<Self>, GeometryError> {
        let size = view.shape.get(axis).copied().unwrap_or(0);
        let blocks = block_axis(&view.shape, num_blocks);
        let of = |index| derive(&view.narrowed(axis, index)?, num_blocks);
        let each = match blocks {
            Ok(blocks) if blocks != axis && size > 0 => (0..size).map(of).collect(),
            Ok(_) => Err(Reason::Malformed),
            Err(reason) => Err(reason),
        };
        each.map_err(|reason| GeometryError {
            reason,
            view: view.to_string(),
        })
    }

    /// Whether no byte belongs to both, for tensors of one storage that are used by one block
    /// table. Answers `false` where it cannot tell.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        if self.extent.1 <= other.extent.0 || other.extent.1 <= self.extent.0 {
            return true;
        }
        let stride = self.block_stride_bytes;
        if stride != other.block_stride_bytes {
            return false;
        }
        // Both repeat with the same stride, so it is enough to compare one period.
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for run in self.runs.iter().chain(&other.runs) {
            let start = run.offset_bytes % stride;
            let end = start + run.length_bytes;
            if end > stride {
                pieces.push((0, end - stride));
            }
            pieces.push((start, end.min(stride)));
        }
        pieces.sort_unstable();
        pieces.windows(2).all(|pair| pair[0].1 <= pair[1].0)
    }
}

fn derive(view: &TensorView, num_blocks: u64) -> Result<BlockGeometry, Reason> {
    let axes = axes(view, num_blocks)?;
    let block = axes.iter().find(|axis| axis.counts_blocks);
    let span = nested_span(&axes, view.item_bytes)?;
    let first = view
        .address
        .checked_sub(view.storage_address)
        .ok_or(Reason::OutsideStorage)?;
    let end = first.checked_add(span).ok_or(Reason::OutsideStorage)?;
    if end > view.storage_bytes {
        return Err(Reason::OutsideStorage);
    }
    let inner: Vec<Axis> = axes
        .iter()
        .filter(|axis| !axis.counts_blocks)
        .copied()
        .collect();
    let runs = runs(&inner, first, view.item_bytes)?;
    let content_bytes = runs.iter().map(|run| run.length_bytes).sum();
    Ok(BlockGeometry {
        // A single block has no neighbour: its stride is never used and must not be zero.
        block_stride_bytes: block.map_or(span, |axis| axis.stride),
        runs,
        order: inner.iter().map(|axis| (axis.name, axis.size)).collect(),
        item_bytes: view.item_bytes,
        content_bytes,
        extent: (first, end),
    })
}

/// The axes with more than one element, outermost in memory first.
fn axes(view: &TensorView, num_blocks: u64) -> Result<Vec<Axis>, Reason> {
    let TensorView {
        shape,
        strides_bytes,
        item_bytes,
        ..
    } = view;
    let malformed = shape.is_empty()
        || shape.len() > AXES_MAX
        || shape.len() != strides_bytes.len()
        || *item_bytes == 0
        || num_blocks == 0
        || shape.contains(&0);
    if malformed {
        return Err(Reason::Malformed);
    }
    let block_axis = block_axis(shape, num_blocks)?;
    let mut axes = Vec::with_capacity(shape.len() + 1);
    for (index, (&size, &stride)) in shape.iter().zip(strides_bytes).enumerate() {
        let name = u32::try_from(index).map_err(|_| Reason::Malformed)?;
        if size == 1 {
            continue;
        }
        let stride = u64::try_from(stride).map_err(|_| Reason::NegativeStride)?;
        if index != block_axis {
            axes.push(Axis {
                name,
                size,
                stride,
                counts_blocks: false,
            });
            continue;
        }
        let tiles = size / num_blocks;
        if tiles > 1 {
            axes.push(Axis {
                name: TILE_AXIS,
                size: tiles,
                stride,
                counts_blocks: false,
            });
        }
        if num_blocks > 1 {
            let stride = stride.checked_mul(tiles).ok_or(Reason::OutsideStorage)?;
            axes.push(Axis {
                name,
                size: num_blocks,
                stride,
                counts_blocks: true,
            });
        }
    }
    axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride));
    Ok(axes)
}

/// Blocks come first, or second behind keys and values; kernel tiles multiply them.
fn block_axis(shape: &[u64], num_blocks: u64) -> Result<usize, Reason> {
    let counts = |axis: usize| {
        shape
            .get(axis)
            .is_some_and(|&size| size.is_multiple_of(num_blocks))
    };
    let keys_and_values_first = shape.len() >= 5 && shape[0] == 2 && counts(1);
    match (counts(0), keys_and_values_first) {
        (true, true) => Err(Reason::AmbiguousBlockAxis),
        (true, false) => Ok(0),
        (false, true) => Ok(1),
        (false, false) => Err(Reason::NoBlockAxis),
    }
}

/// Bytes from the first to the end of the last element; every axis must step over all inner ones.
fn nested_span(axes: &[Axis], item_bytes: u64) -> Result<u64, Reason> {
    let mut span = item_bytes;
    let mut inside_block = true;
    for axis in axes.iter().rev() {
        if axis.stride < span {
            let crosses = axis.counts_blocks || !inside_block;
            return Err(if crosses {
                Reason::CrossesBlock
            } else {
                Reason::Overlap
            });
        }
        inside_block &= !axis.counts_blocks;
        let reach = (axis.size - 1).checked_mul(axis.stride);
        span = reach
            .and_then(|reach| reach.checked_add(span))
            .ok_or(Reason::OutsideStorage)?;
    }
    Ok(span)
}

/// The contiguous pieces of block 0, by walking the axes that are not part of a piece.
fn runs(axes: &[Axis], first: u64, item_bytes: u64) -> Result<Vec<Run>, Reason> {
    let mut length_bytes = item_bytes;
    let mut outer = axes;
    while let Some((innermost, rest)) = outer.split_last() {
        if innermost.stride != length_bytes {
            break;
        }
        length_bytes *= innermost.size;
        outer = rest;
    }
    let mut offsets = vec![first];
    for axis in outer {
        let pieces = axis.size.checked_mul(offsets.len() as u64);
        if pieces.is_none_or(|pieces| pieces > RUNS_MAX) {
            return Err(Reason::TooManyRuns);
        }
        let step = |offset: &u64| {
            let offset = *offset;
            (0..axis.size).map(move |index| offset + index * axis.stride)
        };
        offsets = offsets.iter().flat_map(step).collect();
    }
    Ok(offsets
        .into_iter()
        .map(|offset_bytes| Run {
            offset_bytes,
            length_bytes,
        })
        .collect())
}

impl fmt::Display for TensorView {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.address.wrapping_sub(self.storage_address);
        write!(
            out,
            "shape {:?}, strides {:?} bytes, {} bytes an element, at byte {first} of {}",
            self.shape, self.strides_bytes, self.item_bytes, self.storage_bytes
        )
    }
}

#[cfg(test)]
mod tests;

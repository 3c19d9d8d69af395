//! Where the bytes of an object lie in the engine's block memory.
//!
//! Called by the worker driver: [`Layout::new`] once at registration, [`Layout::gather`] for each
//! save and [`Layout::scatter`] for each load, or, when the blocks live on a device that no socket
//! reaches, [`Layout::ranges`] for both. The payload of an object is, for each layer of its
//! group by name, for each of its blocks, for each run of the layer: the run's bytes, no padding.
//! The invariants: no byte of memory belongs to two blocks of one group, so that two loads never
//! write the same place, and no object reaches outside the registered memory.

use std::sync::Arc;

use tessera_lifecycle::Shape;
use tessera_lifecycle::plan::Destination;
use tessera_proto::limits::OBJECT_BYTES_MAX;
use tessera_transport::{Device, Lent, Region, SegmentError, Segments};
use thiserror::Error;

use crate::geometry::BlockGeometry;

mod copy;
mod cut;
mod overlap;
mod places;

pub use copy::CopyError;
pub use cut::{Heads, Seat, passed};
pub use places::Places;

/// One contiguous piece of every block of a layer.
#[derive(Debug, Clone)]
pub struct BlockRun {
    /// The registered memory.
    pub region: Arc<Region>,
    /// Where the piece of block 0 begins in it, bytes.
    pub offset_bytes: u64,
    /// Bytes from the piece of one block to the piece of the next.
    pub block_stride_bytes: u64,
    /// Bytes of the piece.
    pub length_bytes: u64,
}

impl BlockRun {
    /// The pieces that `geometry` describes, in a region that begins where its storage does.
    pub fn all(region: &Arc<Region>, geometry: &BlockGeometry) -> impl Iterator<Item = Self> {
        geometry.runs.iter().map(|run| Self {
            region: Arc::clone(region),
            offset_bytes: run.offset_bytes,
            block_stride_bytes: geometry.block_stride_bytes,
            length_bytes: run.length_bytes,
        })
    }
}

/// The block memory of one layer.
#[derive(Debug, Clone)]
pub struct LayerMemory {
    /// The engine's name of the layer: unique, and the order of layers in an object.
    pub name: String,
    /// The cache group, as the engine counts them.
    pub group: usize,
    /// What the bytes of a block mean, such as element type and axis order, in any words: objects
    /// of layers with other words are not loaded.
    pub format: String,
    /// Blocks that it has.
    pub num_blocks: u64,
    /// The pieces of a block, in payload order.
    pub runs: Vec<BlockRun>,
    /// The same bytes head by head; `None` if blocks cannot be cut by heads.
    pub heads: Option<Heads>,
}

impl LayerMemory {
    /// The layer that `geometry` describes, in a region that begins where its storage does.
    #[must_use]
    pub fn from_geometry(
        name: &str,
        group: usize,
        num_blocks: u64,
        region: &Arc<Region>,
        geometry: &BlockGeometry,
    ) -> Self {
        Self {
            name: name.to_owned(),
            group,
            format: format!("{} bytes, {:?}", geometry.item_bytes, geometry.order),
            num_blocks,
            runs: BlockRun::all(region, geometry).collect(),
            heads: None,
        }
    }

    fn content_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.length_bytes).sum()
    }
}

/// Why block memory is refused at registration. Each message holds the layer and its shape.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// A layer of a group that does not exist.
    #[error("layer {layer}: there is no cache group {group}, the engine has {groups}")]
    Group {
        /// The layer.
        layer: String,
        /// Its group.
        group: usize,
        /// How many there are.
        groups: usize,
    },
    /// Two layers of one name.
    #[error("layer {layer} is registered twice")]
    Twice {
        /// The layer.
        layer: String,
    },
    /// A group without a layer on this rank.
    #[error(
        "cache group {group} has no layer on this rank: a pipeline that leaves a stage without \
         layers of a group is not supported"
    )]
    Empty {
        /// The group.
        group: usize,
    },
    /// A block without bytes.
    #[error("layer {layer}: {shape}: a block holds no bytes")]
    NoBytes {
        /// The layer.
        layer: String,
        /// Its runs, strides and blocks.
        shape: String,
    },
    /// A stride that is zero or below the run's length.
    #[error("layer {layer}: {shape}: a block crosses into the next block")]
    Crosses {
        /// The layer.
        layer: String,
        /// Its runs, strides and blocks.
        shape: String,
    },
    /// Memory outside its region.
    #[error("layer {layer}: {shape}: the last block ends outside {region_bytes} registered bytes")]
    Outside {
        /// The layer.
        layer: String,
        /// Its runs, strides and blocks.
        shape: String,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// Memory of two blocks or two layers of one group at the same place.
    #[error("layers {layer} and {other} of one group overlap: {shape}")]
    Overlap {
        /// One layer.
        layer: String,
        /// The other, or the same.
        other: String,
        /// Runs, strides and blocks of the first.
        shape: String,
    },
    /// Heads that are not the block.
    #[error("layer {layer}: {shape}: its heads are not its block, or not of one size")]
    Heads {
        /// The layer.
        layer: String,
        /// Its runs, strides and blocks.
        shape: String,
    },
    /// An object that no node takes.
    #[error(
        "one object of cache group {group} holds {bytes} bytes, the limit is {OBJECT_BYTES_MAX}: \
         lower chunk_tokens"
    )]
    TooLarge {
        /// The group.
        group: usize,
        /// Bytes of its objects.
        bytes: u64,
    },
}

/// A block id that no memory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("block {block} does not exist: a layer of the group has {num_blocks}")]
pub struct NoSuchBlock {
    /// The id.
    pub block: u32,
    /// Blocks of the layer.
    pub num_blocks: u64,
}

/// The block memory of one worker, checked.
#[derive(Debug)]
pub struct Layout {
    groups: Vec<Group>,
    devices: Vec<Arc<dyn Device>>,
}

#[derive(Debug)]
struct Group {
    layers: Vec<LayerMemory>,
    block_bytes: u64,
    object_bytes: u64,
    fingerprint: u64,
}

impl Layout {
    /// Checks and keeps the memory of all layers.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn new(shape: &Shape, layers: Vec<LayerMemory>) -> Result<Self, LayoutError> {
        let count = shape.groups().len();
        let mut of_group: Vec<Vec<LayerMemory>> = vec![Vec::new(); count];
        for layer in layers {
            let Some(group) = of_group.get_mut(layer.group) else {
                return Err(LayoutError::Group {
                    layer: layer.name,
                    group: layer.group,
                    groups: count,
                });
            };
            check_layer(&layer)?;
            let replicated = shape.groups()[layer.group].replicated.tp;
            group.push(cut::with_heads(layer, replicated)?);
        }
        let groups: Vec<Group> = of_group
            .into_iter()
            .enumerate()
            .map(|(index, layers)| Group::new(shape, index, layers))
            .collect::<Result<_, _>>()?;
        let devices = places::owners(&groups);
        Ok(Self { groups, devices })
    }

    /// The devices on which the memory lives, each once.
    #[must_use]
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// How many cache groups there are.
    #[must_use]
    pub const fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Whether sockets and copies of the host reach all of it in place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.devices.iter().all(|device| device.is_host())
    }

    /// Bytes of one object of `group`.
    #[must_use]
    pub fn object_bytes(&self, group: usize) -> u64 {
        self.groups[group].object_bytes
    }

    /// The largest object of all groups, bytes.
    #[must_use]
    pub fn largest_object_bytes(&self) -> u64 {
        let bytes = self.groups.iter().map(|group| group.object_bytes);
        bytes.max().unwrap_or(0)
    }

    /// What an object's header says of its layout: names, formats and sizes, in payload order.
    #[must_use]
    pub fn fingerprint(&self, group: usize) -> u64 {
        self.groups[group].fingerprint
    }

    /// The bytes of an object, in the blocks where they lie now.
    ///
    /// # Errors
    /// [`NoSuchBlock`].
    pub fn gather(&self, group: usize, blocks: &[u32]) -> Result<Segments, NoSuchBlock> {
        let layers = &self.groups[group].layers;
        let runs: usize = layers.iter().map(|layer| layer.runs.len()).sum();
        let mut segments = Segments::with_capacity(runs * blocks.len());
        for layer in layers {
            for block in blocks {
                push_block(&mut segments, layer, *block)?;
            }
        }
        Ok(segments)
    }

    /// Bytes of a payload of `blocks` blocks of `group`.
    #[must_use]
    pub fn payload_bytes(&self, group: usize, blocks: usize) -> u64 {
        let blocks = u64::try_from(blocks).unwrap_or(u64::MAX);
        self.groups[group].block_bytes.saturating_mul(blocks)
    }

    /// Bytes of one block in each layer of `group`, in payload order.
    pub(crate) fn layer_bytes(&self, group: usize) -> impl Iterator<Item = u64> {
        let layers = self.groups[group].layers.iter();
        layers.map(LayerMemory::content_bytes)
    }

    /// Bytes of an object that have no block to go to.
    #[must_use]
    pub fn discarded_bytes(&self, group: usize, destinations: &[Destination]) -> u64 {
        let discarded = destinations
            .iter()
            .filter(|destination| **destination == Destination::Discard);
        u64::try_from(discarded.count()).unwrap_or(u64::MAX) * self.groups[group].block_bytes
    }

    /// The memory that an object is received into. What has no block goes to `discard`, which must
    /// hold [`discarded_bytes`](Self::discarded_bytes) and belong to this load alone.
    ///
    /// # Errors
    /// [`Unlendable`].
    ///
    /// # Panics
    /// If `discard` is shorter than that.
    pub fn scatter(
        &self,
        group: usize,
        destinations: &[Destination],
        discard: Option<&Discard>,
    ) -> Result<Lent, Unlendable> {
        let layers = &self.groups[group].layers;
        let runs: usize = layers.iter().map(|layer| layer.runs.len()).sum();
        let mut segments = Segments::with_capacity(runs * destinations.len());
        let mut discarded = 0;
        for layer in layers {
            for destination in destinations {
                match destination {
                    Destination::Block(block) => push_block(&mut segments, layer, *block)?,
                    Destination::Discard => {
                        let length = bytes(layer.content_bytes());
                        let to = discard.expect("discarded bytes have somewhere to go");
                        let pushed = segments.push(&to.region, to.offset + discarded, length);
                        pushed.expect("the discard memory holds what has no block");
                        discarded += length;
                    }
                }
            }
        }
        Ok(Lent::new(segments)?)
    }
}

/// Why blocks cannot be lent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unlendable {
    /// A block that no memory has.
    #[error(transparent)]
    Block(#[from] NoSuchBlock),
    /// Blocks that are named twice, or that another operation may still write.
    #[error(transparent)]
    Lent(#[from] SegmentError),
}

/// Memory for bytes that have no block.
#[derive(Debug, Clone)]
pub struct Discard {
    /// The memory.
    pub region: Arc<Region>,
    /// Where it begins, bytes.
    pub offset: usize,
}

impl Group {
    fn new(shape: &Shape, group: usize, mut layers: Vec<LayerMemory>) -> Result<Self, LayoutError> {
        layers.sort_by(|left, right| left.name.cmp(&right.name));
        if layers.is_empty() {
            return Err(LayoutError::Empty { group });
        }
        if let Some(pair) = layers.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let layer = pair[0].name.clone();
            return Err(LayoutError::Twice { layer });
        }
        overlap::check(&layers)?;
        let block_bytes: u64 = layers.iter().map(LayerMemory::content_bytes).sum();
        let blocks = shape.object_blocks(group, 0);
        let object_bytes = block_bytes.saturating_mul(blocks.end - blocks.start);
        if object_bytes > OBJECT_BYTES_MAX {
            let bytes = object_bytes;
            return Err(LayoutError::TooLarge { group, bytes });
        }
        let fingerprint = fingerprint(&layers, blocks.end - blocks.start);
        Ok(Self {
            layers,
            block_bytes,
            object_bytes,
            fingerprint,
        })
    }
}

fn check_layer(layer: &LayerMemory) -> Result<(), LayoutError> {
    let named = || (layer.name.clone(), describe(layer));
    if layer.num_blocks == 0 || layer.content_bytes() == 0 {
        let (layer, shape) = named();
        return Err(LayoutError::NoBytes { layer, shape });
    }
    check_runs(layer, &layer.runs)
}

/// Every block's pieces lie in their regions.
fn check_runs(layer: &LayerMemory, runs: &[BlockRun]) -> Result<(), LayoutError> {
    let named = || (layer.name.clone(), describe(layer));
    for run in runs {
        if run.length_bytes == 0 {
            let (layer, shape) = named();
            return Err(LayoutError::NoBytes { layer, shape });
        }
        if run.block_stride_bytes < run.length_bytes {
            let (layer, shape) = named();
            return Err(LayoutError::Crosses { layer, shape });
        }
        let region_bytes = u64::try_from(run.region.length_bytes()).unwrap_or(u64::MAX);
        let end = (layer.num_blocks - 1)
            .checked_mul(run.block_stride_bytes)
            .and_then(|last| last.checked_add(run.offset_bytes))
            .and_then(|last| last.checked_add(run.length_bytes));
        if end.is_none_or(|end| end > region_bytes) {
            let (layer, shape) = named();
            return Err(LayoutError::Outside {
                layer,
                shape,
                region_bytes,
            });
        }
    }
    Ok(())
}

/// A layer in words; of many runs, the first.
fn describe(layer: &LayerMemory) -> String {
    let run = |run: &BlockRun| {
        format!(
            "{} bytes at {} with stride {}",
            run.length_bytes, run.offset_bytes, run.block_stride_bytes
        )
    };
    let shown: Vec<String> = layer.runs.iter().take(4).map(run).collect();
    let (blocks, runs) = (layer.num_blocks, layer.runs.len());
    format!("{blocks} blocks of {runs} runs [{}]", shown.join(", "))
}

fn push_block(segments: &mut Segments, layer: &LayerMemory, block: u32) -> Result<(), NoSuchBlock> {
    let num_blocks = layer.num_blocks;
    if u64::from(block) >= num_blocks {
        return Err(NoSuchBlock { block, num_blocks });
    }
    for run in &layer.runs {
        let offset = run.offset_bytes + u64::from(block) * run.block_stride_bytes;
        let pushed = segments.push(&run.region, bytes(offset), bytes(run.length_bytes));
        pushed.expect("registration checked every block of every run");
    }
    Ok(())
}

/// Registration has compared every such number with the length of a region, a `usize`.
fn bytes(length: u64) -> usize {
    usize::try_from(length).expect("registered memory is addressable")
}

fn fingerprint(layers: &[LayerMemory], blocks: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let mut field = |bytes: &[u8]| {
        hasher.update(&bytes.len().to_le_bytes());
        hasher.update(bytes);
    };
    field(b"tessera object layout v1");
    field(&blocks.to_le_bytes());
    for layer in layers {
        field(layer.name.as_bytes());
        field(layer.format.as_bytes());
        for run in &layer.runs {
            field(&run.length_bytes.to_le_bytes());
        }
    }
    let digest = hasher.finalize();
    let (first, _) = digest
        .as_bytes()
        .split_first_chunk()
        .expect("a digest has 32 bytes");
    u64::from_le_bytes(*first)
}

#[cfg(test)]
mod tests;

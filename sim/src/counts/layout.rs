//! Where the bytes of an object lie: the runs of its blocks in every layer, for a save and a load.
//!
//! Called by the list of jobs. Invariant: each object is lent and given back before the next.

use anyhow::Result;
use tessera_client::Region;
use tessera_client::layout::{BlockRun, LayerMemory, Layout};
use tessera_lifecycle::plan::Destination;
use tessera_lifecycle::{Axes, GroupKind, GroupSpec, Shape};
use tessera_proto::Topology;

use super::{Job, Work};

const OBJECTS: u32 = 64;
const LAYERS: usize = 32;
const BLOCK_TOKENS: u64 = 16;
const OBJECT_BLOCKS: u32 = 8;
/// Of a layer of one block: keys and values each.
const RUN_BYTES: u64 = 64;

/// A save and a load of each object. An operation is one of both.
pub(super) const JOB: Job = Job {
    name: "runs of 64 objects of 32 layers, 8 blocks",
    operations: 2 * 64,
    prepare,
};

fn prepare() -> Result<Work> {
    let group = GroupSpec {
        kind: GroupKind::Full,
        block_tokens: BLOCK_TOKENS,
        replicated: Axes::default(),
    };
    let chunk = BLOCK_TOKENS * u64::from(OBJECT_BLOCKS);
    let shape = Shape::new(vec![group], Some(chunk), BLOCK_TOKENS, Topology::SINGLE)?;
    let blocks = u64::from(OBJECTS * OBJECT_BLOCKS);
    let layers = (0..LAYERS).map(|layer| memory(layer, blocks));
    let layout = Layout::new(&shape, layers.collect::<Result<_>>()?)?;
    let object_bytes = layout.object_bytes(0);
    Ok(Box::new(move || {
        let saved = |blocks: &[u32]| {
            let segments = layout.gather(0, blocks);
            segments.is_ok_and(|segments| segments.length_bytes() == object_bytes)
        };
        let loaded = |blocks: &[u32]| {
            let places: Vec<_> = blocks.iter().copied().map(Destination::Block).collect();
            layout.scatter(0, &places, None).is_ok()
        };
        let mut done = 0;
        for object in 0..OBJECTS {
            // Neighbours in the prompt, not in memory.
            let blocks: Vec<_> = (0..OBJECT_BLOCKS)
                .map(|block| block * OBJECTS + object)
                .collect();
            done += usize::from(saved(&blocks)) + usize::from(loaded(&blocks));
        }
        done
    }))
}

/// A layer whose keys lie before its values, as in the engine.
fn memory(layer: usize, blocks: u64) -> Result<LayerMemory> {
    let half_bytes = blocks * RUN_BYTES;
    let region = Region::allocate(usize::try_from(2 * half_bytes)?)?;
    let run = |offset_bytes| BlockRun {
        region: region.clone(),
        offset_bytes,
        block_stride_bytes: RUN_BYTES,
        length_bytes: RUN_BYTES,
    };
    Ok(LayerMemory {
        name: format!("layer-{layer:02}"),
        group: 0,
        format: "bytes".to_owned(),
        num_blocks: blocks,
        runs: vec![run(0), run(half_bytes)],
        heads: None,
    })
}

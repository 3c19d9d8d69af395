//! Where objects lie on each of the devices that own block memory.
//!
//! Called once at registration, and for each load and save of memory that no socket reaches. The
//! invariant: the ranges of all devices together are those of [`Layout::scatter`], in its order.

use std::sync::Arc;

use tessera_lifecycle::plan::Destination;
use tessera_transport::{Device, DeviceRanges};

use super::{Group, LayerMemory, Layout, NoSuchBlock, bytes};

/// The ranges of one object on each device that has some of them.
pub type Places = Vec<(Arc<dyn Device>, DeviceRanges)>;

impl Layout {
    /// Where the bytes of an object lie on each device that has some of them. The ranges of each
    /// cover the whole payload, with gaps for what lies elsewhere or has no block.
    ///
    /// # Errors
    /// [`NoSuchBlock`].
    pub fn ranges(
        &self,
        group: usize,
        destinations: &[Destination],
    ) -> Result<Places, NoSuchBlock> {
        let layers = &self.groups[group].layers;
        let runs: usize = layers.iter().map(|layer| layer.runs.len()).sum();
        let mut lists = Vec::with_capacity(1);
        for device in &self.devices {
            let mut ranges = DeviceRanges::with_capacity(runs * destinations.len());
            for layer in layers {
                for destination in destinations {
                    push_range(&mut ranges, layer, *destination, device)?;
                }
            }
            if ranges.count() > 0 {
                lists.push((Arc::clone(device), ranges));
            }
        }
        Ok(lists)
    }
}

/// The owners of all regions, each once.
pub(super) fn owners(groups: &[Group]) -> Vec<Arc<dyn Device>> {
    let mut owners: Vec<Arc<dyn Device>> = Vec::with_capacity(1);
    let layers = groups.iter().flat_map(|group| &group.layers);
    for run in layers.flat_map(|layer| &layer.runs) {
        let owner = run.region.device();
        if !owners.iter().any(|known| Arc::ptr_eq(known, owner)) {
            owners.push(Arc::clone(owner));
        }
    }
    owners
}

fn push_range(
    ranges: &mut DeviceRanges,
    layer: &LayerMemory,
    destination: Destination,
    device: &Arc<dyn Device>,
) -> Result<(), NoSuchBlock> {
    let num_blocks = layer.num_blocks;
    for run in &layer.runs {
        let length = bytes(run.length_bytes);
        let block = match destination {
            Destination::Block(block) if u64::from(block) >= num_blocks => {
                return Err(NoSuchBlock { block, num_blocks });
            }
            Destination::Block(block) if Arc::ptr_eq(run.region.device(), device) => block,
            Destination::Block(_) | Destination::Discard => {
                ranges.skip(length);
                continue;
            }
        };
        let offset = run.offset_bytes + u64::from(block) * run.block_stride_bytes;
        let pushed = ranges.push(&run.region, bytes(offset), length);
        pushed.expect("registration checked every block of every run");
    }
    Ok(())
}

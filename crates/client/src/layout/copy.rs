//! Whole payloads out of blocks and into blocks, through the devices that own them.
//!
//! Called by the self-test at start, on a thread that may wait. The invariant: both directions are
//! fenced as loads and saves are, and take the same ranges.

use std::sync::Arc;

use tessera_lifecycle::plan::Destination;
use tessera_transport::{
    Device, DeviceError, DeviceLost, FenceSide, Lent, Region, SegmentError, Segments,
};
use thiserror::Error;

use super::{Layout, NoSuchBlock};

/// Why blocks cannot be copied.
#[derive(Debug, Error)]
pub enum CopyError {
    /// A block that no memory has.
    #[error(transparent)]
    Block(#[from] NoSuchBlock),
    /// The device failed; the message says which and how.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is gone.
    #[error(transparent)]
    Lost(#[from] DeviceLost),
    /// A payload of another length, or blocks that are named twice.
    #[error(transparent)]
    Memory(#[from] SegmentError),
    /// No memory for the payload.
    #[error("no memory for a payload: {0}")]
    Allocation(#[from] std::io::Error),
}

impl Layout {
    /// The payload that `blocks` of `group` hold, after all work so far on them.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn read(&self, group: usize, blocks: &[u32]) -> Result<Vec<u8>, CopyError> {
        let mut lent = self.payload(group, blocks)?;
        fence(self.devices(), FenceSide::Before)?;
        for (device, ranges) in self.ranges(group, &destinations(blocks))? {
            let (done, back) = device.read(ranges, lent).wait()?;
            done?;
            lent = back;
        }
        let mut payload = vec![0; usize::try_from(lent.length_bytes()).unwrap_or(0)];
        lent.copy_to(&mut payload)?;
        Ok(payload)
    }

    /// Fills `blocks` of `group` from a payload; later work sees it.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn write(&self, group: usize, blocks: &[u32], payload: &[u8]) -> Result<(), CopyError> {
        let mut lent = self.payload(group, blocks)?;
        lent.copy_from(payload)?;
        let mut staged = lent.into_segments();
        fence(self.devices(), FenceSide::Before)?;
        let mut written = Vec::with_capacity(1);
        for (device, ranges) in self.ranges(group, &destinations(blocks))? {
            let (done, back, to) = device.write(staged, ranges.lend()?).wait()?;
            done?;
            staged = back;
            written.push(to);
        }
        fence(self.devices(), FenceSide::After)?;
        drop(written);
        Ok(())
    }

    fn payload(&self, group: usize, blocks: &[u32]) -> Result<Lent, CopyError> {
        let length = self.payload_bytes(group, blocks.len());
        let length = usize::try_from(length);
        let length = length.map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let region = Region::allocate(length).map_err(CopyError::Allocation)?;
        Ok(Lent::new(Segments::whole(&region))?)
    }
}

fn destinations(blocks: &[u32]) -> Vec<Destination> {
    blocks.iter().copied().map(Destination::Block).collect()
}

fn fence(devices: &[Arc<dyn Device>], side: FenceSide) -> Result<(), CopyError> {
    for device in devices {
        device.fence(side).wait()??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tessera_lifecycle::{GroupKind, GroupSpec, Shape};
    use tessera_proto::Topology;
    use tessera_transport::SimDevice;

    use super::super::{BlockRun, LayerMemory};
    use super::*;

    #[test]
    fn blocks_on_a_device_and_on_the_host_move_as_one_payload_behind_fences() {
        let device = SimDevice::start(9).unwrap();
        let regions = [
            device.allocate(512).unwrap(),
            Region::allocate(512).unwrap(),
        ];
        let layer = |(index, region): (usize, &Arc<Region>)| LayerMemory {
            name: format!("layer {index}"),
            group: 0,
            format: "bytes".into(),
            num_blocks: 8,
            runs: vec![BlockRun {
                region: Arc::clone(region),
                offset_bytes: 0,
                block_stride_bytes: 64,
                length_bytes: 40,
            }],
            heads: None,
        };
        let group = GroupSpec {
            kind: GroupKind::Full,
            block_tokens: 4,
            replicated: Default::default(),
        };
        let shape = Shape::new(vec![group], Some(8), 4, Topology::SINGLE).unwrap();
        let layers = regions.iter().enumerate().map(layer).collect();
        let layout = Layout::new(&shape, layers).unwrap();
        assert_eq!((layout.devices().len(), layout.is_in_place()), (2, false));
        // The engine's work on block 3 is still under way.
        device.submit(&regions[0], 3 * 64, vec![7; 40]);
        let payload = layout.read(0, &[3, 1]).unwrap();
        assert_eq!((payload.len(), &payload[..40]), (160, &[7; 40][..]));
        layout.write(0, &[6, 2], &[9; 160]).unwrap();
        assert_eq!(device.view(&regions[0])[6 * 64..6 * 64 + 40], [9; 40]);
        assert_eq!(layout.read(0, &[6, 2]).unwrap(), [9; 160]);
        assert!(matches!(layout.read(0, &[8]), Err(CopyError::Block(_))));
        assert!(matches!(
            layout.write(0, &[1], &[0; 9]),
            Err(CopyError::Memory(_))
        ));
    }
}

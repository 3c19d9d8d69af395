//! Memory of the host: at rest whenever the engine's thread calls, visible as soon as written.
//!
//! What regions without a device of their own live on. Sockets reach it in place, so that its
//! copies serve only layouts of which another part lies elsewhere.

use std::ptr;
use std::sync::{Arc, LazyLock};

use super::completion::Completion;
use super::contract::{Device, DeviceError, FenceSide, Written};
use super::ranges::{DeviceRanges, LentRanges, Piece};
use crate::lent::Lent;
use crate::region::Region;
use crate::segments::{Segments, Span};

/// The host as a device.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostDevice;

static HOST: LazyLock<Arc<dyn Device>> = LazyLock::new(|| Arc::new(HostDevice));

impl HostDevice {
    /// The host.
    pub fn shared() -> &'static Arc<dyn Device> {
        &HOST
    }
}

impl Device for HostDevice {
    fn name(&self) -> String {
        "the host".into()
    }

    fn is_host(&self) -> bool {
        true
    }

    fn register(&self, _address: usize, _length: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn pin(&self, _staging: &Arc<Region>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn fence(&self, _side: FenceSide) -> Completion<Result<(), DeviceError>> {
        // The engine's work on the host ends on the thread that calls the hooks.
        Completion::over(Ok(()))
    }

    fn write(&self, from: Segments, to: LentRanges) -> Completion<Written> {
        let done = copies(from.spans(), from.length_bytes(), to.ranges()).map(|pieces| {
            for piece in pieces {
                let place = ptr::with_exposed_provenance_mut(piece.address);
                // SAFETY: both lists keep their regions mapped; `to` is the right to write.
                unsafe { ptr::copy(piece.host.cast_const(), place, piece.length) };
            }
        });
        Completion::over((done, from, to))
    }

    fn read(&self, from: DeviceRanges, to: Lent) -> Completion<(Result<(), DeviceError>, Lent)> {
        let done = copies(to.spans(), to.length_bytes(), &from).map(|pieces| {
            for piece in pieces {
                let place = ptr::with_exposed_provenance::<u8>(piece.address);
                // SAFETY: both lists keep their regions mapped; `Lent` is the right to write.
                unsafe { ptr::copy(place, piece.host, piece.length) };
            }
        });
        Completion::over((done, to))
    }
}

/// The copies between a staged payload and its places.
pub(super) fn copies(
    staged: &[Span],
    have: u64,
    ranges: &DeviceRanges,
) -> Result<Vec<Piece>, DeviceError> {
    let want = ranges.payload_bytes();
    match have == want {
        true => Ok(ranges.pieces(staged)),
        false => Err(DeviceError::Length { have, want }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_to_the_host_is_read_back() {
        let (memory, staging) = (Region::allocate(64).unwrap(), Region::allocate(16).unwrap());
        let places = || {
            let mut ranges = DeviceRanges::with_capacity(2);
            ranges.push(&memory, 32, 6).unwrap();
            ranges.skip(4);
            ranges.push(&memory, 3, 6).unwrap();
            ranges
        };
        let pattern: Vec<u8> = (1..=16).collect();
        let mut lent = Lent::new(Segments::whole(&staging)).unwrap();
        lent.copy_from(&pattern).unwrap();
        let written = HostDevice
            .write(lent.into_segments(), places().lend().unwrap())
            .now();
        let (done, ..) = written.unwrap().unwrap();
        assert_eq!(done, Ok(()));
        let mut lent = Lent::new(Segments::whole(&staging)).unwrap();
        lent.copy_from(&[0; 16]).unwrap();
        let (done, lent) = HostDevice.read(places(), lent).now().unwrap().unwrap();
        assert_eq!(done, Ok(()));
        let mut back = [0; 16];
        lent.copy_to(&mut back).unwrap();
        assert_eq!((&back[..6], &back[6..10]), (&pattern[..6], &[0; 4][..]));
        assert_eq!(back[10..], pattern[10..]);
        let short = Lent::new(Segments::whole(&Region::allocate(8).unwrap())).unwrap();
        let (done, _) = HostDevice.read(places(), short).now().unwrap().unwrap();
        assert_eq!(done, Err(DeviceError::Length { have: 8, want: 16 }));
    }
}

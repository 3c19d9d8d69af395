//! Where the bytes of one payload lie in the memory of one device.
//!
//! Built by the client from block tables, used by devices only. The invariant: every range was
//! checked against its region when it was added, and the regions live as long as the list; nothing
//! here reads or writes through an address, because the host may not be able to.

use std::sync::Arc;

use crate::loans::Loan;
use crate::region::Region;
use crate::segments::SegmentError;

/// One contiguous range, and its place in the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// First byte of it in the payload.
    pub(crate) staged: usize,
    /// Where it is on the device.
    pub(crate) address: usize,
    /// Its bytes.
    pub(crate) length: usize,
}

/// Ranges of device memory in payload order: what a copy reads.
#[derive(Debug, Default)]
pub struct DeviceRanges {
    places: Vec<Place>,
    regions: Vec<Arc<Region>>,
    payload: usize,
}

/// Ranges of device memory that are lent to one copy, which may write them. As with
/// [`Lent`](crate::Lent), nobody else has them while this lives.
#[derive(Debug)]
pub struct LentRanges {
    // Dropped first: the loan ends while the memory is still there.
    _loan: Loan,
    ranges: DeviceRanges,
}

impl LentRanges {
    pub(crate) const fn ranges(&self) -> &DeviceRanges {
        &self.ranges
    }
}

impl DeviceRanges {
    /// Lends the ranges, to be written.
    ///
    /// # Errors
    /// [`SegmentError::Overlap`] if they overlap one another, [`SegmentError::Lent`] if they are
    /// lent already.
    pub fn lend(self) -> Result<LentRanges, SegmentError> {
        let places = self.places.iter();
        let places = places.map(|place| place.address..place.address + place.length);
        let loan = Loan::of(places.collect())?;
        let ranges = self;
        Ok(LentRanges {
            _loan: loan,
            ranges,
        })
    }

    /// An empty list with room for `count` ranges.
    pub fn with_capacity(count: usize) -> Self {
        Self {
            places: Vec::with_capacity(count),
            ..Self::default()
        }
    }

    /// The next `length` bytes of the payload lie at `offset` of `region`.
    ///
    /// # Errors
    /// [`SegmentError::OutOfRegion`] when the range is not inside the region; the list is
    /// unchanged.
    pub fn push(
        &mut self,
        region: &Arc<Region>,
        offset: usize,
        length: usize,
    ) -> Result<(), SegmentError> {
        let base = region.range(offset, length);
        let base = base.ok_or(SegmentError::OutOfRegion {
            offset,
            length,
            region: region.length_bytes(),
        })?;
        let address = base.as_ptr().expose_provenance();
        let staged = self.payload;
        self.payload += length;
        if !(self.regions.last()).is_some_and(|last| Arc::ptr_eq(last, region)) {
            self.regions.push(Arc::clone(region));
        }
        match self.places.last_mut() {
            Some(last)
                if last.address + last.length == address && last.staged + last.length == staged =>
            {
                last.length += length;
            }
            _ if length == 0 => {}
            _ => self.places.push(Place {
                staged,
                address,
                length,
            }),
        }
        Ok(())
    }

    /// The next `length` bytes of the payload lie nowhere on this device.
    pub fn skip(&mut self, length: usize) {
        self.payload += length;
    }

    /// Bytes of the whole payload, those without a place included.
    pub fn payload_bytes(&self) -> u64 {
        self.payload as u64
    }

    /// Number of separate ranges.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// The pieces of the payload that lie both in one place and in one of `spans`, which cover the
    /// payload from its first byte.
    pub(crate) fn pieces(&self, spans: &[crate::segments::Span]) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(self.places.len());
        let mut spans = spans.iter();
        let (mut base, mut start, mut length) = (std::ptr::null_mut::<u8>(), 0, 0);
        for place in &self.places {
            let mut at = place.staged;
            let end = place.staged + place.length;
            while at < end {
                if at >= start + length {
                    let Some(span) = spans.next() else {
                        return pieces;
                    };
                    start += length;
                    (base, length) = (span.base, span.length);
                    continue;
                }
                let count = (end - at).min(start + length - at);
                pieces.push(Piece {
                    host: base.wrapping_add(at - start),
                    address: place.address + (at - place.staged),
                    length: count,
                });
                at += count;
            }
        }
        pieces
    }
}

/// One contiguous copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) host: *mut u8,
    pub(crate) address: usize,
    pub(crate) length: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::Segments;

    #[test]
    fn a_payload_is_cut_where_either_list_ends() {
        let (host, device) = (Region::allocate(64).unwrap(), Region::allocate(64).unwrap());
        let mut staged = Segments::with_capacity(2);
        staged.push(&host, 40, 10).unwrap();
        staged.push(&host, 0, 20).unwrap();
        let mut ranges = DeviceRanges::with_capacity(3);
        ranges.push(&device, 8, 4).unwrap();
        ranges.push(&device, 12, 2).unwrap();
        ranges.skip(3);
        ranges.push(&device, 0, 8).unwrap();
        ranges.push(&device, 30, 13).unwrap();
        assert!(ranges.push(&device, 60, 5).is_err());
        assert_eq!((ranges.payload_bytes(), ranges.count()), (30, 3));
        let (from, to) = (host.base(), device.base().addr());
        let pieces = ranges.pieces(staged.spans());
        let seen: Vec<(usize, usize, usize)> = pieces
            .iter()
            .map(|piece| {
                (
                    piece.host.addr() - from.addr(),
                    piece.address - to,
                    piece.length,
                )
            })
            .collect();
        assert_eq!(
            seen,
            [(40, 8, 6), (49, 0, 1), (0, 1, 7), (7, 30, 13)],
            "host offset, device offset, bytes"
        );
    }
}

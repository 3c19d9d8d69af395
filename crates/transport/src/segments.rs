//! Lists of memory ranges: the source of a send, and what is lent to a receive. The client builds
//! them from block tables and staging memory.
//!
//! Invariant: every range was checked against its region when it was added, and the regions live as
//! long as the list.

use std::sync::Arc;

use tessera_proto::Checksum;

use crate::region::Region;

/// Why a range cannot be part of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The caller computed a range outside the memory that it registered.
    #[error("bytes {offset}+{length} lie outside a region of {region} bytes: check the layout")]
    OutOfRegion {
        /// First byte of the range.
        offset: usize,
        /// Bytes in the range.
        length: usize,
        /// Bytes in the region.
        region: usize,
    },
    /// Memory of a device, which host code cannot reach.
    #[error("the memory lives on a device: only the device can copy from and to it")]
    OnDevice,
    /// The caller's list names memory twice.
    #[error("{length} bytes at {address:#x} are in one list twice: check the block table")]
    Overlap {
        /// The first such byte.
        address: usize,
        /// How many.
        length: usize,
    },
    /// Somebody else may write the memory.
    #[error(
        "{length} bytes at {address:#x} are lent to an operation that is not over: they come back \
         with its completion"
    )]
    Lent {
        /// The first such byte.
        address: usize,
        /// How many.
        length: usize,
    },
    /// A copy between lists and buffers of different lengths.
    #[error("{have} bytes cannot be copied into {want} bytes: lengths must be equal")]
    Length {
        /// Bytes at the source.
        have: u64,
        /// Bytes at the destination.
        want: u64,
    },
}

/// One contiguous range. Lives only inside a list that keeps its region alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
}

impl Span {
    /// The first `most` bytes, or all where there are fewer.
    pub(crate) fn first(self, most: usize) -> Self {
        Self {
            base: self.base,
            length: self.length.min(most),
        }
    }

    /// What is left behind the first `length` bytes, of which there are so many.
    pub(crate) const fn after(self, length: usize) -> Self {
        Self {
            base: self.base.wrapping_add(length),
            length: self.length - length,
        }
    }
}

/// Where the bytes of one payload lie, in order.
#[derive(Debug, Default)]
pub struct Segments {
    spans: Vec<Span>,
    regions: Vec<Arc<Region>>,
    length_bytes: u64,
}

// SAFETY: a span is an address inside a region of `regions`, which is Send and Sync; the list
// itself gives out no reference to the bytes.
unsafe impl Send for Segments {}
// SAFETY: as above.
unsafe impl Sync for Segments {}

impl Segments {
    /// An empty list with room for `count` ranges.
    pub fn with_capacity(count: usize) -> Self {
        Self {
            spans: Vec::with_capacity(count),
            regions: Vec::new(),
            length_bytes: 0,
        }
    }

    /// The whole of one region.
    ///
    /// # Panics
    /// When the region lives on a device.
    pub fn whole(region: &Arc<Region>) -> Self {
        assert!(region.is_host(), "host code cannot reach device memory");
        let span = Span {
            base: region.base(),
            length: region.length_bytes(),
        };
        Self {
            spans: vec![span],
            regions: vec![Arc::clone(region)],
            length_bytes: span.length as u64,
        }
    }

    /// Appends `length` bytes at `offset` of `region`. A range that continues the last one joins
    /// it.
    ///
    /// # Errors
    /// [`SegmentError::OutOfRegion`] when the range is not inside the region; the list is
    /// unchanged. [`SegmentError::OnDevice`] when the host cannot reach it.
    pub fn push(
        &mut self,
        region: &Arc<Region>,
        offset: usize,
        length: usize,
    ) -> Result<(), SegmentError> {
        if !region.is_host() {
            return Err(SegmentError::OnDevice);
        }
        let base = region
            .range(offset, length)
            .ok_or(SegmentError::OutOfRegion {
                offset,
                length,
                region: region.length_bytes(),
            })?;
        if length == 0 {
            return Ok(());
        }
        let same_region = self
            .regions
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, region));
        if !same_region {
            self.regions.push(Arc::clone(region));
        }
        self.length_bytes += length as u64;
        match self.spans.last_mut() {
            Some(last) if same_region && last.base.wrapping_add(last.length) == base.as_ptr() => {
                last.length += length;
            }
            _ => self.spans.push(Span {
                base: base.as_ptr(),
                length,
            }),
        }
        Ok(())
    }

    /// Bytes in all ranges together.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Number of separate ranges.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// The checksum over the bytes in order, as an object header carries it.
    pub fn checksum(&self) -> u64 {
        let mut checksum = Checksum::new();
        for span in &self.spans {
            // SAFETY: see `span_bytes`; the reference ends with this statement.
            checksum.update(unsafe { span_bytes(span) });
        }
        checksum.finish()
    }

    /// A checksum for each of `lengths`, over as many bytes, one behind the other. Bytes that are
    /// not there are not in it.
    pub fn checksums(&self, lengths: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut spans = self.spans.iter().copied();
        let mut left: Option<Span> = None;
        let sum = |length_bytes| {
            let mut checksum = Checksum::new();
            let mut wanted = usize::try_from(length_bytes).unwrap_or(usize::MAX);
            while wanted > 0
                && let Some(span) = left.take().or_else(|| spans.next())
            {
                let length = span.length.min(wanted);
                // SAFETY: a beginning of the span, which see `span_bytes`; the reference ends with
                // this statement.
                checksum.update(unsafe { span_bytes(&Span { length, ..span }) });
                left = (length < span.length).then(|| span.after(length));
                wanted -= length;
            }
            checksum.finish()
        };
        lengths.into_iter().map(sum).collect()
    }

    /// Copies all bytes into `to`.
    ///
    /// # Errors
    /// [`SegmentError::Length`] when `to` has another length; nothing was copied.
    pub fn copy_to(&self, to: &mut [u8]) -> Result<(), SegmentError> {
        self.check_length(to.len())?;
        let mut rest = to;
        for span in &self.spans {
            let (part, tail) = rest.split_at_mut(span.length);
            // SAFETY: the span is mapped (its region is in `self.regions`) and `part` has its
            // length.
            unsafe { std::ptr::copy_nonoverlapping(span.base, part.as_mut_ptr(), span.length) };
            rest = tail;
        }
        Ok(())
    }

    pub(crate) fn check_length(&self, other: usize) -> Result<(), SegmentError> {
        if self.length_bytes == other as u64 {
            return Ok(());
        }
        Err(SegmentError::Length {
            have: self.length_bytes,
            want: other as u64,
        })
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }
}

/// The bytes of one span.
///
/// # Safety
/// The list that holds the span is alive, and the caller ends the reference before it gives the
/// list away. Exclusion against writers is the duty of whoever registered the region.
pub(crate) unsafe fn span_bytes<'a>(span: &Span) -> &'a [u8] {
    // SAFETY: the span was checked against a region that the list keeps mapped.
    unsafe { std::slice::from_raw_parts(span.base, span.length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_proto::checksum;

    use crate::lent::Lent;

    fn scattered(region: &Arc<Region>) -> Segments {
        let mut segments = Segments::with_capacity(3);
        for (offset, length) in [(40, 10), (0, 7), (20, 3)] {
            segments.push(region, offset, length).unwrap();
        }
        segments
    }

    #[test]
    fn the_checksum_does_not_depend_on_how_the_bytes_are_cut() {
        let region = Region::allocate(64).unwrap();
        let mut lent = Lent::new(scattered(&region)).unwrap();
        let pattern: Vec<u8> = (1..=20).collect();
        lent.copy_from(&pattern).unwrap();
        let mut whole = Checksum::new();
        whole.update(&pattern);
        assert_eq!(lent.checksum(), whole.finish());
    }

    #[test]
    fn a_checksum_for_each_length_covers_its_bytes_and_no_others() {
        let region = Region::allocate(64).unwrap();
        let mut lent = Lent::new(scattered(&region)).unwrap();
        let pattern: Vec<u8> = (1..=20).collect();
        lent.copy_from(&pattern).unwrap();
        let segments = lent.into_segments();
        for lengths in [
            vec![20],
            vec![4, 4, 4, 4, 4],
            vec![10, 7, 3],
            vec![9, 0, 10, 1],
            vec![5],
        ] {
            let mut at = 0;
            let cut = lengths.iter().map(|length| {
                at += length;
                checksum(&pattern[at - length..at])
            });
            let cut: Vec<u64> = cut.collect();
            let lengths = lengths.iter().map(|length| u64::try_from(*length).unwrap());
            assert_eq!(segments.checksums(lengths), cut);
        }
    }

    #[test]
    fn neighbours_join_and_strangers_are_refused() {
        let region = Region::allocate(64).unwrap();
        let mut segments = Segments::default();
        segments.push(&region, 0, 8).unwrap();
        segments.push(&region, 8, 8).unwrap();
        segments.push(&region, 32, 0).unwrap();
        assert_eq!((segments.count(), segments.length_bytes()), (1, 16));
        assert!(segments.push(&region, 60, 5).is_err());
        assert_eq!((segments.count(), segments.length_bytes()), (1, 16));
    }

    #[test]
    fn a_list_keeps_its_region_mapped() {
        let region = Region::allocate(16).unwrap();
        let weak = Arc::downgrade(&region);
        let lent = Lent::new(Segments::whole(&region)).unwrap();
        drop(region);
        assert!(weak.upgrade().is_some());
        drop(lent);
        assert!(weak.upgrade().is_none());
    }
}

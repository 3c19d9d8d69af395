//! Memory lent to one operation: the destination of a receive, or of a copy out of a device.
//!
//! Made by the client from block tables and staging memory, moved into the operation, and given
//! back by its completion. The invariant: while a [`Lent`] lives, no other one has any of its
//! bytes.

use std::ptr;

use tessera_proto::Checksum;

use crate::loans::Loan;
use crate::segments::{SegmentError, Segments, Span, span_bytes};

/// Bytes that the checksum of a copy reads before they are copied. It reads memory faster than a
/// copy does, which then finds them in the nearest cache.
const PIECE_BYTES: usize = 4 << 10;

/// Memory lent to one operation. It is moved into the operation and comes back with its completion;
/// only then may anybody else touch the bytes.
///
/// Whoever drops the completion never gets it back: the bytes stay lent, and no other list can have
/// them, until the operation is over; for ever, if nothing can say that it is.
///
/// # What does not compile
///
/// This is how it is used, and each example below differs from it in one line:
///
/// ```
/// use tessera_transport::{Device, DeviceLost, DeviceRanges, Lent};
///
/// fn read(device: &dyn Device, from: DeviceRanges, lent: Lent) -> Result<u64, DeviceLost> {
///     let pending = device.read(from, lent);
///     let (_done, lent) = pending.wait()?;
///     Ok(lent.checksum())
/// }
/// ```
///
/// It cannot be read while the operation has it:
///
/// ```compile_fail,E0382
/// use tessera_transport::{Device, DeviceLost, DeviceRanges, Lent};
///
/// fn read(device: &dyn Device, from: DeviceRanges, lent: Lent) -> Result<u64, DeviceLost> {
///     let pending = device.read(from, lent);
///     let (_done, _back) = pending.wait()?;
///     Ok(lent.checksum())
/// }
/// ```
///
/// It cannot be given to two operations, since there is no copy of it:
///
/// ```compile_fail,E0599
/// use tessera_transport::{Device, DeviceLost, DeviceRanges, Lent};
///
/// fn read(device: &dyn Device, from: DeviceRanges, lent: Lent) -> Result<u64, DeviceLost> {
///     let pending = device.read(from, lent.clone());
///     let (_done, lent) = pending.wait()?;
///     Ok(lent.checksum())
/// }
/// ```
///
/// It cannot be taken out of an operation that is not over:
///
/// ```compile_fail,E0308
/// use tessera_transport::{Device, DeviceLost, DeviceRanges, Lent};
///
/// fn read(device: &dyn Device, from: DeviceRanges, lent: Lent) -> Result<u64, DeviceLost> {
///     let pending = device.read(from, lent);
///     let (_done, lent) = pending;
///     Ok(lent.checksum())
/// }
/// ```
///
/// Nor out of one whose completion was used:
///
/// ```compile_fail,E0382
/// use tessera_transport::{Device, DeviceLost, DeviceRanges, Lent};
///
/// fn read(device: &dyn Device, from: DeviceRanges, lent: Lent) -> Result<u64, DeviceLost> {
///     let pending = device.read(from, lent);
///     let (_done, _back) = pending.wait()?;
///     let (_done, lent) = pending.wait()?;
///     Ok(lent.checksum())
/// }
/// ```
///
/// A receive borrows it for as long as it may write. This compiles:
///
/// ```
/// use tessera_transport::{Lent, LinkError, Receiver};
/// use tokio::time::Instant;
///
/// async fn receive(from: &mut Receiver, lent: &mut Lent, until: Instant) -> Result<u64, LinkError>
/// { let receiving = from.payload_scatter(lent, until); receiving.await?; let seen =
/// lent.checksum(); Ok(seen) }
/// ```
///
/// And this does not:
///
/// ```compile_fail,E0502
/// use tessera_transport::{Lent, LinkError, Receiver};
/// use tokio::time::Instant;
///
/// async fn receive(from: &mut Receiver, lent: &mut Lent, until: Instant) -> Result<u64, LinkError>
/// { let receiving = from.payload_scatter(lent, until); let seen = lent.checksum();
/// receiving.await?; Ok(seen) }
/// ```
#[derive(Debug)]
pub struct Lent {
    // Dropped first: the loan ends while the memory is still there.
    loan: Loan,
    segments: Segments,
}

impl Lent {
    /// Lends the ranges of `segments`.
    ///
    /// # Errors
    /// [`SegmentError::Overlap`] if they overlap one another, [`SegmentError::Lent`] if they are
    /// lent already, to an operation that is not over.
    pub fn new(segments: Segments) -> Result<Self, SegmentError> {
        let ranges = segments.spans().iter().map(|span| {
            let start = span.base.addr();
            start..start + span.length
        });
        let loan = Loan::of(ranges.collect())?;
        Ok(Self { loan, segments })
    }

    /// Bytes in all ranges together.
    pub fn length_bytes(&self) -> u64 {
        self.segments.length_bytes()
    }

    /// The checksum over the bytes in order.
    pub fn checksum(&self) -> u64 {
        self.segments.checksum()
    }

    /// Copies all bytes out into `to`.
    ///
    /// # Errors
    /// [`SegmentError::Length`] when `to` has another length; nothing was copied.
    pub fn copy_to(&self, to: &mut [u8]) -> Result<(), SegmentError> {
        self.segments.copy_to(to)
    }

    /// Fills all ranges from `from`.
    ///
    /// # Errors
    /// [`SegmentError::Length`] when `from` has another length; nothing was copied.
    pub fn copy_from(&mut self, from: &[u8]) -> Result<(), SegmentError> {
        self.segments.check_length(from.len())?;
        let mut rest = from;
        for span in self.segments.spans() {
            let (part, tail) = rest.split_at(span.length);
            // SAFETY: the span is mapped, `part` has its length, and `&mut self` is the right to
            // write.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), span.base, span.length) };
            rest = tail;
        }
        Ok(())
    }

    /// Fills all ranges with zeros.
    pub fn clear(&mut self) {
        for span in self.segments.spans() {
            // SAFETY: the span is mapped, and `&mut self` is the right to write.
            unsafe { ptr::write_bytes(span.base, 0, span.length) };
        }
    }

    /// Fills all ranges from `from`, however the two lists are cut, and returns the checksum of the
    /// bytes that were copied. If somebody writes the source meanwhile, it may not be that of what
    /// landed, and whoever verifies it there refuses the copy: a torn one is never vouched for.
    ///
    /// # Errors
    /// [`SegmentError::Length`] when `from` has another length; nothing was copied.
    pub fn copy_from_segments(&mut self, from: &Segments) -> Result<u64, SegmentError> {
        from.check_length(usize::try_from(self.length_bytes()).unwrap_or(usize::MAX))?;
        let mut checksum = Checksum::new();
        let mut sources = from.spans().iter().copied();
        let mut source = Span {
            base: ptr::null_mut(),
            length: 0,
        };
        for span in self.segments.spans() {
            let mut at = *span;
            while at.length > 0 {
                if source.length == 0 {
                    source = sources.next().expect("both lists have one length");
                }
                let piece = source.first(at.length.min(PIECE_BYTES));
                // SAFETY: see `span_bytes`; the reference ends with this statement.
                checksum.update(unsafe { span_bytes(&piece) });
                // SAFETY: both ranges are inside spans that their lists keep mapped, and
                // `&mut self` is the right to write; the two may overlap, which `copy` allows.
                unsafe { ptr::copy(piece.base, at.base, piece.length) };
                at = at.after(piece.length);
                source = source.after(piece.length);
            }
        }
        Ok(checksum.finish())
    }

    /// The ranges, to be read from now on.
    pub fn into_segments(self) -> Segments {
        let Self { loan, segments } = self;
        drop(loan);
        segments
    }

    pub(crate) fn spans(&self) -> &[Span] {
        self.segments.spans()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use tessera_proto::checksum;

    use super::*;
    use crate::region::Region;

    fn scattered(region: &Arc<Region>) -> Segments {
        let mut segments = Segments::with_capacity(3);
        for (offset, length) in [(40, 10), (0, 7), (20, 3)] {
            segments.push(region, offset, length).unwrap();
        }
        segments
    }

    #[test]
    fn bytes_come_back_in_the_order_of_the_list() {
        let region = Region::allocate(64).unwrap();
        let mut lent = Lent::new(scattered(&region)).unwrap();
        let pattern: Vec<u8> = (1..=20).collect();
        lent.copy_from(&pattern).unwrap();
        let mut whole = [0u8; 64];
        Segments::whole(&region).copy_to(&mut whole).unwrap();
        assert_eq!(&whole[40..50], &pattern[..10]);
        assert_eq!(&whole[0..7], &pattern[10..17]);
        assert_eq!(&whole[20..23], &pattern[17..]);
        let mut back = [0u8; 20];
        lent.copy_to(&mut back).unwrap();
        assert_eq!(back[..], pattern);
    }

    #[test]
    fn clearing_touches_what_is_lent_and_nothing_else() {
        let region = Region::allocate(64).unwrap();
        let mut whole = Lent::new(Segments::whole(&region)).unwrap();
        whole.copy_from(&[7; 64]).unwrap();
        drop(whole);
        Lent::new(scattered(&region)).unwrap().clear();
        let mut bytes = [0u8; 64];
        Segments::whole(&region).copy_to(&mut bytes).unwrap();
        for (at, byte) in bytes.into_iter().enumerate() {
            let is_lent = matches!(at, 0..7 | 20..23 | 40..50);
            assert_eq!(byte, if is_lent { 0 } else { 7 }, "byte {at}");
        }
    }

    #[test]
    fn lists_that_are_cut_differently_copy_in_order() {
        let (from, to) = (Region::allocate(64).unwrap(), Region::allocate(64).unwrap());
        let pattern: Vec<u8> = (1..=20).collect();
        let mut filled = Lent::new(scattered(&from)).unwrap();
        filled.copy_from(&pattern).unwrap();
        let mut other = Segments::with_capacity(3);
        for (offset, length) in [(3, 4), (30, 15), (60, 1)] {
            other.push(&to, offset, length).unwrap();
        }
        let mut copy = Lent::new(other).unwrap();
        let sum = copy.copy_from_segments(&filled.into_segments()).unwrap();
        assert_eq!(sum, checksum(&pattern));
        let mut back = [0u8; 20];
        copy.copy_to(&mut back).unwrap();
        assert_eq!(back[..], pattern);
        assert!(copy.copy_from_segments(&Segments::whole(&from)).is_err());
    }

    #[test]
    fn a_copy_of_another_length_touches_nothing() {
        let region = Region::allocate(16).unwrap();
        let mut lent = Lent::new(Segments::whole(&region)).unwrap();
        assert!(lent.copy_from(&[1; 15]).is_err());
        let mut back = [9u8; 16];
        lent.copy_to(&mut back).unwrap();
        assert_eq!(back, [0; 16]);
        assert!(lent.copy_to(&mut [0; 17]).is_err());
    }

    #[test]
    fn bytes_are_lent_to_one_and_come_back_with_it() {
        let region = Region::allocate(64).unwrap();
        let lent = Lent::new(scattered(&region)).unwrap();
        let refused = Lent::new(Segments::whole(&region)).unwrap_err();
        assert!(matches!(refused, SegmentError::Lent { .. }), "{refused}");
        let mut beside = Segments::with_capacity(1);
        beside.push(&region, 50, 14).unwrap();
        assert!(Lent::new(beside).is_ok());
        let segments = lent.into_segments();
        let again = Lent::new(segments).unwrap();
        drop(again);
        assert!(Lent::new(Segments::whole(&region)).is_ok());
    }

    #[test]
    fn a_list_with_one_byte_twice_is_refused_and_lends_nothing() {
        let region = Region::allocate(64).unwrap();
        let mut twice = scattered(&region);
        twice.push(&region, 6, 4).unwrap();
        let refused = Lent::new(twice).unwrap_err();
        let address = region.base().addr() + 6;
        assert_eq!(refused, SegmentError::Overlap { address, length: 1 });
        assert!(Lent::new(Segments::whole(&region)).is_ok());
    }

    /// Ranges with these lengths and gaps, the last one cut to `length` bytes in all.
    fn cut(cuts: &[(usize, usize)], length: usize) -> Segments {
        let room = length + cuts.iter().map(|(_, gap)| gap).sum::<usize>();
        let region = Region::allocate(room.max(1)).unwrap();
        let mut segments = Segments::with_capacity(cuts.len() + 1);
        let (mut at, mut left) = (0, length);
        for (piece, gap) in cuts {
            let piece = left.min(*piece);
            segments.push(&region, at, piece).unwrap();
            (at, left) = (at + piece + gap, left - piece);
        }
        segments.push(&region, at, left).unwrap();
        segments
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_copy_returns_the_checksum_of_its_bytes_however_both_lists_are_cut(
            length in prop_oneof![0_usize..2_000, 1..30 * PIECE_BYTES],
            from in vec((1_usize..3 * PIECE_BYTES, 1_usize..100), 0..12),
            to in vec((1_usize..3 * PIECE_BYTES, 1_usize..100), 0..12),
            seed in any::<usize>(),
        ) {
            let pattern: Vec<u8> = (0..length)
                .map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 9)).to_le_bytes()[0])
                .collect();
            let mut source = Lent::new(cut(&from, length)).unwrap();
            source.copy_from(&pattern).unwrap();
            let mut copy = Lent::new(cut(&to, length)).unwrap();
            let sum = copy.copy_from_segments(&source.into_segments()).unwrap();
            let mut landed = vec![0; length];
            copy.copy_to(&mut landed).unwrap();
            prop_assert!(landed == pattern, "bytes differ");
            prop_assert_eq!(sum, checksum(&landed));
            prop_assert_eq!(sum, copy.checksum());
        }
    }
}

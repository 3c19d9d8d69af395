//! Memory lent to one operation: the destination of a receive, or of a copy out of a device.
//!
//! Made by the client from block tables and staging memory. The invariant: a [`Lent`] cannot be
//! cloned, so that whoever holds it is the only one who may write.

use std::ptr;

use crate::segments::{SegmentError, Segments, Span};

/// Memory lent to one receive. It is moved into the operation and comes back with its completion;
/// only then may anybody else touch the bytes.
#[derive(Debug)]
pub struct Lent {
    segments: Segments,
}

impl Lent {
    /// Lends the ranges of `segments`, which must not overlap one another.
    pub fn new(segments: Segments) -> Self {
        Self { segments }
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

    /// Fills all ranges from `from`, however the two lists are cut.
    ///
    /// # Errors
    /// [`SegmentError::Length`] when `from` has another length; nothing was copied.
    pub fn copy_from_segments(&mut self, from: &Segments) -> Result<(), SegmentError> {
        from.check_length(usize::try_from(self.length_bytes()).unwrap_or(usize::MAX))?;
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
                let length = at.length.min(source.length);
                // SAFETY: both ranges are inside spans that their lists keep mapped, and
                // `&mut self` is the right to write; the two may overlap, which `copy` allows.
                unsafe { ptr::copy(source.base, at.base, length) };
                at = at.after(length);
                source = source.after(length);
            }
        }
        Ok(())
    }

    /// The ranges, to be read from now on.
    pub fn into_segments(self) -> Segments {
        self.segments
    }

    pub(crate) fn spans(&self) -> &[Span] {
        self.segments.spans()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
        let mut lent = Lent::new(scattered(&region));
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
    fn lists_that_are_cut_differently_copy_in_order() {
        let (from, to) = (Region::allocate(64).unwrap(), Region::allocate(64).unwrap());
        let pattern: Vec<u8> = (1..=20).collect();
        let mut filled = Lent::new(scattered(&from));
        filled.copy_from(&pattern).unwrap();
        let mut other = Segments::with_capacity(3);
        for (offset, length) in [(3, 4), (30, 15), (60, 1)] {
            other.push(&to, offset, length).unwrap();
        }
        let mut copy = Lent::new(other);
        copy.copy_from_segments(&filled.into_segments()).unwrap();
        let mut back = [0u8; 20];
        copy.copy_to(&mut back).unwrap();
        assert_eq!(back[..], pattern);
        assert!(copy.copy_from_segments(&Segments::whole(&from)).is_err());
    }

    #[test]
    fn a_copy_of_another_length_touches_nothing() {
        let region = Region::allocate(16).unwrap();
        let mut lent = Lent::new(Segments::whole(&region));
        assert!(lent.copy_from(&[1; 15]).is_err());
        let mut back = [9u8; 16];
        lent.copy_to(&mut back).unwrap();
        assert_eq!(back, [0; 16]);
        assert!(lent.copy_to(&mut [0; 17]).is_err());
    }
}

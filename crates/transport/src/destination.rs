//! Where a receiver puts payload bytes: one buffer, lent segments, or nowhere.
//!
//! Called by the receiver only. Invariant: a destination never offers a byte that it has taken
//! already, and folds every byte it takes into the checksum while the byte is in the cache.

use std::io::IoSliceMut;

use tessera_proto::Checksum;

use crate::gather::VECTOR_SLICES;
use crate::lent::Lent;
use crate::segments::Span;

/// Ranges of one vectored read, with room for the read-ahead at the end.
pub(crate) struct SliceList<'a> {
    slices: [IoSliceMut<'a>; VECTOR_SLICES],
    count: usize,
    bytes: usize,
}

impl<'a> SliceList<'a> {
    pub(crate) fn new() -> Self {
        Self {
            slices: std::array::from_fn(|_| IoSliceMut::new(&mut [])),
            count: 0,
            bytes: 0,
        }
    }

    /// Appends `slice`, unless it is empty.
    pub(crate) fn push(&mut self, slice: &'a mut [u8]) {
        if !slice.is_empty() {
            self.bytes += slice.len();
            self.slices[self.count] = IoSliceMut::new(slice);
            self.count += 1;
        }
    }

    /// Whether only the place of the read-ahead is left, or `quantum` bytes are offered.
    fn is_full(&self, quantum: usize) -> bool {
        self.count + 1 >= VECTOR_SLICES || self.bytes >= quantum
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn as_mut(&mut self) -> &mut [IoSliceMut<'a>] {
        &mut self.slices[..self.count]
    }
}

/// Takes `remaining` bytes in order.
pub(crate) trait Destination {
    /// Bytes still to take.
    fn remaining(&self) -> u64;

    /// Offers the next ranges, about `quantum` bytes of them.
    fn offer<'a>(&'a mut self, list: &mut SliceList<'a>, quantum: usize);

    /// The next `count` bytes of the offer were filled.
    fn taken(&mut self, count: usize, checksum: &mut Checksum);

    /// Copies from the front of `bytes`; returns how many it took.
    fn copy_in(&mut self, bytes: &[u8], checksum: &mut Checksum) -> usize;
}

/// One buffer.
pub(crate) struct Buffer<'b> {
    bytes: &'b mut [u8],
    filled: usize,
}

impl<'b> Buffer<'b> {
    pub(crate) fn new(bytes: &'b mut [u8]) -> Self {
        Self { bytes, filled: 0 }
    }
}

impl Destination for Buffer<'_> {
    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.filled) as u64
    }

    fn offer<'a>(&'a mut self, list: &mut SliceList<'a>, quantum: usize) {
        let rest = &mut self.bytes[self.filled..];
        let length = rest.len().min(quantum);
        list.push(&mut rest[..length]);
    }

    fn taken(&mut self, count: usize, checksum: &mut Checksum) {
        checksum.update(&self.bytes[self.filled..self.filled + count]);
        self.filled += count;
    }

    fn copy_in(&mut self, bytes: &[u8], checksum: &mut Checksum) -> usize {
        let count = bytes.len().min(self.bytes.len() - self.filled);
        self.bytes[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
        self.taken(count, checksum);
        count
    }
}

/// Lent segments.
pub(crate) struct Scatter<'l> {
    lent: &'l mut Lent,
    span: usize,
    offset: usize,
    remaining: u64,
}

impl<'l> Scatter<'l> {
    pub(crate) fn new(lent: &'l mut Lent) -> Self {
        let remaining = lent.length_bytes();
        Self {
            lent,
            span: 0,
            offset: 0,
            remaining,
        }
    }

    /// Calls `each` with the ranges of the next `count` bytes and moves past them.
    fn walk(&mut self, mut count: usize, mut each: impl FnMut(Span)) {
        self.remaining -= count as u64;
        while count > 0 {
            let span = self.lent.spans()[self.span];
            let length = count.min(span.length - self.offset);
            each(Span {
                base: span.base.wrapping_add(self.offset),
                length,
            });
            count -= length;
            self.offset += length;
            if self.offset == span.length {
                self.span += 1;
                self.offset = 0;
            }
        }
    }
}

impl Destination for Scatter<'_> {
    fn remaining(&self) -> u64 {
        self.remaining
    }

    fn offer<'a>(&'a mut self, list: &mut SliceList<'a>, quantum: usize) {
        let mut offset = self.offset;
        for span in &self.lent.spans()[self.span..] {
            if list.is_full(quantum) {
                break;
            }
            let length = (span.length - offset).min(quantum);
            // SAFETY: the span lies in a region that the list keeps mapped, `&'a mut self` is the
            // only right to write it, and the slice ends with the system call it is used for.
            let rest =
                unsafe { std::slice::from_raw_parts_mut(span.base.wrapping_add(offset), length) };
            list.push(rest);
            if offset + length < span.length {
                break;
            }
            offset = 0;
        }
    }

    fn taken(&mut self, count: usize, checksum: &mut Checksum) {
        self.walk(count, |span| {
            // SAFETY: as in `offer`; the reference ends with the update.
            checksum.update(unsafe { std::slice::from_raw_parts(span.base, span.length) });
        });
    }

    fn copy_in(&mut self, bytes: &[u8], checksum: &mut Checksum) -> usize {
        let count = bytes
            .len()
            .min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        let mut rest = &bytes[..count];
        self.walk(count, |span| {
            let (part, tail) = rest.split_at(span.length);
            // SAFETY: as in `offer`; `part` has the length of the span and is no region memory.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), span.base, span.length) };
            checksum.update(part);
            rest = tail;
        });
        count
    }
}

/// Bytes that nobody wants, read through a scratch buffer.
pub(crate) struct Discard<'b> {
    scratch: &'b mut [u8],
    remaining: u64,
}

impl<'b> Discard<'b> {
    pub(crate) fn new(scratch: &'b mut [u8], remaining: u64) -> Self {
        Self { scratch, remaining }
    }

    fn capped(&self, length: usize) -> usize {
        length.min(usize::try_from(self.remaining).unwrap_or(usize::MAX))
    }
}

impl Destination for Discard<'_> {
    fn remaining(&self) -> u64 {
        self.remaining
    }

    fn offer<'a>(&'a mut self, list: &mut SliceList<'a>, _quantum: usize) {
        let length = self.capped(self.scratch.len());
        list.push(&mut self.scratch[..length]);
    }

    fn taken(&mut self, count: usize, _checksum: &mut Checksum) {
        self.remaining -= count as u64;
    }

    fn copy_in(&mut self, bytes: &[u8], _checksum: &mut Checksum) -> usize {
        let count = self.capped(bytes.len());
        self.remaining -= count as u64;
        count
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tessera_proto::checksum;

    use super::*;
    use crate::region::Region;
    use crate::segments::Segments;

    /// Ranges with these lengths, each followed by a gap.
    fn lent(lengths: &[usize]) -> Lent {
        let total: usize = lengths.iter().sum();
        let region = Region::allocate(total + lengths.len()).unwrap();
        let mut segments = Segments::with_capacity(lengths.len());
        let mut at = 0;
        for length in lengths {
            segments.push(&region, at, *length).unwrap();
            at += length + 1;
        }
        Lent::new(segments).unwrap()
    }

    /// Fills the front of an offer as a socket would; returns how much it took.
    fn arrive(list: &mut SliceList<'_>, bytes: &[u8], count: usize) -> usize {
        let count = count.min(list.bytes()).min(bytes.len());
        let mut rest = &bytes[..count];
        for slice in list.as_mut() {
            let (part, tail) = rest.split_at(rest.len().min(slice.len()));
            slice[..part.len()].copy_from_slice(part);
            rest = tail;
        }
        count
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_taken_gives_the_checksum_of_what_lies_there_however_it_arrives(
            lengths in vec(1_usize..600, 1..60),
            ahead in 0_usize..1_000,
            arrivals in vec(1_usize..3_000, 1..20),
            quantum in 1_usize..2_000,
        ) {
            let total: usize = lengths.iter().sum();
            let byte = |at: usize| (at * 31 + at / 257).to_le_bytes()[0];
            let bytes: Vec<u8> = (0..total).map(byte).collect();
            let mut lent = lent(&lengths);
            let mut scatter = Scatter::new(&mut lent);
            let mut running = Checksum::new();
            let mut at = scatter.copy_in(&bytes[..ahead.min(total)], &mut running);
            for count in arrivals.into_iter().cycle() {
                prop_assert_eq!(scatter.remaining(), (total - at) as u64);
                if at == total {
                    break;
                }
                let mut list = SliceList::new();
                scatter.offer(&mut list, quantum);
                let count = arrive(&mut list, &bytes[at..], count);
                scatter.taken(count, &mut running);
                at += count;
            }
            prop_assert_eq!(running.finish(), checksum(&bytes));
            prop_assert_eq!(lent.checksum(), checksum(&bytes));
        }
    }
}

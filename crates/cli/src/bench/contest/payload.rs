//! The bytes of the objects of a contest, and whether they arrived.
//!
//! Called by the contestants that own plain memory, and for their checks by all. Invariant: no two
//! objects of a pass have the same bytes, and every object is wider than what marks it.

use std::ops::Range;

use anyhow::{Result, ensure};

/// Bytes that one pass moves, and of each arena: no cache holds them.
pub(crate) const SET_BYTES: usize = 256 << 20;
/// Every so many objects one is compared, byte by byte, outside of what is timed.
pub(crate) const SAMPLE: usize = 16;

/// Where objects come from and where they land.
pub(crate) struct Memory {
    pub(crate) source: Vec<u8>,
    pub(crate) destination: Vec<u8>,
    pub(crate) object_bytes: usize,
}

impl Memory {
    /// Both arenas, every page touched.
    pub(crate) fn allocate() -> Self {
        let mut source = vec![0; SET_BYTES];
        for (number, page) in source.chunks_exact_mut(4096).enumerate() {
            fill(page, number);
        }
        Self {
            source,
            destination: vec![1; SET_BYTES],
            object_bytes: 0,
        }
    }

    /// Objects in an arena.
    pub(crate) fn count(&self) -> usize {
        SET_BYTES / self.object_bytes
    }

    /// Where object `number` lies in an arena.
    pub(crate) fn place(&self, number: usize) -> Range<usize> {
        let begin = number % self.count() * self.object_bytes;
        begin..begin + self.object_bytes
    }

    /// Makes sure that what is found later has arrived later.
    pub(crate) fn forget(&mut self) {
        for number in (0..self.count()).step_by(SAMPLE) {
            let place = self.place(number);
            self.destination[place].fill(0);
        }
    }

    /// Compares a sample of what has arrived.
    pub(crate) fn check(&self) -> Result<()> {
        for number in (0..self.count()).step_by(SAMPLE) {
            let place = self.place(number);
            ensure!(
                self.source[place.clone()] == self.destination[place],
                "object {number} arrived with other bytes"
            );
        }
        Ok(())
    }
}

/// Other bytes for every number.
pub(crate) fn fill(page: &mut [u8], number: usize) {
    let seed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (at, word) in page.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&seed.wrapping_mul(at as u64 | 1).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_did_not_arrive_is_found() {
        let mut memory = Memory::allocate();
        memory.object_bytes = 1 << 20;
        memory.destination.copy_from_slice(&memory.source);
        memory.check().unwrap();
        let last = memory.place(SAMPLE).end - 1;
        memory.destination[last] ^= 1;
        assert!(memory.check().is_err());
        memory.destination[last] ^= 1;
        memory.forget();
        assert!(memory.check().is_err());
    }
}

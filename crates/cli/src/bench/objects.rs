//! The objects that the bench moves: 512 MiB of blocks in registered memory, named so that every
//! write is of a new object, with checksums that were computed before anything is measured.
//!
//! Called by the wire family. A connector computes an object's checksum while it gathers the
//! blocks, so the cost of a save on the wire is what is measured here, and not that.

use std::sync::Arc;

use anyhow::{Context, Result};
use tessera_client::{
    Expectation, KeyDigest, Lent, NamespaceDigest, ObjectHeader, ObjectId, Region, Segments,
    TenantTag, WriteId, checksum,
};

use super::floor::ARENA_BYTES;

const LAYOUT: u64 = 1;
const NAMESPACE: NamespaceDigest = NamespaceDigest([0xbe; 32]);

/// Blocks of one size over one source and one destination.
pub(crate) struct Objects {
    source: Arc<Region>,
    destination: Arc<Region>,
    block_bytes: usize,
    checksums: Vec<u64>,
}

/// The memory of all block sizes: faulted in once.
pub(crate) struct Memory {
    source: Arc<Region>,
    destination: Arc<Region>,
}

impl Memory {
    /// Two arenas of 512 MiB, every page touched.
    pub(crate) fn allocate() -> Result<Self> {
        let region = || Region::allocate(ARENA_BYTES).context("memory for the bench");
        let memory = Self {
            source: region()?,
            destination: region()?,
        };
        for region in [&memory.source, &memory.destination] {
            let mut block = vec![0; 1 << 20];
            for (number, offset) in (0..ARENA_BYTES).step_by(block.len()).enumerate() {
                fill(&mut block, number);
                Lent::new(segments(region, offset, block.len())?)?.copy_from(&block)?;
            }
        }
        Ok(memory)
    }
}

/// Different bytes for every number; nothing here depends on how random they are.
fn fill(block: &mut [u8], number: usize) {
    let seed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (at, word) in block.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&seed.wrapping_mul(at as u64 | 1).to_le_bytes());
    }
}

fn segments(region: &Arc<Region>, offset: usize, length: usize) -> Result<Segments> {
    let mut segments = Segments::with_capacity(1);
    segments.push(region, offset, length)?;
    Ok(segments)
}

impl Objects {
    pub(crate) fn new(memory: &Memory, block_bytes: usize) -> Result<Self> {
        let mut block = vec![0; block_bytes];
        let checksums = (0..ARENA_BYTES / block_bytes)
            .map(|index| {
                segments(&memory.source, index * block_bytes, block_bytes)?.copy_to(&mut block)?;
                Ok(checksum(&block))
            })
            .collect::<Result<_>>()?;
        let (source, destination) = (memory.source.clone(), memory.destination.clone());
        Ok(Self {
            source,
            destination,
            block_bytes,
            checksums,
        })
    }

    /// Blocks in an arena.
    pub(crate) fn count(&self) -> u64 {
        self.checksums.len() as u64
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// What object `number` says of itself. The first [`Objects::count`] are what is read; higher
    /// numbers are new objects with the bytes of the same blocks.
    pub(crate) fn header(&self, number: u64) -> ObjectHeader {
        ObjectHeader {
            namespace: NAMESPACE,
            key: self.key(number),
            layout: LAYOUT,
            length_bytes: self.block_bytes as u64,
            checksum: self.checksums[self.block(number)],
            write: WriteId(number),
            tenant: TenantTag::NONE,
        }
    }

    pub(crate) fn expectation(&self, number: u64) -> Expectation {
        Expectation {
            namespace: NAMESPACE,
            key: self.key(number),
            layout: LAYOUT,
            length_bytes: self.block_bytes as u64,
        }
    }

    pub(crate) fn id(&self, number: u64) -> ObjectId {
        self.key(number).object_id()
    }

    /// Where the bytes of object `number` lie.
    pub(crate) fn source(&self, number: u64) -> Segments {
        self.place(&self.source, number)
    }

    /// Where object `number` is to land.
    ///
    /// # Panics
    /// If another operation has it: at most one may.
    pub(crate) fn destination(&self, number: u64) -> Lent {
        let lent = Lent::new(self.place(&self.destination, number));
        lent.expect("one operation for each place")
    }

    /// Where object `number` lies in other memory, of the size of an arena.
    pub(crate) fn place_in<'a>(&self, arena: &'a mut [u8], number: u64) -> &'a mut [u8] {
        let offset = self.block(number) * self.block_bytes;
        &mut arena[offset..offset + self.block_bytes]
    }

    fn place(&self, region: &Arc<Region>, number: u64) -> Segments {
        let offset = self.block(number) * self.block_bytes;
        segments(region, offset, self.block_bytes).expect("a block lies inside the arena")
    }

    fn block(&self, number: u64) -> usize {
        usize::try_from(number % self.count()).expect("below the number of blocks")
    }

    fn key(&self, number: u64) -> KeyDigest {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key[8..16].copy_from_slice(&(self.block_bytes as u64).to_le_bytes());
        KeyDigest(key)
    }
}

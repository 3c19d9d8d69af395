//! Memory for objects on their way to a node.
//!
//! Called by the worker driver on the model thread. The invariant: a slot is used by one save at a
//! time and comes back when its store has ended, whatever the outcome; after a panic, which says
//! nothing of who still uses it, it stays taken. Full is a normal state: the object is not saved.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tessera_transport::{Region, Segments};

use crate::layout::Discard;

/// Slots start at multiples of this, so that copies run on whole cache lines.
const ALIGN: usize = 64;

/// The staging memory of one worker.
#[derive(Debug)]
pub(crate) struct Staging {
    region: Arc<Region>,
    free: Mutex<Free>,
}

/// Free ranges by offset; neighbours are joined.
#[derive(Debug)]
struct Free {
    ranges: BTreeMap<usize, usize>,
    bytes: usize,
}

/// A range of staging memory; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Slot {
    staging: Arc<Staging>,
    offset: usize,
    length: usize,
    size: usize,
}

impl Staging {
    /// Allocates `bytes` bytes at once.
    pub(crate) fn new(bytes: usize) -> std::io::Result<Arc<Self>> {
        let region = Region::allocate(bytes)?;
        let ranges = BTreeMap::from([(0, bytes)]);
        let free = Mutex::new(Free { ranges, bytes });
        Ok(Arc::new(Self { region, free }))
    }

    /// The lowest free range of `length` bytes, or `None` if there is none.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> Option<Slot> {
        let size = length.max(1).next_multiple_of(ALIGN);
        let mut free = self.free.lock();
        let fits = free.ranges.iter().find(|(_, have)| **have >= size);
        let (offset, have) = fits.map(|(offset, have)| (*offset, *have))?;
        free.ranges.remove(&offset);
        if have > size {
            free.ranges.insert(offset + size, have - size);
        }
        free.bytes -= size;
        Some(Slot {
            staging: Arc::clone(self),
            offset,
            length,
            size,
        })
    }

    /// The memory itself, for devices that can be told of it.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        let used = self.region.length_bytes() - self.free.lock().bytes;
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}

impl Slot {
    /// The slot as memory for bytes that nobody wants.
    pub(crate) fn discard(&self) -> Discard {
        Discard {
            region: Arc::clone(&self.staging.region),
            offset: self.offset,
        }
    }

    /// The bytes of the slot.
    pub(crate) fn segments(&self) -> Segments {
        let mut segments = Segments::with_capacity(1);
        let pushed = segments.push(&self.staging.region, self.offset, self.length);
        pushed.expect("a slot lies inside its region");
        segments
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut free = self.staging.free.lock();
        let (mut offset, mut size) = (self.offset, self.size);
        free.bytes += size;
        let before = free.ranges.range(..offset).next_back();
        if let Some((start, length)) = before.map(|(start, length)| (*start, *length))
            && start + length == offset
        {
            free.ranges.remove(&start);
            (offset, size) = (start, size + length);
        }
        if let Some(length) = free.ranges.remove(&(self.offset + self.size)) {
            size += length;
        }
        free.ranges.insert(offset, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_staging_refuses_and_serves_again_after_a_return() {
        let staging = Staging::new(1024).unwrap();
        let first = staging.take(500).unwrap();
        let second = staging.take(512).unwrap();
        assert!(staging.take(1).is_none());
        assert_eq!(staging.used_bytes(), 1024);
        drop(first);
        assert!(staging.take(513).is_none());
        assert!(staging.take(512).is_some());
        drop(second);
        assert_eq!(staging.used_bytes(), 0);
    }

    #[test]
    fn returned_neighbours_join_in_any_order() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]] {
            let staging = Staging::new(192).unwrap();
            let mut slots: Vec<_> = (0..3).map(|_| staging.take(64)).collect();
            for index in order {
                drop(slots[index].take());
            }
            assert!(staging.take(192).is_some(), "{order:?}");
        }
    }
}

//! How an arena is divided: units, alignment, and the place of an object in its extent.
//!
//! Called by the configuration, the allocator and the store. An extent is
//! `payload | loss by rounding | object header (128)`: the payload comes first, so that it lies
//! where large transfers and direct disk I/O want it, and the header ends the extent, so that its
//! place does not depend on the payload.
//!
//! A unit is 256 bytes up to an arena of 512 GiB, and doubles with it beyond. An extent of 64 KiB
//! or more starts on a page of 4 KiB and fills pages, which loses at most 6 %; a smaller one takes
//! whole units.

use tessera_proto::OBJECT_HEADER_BYTES;

/// Granularity of large extents and of the capacity, bytes.
pub(crate) const PAGE_BYTES: u64 = 4_096;
/// Extents from this size on fill whole pages, bytes.
const PAGED_FROM_BYTES: u64 = 64 << 10;
const UNIT_BYTES_MIN: u64 = 256;
/// Most units of an arena; half of what their number could say, so that sums do not overflow.
const UNITS_MAX: u32 = 1 << 31;
const HEADER_BYTES: u64 = OBJECT_HEADER_BYTES as u64;

const _: () = assert!(
    HEADER_BYTES < UNIT_BYTES_MIN,
    "the smallest object takes one unit"
);

/// The division of one arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    unit_bytes: u64,
    units: u32,
}

/// What an extent must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Its length, units.
    pub(crate) units: u32,
    /// Its first unit is a multiple of this.
    pub(crate) align: u32,
}

impl Geometry {
    /// Largest arena: a page holds at least one unit of it.
    pub(crate) const CAPACITY_BYTES_MAX: u64 = PAGE_BYTES << 31;

    /// The geometry for `capacity_bytes`, which is one page or more and at most
    /// [`Self::CAPACITY_BYTES_MAX`].
    pub(crate) fn of_capacity(capacity_bytes: u64) -> Self {
        let pages = capacity_bytes / PAGE_BYTES;
        let mut unit_bytes = UNIT_BYTES_MIN;
        loop {
            match u32::try_from(pages * (PAGE_BYTES / unit_bytes)) {
                Ok(units) if units <= UNITS_MAX => return Self { unit_bytes, units },
                _ => unit_bytes *= 2,
            }
        }
    }

    /// Units of the whole arena.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Bytes of `units`.
    pub(crate) fn bytes(&self, units: u32) -> u64 {
        u64::from(units) * self.unit_bytes
    }

    /// Largest payload that fits the arena, bytes.
    pub(crate) fn largest_object_bytes(&self) -> u64 {
        self.bytes(self.units) - HEADER_BYTES
    }

    /// What an extent for a payload of `length_bytes` must be; `length_bytes` is at most
    /// [`Self::largest_object_bytes`].
    pub(crate) fn need(&self, length_bytes: u64) -> Need {
        let bytes = length_bytes + HEADER_BYTES;
        let (bytes, align) = if bytes >= PAGED_FROM_BYTES {
            let align = u32::try_from(PAGE_BYTES / self.unit_bytes).expect("16 at most");
            (bytes.next_multiple_of(PAGE_BYTES), align)
        } else {
            (bytes, 1)
        };
        let units = bytes.div_ceil(self.unit_bytes);
        Need {
            units: u32::try_from(units).expect("the arena holds it"),
            align,
        }
    }

    /// Where in the arena the payload of an extent begins, bytes.
    pub(crate) fn payload_offset(&self, start: u32) -> usize {
        usize::try_from(self.bytes(start)).expect("inside a mapped arena")
    }

    /// Where in the arena the header of an extent begins, bytes.
    pub(crate) fn header_offset(&self, start: u32, length_bytes: u64) -> usize {
        let end = self.bytes(start) + self.bytes(self.need(length_bytes).units);
        usize::try_from(end - HEADER_BYTES).expect("inside a mapped arena")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_lose_little_to_rounding() {
        let geometry = Geometry::of_capacity(8 << 30);
        for (length, lost_at_most) in [
            (1 << 10, 0.25),
            (4 << 10, 0.07),
            (60 << 10, 0.01),
            (64 << 10, 0.07),
            (1 << 20, 0.01),
            (1 << 30, 0.01),
        ] {
            let bytes = geometry.bytes(geometry.need(length).units);
            assert!(bytes >= length + HEADER_BYTES);
            let (bytes, length) = (bytes as f64, length as f64);
            assert!(
                bytes <= length * (1.0 + lost_at_most),
                "{length} takes {bytes}"
            );
        }
    }

    #[test]
    fn units_grow_with_the_arena_so_that_their_number_fits() {
        for (capacity, unit) in [
            (PAGE_BYTES, 256),
            (1 << 39, 256),
            ((1 << 39) + PAGE_BYTES, 512),
            (Geometry::CAPACITY_BYTES_MAX, PAGE_BYTES),
        ] {
            let geometry = Geometry::of_capacity(capacity);
            assert_eq!(geometry.unit_bytes, unit, "capacity {capacity}");
            assert_eq!(geometry.bytes(geometry.units()), capacity);
        }
    }

    #[test]
    fn header_ends_the_extent_and_never_covers_the_payload() {
        let geometry = Geometry::of_capacity(1 << 30);
        for length in [1, 127, 128, 129, 65_408, 65_409, 1 << 20, (1 << 20) + 1] {
            let header = geometry.header_offset(32, length);
            let payload = geometry.payload_offset(32);
            assert!(header as u64 >= payload as u64 + length);
        }
    }
}

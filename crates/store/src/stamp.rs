//! The header of an object as it is kept in memory and on disk: that of the wire, with the second
//! in which the object was stored in four of the bytes that the wire keeps at zero.
//!
//! Called by everything that writes or reads a kept header. Invariant: no stamp leaves this
//! machine; a header that is sent is encoded by the protocol alone.

use tessera_proto::{OBJECT_HEADER_BYTES, ObjectHeader, Reader};

/// Where the second lies in a kept header.
pub(crate) const STAMP_AT: usize = 104;
const STAMP_BYTES: usize = 4;

/// The header of an object that was stored in second `stored_s` since the start of 1970.
pub(crate) fn stamped(header: &ObjectHeader, stored_s: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(OBJECT_HEADER_BYTES);
    header.encode(&mut bytes);
    bytes[STAMP_AT..][..STAMP_BYTES].copy_from_slice(&stored_s.to_le_bytes());
    bytes
}

/// What a kept header says. None if these bytes are not one.
pub(crate) fn read_stamped(bytes: &[u8]) -> Option<(ObjectHeader, u32)> {
    let mut bytes: [u8; OBJECT_HEADER_BYTES] = bytes.try_into().ok()?;
    let stamp = &mut bytes[STAMP_AT..][..STAMP_BYTES];
    let stored_s = Reader::new(stamp).u32("stamp").ok()?;
    stamp.fill(0);
    let header = ObjectHeader::read(&mut Reader::new(&bytes)).ok()?;
    Some((header, stored_s))
}

#[cfg(test)]
mod tests {
    use tessera_proto::{KeyDigest, NamespaceDigest, TenantTag, WriteId};

    use super::*;

    #[test]
    fn stamp_comes_back_and_leaves_the_header_as_it_was() {
        let header = ObjectHeader {
            namespace: NamespaceDigest([1; 32]),
            key: KeyDigest([2; 32]),
            layout: 3,
            length_bytes: 4,
            checksum: 5,
            write: WriteId(6),
            tenant: TenantTag(7),
        };
        for stored_s in [0, 1, u32::MAX] {
            let kept = stamped(&header, stored_s);
            assert_eq!(read_stamped(&kept), Some((header, stored_s)));
            assert_eq!(read_stamped(&kept[1..]), None);
        }
        let mut sent = Vec::new();
        header.encode(&mut sent);
        assert_eq!(
            sent,
            stamped(&header, 0),
            "the bytes of a stamp are zero on the wire"
        );
    }
}

//! The header that is stored and sent with every object: what the object is, said by itself.
//!
//! Called by the client when it saves, by the store when it publishes, by the client when it
//! loads. A load trusts nothing but this header compared with what it asked for and the checksum
//! of the bytes that arrived: an object under the wrong id, of the wrong length or with one bit
//! changed is a miss.

use thiserror::Error;

use crate::codec::{DecodeError, Reader, Writer, at_most};
use crate::identity::{KeyDigest, NamespaceDigest, ObjectId, TenantTag};
use crate::limits::OBJECT_BYTES_MAX;

/// Bytes of an object header.
pub const OBJECT_HEADER_BYTES: usize = 128;

const MAGIC: [u8; 4] = *b"TSOB";
const FORMAT: u16 = 1;
/// Bytes before the last field, zero in this format.
const RESERVED_BYTES: usize = 16;

const _: () = assert!(4 + 2 + 2 + 32 + 32 + 5 * 8 + RESERVED_BYTES == OBJECT_HEADER_BYTES);

/// Names one write of an object, so that a removal hits that write and not its replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// What an object says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Digest of the namespace that it belongs to.
    pub namespace: NamespaceDigest,
    /// Digest of namespace and key, all 256 bits; the first 128 are the object id.
    pub key: KeyDigest,
    /// First eight bytes of the layout fingerprint of its group.
    pub layout: u64,
    /// Bytes of the payload, 1 to [`OBJECT_BYTES_MAX`].
    pub length_bytes: u64,
    /// CRC-64/NVME of the payload.
    pub checksum: u64,
    /// The write that made it.
    pub write: WriteId,
    /// Who is charged for it.
    pub tenant: TenantTag,
}

/// What a reader asks for: everything about an object but its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Digest of the reader's namespace.
    pub namespace: NamespaceDigest,
    /// Digest of the key in that namespace.
    pub key: KeyDigest,
    /// Layout fingerprint of the group, first eight bytes.
    pub layout: u64,
    /// Bytes that the reader has room for, and needs.
    pub length_bytes: u64,
}

impl Expectation {
    /// The id under which the object is stored.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.key.object_id()
    }
}

/// Why an object is not the one that was asked for. The reader counts it and treats it as a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ObjectMismatch {
    /// It belongs to another namespace.
    #[error("object belongs to another namespace")]
    Namespace,
    /// Its key digest differs: another object under the same 128-bit id.
    #[error("object has another key under the same id")]
    Key,
    /// It was saved from another layout.
    #[error("object was saved from layout {got:016x}, expected {expected:016x}")]
    Layout {
        /// What the object says.
        got: u64,
        /// What the reader has.
        expected: u64,
    },
    /// It has another length.
    #[error("object holds {got} bytes, expected {expected}")]
    Length {
        /// What the object says.
        got: u64,
        /// What the reader has.
        expected: u64,
    },
    /// Its bytes do not give its checksum.
    #[error("object is damaged: its bytes give {got:016x}, its header says {expected:016x}")]
    Checksum {
        /// Of the bytes that arrived.
        got: u64,
        /// What the object says.
        expected: u64,
    },
}

impl ObjectHeader {
    /// The id under which the object is stored.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.key.object_id()
    }

    /// Compares the header with what a reader asked for.
    ///
    /// # Errors
    /// The first difference found.
    pub fn check(&self, expected: &Expectation) -> Result<(), ObjectMismatch> {
        if self.namespace != expected.namespace {
            return Err(ObjectMismatch::Namespace);
        }
        if self.key != expected.key {
            return Err(ObjectMismatch::Key);
        }
        if self.layout != expected.layout {
            return Err(ObjectMismatch::Layout {
                got: self.layout,
                expected: expected.layout,
            });
        }
        if self.length_bytes != expected.length_bytes {
            return Err(ObjectMismatch::Length {
                got: self.length_bytes,
                expected: expected.length_bytes,
            });
        }
        Ok(())
    }

    /// Compares the checksum of the payload, as computed where the bytes landed.
    ///
    /// # Errors
    /// [`ObjectMismatch::Checksum`].
    pub fn check_payload(&self, checksum: u64) -> Result<(), ObjectMismatch> {
        if self.checksum == checksum {
            return Ok(());
        }
        Err(ObjectMismatch::Checksum {
            got: checksum,
            expected: self.checksum,
        })
    }

    /// The header as it is stored and sent: [`OBJECT_HEADER_BYTES`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.bytes(&MAGIC);
        writer.u16(FORMAT);
        writer.u16(0); // flags: none in this format
        writer.bytes(&self.namespace.0);
        writer.bytes(&self.key.0);
        writer.u64(self.layout);
        writer.u64(self.length_bytes);
        writer.u64(self.checksum);
        writer.u64(self.write.0);
        writer.bytes(&[0; RESERVED_BYTES]);
        writer.u64(self.tenant.0);
    }

    /// Reads a header from the front of `reader`.
    ///
    /// # Errors
    /// Foreign magic, another format, a length out of bounds, reserved bytes in use.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.array("object magic")? != MAGIC {
            return Err(DecodeError::Magic { what: "object" });
        }
        let format = reader.u16("object format")?;
        if format != FORMAT {
            return Err(DecodeError::Version {
                what: "object format",
                got: format,
                expected: FORMAT,
            });
        }
        let flags = reader.u16("object flags")?;
        if flags != 0 {
            return Err(DecodeError::Invalid {
                field: "object flags",
                got: u64::from(flags),
            });
        }
        let mut header = Self {
            namespace: NamespaceDigest(reader.array("namespace digest")?),
            key: KeyDigest(reader.array("key digest")?),
            layout: reader.u64("object layout")?,
            length_bytes: reader.u64("object length")?,
            checksum: reader.u64("object checksum")?,
            write: WriteId(reader.u64("write id")?),
            tenant: TenantTag::NONE,
        };
        reader.zeros("object reserved", RESERVED_BYTES)?;
        header.tenant = TenantTag(reader.u64("tenant")?);
        if header.length_bytes == 0 {
            return Err(DecodeError::Invalid {
                field: "object length",
                got: 0,
            });
        }
        at_most("object length", header.length_bytes, OBJECT_BYTES_MAX)?;
        Ok(header)
    }
}

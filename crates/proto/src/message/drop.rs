//! DROP: removes every object of a namespace.
//!
//! Sent only to a node that has the feature. Once it is answered, nobody finds what was stored in
//! the namespace before, also after a restart of the node.

use crate::codec::{DecodeError, Reader, Writer};
use crate::identity::NamespaceDigest;

/// Drops a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drop {
    /// Which.
    pub namespace: NamespaceDigest,
}

impl Drop {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).bytes(&self.namespace.0);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let namespace = NamespaceDigest(reader.array("namespace digest")?);
        reader.finish()?;
        Ok(Self { namespace })
    }
}

/// Answers a DROP with what is gone. An object that was in memory and on a disk is counted in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropAnswer {
    /// Objects in memory.
    pub ram_objects: u64,
    /// Payload bytes of these.
    pub ram_bytes: u64,
    /// Objects on disk.
    pub disk_objects: u64,
    /// Payload bytes of these. Their room comes back as their segments leave.
    pub disk_bytes: u64,
}

impl DropAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        for number in [
            self.ram_objects,
            self.ram_bytes,
            self.disk_objects,
            self.disk_bytes,
        ] {
            writer.u64(number);
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let answer = Self {
            ram_objects: reader.u64("dropped objects in memory")?,
            ram_bytes: reader.u64("dropped bytes in memory")?,
            disk_objects: reader.u64("dropped objects on disk")?,
            disk_bytes: reader.u64("dropped bytes on disk")?,
        };
        reader.finish()?;
        Ok(answer)
    }
}

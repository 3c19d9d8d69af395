//! PRICE: what it costs to compute again what the objects of a namespace hold.
//!
//! Sent only to a node that has the feature, when it is known and when it has changed. It is advice
//! about what to keep for longer, and nothing else depends on it.

use std::num::NonZeroU32;

use crate::codec::{DecodeError, Reader, Writer};
use crate::identity::NamespaceDigest;

/// Says the price of a namespace from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Whose.
    pub namespace: NamespaceDigest,
    /// Nanoseconds of computing for a KiB of payload.
    pub ns_per_kib: NonZeroU32,
}

impl Price {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.bytes(&self.namespace.0);
        writer.u32(self.ns_per_kib.get());
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let namespace = NamespaceDigest(reader.array("namespace digest")?);
        let ns_per_kib = NonZeroU32::new(reader.u32("price")?);
        reader.finish()?;
        let ns_per_kib = ns_per_kib.ok_or(DecodeError::Invalid {
            field: "price",
            got: 0,
        })?;
        Ok(Self {
            namespace,
            ns_per_kib,
        })
    }
}

/// Answers a PRICE: it is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriceAnswer;

impl PriceAnswer {
    /// Appends the body: nothing.
    pub fn encode(&self, _out: &mut Vec<u8>) {}

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        Reader::new(body).finish()?;
        Ok(Self)
    }
}

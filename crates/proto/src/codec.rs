//! Cursors over little-endian bytes: [`Reader`] rejects before arithmetic, [`Writer`] appends.
//!
//! Called by every encoder and decoder of this crate. A reader never panics and never allocates
//! more than the bytes it was given.

use thiserror::Error;

/// Why bytes from another process were refused. The connection that sent them is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The input ended inside the named field.
    #[error("input ends inside {field}: the sender cut the message short")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
    },
    /// The input goes on after the last field.
    #[error("{extra} bytes follow the last field: the sender speaks another version")]
    Trailing {
        /// Bytes left over.
        extra: usize,
    },
    /// A declared length or count is over its limit.
    #[error("{field} is {got}, over the limit of {limit}")]
    OverLimit {
        /// The field that carries the length.
        field: &'static str,
        /// What the sender declared.
        got: u64,
        /// The named limit of [`crate::limits`].
        limit: u64,
    },
    /// A field holds a value that has no meaning.
    #[error("{field} holds {got}, which has no meaning in this version")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The value found.
        got: u64,
    },
    /// The first bytes are not Tessera's.
    #[error("not a Tessera {what}: the other side speaks another protocol")]
    Magic {
        /// What was expected.
        what: &'static str,
    },
    /// The version is one that this build does not speak.
    #[error("version {got} of the {what}; this build speaks {expected}: upgrade the older side")]
    Version {
        /// What carries the version.
        what: &'static str,
        /// The version found.
        got: u16,
        /// The version that this build speaks.
        expected: u16,
    },
    /// The header's own check does not match its bytes.
    #[error("{what} is damaged: its check does not match")]
    Check {
        /// What carries the check.
        what: &'static str,
    },
}

/// Refuses `got` over `limit`.
pub(crate) fn at_most(field: &'static str, got: u64, limit: u64) -> Result<(), DecodeError> {
    if got <= limit {
        return Ok(());
    }
    Err(DecodeError::OverLimit { field, got, limit })
}

/// Reads fields from the front of a slice.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn bytes(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Truncated { field })?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(DecodeError::Truncated { field })?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] at the end of the input.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// Two bytes, little-endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// Four bytes, little-endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// Eight bytes, little-endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// Sixteen bytes, little-endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn u128(&mut self, field: &'static str) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.array(field)?))
    }

    /// `length` reserved bytes, which must be zero.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], or [`DecodeError::Invalid`] with the first that is in use.
    pub fn zeros(&mut self, field: &'static str, length: usize) -> Result<(), DecodeError> {
        match self.bytes(field, length)?.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(byte) => Err(DecodeError::Invalid {
                field,
                got: u64::from(*byte),
            }),
        }
    }

    /// A `u32` count of items of `item_bytes` each: refused if over `limit`, or if the rest of the
    /// input cannot hold that many, so that the caller may allocate for it.
    ///
    /// # Errors
    /// [`DecodeError::OverLimit`] or [`DecodeError::Truncated`].
    pub fn count(
        &mut self,
        field: &'static str,
        limit: u32,
        item_bytes: usize,
    ) -> Result<usize, DecodeError> {
        let count = self.u32(field)?;
        at_most(field, u64::from(count), u64::from(limit))?;
        let count = count as usize;
        if count.saturating_mul(item_bytes) > self.rest.len() {
            return Err(DecodeError::Truncated { field });
        }
        Ok(count)
    }

    /// A byte string framed by a `u32` length of at most `limit`.
    ///
    /// # Errors
    /// [`DecodeError::OverLimit`] or [`DecodeError::Truncated`].
    pub fn framed(&mut self, field: &'static str, limit: u32) -> Result<&'a [u8], DecodeError> {
        let length = self.count(field, limit, 1)?;
        self.bytes(field, length)
    }

    /// A framed text of at most `limit` bytes of UTF-8.
    ///
    /// # Errors
    /// As for [`Reader::framed`], and [`DecodeError::Invalid`] with the first byte that is not
    /// UTF-8.
    pub fn text(&mut self, field: &'static str, limit: u32) -> Result<String, DecodeError> {
        let bytes = self.framed(field, limit)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => {
                let got = u64::from(bytes[error.valid_up_to()]);
                Err(DecodeError::Invalid { field, got })
            }
        }
    }

    /// Ends the input.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] if bytes are left.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(DecodeError::Trailing { extra }),
        }
    }
}

/// Appends fields to a buffer that the caller owns and may reuse.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// A writer at the end of `out`.
    #[must_use]
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Appends `bytes` as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    /// Appends two bytes, little-endian.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends four bytes, little-endian.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends eight bytes, little-endian.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends sixteen bytes, little-endian.
    pub fn u128(&mut self, value: u128) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends a `u32` count.
    ///
    /// # Panics
    /// If `count` does not fit: callers hold counts under the limits of [`crate::limits`].
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("counts are bounded by limits far under 2^32"));
    }

    /// Appends a framed text, its end cut at `limit` bytes: a text is for people, and a message
    /// must not be lost because one was long.
    pub fn text(&mut self, text: &str, limit: u32) {
        self.framed(&text.as_bytes()[..text.floor_char_boundary(limit as usize)]);
    }

    /// Appends a byte string framed by its `u32` length.
    ///
    /// # Panics
    /// If `bytes` is longer than a `u32` can say.
    pub fn framed(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes(bytes);
    }
}

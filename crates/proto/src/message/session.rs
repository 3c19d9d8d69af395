//! Messages about the connection itself: HELLO, PING and the refusal.

use crate::codec::{DecodeError, Reader, Writer};
use crate::limits::TEXT_BYTES_MAX;

/// Random 128 bits of one process start: two lives of a node on one address are never confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u128);

/// Optional abilities, one bit each; both sides use the intersection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// The node takes DROP. One that does not ends the connection on which it comes.
    pub const DROP: Self = Self(1);
    /// The node takes PRICE, as above.
    pub const PRICE: Self = Self(1 << 1);
    /// The client knows the refusal of that name; one that does not is told `Deadline`.
    pub const UNRECORDED: Self = Self(1 << 2);
    /// All that this build has.
    pub const ALL: Self = Self(Self::DROP.0 | Self::PRICE.0 | Self::UNRECORDED.0);

    /// What both have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `wanted` is here.
    #[must_use]
    pub const fn has(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// Opens a connection. Must be its first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest wire version that the client speaks.
    pub version_min: u16,
    /// Newest wire version that the client speaks.
    pub version_max: u16,
    /// What the client can do beyond the base.
    pub features: Features,
    /// The client's process start.
    pub incarnation: Incarnation,
    /// Names the client in the node's log; its end is cut at [`TEXT_BYTES_MAX`] bytes.
    pub name: String,
}

impl Hello {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u16(self.version_min);
        writer.u16(self.version_max);
        writer.u64(self.features.0);
        writer.u128(self.incarnation.0);
        writer.text(&self.name, TEXT_BYTES_MAX);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let hello = Self {
            version_min: reader.u16("hello version_min")?,
            version_max: reader.u16("hello version_max")?,
            features: Features(reader.u64("hello features")?),
            incarnation: Incarnation(reader.u128("hello incarnation")?),
            name: reader.text("hello name", TEXT_BYTES_MAX)?,
        };
        reader.finish()?;
        Ok(hello)
    }
}

/// Accepts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloAnswer {
    /// The version that both will speak.
    pub version: u16,
    /// The features that both have.
    pub features: Features,
    /// The node's process start: leases die with it.
    pub incarnation: Incarnation,
    /// Largest object that the node takes, bytes.
    pub object_bytes_max: u64,
    /// Most requests that the node lets this connection have in flight.
    pub in_flight_max: u32,
}

impl HelloAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u16(self.version);
        writer.u64(self.features.0);
        writer.u128(self.incarnation.0);
        writer.u64(self.object_bytes_max);
        writer.u32(self.in_flight_max);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let answer = Self {
            version: reader.u16("hello version")?,
            features: Features(reader.u64("hello features")?),
            incarnation: Incarnation(reader.u128("hello incarnation")?),
            object_bytes_max: reader.u64("hello object_bytes_max")?,
            in_flight_max: reader.u32("hello in_flight_max")?,
        };
        reader.finish()?;
        Ok(answer)
    }
}

/// Asks whether the node is alive, and is answered by the same body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Repeated by the answer.
    pub nonce: u64,
}

impl Ping {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u64(self.nonce);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let nonce = reader.u64("ping nonce")?;
        reader.finish()?;
        Ok(Self { nonce })
    }
}

/// Why a request, or a whole connection, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Refusal {
    /// The message could not be read; the connection closes.
    Malformed = 1,
    /// The versions do not overlap; the connection closes.
    Version = 2,
    /// The first frame was not HELLO, or HELLO came twice; the connection closes.
    Order = 3,
    /// More requests in flight than was agreed.
    Busy = 4,
    /// The node has as many connections as it takes; the connection closes.
    Full = 5,
    /// The node is shutting down.
    Closing = 6,
    /// The deadline passed before the request was done.
    Deadline = 7,
    /// What was to be removed is gone from this start of the node and not for good: a disk failed
    /// and cannot be made empty. Replace it, or clean its folder, before the next start.
    Unrecorded = 9,
    /// Two engines differ in what must be equal; the connection closes.
    Mismatch = 16,
    /// The process start that was meant is not this one; the connection closes.
    Stranger = 17,
}

impl Refusal {
    fn from_number(number: u16) -> Result<Self, DecodeError> {
        Ok(match number {
            1 => Self::Malformed,
            2 => Self::Version,
            3 => Self::Order,
            4 => Self::Busy,
            5 => Self::Full,
            6 => Self::Closing,
            7 => Self::Deadline,
            9 => Self::Unrecorded,
            16 => Self::Mismatch,
            17 => Self::Stranger,
            got => {
                return Err(DecodeError::Invalid {
                    field: "refusal",
                    got: u64::from(got),
                });
            }
        })
    }
}

/// Refuses a request; with request id zero, the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Refusal,
    /// The same for people, with what to do; its end is cut at [`TEXT_BYTES_MAX`] bytes.
    pub message: String,
}

impl Refused {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u16(self.reason as u16);
        writer.text(&self.message, TEXT_BYTES_MAX);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let reason = Refusal::from_number(reader.u16("refusal")?)?;
        let message = reader.text("refusal message", TEXT_BYTES_MAX)?;
        reader.finish()?;
        Ok(Self { reason, message })
    }
}

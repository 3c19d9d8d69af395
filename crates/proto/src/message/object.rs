//! Messages that move or remove objects: PUT, GET, REMOVE.

use crate::codec::{DecodeError, Reader, Writer};
use crate::identity::ObjectId;
use crate::limits::{BATCH_ITEMS_MAX, REMOVE_ITEM_BYTES};
use crate::message::LeaseId;
use crate::object::{ObjectHeader, WriteId};

/// Stores one object. The payload is the object; its length must be the header's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// What the object says of itself.
    pub header: ObjectHeader,
}

impl Put {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.header.encode(out);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let header = ObjectHeader::read(&mut reader)?;
        reader.finish()?;
        Ok(Self { header })
    }
}

/// How a PUT ended. None but `Corrupt` and `Mismatch` is anybody's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PutStatus {
    /// The object is whole and visible.
    Stored = 0,
    /// It was there already, or another writer is storing it now.
    Existed = 1,
    /// The node had no room for it now.
    NoSpace = 2,
    /// It is larger than the node takes.
    TooLarge = 3,
    /// The bytes that arrived do not give the header's checksum.
    Corrupt = 4,
    /// The payload length is not the header's.
    Mismatch = 5,
}

/// Answers a PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutAnswer {
    /// How it ended.
    pub status: PutStatus,
}

impl PutAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u8(self.status as u8);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let status = match reader.u8("put status")? {
            0 => PutStatus::Stored,
            1 => PutStatus::Existed,
            2 => PutStatus::NoSpace,
            3 => PutStatus::TooLarge,
            4 => PutStatus::Corrupt,
            5 => PutStatus::Mismatch,
            got => {
                return Err(DecodeError::Invalid {
                    field: "put status",
                    got: u64::from(got),
                });
            }
        };
        reader.finish()?;
        Ok(Self { status })
    }
}

/// Reads one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// The object.
    pub id: ObjectId,
    /// The lease under which it was found; without one the object may be gone.
    pub lease: Option<LeaseId>,
    /// Bytes that the reader has room for; an object of another length is not sent.
    pub length_bytes: u64,
}

impl Get {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.bytes(&self.id.0);
        writer.u64(self.lease.map_or(0, LeaseId::get));
        writer.u64(self.length_bytes);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let get = Self {
            id: ObjectId(reader.array("object id")?),
            lease: LeaseId::new(reader.u64("lease id")?),
            length_bytes: reader.u64("get length")?,
        };
        reader.finish()?;
        Ok(get)
    }
}

/// Why a GET brings no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GetStatus {
    /// There is no such object.
    Missing = 1,
    /// The object has another length than the reader has room for.
    Length = 2,
    /// The lease is unknown or over, and the object is gone with it.
    LeaseOver = 3,
}

/// Answers a GET. With `Found` the payload follows, as long as the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetAnswer {
    /// The object follows as the payload.
    Found(ObjectHeader),
    /// No payload follows.
    Absent(GetStatus),
}

impl GetAnswer {
    /// The status byte of an answer with an object; those without have a [`GetStatus`].
    const FOUND: u8 = 0;

    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Found(header) => {
                Writer::new(out).u8(Self::FOUND);
                header.encode(out);
            }
            Self::Absent(status) => Writer::new(out).u8(*status as u8),
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let answer = match reader.u8("get status")? {
            Self::FOUND => Self::Found(ObjectHeader::read(&mut reader)?),
            1 => Self::Absent(GetStatus::Missing),
            2 => Self::Absent(GetStatus::Length),
            3 => Self::Absent(GetStatus::LeaseOver),
            got => {
                return Err(DecodeError::Invalid {
                    field: "get status",
                    got: u64::from(got),
                });
            }
        };
        reader.finish()?;
        Ok(answer)
    }
}

/// One object to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveItem {
    /// The object.
    pub id: ObjectId,
    /// Remove only this write of it; a newer write stays. `None` removes any.
    pub write: Option<WriteId>,
}

/// Removes objects for good: once answered, no reader finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remove {
    /// At most [`BATCH_ITEMS_MAX`].
    pub items: Vec<RemoveItem>,
}

impl Remove {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.count(self.items.len());
        for item in &self.items {
            writer.bytes(&item.id.0);
            writer.u8(u8::from(item.write.is_some()));
            writer.u64(item.write.map_or(0, |write| write.0));
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let count = reader.count("remove count", BATCH_ITEMS_MAX, REMOVE_ITEM_BYTES as usize)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            let id = ObjectId(reader.array("object id")?);
            let limited = reader.u8("remove limited")?;
            let write = reader.u64("write id")?;
            let write = match (limited, write) {
                (0, 0) => None,
                (1, write) => Some(WriteId(write)),
                (got, _) => {
                    let field = "remove limited";
                    return Err(DecodeError::Invalid {
                        field,
                        got: u64::from(got),
                    });
                }
            };
            items.push(RemoveItem { id, write });
        }
        reader.finish()?;
        Ok(Self { items })
    }
}

/// Answers a REMOVE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveAnswer {
    /// For each item in order: whether it was there and is gone now.
    pub removed: Vec<bool>,
}

impl RemoveAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.count(self.removed.len());
        for removed in &self.removed {
            writer.u8(u8::from(*removed));
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let count = reader.count("remove count", BATCH_ITEMS_MAX, 1)?;
        let mut removed = Vec::with_capacity(count);
        for _ in 0..count {
            removed.push(match reader.u8("removed")? {
                0 => false,
                1 => true,
                got => {
                    return Err(DecodeError::Invalid {
                        field: "removed",
                        got: u64::from(got),
                    });
                }
            });
        }
        reader.finish()?;
        Ok(Self { removed })
    }
}

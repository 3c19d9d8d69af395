//! Messages about leases: ACQUIRE, which turns a lookup into a promise, and RELEASE.

use std::num::NonZeroU64;

use crate::codec::{DecodeError, Reader, Writer, at_most};
use crate::identity::ObjectId;
use crate::limits::{ACQUIRE_ITEM_BYTES, BATCH_ITEMS_MAX, LEASE_MS_MAX};

/// Names a lease on one node; unguessable, and never used twice in one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(NonZeroU64);

impl LeaseId {
    /// The lease with this number; zero names none.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number of this lease.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Probes ids in order and leases every one that is present, all under one lease. One that may hold
/// no byte is a question only: there is no lease, what is present is `Refused`, and nothing of it
/// is a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// How long the lease shall last, at most [`LEASE_MS_MAX`].
    pub lease_ms: u32,
    /// Most bytes that the lease may hold; ids beyond it are `Refused`.
    pub bytes_max: u64,
    /// At most [`BATCH_ITEMS_MAX`].
    pub ids: Vec<ObjectId>,
}

impl Acquire {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u32(self.lease_ms);
        writer.u64(self.bytes_max);
        write_ids(&mut writer, &self.ids);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let lease_ms = read_lease_ms(&mut reader)?;
        let bytes_max = reader.u64("lease bytes_max")?;
        let ids = read_ids(&mut reader)?;
        reader.finish()?;
        Ok(Self {
            lease_ms,
            bytes_max,
            ids,
        })
    }
}

/// What an ACQUIRE found of one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Presence {
    /// Not here.
    Missing = 0,
    /// Here, and held by the lease.
    Held = 1,
    /// Here, but over a bound of the lease or of the node: not held.
    Refused = 2,
}

/// What an ACQUIRE found of one id, with the object's length in bytes (zero unless held).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireItem {
    /// Whether it is held.
    pub presence: Presence,
    /// Bytes of the object.
    pub length_bytes: u64,
}

/// Answers an ACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireAnswer {
    /// The lease, if anything is held.
    pub lease: Option<LeaseId>,
    /// How long it lasts from now, milliseconds, at most [`LEASE_MS_MAX`].
    pub lease_ms: u32,
    /// One for each id, in order; `Held` only under a lease.
    pub items: Vec<AcquireItem>,
}

impl AcquireAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u64(self.lease.map_or(0, LeaseId::get));
        writer.u32(self.lease_ms);
        writer.count(self.items.len());
        for item in &self.items {
            writer.u8(item.presence as u8);
            writer.u64(item.length_bytes);
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let lease = LeaseId::new(reader.u64("lease id")?);
        let lease_ms = read_lease_ms(&mut reader)?;
        let count = reader.count("item count", BATCH_ITEMS_MAX, ACQUIRE_ITEM_BYTES as usize)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            let presence = match reader.u8("presence")? {
                0 => Presence::Missing,
                1 => Presence::Held,
                2 => Presence::Refused,
                got => {
                    return Err(DecodeError::Invalid {
                        field: "presence",
                        got: u64::from(got),
                    });
                }
            };
            items.push(AcquireItem {
                presence,
                length_bytes: reader.u64("item length")?,
            });
        }
        reader.finish()?;
        let held = |item: &AcquireItem| item.presence == Presence::Held;
        if lease.is_none() && items.iter().any(held) {
            return Err(DecodeError::Invalid {
                field: "lease id of held items",
                got: 0,
            });
        }
        Ok(Self {
            lease,
            lease_ms,
            items,
        })
    }
}

/// Gives leased ids back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The lease.
    pub lease: LeaseId,
    /// The ids to give back, at most [`BATCH_ITEMS_MAX`]; none ends the whole lease.
    pub ids: Vec<ObjectId>,
}

impl Release {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u64(self.lease.get());
        write_ids(&mut writer, &self.ids);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let number = reader.u64("lease id")?;
        let lease = LeaseId::new(number).ok_or(DecodeError::Invalid {
            field: "lease id",
            got: number,
        })?;
        let ids = read_ids(&mut reader)?;
        reader.finish()?;
        Ok(Self { lease, ids })
    }
}

/// Answers a RELEASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseAnswer {
    /// How many ids the lease held and holds no more; zero if it was over already.
    pub released: u32,
}

impl ReleaseAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u32(self.released);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let released = reader.u32("released")?;
        reader.finish()?;
        Ok(Self { released })
    }
}

fn read_lease_ms(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let lease_ms = reader.u32("lease_ms")?;
    at_most("lease_ms", u64::from(lease_ms), u64::from(LEASE_MS_MAX))?;
    Ok(lease_ms)
}

fn write_ids(writer: &mut Writer<'_>, ids: &[ObjectId]) {
    writer.count(ids.len());
    for id in ids {
        writer.bytes(&id.0);
    }
}

fn read_ids(reader: &mut Reader<'_>) -> Result<Vec<ObjectId>, DecodeError> {
    let count = reader.count("id count", BATCH_ITEMS_MAX, 16)?;
    (0..count)
        .map(|_| Ok(ObjectId(reader.array("object id")?)))
        .collect()
}

//! STAT: the counters of a node as named numbers.
//!
//! Names travel with their numbers, so that an older tool shows the counters of a newer node.

use crate::codec::{DecodeError, Reader, Writer};
use crate::limits::{STAT_ENTRIES_MAX, STAT_ITEM_BYTES, STAT_NAME_BYTES_MAX};

/// Asks for the node's counters; the body is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat;

impl Stat {
    /// Appends the body, which is empty.
    pub fn encode(&self, _out: &mut Vec<u8>) {}

    /// Reads the body.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] if it is not empty.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        Reader::new(body).finish()?;
        Ok(Self)
    }
}

/// One counter or gauge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatEntry {
    /// Its name in snake case, unit last, such as `leased_bytes`; at most
    /// [`STAT_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Its value now.
    pub value: u64,
}

/// Answers a STAT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatAnswer {
    /// In the order in which people should read them, at most [`STAT_ENTRIES_MAX`].
    pub entries: Vec<StatEntry>,
}

impl StatAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.count(self.entries.len());
        for entry in &self.entries {
            writer.text(&entry.name, STAT_NAME_BYTES_MAX);
            writer.u64(entry.value);
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let count = reader.count("entry count", STAT_ENTRIES_MAX, STAT_ITEM_BYTES as usize)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let name = reader.text("entry name", STAT_NAME_BYTES_MAX)?;
            entries.push(StatEntry {
                name,
                value: reader.u64("entry value")?,
            });
        }
        reader.finish()?;
        Ok(Self { entries })
    }
}

//! Messages between two engines: HELLO with everything that must be equal, and the bytes of parts.
//!
//! Called by the client on both ends of a direct transfer. Invariants: what two engines compare
//! before any address is named is in [`PeerHello`] and its answer, whole; a piece names the part,
//! the claim and its place, so that bytes cannot be taken for others.

use crate::codec::{DecodeError, Reader, Writer};
use crate::identity::Topology;
use crate::limits::{BODY_BYTES_MAX, PEER_GROUPS_MAX, PEER_TEXT_BYTES_MAX};
use crate::message::session::{Features, Incarnation};
use crate::peer::{Attempt, PartAttempt, PartId, TransferId};

/// The ability to prove that nothing of a transfer is under way any more: no engine is spoken to
/// without it.
pub const PEER_QUIESCENCE: Features = Features(1);

/// What an engine is, as far as another one must be the same to take its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSetup {
    /// The model's id as the engine was given it.
    pub model: String,
    /// Revision of the model, empty if unknown.
    pub revision: String,
    /// Fingerprint of the weights in hexadecimal digits, empty if unknown.
    pub weights: String,
    /// Whose prompts it computes.
    pub tenant: String,
    /// Element type of the cache as the engine names it.
    pub dtype: String,
    /// Speculative decoding in the engine's words, empty if there is none.
    pub speculative: String,
    /// Digest over group specs and content sizes, as it stands in the engine's namespace.
    pub layout: [u8; 32],
    /// Sizes of the engine's parallelism.
    pub topology: Topology,
    /// Tensor parallel size of the engines that it exchanges blocks with.
    pub peer_tp: u32,
    /// Bytes of one piece of a part, unless a single block is larger.
    pub piece_bytes: u64,
    /// The cache groups, in the engine's order.
    pub groups: Vec<PeerGroup>,
}

/// One cache group of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerGroup {
    /// What it keeps, in the engine's words.
    pub kind: String,
    /// Tokens of one block.
    pub block_tokens: u64,
    /// Bytes of one block on this rank, all layers together.
    pub block_bytes: u64,
    /// Names, formats and sizes of its layers, as one number.
    pub fingerprint: u64,
    /// Heads of the whole model in each layer; 0 if its blocks cannot be cut.
    pub heads: u32,
    /// As the fingerprint, of one head, and so of every rank.
    pub head_fingerprint: u64,
}

/// Bytes that one group has at least: the length of its kind, its heads, and four numbers.
const GROUP_BYTES: usize = 4 + 4 + 4 * 8;

impl PeerSetup {
    fn write(&self, writer: &mut Writer<'_>) {
        let texts = [&self.model, &self.revision, &self.weights, &self.tenant];
        for text in texts.into_iter().chain([&self.dtype, &self.speculative]) {
            writer.text(text, PEER_TEXT_BYTES_MAX);
        }
        writer.bytes(&self.layout);
        let Topology { tp, pp, dcp, pcp } = self.topology;
        for size in [tp, pp, dcp, pcp, self.peer_tp] {
            writer.u32(size);
        }
        writer.u64(self.piece_bytes);
        writer.count(self.groups.len());
        for group in &self.groups {
            writer.text(&group.kind, PEER_TEXT_BYTES_MAX);
            writer.u64(group.block_tokens);
            writer.u64(group.block_bytes);
            writer.u64(group.fingerprint);
            writer.u32(group.heads);
            writer.u64(group.head_fingerprint);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let model = reader.text("peer model", PEER_TEXT_BYTES_MAX)?;
        let revision = reader.text("peer revision", PEER_TEXT_BYTES_MAX)?;
        let weights = reader.text("peer weights", PEER_TEXT_BYTES_MAX)?;
        let tenant = reader.text("peer tenant", PEER_TEXT_BYTES_MAX)?;
        let dtype = reader.text("peer dtype", PEER_TEXT_BYTES_MAX)?;
        let speculative = reader.text("peer speculative", PEER_TEXT_BYTES_MAX)?;
        let layout = reader.array("peer layout")?;
        let topology = Topology {
            tp: reader.u32("peer tp")?,
            pp: reader.u32("peer pp")?,
            dcp: reader.u32("peer dcp")?,
            pcp: reader.u32("peer pcp")?,
        };
        let peer_tp = reader.u32("tp of peers")?;
        let piece_bytes = reader.u64("peer piece bytes")?;
        let count = reader.count("peer groups", PEER_GROUPS_MAX, GROUP_BYTES)?;
        let mut groups = Vec::with_capacity(count);
        for _ in 0..count {
            groups.push(PeerGroup {
                kind: reader.text("peer group kind", PEER_TEXT_BYTES_MAX)?,
                block_tokens: reader.u64("peer block tokens")?,
                block_bytes: reader.u64("peer block bytes")?,
                fingerprint: reader.u64("peer layout fingerprint")?,
                heads: reader.u32("peer heads")?,
                head_fingerprint: reader.u64("peer head fingerprint")?,
            });
        }
        Ok(Self {
            model,
            revision,
            weights,
            tenant,
            dtype,
            speculative,
            layout,
            topology,
            peer_tp,
            piece_bytes,
            groups,
        })
    }
}

/// Opens a connection between two engines. Must be its first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// What the dialling engine can do.
    pub features: Features,
    /// Its process start.
    pub from: Incarnation,
    /// The process start that it means to reach.
    pub to: Incarnation,
    /// Its rank.
    pub rank: u16,
    /// The lowest number that it takes for the connection.
    pub connection_min: u64,
    /// What it is.
    pub setup: PeerSetup,
}

impl PeerHello {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u64(self.features.0);
        writer.u128(self.from.0);
        writer.u128(self.to.0);
        writer.u16(self.rank);
        writer.u64(self.connection_min);
        self.setup.write(&mut writer);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let hello = Self {
            features: Features(reader.u64("peer features")?),
            from: Incarnation(reader.u128("peer sender")?),
            to: Incarnation(reader.u128("peer receiver")?),
            rank: reader.u16("peer rank")?,
            connection_min: reader.u64("peer connection")?,
            setup: PeerSetup::read(&mut reader)?,
        };
        reader.finish()?;
        Ok(hello)
    }
}

/// Accepts a connection between two engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHelloAnswer {
    /// What the listening engine can do.
    pub features: Features,
    /// Its process start.
    pub from: Incarnation,
    /// Its rank.
    pub rank: u16,
    /// The number of the connection: higher than all that either side has seen.
    pub connection: u64,
    /// What it is.
    pub setup: PeerSetup,
}

impl PeerHelloAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u64(self.features.0);
        writer.u128(self.from.0);
        writer.u16(self.rank);
        writer.u64(self.connection);
        self.setup.write(&mut writer);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let answer = Self {
            features: Features(reader.u64("peer features")?),
            from: Incarnation(reader.u128("peer sender")?),
            rank: reader.u16("peer rank")?,
            connection: reader.u64("peer connection")?,
            setup: PeerSetup::read(&mut reader)?,
        };
        reader.finish()?;
        Ok(answer)
    }
}

/// A part of a transfer under one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartName {
    /// The transfer.
    pub transfer: TransferId,
    /// The part and the claim.
    pub at: PartAttempt,
}

impl PartName {
    fn write(&self, writer: &mut Writer<'_>) {
        let PartAttempt { part, attempt } = self.at;
        writer.u128(self.transfer.0);
        writer.u16(part.source);
        writer.u16(part.destination);
        writer.u16(part.index);
        writer.u32(attempt.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let transfer = TransferId(reader.u128("transfer")?);
        let part = PartId {
            source: reader.u16("source rank")?,
            destination: reader.u16("destination rank")?,
            index: reader.u16("part index")?,
        };
        let attempt = Attempt(reader.u32("attempt")?);
        let at = PartAttempt { part, attempt };
        Ok(Self { transfer, at })
    }
}

/// How the lender's side of a part, or of a piece of it, went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PartStatus {
    /// Well.
    Done = 0,
    /// The lender does not lend it, or not any more.
    Refused = 1,
    /// The bytes that landed are not those that were sent.
    Corrupt = 2,
    /// The device that owns the memory failed.
    Device = 3,
}

impl PartStatus {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("part status")? {
            0 => Self::Done,
            1 => Self::Refused,
            2 => Self::Corrupt,
            3 => Self::Device,
            got => {
                return Err(DecodeError::Invalid {
                    field: "part status",
                    got: u64::from(got),
                });
            }
        })
    }
}

/// Asks the lender for all bytes of a part, in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPull {
    /// The part.
    pub part: PartName,
}

impl PeerPull {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.part.write(&mut Writer::new(out));
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let part = PartName::read(&mut reader)?;
        reader.finish()?;
        Ok(Self { part })
    }
}

/// Answers [`PeerPull`], once for each piece; one that is not done is the last. The bytes are the
/// payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPullAnswer {
    /// The part.
    pub part: PartName,
    /// How it went; there is no payload unless well.
    pub status: PartStatus,
    /// Which piece, from 0.
    pub piece: u32,
    /// The checksum of the payload.
    pub checksum: u64,
}

impl PeerPullAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        self.part.write(&mut writer);
        writer.u8(self.status as u8);
        writer.u32(self.piece);
        writer.u64(self.checksum);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let answer = Self {
            part: PartName::read(&mut reader)?,
            status: PartStatus::read(&mut reader)?,
            piece: reader.u32("piece")?,
            checksum: reader.u64("piece checksum")?,
        };
        reader.finish()?;
        Ok(answer)
    }
}

/// One piece of a part, pushed into the lender's blocks. The bytes are the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPush {
    /// The part.
    pub part: PartName,
    /// Which piece, from 0.
    pub piece: u32,
    /// Whether it is the last: then the part is answered.
    pub last: bool,
    /// The checksum of the payload.
    pub checksum: u64,
}

impl PeerPush {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        self.part.write(&mut writer);
        writer.u32(self.piece);
        writer.u8(u8::from(self.last));
        writer.u64(self.checksum);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let push = Self {
            part: PartName::read(&mut reader)?,
            piece: reader.u32("piece")?,
            last: match reader.u8("last piece")? {
                0 => false,
                1 => true,
                got => {
                    return Err(DecodeError::Invalid {
                        field: "last piece",
                        got: u64::from(got),
                    });
                }
            },
            checksum: reader.u64("piece checksum")?,
        };
        reader.finish()?;
        Ok(push)
    }
}

/// Answers the last [`PeerPush`] of a part: nothing of it will be written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPushAnswer {
    /// The part.
    pub part: PartName,
    /// How it went.
    pub status: PartStatus,
}

impl PeerPushAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        self.part.write(&mut writer);
        writer.u8(self.status as u8);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let answer = Self {
            part: PartName::read(&mut reader)?,
            status: PartStatus::read(&mut reader)?,
        };
        reader.finish()?;
        Ok(answer)
    }
}

/// Brings a ticket of decode's blocks to prefill. Answered when its fate is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTicket {
    /// The sealed text; see [`Ticket`](crate::ticket::Ticket).
    pub ticket: String,
}

impl PeerTicket {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).text(&self.ticket, BODY_BYTES_MAX);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let ticket = reader.text("ticket", BODY_BYTES_MAX)?;
        reader.finish()?;
        Ok(Self { ticket })
    }
}

/// Answers [`PeerTicket`]: the blocks will be claimed, unless none was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTicketAnswer {
    /// The ticket's transfer.
    pub transfer: TransferId,
}

impl PeerTicketAnswer {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u128(self.transfer.0);
    }

    /// Reads the body.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let transfer = TransferId(reader.u128("transfer")?);
        reader.finish()?;
        Ok(Self { transfer })
    }
}

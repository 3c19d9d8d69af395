//! A frame from bytes of another process.
//!
//! Called by the client for each frame that it takes. The invariant: nothing is allocated for a
//! list before its length is within its limit and its items are within the bytes that came.

use crate::codec::{DecodeError, Reader, at_most};
use crate::limits::{
    LEASE_MS_MAX, PEER_BLOCK_BYTES, PEER_BLOCKS_MAX, PEER_ENTRIES_MAX, PEER_ENTRY_BYTES,
    PEER_PART_BYTES, PEER_PARTS_MAX,
};
use crate::message::Incarnation;
use crate::peer::encode::number;
use crate::peer::ids::{
    Attempt, BlockRef, ConnectionId, Generation, PartAttempt, PartId, TransferId,
};
use crate::peer::message::{Frame, LentPart, Message, Proof, Refusal};

/// Bytes of one item of each list.
const PART_BYTES: usize = 6;
const ATTEMPT_BYTES: usize = 10;
const RELEASED_BYTES: usize = 11;

impl Frame {
    /// Reads the frame.
    ///
    /// # Errors
    /// See [`DecodeError`]; also if a message that has a place in the sequence comes without one,
    /// or one that has none comes with one.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let frame = Self {
            from: Incarnation(reader.u128("peer frame from")?),
            to: Incarnation(reader.u128("peer frame to")?),
            connection: ConnectionId(reader.u64("peer frame connection")?),
            sequence: reader.u64("peer frame sequence")?,
            acknowledged: reader.u64("peer frame acknowledged")?,
            message: Message::read(&mut reader)?,
        };
        reader.finish()?;
        if frame.message.is_sequenced() == (frame.sequence == 0) {
            let (field, got) = ("peer frame sequence", frame.sequence);
            return Err(DecodeError::Invalid { field, got });
        }
        Ok(frame)
    }
}

impl Message {
    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = from.u8("peer message number")?;
        Ok(match number {
            number::OPEN_SET => Self::OpenSet {
                open: entries(from, "open set count")?,
            },
            number::NEVER_POSTED => Self::NeverPosted {
                unknown: entries(from, "never posted count")?,
            },
            number::PING => Self::Ping {
                digest: from.u64("ping digest")?,
            },
            number::PONG => Self::Pong,
            number::OFFER..=number::FENCE_DONE => {
                let transfer = TransferId(from.u128("transfer id")?);
                Self::read_of(number, transfer, from)?
            }
            _ => {
                let (field, got) = ("peer message number", u64::from(number));
                return Err(DecodeError::Invalid { field, got });
            }
        })
    }

    /// Reads a message about a transfer.
    fn read_of(
        number: u8,
        transfer: TransferId,
        from: &mut Reader<'_>,
    ) -> Result<Self, DecodeError> {
        Ok(match number {
            number::OFFER => {
                let lease_ms = from.u64("offer lease")?;
                at_most("offer lease", lease_ms, u64::from(LEASE_MS_MAX))?;
                let parts = lent_parts(from)?;
                Self::Offer {
                    transfer,
                    lease_ms,
                    parts,
                }
            }
            number::CLAIM => Self::Claim {
                transfer,
                parts: lent_parts(from)?,
            },
            number::GRANT => Self::Grant {
                transfer,
                parts: list(from, ATTEMPT_BYTES, attempt)?,
            },
            number::REFUSE => Self::Refuse {
                transfer,
                reason: refusal(from)?,
                parts: list(from, ATTEMPT_BYTES, attempt)?,
            },
            number::ABORT => Self::Abort {
                transfer,
                parts: list(from, PART_BYTES, part)?,
            },
            number::RELEASE => Self::Release {
                transfer,
                parts: list(from, RELEASED_BYTES, |from| {
                    Ok((attempt(from)?, proof(from)?))
                })?,
            },
            number::RELEASE_ACK => Self::ReleaseAck {
                transfer,
                parts: list(from, PART_BYTES, part)?,
            },
            number::FENCE_REQ => Self::FenceReq {
                transfer,
                parts: list(from, PART_BYTES, part)?,
            },
            _ => {
                let at = attempt(from)?;
                Self::read_word(number, transfer, at, from)?
            }
        })
    }

    /// Reads a word about one part.
    fn read_word(
        number: u8,
        transfer: TransferId,
        at: PartAttempt,
        from: &mut Reader<'_>,
    ) -> Result<Self, DecodeError> {
        Ok(match number {
            number::DATA_DONE => Self::DataDone { transfer, at },
            number::FENCE_DONE => Self::FenceDone { transfer, at },
            number::ABORT_ACK => Self::AbortAck {
                transfer,
                at,
                proof: proof(from)?,
            },
            _ => Self::PartErr {
                transfer,
                at,
                proof: maybe_proof(from)?,
            },
        })
    }
}

fn list<'a, T>(
    from: &mut Reader<'a>,
    item_bytes: usize,
    read: impl Fn(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = from.count("part count", PEER_PARTS_MAX, item_bytes)?;
    (0..count).map(|_| read(from)).collect()
}

/// Parts with their blocks: both are bounded, the blocks over all parts together.
fn lent_parts(from: &mut Reader<'_>) -> Result<Vec<LentPart>, DecodeError> {
    let count = from.count("part count", PEER_PARTS_MAX, PEER_PART_BYTES as usize)?;
    let mut left = PEER_BLOCKS_MAX;
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let at = attempt(from)?;
        let count = from.count("block count", left, PEER_BLOCK_BYTES as usize)?;
        let blocks = (0..count).map(|_| block(from));
        let blocks: Vec<BlockRef> = blocks.collect::<Result<_, _>>()?;
        left -= u32::try_from(blocks.len()).unwrap_or(left);
        parts.push(LentPart { at, blocks });
    }
    Ok(parts)
}

fn part(from: &mut Reader<'_>) -> Result<PartId, DecodeError> {
    Ok(PartId {
        source: from.u16("part source")?,
        destination: from.u16("part destination")?,
        index: from.u16("part index")?,
    })
}

fn attempt(from: &mut Reader<'_>) -> Result<PartAttempt, DecodeError> {
    Ok(PartAttempt {
        part: part(from)?,
        attempt: Attempt(from.u32("part attempt")?),
    })
}

fn block(from: &mut Reader<'_>) -> Result<BlockRef, DecodeError> {
    Ok(BlockRef {
        group: from.u16("block group")?,
        block: from.u32("block number")?,
        generation: Generation(from.u64("block generation")?),
    })
}

fn entries(
    from: &mut Reader<'_>,
    field: &'static str,
) -> Result<Vec<(TransferId, PartId)>, DecodeError> {
    let count = from.count(field, PEER_ENTRIES_MAX, PEER_ENTRY_BYTES as usize)?;
    (0..count)
        .map(|_| Ok((TransferId(from.u128("transfer id")?), part(from)?)))
        .collect()
}

/// A proof, or none.
fn maybe_proof(from: &mut Reader<'_>) -> Result<Option<Proof>, DecodeError> {
    Ok(match from.u8("proof")? {
        0 => None,
        1 => Some(Proof::NeverPosted),
        2 => Some(Proof::Clean),
        3 => Some(Proof::Fenced),
        got => return invalid("proof", got),
    })
}

fn proof(from: &mut Reader<'_>) -> Result<Proof, DecodeError> {
    match maybe_proof(from)? {
        Some(proof) => Ok(proof),
        None => invalid("proof", 0),
    }
}

fn refusal(from: &mut Reader<'_>) -> Result<Refusal, DecodeError> {
    Ok(match from.u8("refusal reason")? {
        1 => Refusal::Unknown,
        2 => Refusal::Stale,
        3 => Refusal::Used,
        4 => Refusal::Revoked,
        got => return invalid("refusal reason", got),
    })
}

fn invalid<T>(field: &'static str, got: u8) -> Result<T, DecodeError> {
    let got = u64::from(got);
    Err(DecodeError::Invalid { field, got })
}

//! The ticket that the lender of blocks writes for the other engine: which blocks hold a prompt, or
//! are to hold it, in whose memory, and until when they may be asked for; and the pass by which the
//! two find each other when neither was first.
//!
//! They travel as text through routers and users' requests, so they are signed: an engine opens one
//! under the key that both share before it dials any address or touches any block. The invariants:
//! nothing of a ticket is looked at before its signature holds; it names the prompt whose blocks it
//! offers, so that it cannot fill another one.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use thiserror::Error;

use crate::codec::{DecodeError, Reader, Writer, at_most};
use crate::limits::{PEER_BLOCKS_MAX, PEER_GROUPS_MAX, PEER_TEXT_BYTES_MAX, RANKS_MAX};
use crate::message::Incarnation;
use crate::peer::{BlockRef, Generation, TransferId};

/// What is signed opens with a number of its kind and version, so that none is taken for another.
const VERSION: u8 = 1;
const VERSION_WRITE: u8 = 2;
const VERSION_PASS: u8 = 3;
/// Bytes of HMAC-SHA256.
const TAG_BYTES: usize = 32;
/// Separates digests of prompts from all other uses of the hash.
const PROMPT_DOMAIN: &[u8] = b"tessera prompt v1";
/// The longest ticket that is looked at, characters.
pub const TICKET_CHARS_MAX: usize = 4 << 20;
/// The shortest key that is taken, bytes.
pub const KEY_BYTES_MIN: usize = 32;

/// The secret that engines which hand over to each other share.
#[derive(Clone)]
pub struct TicketKey(Hmac<Sha256>);

impl TicketKey {
    /// A key of these bytes; `None` if there are fewer than [`KEY_BYTES_MIN`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let long = bytes.len() >= KEY_BYTES_MIN;
        let mac = Hmac::new_from_slice(bytes).ok();
        mac.filter(|_| long).map(Self)
    }
}

/// Shows nothing of the secret.
impl fmt::Debug for TicketKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TicketKey")
    }
}

/// What identifies a prompt: the tokens, and all else that its blocks depend on.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// The engine's hashes of whole units of tokens, from the first.
    pub hashes: &'a [&'a [u8]],
    /// Tokens of one unit; not 0.
    pub hash_tokens: u64,
    /// What the blocks depend on beside the tokens, where no whole unit says it: salt, adapter,
    /// images.
    pub others: &'a [&'a [u8]],
}

impl Prompt<'_> {
    /// The digest of the first `tokens` tokens; `None` if there are not so many.
    #[must_use]
    pub fn digest(&self, tokens: u64) -> Option<[u8; 32]> {
        let first = self.tokens.get(..usize::try_from(tokens).ok()?)?;
        let units = usize::try_from(tokens.checked_div(self.hash_tokens)?).ok()?;
        let mut bytes = PROMPT_DOMAIN.to_vec();
        let mut writer = Writer::new(&mut bytes);
        writer.u64(tokens);
        first.iter().for_each(|token| writer.u32(*token));
        for list in [self.hashes.get(..units)?, self.others] {
            writer.count(list.len());
            list.iter().for_each(|bytes| writer.framed(bytes));
        }
        Some(blake3::hash(&bytes).into())
    }
}

/// One worker of the prefill engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TicketWorker {
    /// Its process start.
    pub incarnation: Incarnation,
    /// Where it listens, as `host:port`.
    pub address: String,
}

/// Who lends the blocks that a ticket names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lender {
    /// Its blocks are read.
    Prefill,
    /// Its blocks are written.
    Decode,
}

impl Lender {
    const fn version(self) -> u8 {
        match self {
            Self::Prefill => VERSION,
            Self::Decode => VERSION_WRITE,
        }
    }
}

/// What prefill offers, or decode where prefill writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The transfer that it admits, once.
    pub transfer: TransferId,
    /// When the offer ends, milliseconds since 1970.
    pub expires_unix_ms: u64,
    /// Digest of the tokens that are offered.
    pub prompt: [u8; 32],
    /// How many they are.
    pub tokens: u64,
    /// The life of the blocks.
    pub generation: Generation,
    /// The workers, in the engine's rank order.
    pub workers: Vec<TicketWorker>,
    /// The block table of each group; [`BlockRef::NULL`] where there is no block.
    pub tables: Vec<Vec<u32>>,
}

/// Why a ticket is not taken. The request computes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TicketError {
    /// Not a ticket's text.
    #[error("the ticket is no text of hexadecimal digits: something on its way has changed it")]
    Text,
    /// The signature does not hold.
    #[error("the ticket is not signed with this engine's key: give both engines one key")]
    Signature,
    /// Of another version, or damaged before it was signed.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// Too late.
    #[error("the ticket has expired {0} ms ago: raise peer_lease_ms, or set the clocks right")]
    Expired(u64),
}

impl Ticket {
    /// The signed text of what prefill lends.
    #[must_use]
    pub fn seal(&self, key: &TicketKey) -> String {
        self.seal_by(Lender::Prefill, key)
    }

    /// The signed text of what `lender` lends.
    #[must_use]
    pub fn seal_by(&self, lender: Lender, key: &TicketKey) -> String {
        let mut bytes = Vec::new();
        self.encode(lender, &mut Writer::new(&mut bytes));
        sign(bytes, key)
    }

    /// Opens a text that [`seal`](Self::seal) has made under the same key.
    ///
    /// # Errors
    /// See [`TicketError`].
    pub fn open(text: &str, key: &TicketKey, now_unix_ms: u64) -> Result<Self, TicketError> {
        Self::open_by(Lender::Prefill, text, key, now_unix_ms)
    }

    /// Opens a text that [`seal_by`](Self::seal_by) has made of this lender, under the same key.
    ///
    /// # Errors
    /// See [`TicketError`].
    pub fn open_by(
        lender: Lender,
        text: &str,
        key: &TicketKey,
        now_unix_ms: u64,
    ) -> Result<Self, TicketError> {
        let ticket = Self::decode(lender, &signed(text, key)?)?;
        in_time(ticket.expires_unix_ms, now_unix_ms)?;
        Ok(ticket)
    }

    /// All blocks, group after group, as the lender has ordered them.
    pub fn blocks(&self) -> impl Iterator<Item = BlockRef> {
        let generation = self.generation;
        let tables = self.tables.iter().zip(0_u16..);
        tables.flat_map(move |(table, group)| {
            table.iter().map(move |block| BlockRef {
                group,
                block: *block,
                generation,
            })
        })
    }

    fn encode(&self, lender: Lender, writer: &mut Writer<'_>) {
        writer.u8(lender.version());
        writer.u128(self.transfer.0);
        writer.u64(self.expires_unix_ms);
        writer.bytes(&self.prompt);
        writer.u64(self.tokens);
        writer.u64(self.generation.0);
        writer.count(self.workers.len());
        for worker in &self.workers {
            writer.u128(worker.incarnation.0);
            writer.text(&worker.address, PEER_TEXT_BYTES_MAX);
        }
        writer.count(self.tables.len());
        for table in &self.tables {
            writer.count(table.len());
            table.iter().for_each(|block| writer.u32(*block));
        }
    }

    fn decode(lender: Lender, body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        read_version(&mut reader, lender.version())?;
        let transfer = TransferId(reader.u128("transfer")?);
        let expires_unix_ms = reader.u64("expiry")?;
        let prompt = reader.array("prompt")?;
        let tokens = reader.u64("tokens")?;
        let generation = Generation(reader.u64("generation")?);
        let workers = reader.count("workers", RANKS_MAX, 20)?;
        let workers = (0..workers).map(|_| {
            Ok(TicketWorker {
                incarnation: Incarnation(reader.u128("incarnation")?),
                address: reader.text("address", PEER_TEXT_BYTES_MAX)?,
            })
        });
        let workers = workers.collect::<Result<_, DecodeError>>()?;
        let mut tables = Vec::new();
        let mut blocks = 0;
        for _ in 0..reader.count("groups", PEER_GROUPS_MAX, 4)? {
            let length = reader.count("blocks", PEER_BLOCKS_MAX, 4)?;
            blocks += length;
            at_most("blocks", blocks as u64, u64::from(PEER_BLOCKS_MAX))?;
            let table = (0..length).map(|_| reader.u32("block"));
            tables.push(table.collect::<Result<_, _>>()?);
        }
        reader.finish()?;
        Ok(Self {
            transfer,
            expires_unix_ms,
            prompt,
            tokens,
            generation,
            workers,
            tables,
        })
    }
}

/// What a dispatcher gives to both ends of one request that it sends to prefill and to decode at
/// once: the transfer in which they meet, and where decode finds prefill.
///
/// It stands in the same JSON as what users write, so that it is signed as a ticket is: no address
/// is dialled that a holder of the key has not written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The transfer that it admits, once.
    pub transfer: TransferId,
    /// When it ends, milliseconds since 1970.
    pub expires_unix_ms: u64,
    /// Where prefill takes tickets, as `host:port`.
    pub inbox: String,
}

impl Pass {
    /// The signed text.
    #[must_use]
    pub fn seal(&self, key: &TicketKey) -> String {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.u8(VERSION_PASS);
        writer.u128(self.transfer.0);
        writer.u64(self.expires_unix_ms);
        writer.text(&self.inbox, PEER_TEXT_BYTES_MAX);
        sign(bytes, key)
    }

    /// Opens a text that [`seal`](Self::seal) has made under the same key.
    ///
    /// # Errors
    /// See [`TicketError`].
    pub fn open(text: &str, key: &TicketKey, now_unix_ms: u64) -> Result<Self, TicketError> {
        let body = signed(text, key)?;
        let mut reader = Reader::new(&body);
        read_version(&mut reader, VERSION_PASS)?;
        let pass = Self {
            transfer: TransferId(reader.u128("transfer")?),
            expires_unix_ms: reader.u64("expiry")?,
            inbox: reader.text("inbox", PEER_TEXT_BYTES_MAX)?,
        };
        reader.finish()?;
        in_time(pass.expires_unix_ms, now_unix_ms)?;
        Ok(pass)
    }
}

fn read_version(reader: &mut Reader<'_>, expected: u8) -> Result<(), DecodeError> {
    match reader.u8("version of the ticket")? {
        version if version == expected => Ok(()),
        version => Err(DecodeError::Version {
            what: "ticket",
            got: u16::from(version),
            expected: u16::from(expected),
        }),
    }
}

fn in_time(expires_unix_ms: u64, now_unix_ms: u64) -> Result<(), TicketError> {
    match now_unix_ms.checked_sub(expires_unix_ms) {
        None | Some(0) => Ok(()),
        Some(late) => Err(TicketError::Expired(late)),
    }
}

fn sign(mut bytes: Vec<u8>, key: &TicketKey) -> String {
    let tag = key.0.clone().chain_update(&bytes).finalize().into_bytes();
    bytes.extend_from_slice(&tag);
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text
}

/// What was signed, once the signature holds.
fn signed(text: &str, key: &TicketKey) -> Result<Vec<u8>, TicketError> {
    let mut bytes = bytes_of(text).ok_or(TicketError::Text)?;
    let (body, tag) = bytes
        .split_last_chunk::<TAG_BYTES>()
        .ok_or(TicketError::Text)?;
    let mac = key.0.clone().chain_update(body);
    mac.verify_slice(tag).map_err(|_| TicketError::Signature)?;
    bytes.truncate(bytes.len() - TAG_BYTES);
    Ok(bytes)
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    if text.len() > TICKET_CHARS_MAX {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    pairs.iter().map(byte).collect()
}

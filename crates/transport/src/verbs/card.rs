//! What two queue pairs must know of each other: bytes that another link carries.
//!
//! Made by a [`QueuePair`](super::QueuePair), read by the one at the other end. The invariant:
//! bytes of another kind, version or length are refused before anything is taken from them.
//!
//! ```text
//! 0      4   "TSRC"            16     4   first packet number, 24 bits
//! 4      2   version, 1        20     4   queue pair number, 24 bits
//! 6      1   path MTU, 1 to 5  24     2   local identifier, 0 on Ethernet
//! 7      1   reads served      26     6   zero
//! 8      8   zero              32    16   global identifier (GID)
//! ```

/// Bytes of a card.
pub const CARD_BYTES: usize = 48;

const MAGIC: [u8; 4] = *b"TSRC";
const VERSION: u16 = 1;

/// The largest number that 24 bits hold.
const MOST_24: u32 = 0x00ff_ffff;

/// The address of a queue pair. Integers are little-endian on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Card {
    /// The path MTU that its port has, as verbs count them: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// How many reads at once it serves.
    pub reads: u8,
    /// The number of its first packet.
    pub packet: u32,
    /// Its number on its device.
    pub pair: u32,
    /// Its port's local identifier; Ethernet has none.
    pub lid: u16,
    /// Its port's address.
    pub gid: [u8; 16],
}

/// Why a card is refused: the peer's fault, or that of the link that carried it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// No card at all.
    #[error("{length} bytes are no card of a queue pair: both sides must speak this protocol")]
    NotACard {
        /// How many came.
        length: usize,
    },
    /// A card of another version.
    #[error("the peer's card has version {theirs}, ours has {VERSION}: run one version")]
    Version {
        /// What came.
        theirs: u16,
    },
    /// A field that no queue pair has.
    #[error("the peer's card has {field} {value}, which no queue pair has")]
    Field {
        /// Which.
        field: &'static str,
        /// What came.
        value: u32,
    },
}

impl Card {
    /// The bytes to send.
    pub fn encode(&self) -> [u8; CARD_BYTES] {
        let mut bytes = [0; CARD_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.mtu;
        bytes[7] = self.reads;
        bytes[16..20].copy_from_slice(&self.packet.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.pair.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.lid.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.gid);
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    /// [`CardError`], for anything that [`encode`](Self::encode) cannot have made.
    pub fn decode(bytes: &[u8]) -> Result<Self, CardError> {
        let length = bytes.len();
        let bytes: &[u8; CARD_BYTES] = bytes
            .try_into()
            .map_err(|_| CardError::NotACard { length })?;
        if bytes[0..4] != MAGIC {
            return Err(CardError::NotACard { length });
        }
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        if short(4) != VERSION {
            return Err(CardError::Version { theirs: short(4) });
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[32..48]);
        let card = Self {
            mtu: bytes[6],
            reads: bytes[7],
            packet: long(16),
            pair: long(20),
            lid: short(24),
            gid,
        };
        let within = |field, value: u32, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(CardError::Field { field, value }),
        };
        within("path MTU", u32::from(card.mtu), 1, 5)?;
        within("reads served", u32::from(card.reads), 1, 255)?;
        within("first packet", card.packet, 0, MOST_24)?;
        within("queue pair", card.pair, 0, MOST_24)?;
        Ok(card)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Card = Card {
        mtu: 3,
        reads: 16,
        packet: 0x0012_3456,
        pair: 0x00fe_dcba,
        lid: 7,
        gid: *b"abcdefghijklmnop",
    };

    #[test]
    fn a_card_comes_back_and_its_bytes_are_those_of_the_table() {
        let bytes = CARD.encode();
        assert_eq!(Card::decode(&bytes), Ok(CARD));
        assert_eq!(&bytes[..8], b"TSRC\x01\x00\x03\x10");
        assert_eq!(&bytes[16..26], b"\x56\x34\x12\x00\xba\xdc\xfe\x00\x07\x00");
        assert_eq!(&bytes[32..], b"abcdefghijklmnop");
    }

    #[test]
    fn what_no_pair_can_have_said_is_refused() {
        let changed = |at: usize, to: u8| {
            let mut bytes = CARD.encode();
            bytes[at] = to;
            Card::decode(&bytes).unwrap_err()
        };
        assert_eq!(changed(0, b'x'), CardError::NotACard { length: 48 });
        assert_eq!(changed(4, 9), CardError::Version { theirs: 9 });
        for (at, to) in [(6, 0), (6, 6), (7, 0), (19, 1), (23, 1)] {
            assert!(matches!(changed(at, to), CardError::Field { .. }), "{at}");
        }
        let length = CARD_BYTES - 1;
        let short = Card::decode(&CARD.encode()[..length]);
        assert_eq!(short, Err(CardError::NotACard { length }));
    }
}

//! The fixed 64-byte header that opens every frame; drawn in `docs/wire.md`.
//!
//! Called by the transport for each frame. A header is either wholly valid (magic, version, check,
//! known kind, lengths within limits) or refused before anything is allocated for its body.

use crate::checksum::checksum;
use crate::codec::{DecodeError, Reader, at_most};
use crate::limits::{BODY_BYTES_MAX, DEADLINE_MS_MAX, OBJECT_BYTES_MAX};

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 64;
/// The wire version that this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// `TSRA` in the order of the bytes on the wire.
const MAGIC: [u8; 4] = *b"TSRA";
/// Bytes after the last field, zero in this version.
const RESERVED_BYTES: usize = 20;
/// Bytes that the header check covers: all before it.
const CHECKED_BYTES: usize = 36 + RESERVED_BYTES;

const _: () = assert!(CHECKED_BYTES + size_of::<u64>() == FRAME_HEADER_BYTES);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// What a frame carries. An answer has the number of its request with the top bit set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind { $($(#[$doc])* $name = $value,)* }

        impl Kind {
            /// Every kind of this version.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The kind with this number, if this version has one.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Opens a connection: versions, features, incarnation.
    Hello = 0x0001,
    /// Stores one object; the object is the payload.
    Put = 0x0002,
    /// Probes ids and leases those that are present.
    Acquire = 0x0003,
    /// Reads one object; the object is the payload of the answer.
    Get = 0x0004,
    /// Gives leased ids back.
    Release = 0x0005,
    /// Removes objects for good.
    Remove = 0x0006,
    /// Asks for the node's counters.
    Stat = 0x0007,
    /// Asks whether the node is alive.
    Ping = 0x0008,
    /// Drops a namespace: removes every object of it for good. The golden file keeps 9 as the
    /// number of no kind.
    Drop = 0x000a,
    /// Says what the objects of a namespace cost to compute again.
    Price = 0x000b,
    /// Opens a connection between two engines.
    PeerHello = 0x0010,
    /// Says something about transfers between two engines; what answers it is another of these.
    PeerControl = 0x0011,
    /// Asks another engine for the bytes of a part.
    PeerPull = 0x0012,
    /// One piece of a part for another engine; the bytes are the payload.
    PeerPush = 0x0013,
    /// Brings a ticket to the engine that is to write into the blocks that it names.
    PeerTicket = 0x0014,
    /// Answers [`Kind::Hello`].
    HelloAnswer = 0x8001,
    /// Answers [`Kind::Put`].
    PutAnswer = 0x8002,
    /// Answers [`Kind::Acquire`].
    AcquireAnswer = 0x8003,
    /// Answers [`Kind::Get`].
    GetAnswer = 0x8004,
    /// Answers [`Kind::Release`].
    ReleaseAnswer = 0x8005,
    /// Answers [`Kind::Remove`].
    RemoveAnswer = 0x8006,
    /// Answers [`Kind::Stat`].
    StatAnswer = 0x8007,
    /// Answers [`Kind::Ping`].
    PingAnswer = 0x8008,
    /// Answers [`Kind::Drop`].
    DropAnswer = 0x800a,
    /// Answers [`Kind::Price`].
    PriceAnswer = 0x800b,
    /// Answers [`Kind::PeerHello`].
    PeerHelloAnswer = 0x8010,
    /// Answers [`Kind::PeerPull`] with one piece; the bytes are the payload.
    PeerPullAnswer = 0x8012,
    /// Answers the last [`Kind::PeerPush`] of a part.
    PeerPushAnswer = 0x8013,
    /// Answers [`Kind::PeerTicket`] when its blocks will be claimed.
    PeerTicketAnswer = 0x8014,
    /// Refuses a request, or the connection if its request id is zero.
    Refused = 0x8fff,
}

impl Kind {
    /// The number of this kind on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Whether a frame of this kind may carry a payload.
    #[must_use]
    pub const fn has_payload(self) -> bool {
        matches!(
            self,
            Self::Put | Self::GetAnswer | Self::PeerPush | Self::PeerPullAnswer
        )
    }

    /// Whether this is an answer.
    #[must_use]
    pub const fn is_answer(self) -> bool {
        self.number() & 0x8000 != 0
    }
}

/// The header of one frame. Body and payload follow it in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame carries.
    pub kind: Kind,
    /// Chosen by the requester, unique among its requests in flight; an answer repeats it.
    pub request: u64,
    /// Milliseconds that the sender still waits, from the moment the header is received; zero in
    /// answers.
    pub deadline_ms: u32,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Bytes of the payload.
    pub payload_bytes: u64,
}

impl FrameHeader {
    /// The header as it goes over the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.kind.number().to_le_bytes());
        // 8..12 flags: none in this version
        bytes[12..16].copy_from_slice(&self.deadline_ms.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.body_bytes.to_le_bytes());
        let check = checksum(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The header in `bytes`.
    ///
    /// # Errors
    /// Magic, version and check first, in this order, so that a foreign protocol and another
    /// version are told apart from damage; then the kind and every declared length.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.array("frame magic")? != MAGIC {
            return Err(DecodeError::Magic { what: "frame" });
        }
        let version = reader.u16("frame version")?;
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::Version {
                what: "wire protocol",
                got: version,
                expected: PROTOCOL_VERSION,
            });
        }
        let number = reader.u16("frame kind")?;
        let flags = reader.u32("frame flags")?;
        let deadline_ms = reader.u32("frame deadline")?;
        let request = reader.u64("request id")?;
        let payload_bytes = reader.u64("payload length")?;
        let body_bytes = reader.u32("body length")?;
        if checksum(&bytes[..CHECKED_BYTES]).to_le_bytes() != bytes[CHECKED_BYTES..] {
            return Err(DecodeError::Check {
                what: "frame header",
            });
        }
        reader.zeros("frame reserved", RESERVED_BYTES)?;
        let kind = Kind::from_number(number).ok_or(DecodeError::Invalid {
            field: "frame kind",
            got: u64::from(number),
        })?;
        if flags != 0 {
            return Err(DecodeError::Invalid {
                field: "frame flags",
                got: u64::from(flags),
            });
        }
        let header = Self {
            kind,
            request,
            deadline_ms,
            body_bytes,
            payload_bytes,
        };
        header.check_lengths()?;
        Ok(header)
    }

    fn check_lengths(&self) -> Result<(), DecodeError> {
        let deadline_ms = u64::from(self.deadline_ms);
        let body_bytes = u64::from(self.body_bytes);
        let payload_bytes_max = if self.kind.has_payload() {
            OBJECT_BYTES_MAX
        } else {
            0
        };
        at_most("deadline", deadline_ms, u64::from(DEADLINE_MS_MAX))?;
        at_most("body length", body_bytes, u64::from(BODY_BYTES_MAX))?;
        at_most("payload length", self.payload_bytes, payload_bytes_max)
    }
}

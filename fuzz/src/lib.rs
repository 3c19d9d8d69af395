//! Every decoder that reads bytes from another process, under one property.
//!
//! Called by the fuzz target `decoders` for each input and by the runner, which makes seeds from
//! the golden files. The property: a decoder never panics, and whatever it accepts encodes to the
//! bytes that it accepted, so that no two byte strings mean the same message.

pub mod recovery;

use tessera_lifecycle::handover::{End, HandoverBlock, HandoverOrder};
use tessera_lifecycle::peer::Mode;
use tessera_lifecycle::{
    Attempt, ChunkHash, LeaseOrder, LoadId, LoadOrder, RequestKey, SaveOrder, StepPlan,
};
use tessera_proto::{
    Checksum, FRAME_HEADER_BYTES, FrameHeader, ObjectHeader, Reader, message, peer,
};

/// A decoder by name.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The type that it decodes, as the golden files name it.
    pub name: &'static str,
    /// Decodes the bytes and asserts the property.
    pub check: fn(&[u8]),
}

macro_rules! decoders {
    ($($message:ident,)*) => {
        /// Every decoder. The first byte of an input chooses one of them.
        pub const DECODERS: &[Decoder] = &[
            Decoder { name: "FrameHeader", check: frame_header },
            Decoder { name: "ObjectHeader", check: object_header },
            Decoder { name: "StepPlan", check: step_plan },
            Decoder { name: "PeerFrame", check: peer_frame },
            $(Decoder {
                name: stringify!($message),
                check: |body| {
                    if let Ok(decoded) = message::$message::decode(body) {
                        let mut encoded = Vec::new();
                        decoded.encode(&mut encoded);
                        assert_eq!(encoded, body, "{decoded:?}");
                    }
                },
            },)*
        ];
    };
}

decoders! {
    Hello, HelloAnswer, Put, PutAnswer, Acquire, AcquireAnswer, Get, GetAnswer, Release,
    ReleaseAnswer, Remove, RemoveAnswer, Stat, StatAnswer, Ping, Refused, PeerHello,
    PeerHelloAnswer, PeerPull, PeerPullAnswer, PeerPush, PeerPushAnswer, PeerTicket,
    PeerTicketAnswer, Drop, DropAnswer, Price, PriceAnswer,
}

/// The decoder that `input` chooses, and the bytes for it; `None` if there is not even a choice.
#[must_use]
pub fn choose(input: &[u8]) -> Option<(&'static Decoder, &[u8])> {
    let (choice, bytes) = input.split_first()?;
    Some((&DECODERS[usize::from(*choice) % DECODERS.len()], bytes))
}

/// The input that makes [`choose`] give `bytes` to the decoder `name`, if there is one.
#[must_use]
pub fn input_for(name: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let index = DECODERS.iter().position(|decoder| decoder.name == name)?;
    let mut input = vec![u8::try_from(index).ok()?];
    input.extend_from_slice(bytes);
    Some(input)
}

/// Runs the decoder that `input` chooses.
pub fn check(input: &[u8]) {
    if let Some((decoder, bytes)) = choose(input) {
        (decoder.check)(bytes);
    }
}

/// Decodes a header as it stands and, since a fuzzer cannot guess a checksum, with its check put
/// right.
fn frame_header(bytes: &[u8]) {
    let Some((head, _)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return;
    };
    let mut repaired = *head;
    let (checked, check) = repaired.split_at_mut(FRAME_HEADER_BYTES - 8);
    let mut running = Checksum::new();
    running.update(checked);
    check.copy_from_slice(&running.finish().to_le_bytes());
    for bytes in [head, &repaired] {
        if let Ok(header) = FrameHeader::decode(bytes) {
            assert_eq!(&header.encode(), bytes, "{header:?}");
        }
    }
}

fn object_header(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    if let Ok(header) = ObjectHeader::read(&mut reader) {
        let mut encoded = Vec::new();
        header.encode(&mut encoded);
        assert!(bytes.starts_with(&encoded), "{header:?}");
    }
}

fn peer_frame(bytes: &[u8]) {
    if let Ok(frame) = peer::Frame::decode(bytes) {
        let mut encoded = Vec::new();
        frame.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{frame:?}");
    }
}

/// A plan's numbers may be written in more than one way, so only its meaning must survive.
fn step_plan(bytes: &[u8]) {
    if let Ok(plan) = StepPlan::decode(bytes) {
        assert_eq!(StepPlan::decode(&plan.encode()).as_ref(), Ok(&plan));
    }
}

/// A plan with something in every field, as a seed.
#[must_use]
pub fn sample_plan() -> Vec<u8> {
    let hash = || ChunkHash::new(&[7; 32]).into_iter().collect();
    let id = LoadId {
        request: RequestKey(1),
        attempt: Attempt(2),
    };
    let load = LoadOrder {
        request: "request".to_owned(),
        load: id,
        computed: 128,
        limit: 256,
        boundary: 256,
        tables: vec![vec![1, 2], vec![0, 3]],
        hashes: hash(),
        leases: vec![LeaseOrder {
            node: 1,
            incarnation: 2,
            lease: 3,
        }],
        lease_of: vec![0, 0],
        timeout_ms: 1_000,
    };
    let saves = ChunkHash::new(&[9; 8]).map(|hash| SaveOrder {
        group: 1,
        hash,
        blocks: vec![4, 5],
    });
    let plan = StepPlan {
        incarnation: 5,
        step: 6,
        loads: vec![load],
        cancels: vec![id],
        preempted: vec![id],
        saves: saves.into_iter().collect(),
        handovers: vec![handover()],
        handovers_cancelled: vec![7],
    };
    plan.encode()
}

fn handover() -> HandoverOrder {
    HandoverOrder {
        request: Some("request".to_owned()),
        transfer: 7,
        end: End::Takes,
        mode: Mode::Read,
        workers: vec![(8, "127.0.0.1:4000".to_owned())],
        blocks: vec![HandoverBlock {
            group: 1,
            local: 2,
            remote: 3,
        }],
        generation: 4,
        timeout_ms: 1_000,
        lease_ms: 2_000,
    }
}

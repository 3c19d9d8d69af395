//! What one GET and one PUT cost in messages, both ends together, and an ACQUIRE of many keys.
//!
//! Called by the list of jobs. Invariant: whatever is encoded is decoded and compared.

use anyhow::Result;
use tessera_proto::message::{
    Acquire, AcquireAnswer, AcquireItem, Get, GetAnswer, Presence, Put, PutAnswer, PutStatus,
};
use tessera_proto::{
    DecodeError, FrameHeader, KeyDigest, Kind, LeaseId, NamespaceDigest, ObjectHeader, ObjectId,
    TenantTag, WriteId,
};

use super::{Job, Work};

/// Exchanges of each kind.
const EXCHANGES: usize = 1_024;
const KEYS: usize = 4_096;
const LENGTH_BYTES: u64 = 1 << 20;

/// GET, PUT and their answers, each with its frame; then one ACQUIRE and its answer.
pub(super) const JOB: Job = Job {
    name: "1024 get and put exchanges, an acquire of 4096",
    operations: 2 * EXCHANGES + 1,
    prepare,
};

fn prepare() -> Result<Work> {
    let object = ObjectHeader {
        namespace: NamespaceDigest([7; 32]),
        key: KeyDigest([9; 32]),
        layout: 1,
        length_bytes: LENGTH_BYTES,
        checksum: 0x0123_4567_89ab_cdef,
        write: WriteId(11),
        tenant: TenantTag::NONE,
    };
    let lease = LeaseId::new(5);
    let get = Get {
        id: object.id(),
        lease,
        length_bytes: LENGTH_BYTES,
    };
    let acquire = Acquire {
        lease_ms: 30_000,
        bytes_max: u64::MAX,
        ids: vec![ObjectId([3; 16]); KEYS],
    };
    let item = AcquireItem {
        presence: Presence::Held,
        length_bytes: LENGTH_BYTES,
    };
    let acquired = AcquireAnswer {
        lease,
        lease_ms: 30_000,
        items: vec![item; KEYS],
    };
    let mut body = Vec::new();
    Ok(Box::new(move || {
        let mut done = 0;
        for _ in 0..EXCHANGES {
            let found = GetAnswer::Found(object);
            let stored = PutAnswer {
                status: PutStatus::Stored,
            };
            let got = crosses(&mut body, Kind::Get, &get, Get::encode, Get::decode)
                && crosses(
                    &mut body,
                    Kind::GetAnswer,
                    &found,
                    GetAnswer::encode,
                    GetAnswer::decode,
                );
            let header = Put { header: object };
            let put = crosses(&mut body, Kind::Put, &header, Put::encode, Put::decode)
                && crosses(
                    &mut body,
                    Kind::PutAnswer,
                    &stored,
                    PutAnswer::encode,
                    PutAnswer::decode,
                );
            done += usize::from(got) + usize::from(put);
        }
        let (ask, answer) = (Kind::Acquire, Kind::AcquireAnswer);
        let looked = crosses(&mut body, ask, &acquire, Acquire::encode, Acquire::decode)
            && crosses(
                &mut body,
                answer,
                &acquired,
                AcquireAnswer::encode,
                AcquireAnswer::decode,
            );
        done + usize::from(looked)
    }))
}

/// Whether a message is what it was when its frame has been written and read.
fn crosses<M: PartialEq>(
    body: &mut Vec<u8>,
    kind: Kind,
    message: &M,
    encode: impl Fn(&M, &mut Vec<u8>),
    decode: impl Fn(&[u8]) -> Result<M, DecodeError>,
) -> bool {
    body.clear();
    encode(message, body);
    let frame = FrameHeader {
        kind,
        request: 1,
        deadline_ms: 1_000,
        body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
        payload_bytes: if kind.has_payload() { LENGTH_BYTES } else { 0 },
    };
    FrameHeader::decode(&frame.encode()).as_ref() == Ok(&frame)
        && decode(body).as_ref() == Ok(message)
}

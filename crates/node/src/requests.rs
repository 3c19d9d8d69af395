//! Every request but PUT: a body that arrived whole is answered at once, without waiting.
//!
//! Called by the reader of a connection, one request after the other; the answers leave through the
//! writer while the next request is read.

use std::time::Duration;

use tessera_proto::message::{
    Acquire, AcquireAnswer, Get, GetAnswer, GetStatus, Ping, Release, ReleaseAnswer, Remove,
    RemoveAnswer, Stat, StatAnswer,
};
use tessera_proto::{FrameHeader, Kind};
use tessera_store::OwnerId;
use tokio::time::Instant;

use crate::connection::End;
use crate::shared::Shared;
use crate::writer::Answer;

/// Answers one request of the connection that is `owner`.
///
/// # Errors
/// The connection is over: the body is none of this protocol, or the kind is no request.
pub(crate) fn answer(
    shared: &Shared,
    owner: OwnerId,
    header: &FrameHeader,
    body: &[u8],
) -> Result<Answer, End> {
    let mut out = Vec::new();
    let kind = match header.kind {
        Kind::Get => return get(shared, header, &Get::decode(body)?),
        Kind::Acquire => {
            acquire(shared, owner, &Acquire::decode(body)?).encode(&mut out);
            Kind::AcquireAnswer
        }
        Kind::Release => {
            release(shared, &Release::decode(body)?).encode(&mut out);
            Kind::ReleaseAnswer
        }
        Kind::Remove => {
            remove(shared, &Remove::decode(body)?).encode(&mut out);
            Kind::RemoveAnswer
        }
        Kind::Stat => {
            Stat::decode(body)?;
            shared.counters.requests_stat.count();
            StatAnswer {
                entries: shared.stat(),
            }
            .encode(&mut out);
            Kind::StatAnswer
        }
        Kind::Ping => {
            shared.counters.requests_ping.count();
            Ping::decode(body)?.encode(&mut out);
            Kind::PingAnswer
        }
        Kind::Hello => return Err(End::Order("HELLO came twice")),
        _ => return Err(End::Order("a client sends requests, not answers")),
    };
    Ok(Answer::new(header, kind, out))
}

fn get(shared: &Shared, header: &FrameHeader, get: &Get) -> Result<Answer, End> {
    let counters = &shared.counters;
    counters.requests_get.count();
    let (answer, payload) = match shared.store.pin(&get.id, get.lease, shared.clock.now()) {
        Some(pin) if pin.header().length_bytes == get.length_bytes => {
            counters.get_found.count();
            (GetAnswer::Found(*pin.header()), Some(pin))
        }
        Some(_) => {
            counters.get_length.count();
            (GetAnswer::Absent(GetStatus::Length), None)
        }
        None if get.lease.is_some() => {
            counters.get_lease_over.count();
            (GetAnswer::Absent(GetStatus::LeaseOver), None)
        }
        None => {
            counters.get_missing.count();
            (GetAnswer::Absent(GetStatus::Missing), None)
        }
    };
    let mut body = Vec::new();
    answer.encode(&mut body);
    let patience = Duration::from_millis(u64::from(header.deadline_ms));
    let deadline = (header.deadline_ms > 0).then(|| Instant::now() + patience);
    Ok(Answer {
        payload,
        deadline,
        ..Answer::new(header, Kind::GetAnswer, body)
    })
}

fn acquire(shared: &Shared, owner: OwnerId, acquire: &Acquire) -> AcquireAnswer {
    shared.counters.requests_acquire.count();
    let ttl_ns = u64::from(acquire.lease_ms) * 1_000_000;
    let now = shared.clock.now();
    let acquired = shared
        .store
        .acquire(owner, &acquire.ids, ttl_ns, acquire.bytes_max, now);
    let lease_ms = acquired.deadline.nanos_since(now) / 1_000_000;
    let lease_ms = u32::try_from(lease_ms).unwrap_or(u32::MAX);
    AcquireAnswer {
        lease: acquired.lease,
        lease_ms,
        items: acquired.items,
    }
}

fn release(shared: &Shared, release: &Release) -> ReleaseAnswer {
    shared.counters.requests_release.count();
    let ids = (!release.ids.is_empty()).then_some(release.ids.as_slice());
    let released = shared.store.release(release.lease, ids);
    ReleaseAnswer {
        released: u32::try_from(released).unwrap_or(u32::MAX),
    }
}

fn remove(shared: &Shared, remove: &Remove) -> RemoveAnswer {
    let counters = &shared.counters;
    counters.requests_remove.count();
    let mut removed = Vec::with_capacity(remove.items.len());
    for item in &remove.items {
        let gone = shared.store.remove(&item.id, item.write);
        // A reader names the write only when the bytes that it received did not verify.
        if gone && item.write.is_some() {
            counters.integrity_failures.count();
        }
        removed.push(gone);
    }
    RemoveAnswer { removed }
}

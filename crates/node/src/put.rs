//! PUT: from the socket into the arena, verified where it landed, and only then visible.
//!
//! Called by the reader of a connection. Invariants: a length is compared with every limit before
//! memory is reserved for it; whatever the outcome, the payload is taken off the wire and the
//! connection goes on; an extent that is not published gives its memory back; nobody is told
//! "stored" before the object is as safe as the write policy says.

use std::sync::Arc;

use tessera_proto::Kind;
use tessera_proto::message::{Put, PutAnswer, PutStatus, Refusal};
use tessera_store::{Published, ReserveRefusal};
use tessera_transport::Receiver;
use tokio::time::Instant;

use crate::budget::Budget;
use crate::connection::End;
use crate::counters::Counters;
use crate::reply::Reply;
use crate::shared::Shared;

/// Serves the PUT whose header was read; `deadline` is that of its frame, and `own` the budget of
/// its connection.
pub(crate) async fn receive(
    shared: &Arc<Shared>,
    own: &Arc<Budget>,
    receiver: &mut Receiver,
    reply: Reply,
    deadline: Instant,
) -> Result<(), End> {
    shared.counters.requests_put.count();
    let object = Put::decode(receiver.body(deadline).await?)?.header;
    let payload_bytes = reply.request().payload_bytes;
    let id = object.id();
    let refused = if object.length_bytes != payload_bytes {
        Some(PutStatus::Mismatch)
    } else if payload_bytes > shared.limits.object_bytes {
        Some(PutStatus::TooLarge)
    } else {
        None
    };
    if let Some(status) = refused {
        discard(shared, receiver, payload_bytes, deadline).await?;
        end(&shared.counters, reply, status);
        return Ok(());
    }
    if shared.store.contains(&id) {
        discard(shared, receiver, payload_bytes, deadline).await?;
        let served = Arc::clone(shared);
        let done = move |published| end(&served.counters, reply, status(published));
        shared.store.join(&id, done);
        return Ok(());
    }
    let most = shared.limits.unpublished_bytes_with(payload_bytes);
    let of_all = || shared.unpublished.grant_within(payload_bytes, most);
    let Some(grants) = own.grant(payload_bytes).zip(of_all()) else {
        discard(shared, receiver, payload_bytes, deadline).await?;
        shared.counters.refused_busy_bytes.count();
        let message = "too many bytes are being received: try again later";
        reply.refuse(Refusal::Busy, message);
        return Ok(());
    };
    let now = shared.clock.now();
    let mut extent = match shared.store.reserve_for(object.tenant, payload_bytes, now) {
        Ok(extent) => extent,
        Err(refusal) => {
            discard(shared, receiver, payload_bytes, deadline).await?;
            let status = match refusal {
                ReserveRefusal::TooLarge => PutStatus::TooLarge,
                ReserveRefusal::NoSpace => PutStatus::NoSpace,
                // The header's decoder refuses a length of zero.
                ReserveRefusal::Empty => PutStatus::Mismatch,
            };
            end(&shared.counters, reply, status);
            return Ok(());
        }
    };
    let checksum = receiver.payload_into(&mut extent, deadline).await?;
    shared.counters.received_bytes.add(payload_bytes);
    if object.check_payload(checksum).is_err() {
        shared.counters.integrity_failures.count();
        end(&shared.counters, reply, PutStatus::Corrupt);
        return Ok(());
    }
    let served = Arc::clone(shared);
    let now = shared.clock.now();
    shared
        .store
        .publish(extent, id, object, now, move |published| {
            // Until here: what waits for a disk is memory that nothing can evict.
            drop(grants);
            end(&served.counters, reply, status(published));
        });
    Ok(())
}

/// Takes a payload off the wire that is not wanted.
async fn discard(
    shared: &Shared,
    receiver: &mut Receiver,
    payload_bytes: u64,
    deadline: Instant,
) -> Result<(), End> {
    receiver.payload_discard(deadline).await?;
    shared.counters.received_bytes.add(payload_bytes);
    Ok(())
}

fn status(published: Published) -> PutStatus {
    match published {
        Published::Stored => PutStatus::Stored,
        Published::Existed => PutStatus::Existed,
        Published::Mismatch => PutStatus::Mismatch,
    }
}

fn end(counters: &Counters, reply: Reply, status: PutStatus) {
    count(counters, status);
    let mut body = Vec::new();
    PutAnswer { status }.encode(&mut body);
    reply.send(Kind::PutAnswer, body);
}

fn count(counters: &Counters, status: PutStatus) {
    match status {
        PutStatus::Stored => &counters.put_stored,
        PutStatus::Existed => &counters.put_existed,
        PutStatus::NoSpace => &counters.put_no_space,
        PutStatus::TooLarge => &counters.put_too_large,
        PutStatus::Corrupt => &counters.put_corrupt,
        PutStatus::Mismatch => &counters.put_mismatch,
    }
    .count();
}

//! PUT: from the socket into the arena, verified where it landed, and only then visible.
//!
//! Called by the reader of a connection. Invariants: a length is compared with every limit before
//! memory is reserved for it; whatever the outcome, the payload is taken off the wire and the
//! connection goes on; an extent that is not published gives its memory back.

use tessera_proto::message::{Put, PutAnswer, PutStatus, Refusal};
use tessera_proto::{FrameHeader, Kind, ObjectHeader};
use tessera_store::{Published, ReserveRefusal};
use tessera_transport::Receiver;
use tokio::time::Instant;

use crate::connection::End;
use crate::counters::Counters;
use crate::shared::Shared;
use crate::writer::Answer;

/// How a PUT ended.
enum Outcome {
    Status(PutStatus),
    Busy,
}

/// Serves the PUT whose header was read.
pub(crate) async fn receive(
    shared: &Shared,
    receiver: &mut Receiver,
    header: &FrameHeader,
    deadline: Instant,
) -> Result<Answer, End> {
    shared.counters.requests_put.count();
    let put = Put::decode(receiver.body(deadline).await?)?;
    let outcome = store(
        shared,
        receiver,
        &put.header,
        header.payload_bytes,
        deadline,
    )
    .await?;
    Ok(match outcome {
        Outcome::Status(status) => {
            count(&shared.counters, status);
            let mut body = Vec::new();
            PutAnswer { status }.encode(&mut body);
            Answer::new(header, Kind::PutAnswer, body)
        }
        Outcome::Busy => {
            shared.counters.refused_busy_bytes.count();
            let message = "too many bytes are being received: try again later";
            Answer::refusal(header.request, Refusal::Busy, message)
        }
    })
}

async fn store(
    shared: &Shared,
    receiver: &mut Receiver,
    object: &ObjectHeader,
    payload_bytes: u64,
    deadline: Instant,
) -> Result<Outcome, End> {
    let id = object.id();
    let refused = if object.length_bytes != payload_bytes {
        Some(PutStatus::Mismatch)
    } else if payload_bytes > shared.limits.object_bytes {
        Some(PutStatus::TooLarge)
    } else if shared.store.contains(&id) {
        Some(PutStatus::Existed)
    } else {
        None
    };
    if let Some(status) = refused {
        receiver.payload_discard(deadline).await?;
        return Ok(Outcome::Status(status));
    }
    let Some(_grant) = shared.unpublished.grant(payload_bytes) else {
        receiver.payload_discard(deadline).await?;
        return Ok(Outcome::Busy);
    };
    let mut extent = match shared.store.reserve(payload_bytes, shared.clock.now()) {
        Ok(extent) => extent,
        Err(refusal) => {
            receiver.payload_discard(deadline).await?;
            return Ok(Outcome::Status(match refusal {
                ReserveRefusal::TooLarge => PutStatus::TooLarge,
                ReserveRefusal::NoSpace => PutStatus::NoSpace,
                // The header's decoder refuses a length of zero.
                ReserveRefusal::Empty => PutStatus::Mismatch,
            }));
        }
    };
    let checksum = receiver.payload_into(&mut extent, deadline).await?;
    shared.counters.received_bytes.add(payload_bytes);
    if object.check_payload(checksum).is_err() {
        shared.counters.integrity_failures.count();
        return Ok(Outcome::Status(PutStatus::Corrupt));
    }
    Ok(Outcome::Status(
        match shared
            .store
            .publish(extent, id, *object, shared.clock.now())
        {
            Published::Stored => PutStatus::Stored,
            Published::Existed => PutStatus::Existed,
            Published::Mismatch => PutStatus::Mismatch,
        },
    ))
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

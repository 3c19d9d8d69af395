//! One request to one node: message out, answer in, outcome.
//!
//! Called by the cluster handle and by lookups. Invariant: the memory that a request takes is part
//! of what it returns, whatever the outcome.

use std::num::NonZeroU32;

use tessera_proto::message::{
    Drop, DropAnswer, Features, Get, Price, Put, PutAnswer, PutStatus, Refusal, Release,
    ReleaseAnswer, Remove, RemoveAnswer, RemoveItem,
};
use tessera_proto::{Expectation, Kind, NamespaceDigest, ObjectHeader, ObjectId, WriteId};
use tessera_transport::{Lent, Segments};
use tokio::time::Instant;

use super::node::Node;
use super::outcome::{FetchOutcome, Lease, NodeError, StoreOutcome};
use crate::connection::{Answer, Cargo, Completion, Connection, Failure};
use crate::until::Until;

/// Loads one object, see [`super::Cluster::fetch`].
pub(super) async fn fetch(
    node: &Node,
    expectation: Expectation,
    lease: Option<Lease>,
    lent: Lent,
    until: &Until,
) -> (FetchOutcome, Lent) {
    let connection = match node.connection(until).await {
        Ok(connection) => connection,
        Err(failure) => return (failed(failure), lent),
    };
    if lease.is_some_and(|lease| lease.incarnation != connection.incarnation()) {
        return (FetchOutcome::LeaseOver, lent);
    }
    let get = Get {
        id: expectation.id(),
        lease: lease.map(|lease| lease.id),
        length_bytes: expectation.length_bytes,
    };
    let mut request = Vec::with_capacity(32);
    get.encode(&mut request);
    let cargo = Cargo::Destination(lent, Box::new(expectation));
    let call = call(node, &connection, Kind::Get, &request, cargo, until);
    let Completion { answer, cargo } = call.await;
    let Cargo::Destination(lent, _) = cargo else {
        unreachable!("a call gives back the memory that it was given");
    };
    let outcome = match answer {
        Ok(Answer::Fetched(outcome)) => outcome,
        Ok(Answer::Refused(Refusal::Busy)) => FetchOutcome::Busy,
        Ok(Answer::Refused(Refusal::Deadline)) => FetchOutcome::Deadline,
        Ok(Answer::Refused(_) | Answer::Body(_)) => FetchOutcome::Unreachable,
        Err(failure) => failed(failure),
    };
    (outcome, lent)
}

/// Sends a request, and once more if its connection was ended for the memory of another one.
/// The memory that came back is used by nobody. The leases of that connection are over; what they
/// held is served as long as it is there, if it is the same start of the node.
async fn call(
    node: &Node,
    connection: &Connection,
    kind: Kind,
    request: &[u8],
    cargo: Cargo,
    until: &Until,
) -> Completion {
    let call = node.call_over(connection, kind, request, cargo, until);
    let Completion { answer, cargo } = call.await;
    if !matches!(answer, Err(Failure::Lost)) || !connection.is_ending() {
        return Completion { answer, cargo };
    }
    match node.connection(until).await {
        Ok(again) if again.incarnation() == connection.incarnation() => {
            node.counters.retried.add(1);
            node.call_over(&again, kind, request, cargo, until).await
        }
        Ok(_) => Completion { answer, cargo },
        Err(failure) => Completion {
            answer: Err(failure),
            cargo,
        },
    }
}

fn failed(failure: Failure) -> FetchOutcome {
    match failure {
        Failure::Deadline => FetchOutcome::Deadline,
        Failure::Crowded => FetchOutcome::Busy,
        Failure::Recalled => FetchOutcome::Recalled,
        Failure::Lost => FetchOutcome::Unreachable,
    }
}

/// Stores one object, see [`super::Cluster::store`].
pub(super) async fn store(
    node: &Node,
    (header, price): (ObjectHeader, Option<NonZeroU32>),
    segments: Segments,
    deadline: Instant,
) -> (StoreOutcome, Segments) {
    let until = &deadline.into();
    let connection = match node.connection(until).await {
        Ok(connection) => connection,
        Err(Failure::Deadline) => return (StoreOutcome::Deadline, segments),
        Err(Failure::Crowded | Failure::Recalled | Failure::Lost) => {
            return (StoreOutcome::Unreachable, segments);
        }
    };
    if header.length_bytes > connection.object_bytes_max() {
        return (StoreOutcome::TooLarge, segments);
    }
    if let Some(ns_per_kib) = price
        && connection.features().has(Features::PRICE)
        && connection.is_new_price(ns_per_kib)
    {
        tell_price(node, &connection, (header.namespace, ns_per_kib), until).await;
    }
    let mut request = Vec::with_capacity(128);
    Put { header }.encode(&mut request);
    let cargo = Cargo::Source(segments);
    let call = call(node, &connection, Kind::Put, &request, cargo, until);
    let Completion { answer, cargo } = call.await;
    let Cargo::Source(segments) = cargo else {
        unreachable!("a call gives back the memory that it was given");
    };
    let outcome = match body(answer).and_then(|body| Ok(PutAnswer::decode(&body)?)) {
        Ok(PutAnswer { status }) => match status {
            PutStatus::Stored => StoreOutcome::Stored,
            PutStatus::Existed => StoreOutcome::Existed,
            PutStatus::NoSpace => StoreOutcome::NoSpace,
            PutStatus::TooLarge => StoreOutcome::TooLarge,
            PutStatus::Corrupt => StoreOutcome::Corrupt,
            PutStatus::Mismatch => StoreOutcome::Length,
        },
        Err(NodeError::Busy) => StoreOutcome::Busy,
        Err(NodeError::Deadline) => StoreOutcome::Deadline,
        Err(_) => StoreOutcome::Unreachable,
    };
    (outcome, segments)
}

/// Tells a node a price. If it is not told, the connection is lost, or has no time for the object
/// either.
async fn tell_price(
    node: &Node,
    connection: &Connection,
    (namespace, ns_per_kib): (NamespaceDigest, NonZeroU32),
    until: &Until,
) {
    let mut request = Vec::with_capacity(36);
    let price = Price {
        namespace,
        ns_per_kib,
    };
    price.encode(&mut request);
    call(node, connection, Kind::Price, &request, Cargo::None, until).await;
}

/// Gives leased ids of one node back.
pub(super) async fn release(
    node: &Node,
    lease: Lease,
    ids: Vec<ObjectId>,
    deadline: Instant,
) -> Result<u64, NodeError> {
    let until = &deadline.into();
    let connection = node
        .connection(until)
        .await
        .map_err(|_failure| NodeError::Unreachable)?;
    if connection.incarnation() != lease.incarnation {
        return Ok(0);
    }
    let mut request = Vec::with_capacity(16 * ids.len() + 16);
    Release {
        lease: lease.id,
        ids,
    }
    .encode(&mut request);
    let completion = node
        .call_over(&connection, Kind::Release, &request, Cargo::None, until)
        .await;
    Ok(u64::from(
        ReleaseAnswer::decode(&body(completion.answer)?)?.released,
    ))
}

/// Removes one object, see [`super::Cluster::remove`].
pub(super) async fn remove(
    node: &Node,
    id: ObjectId,
    write: Option<WriteId>,
    deadline: Instant,
) -> Result<bool, NodeError> {
    let mut request = Vec::new();
    Remove {
        items: vec![RemoveItem { id, write }],
    }
    .encode(&mut request);
    let completion = node
        .call(Kind::Remove, &request, Cargo::None, &deadline.into())
        .await;
    let answer = RemoveAnswer::decode(&body(completion.answer)?)?;
    Ok(answer.removed.first().copied().unwrap_or(false))
}

/// Drops a namespace on one node, see [`super::Cluster::drop_namespace`].
pub(super) async fn drop_namespace(
    node: &Node,
    namespace: NamespaceDigest,
    deadline: Instant,
) -> Result<DropAnswer, NodeError> {
    let until = &deadline.into();
    let connection = node.connection(until).await;
    let connection = connection.map_err(|_failure| NodeError::Unreachable)?;
    if !connection.features().has(Features::DROP) {
        return Err(NodeError::Unknowing);
    }
    let mut request = Vec::new();
    Drop { namespace }.encode(&mut request);
    let completion = node
        .call_over(&connection, Kind::Drop, &request, Cargo::None, until)
        .await;
    Ok(DropAnswer::decode(&body(completion.answer)?)?)
}

/// Reads the body of an answer, or says why there is none.
pub(super) fn body(answer: Result<Answer, Failure>) -> Result<Vec<u8>, NodeError> {
    match answer {
        Ok(Answer::Body(body)) => Ok(body),
        Ok(Answer::Refused(Refusal::Busy)) | Err(Failure::Crowded) => Err(NodeError::Busy),
        Ok(Answer::Refused(Refusal::Deadline)) | Err(Failure::Deadline | Failure::Recalled) => {
            Err(NodeError::Deadline)
        }
        Ok(Answer::Refused(Refusal::Unrecorded)) => Err(NodeError::Unrecorded),
        Ok(Answer::Refused(reason)) => Err(NodeError::Refused(reason)),
        Ok(Answer::Fetched(_)) | Err(Failure::Lost) => Err(NodeError::Unreachable),
    }
}

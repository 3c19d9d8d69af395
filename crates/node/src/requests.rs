//! Every request but PUT, and of GET only the body. What needs no disk is answered at once, without
//! waiting.
//!
//! Called by the reader of a connection, one request after the other; the answers leave through the
//! writer while the next request is read. What has to be read from a disk, or removed from one, is
//! answered by a thread of the disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tessera_proto::Kind;
use tessera_proto::message::{
    Acquire, AcquireAnswer, AcquireItem, Drop as DropNamespace, DropAnswer, Get, Ping, Presence,
    Price, PriceAnswer, Release, ReleaseAnswer, Remove, RemoveAnswer, Stat, StatAnswer,
};
use tessera_store::{OwnerId, Unrecorded};

use crate::connection::End;
use crate::get;
use crate::reply::Reply;
use crate::shared::Shared;

/// Answers one request of the connection that is `owner`, now or later.
///
/// # Errors
/// The connection is over: the body is none of this protocol, or the kind is no request.
pub(crate) fn answer(
    shared: &Arc<Shared>,
    owner: OwnerId,
    reply: Reply,
    body: &[u8],
) -> Result<(), End> {
    let mut out = Vec::new();
    let kind = match reply.request().kind {
        Kind::Get => {
            get::receive(shared, reply, Get::decode(body)?);
            return Ok(());
        }
        Kind::Remove => {
            remove(shared, reply, &Remove::decode(body)?);
            return Ok(());
        }
        Kind::Drop => {
            drop_namespace(shared, reply, DropNamespace::decode(body)?);
            return Ok(());
        }
        Kind::Price => {
            let price = Price::decode(body)?;
            shared.counters.requests_price.count();
            let store = shared.store.ram();
            store.price(price.namespace, price.ns_per_kib);
            PriceAnswer.encode(&mut out);
            Kind::PriceAnswer
        }
        Kind::Acquire => {
            acquire(shared, owner, &Acquire::decode(body)?).encode(&mut out);
            Kind::AcquireAnswer
        }
        Kind::Release => {
            release(shared, &Release::decode(body)?).encode(&mut out);
            Kind::ReleaseAnswer
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
    reply.send(kind, out);
    Ok(())
}

fn acquire(shared: &Shared, owner: OwnerId, acquire: &Acquire) -> AcquireAnswer {
    shared.counters.requests_acquire.count();
    if acquire.bytes_max == 0 {
        return probe(shared, acquire);
    }
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

/// An ACQUIRE that wants no lease: says what is here, and leaves leases and their numbers alone.
fn probe(shared: &Shared, acquire: &Acquire) -> AcquireAnswer {
    let item = |id| AcquireItem {
        presence: match shared.store.contains(id) {
            true => Presence::Refused,
            false => Presence::Missing,
        },
        length_bytes: 0,
    };
    AcquireAnswer {
        lease: None,
        lease_ms: 0,
        items: acquire.ids.iter().map(item).collect(),
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

/// A drop walks over everything in memory: not on a thread that serves others.
fn drop_namespace(shared: &Arc<Shared>, reply: Reply, drop: DropNamespace) {
    shared.counters.requests_drop.count();
    tracing::info!(namespace = %drop.namespace, "dropping");
    let served = Arc::clone(shared);
    tokio::task::spawn_blocking(move || {
        served.store.drop_namespace(drop.namespace, move |dropped| {
            let dropped = match dropped {
                Ok(dropped) => dropped,
                Err(error) => {
                    tracing::error!(namespace = %drop.namespace, %error, "dropping");
                    return reply.unrecorded(error);
                }
            };
            tracing::info!(namespace = %drop.namespace, ?dropped, "dropped");
            let mut body = Vec::new();
            DropAnswer {
                ram_objects: dropped.ram_objects,
                ram_bytes: dropped.ram_bytes,
                disk_objects: dropped.disk_objects,
                disk_bytes: dropped.disk_bytes,
            }
            .encode(&mut body);
            reply.send(Kind::DropAnswer, body);
        });
    });
}

fn remove(shared: &Arc<Shared>, mut reply: Reply, remove: &Remove) {
    shared.counters.requests_remove.count();
    reply.expect(remove.items.len());
    let removing = Arc::new(Removing {
        removed: remove
            .items
            .iter()
            .map(|_| AtomicBool::new(false))
            .collect(),
        unrecorded: OnceLock::new(),
        reply: Some(reply),
    });
    for (at, item) in remove.items.iter().enumerate() {
        let (removing, served) = (Arc::clone(&removing), Arc::clone(shared));
        // A reader names the write only when the bytes that it received did not verify.
        let is_damage = item.write.is_some();
        shared.store.remove(item.id, item.write, move |removed| {
            let gone = removed.unwrap_or_else(|error| {
                removing.unrecorded.get_or_init(|| error);
                false
            });
            if gone && is_damage {
                served.counters.integrity_failures.count();
            }
            removing.removed[at].store(gone, Ordering::Release);
        });
    }
}

/// One REMOVE in progress. The last of its items that ends drops it, and that answers.
struct Removing {
    removed: Vec<AtomicBool>,
    unrecorded: OnceLock<Unrecorded>,
    reply: Option<Reply>,
}

impl Drop for Removing {
    fn drop(&mut self) {
        let Some(reply) = self.reply.take() else {
            return;
        };
        if let Some(error) = self.unrecorded.get() {
            tracing::error!(%error, "removing");
            return reply.unrecorded(*error);
        }
        let removed = self.removed.iter().map(|gone| gone.load(Ordering::Acquire));
        let mut body = Vec::new();
        RemoveAnswer {
            removed: removed.collect(),
        }
        .encode(&mut body);
        reply.send(Kind::RemoveAnswer, body);
    }
}

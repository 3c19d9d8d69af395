//! Lookups and probes: ids grouped by node, one ACQUIRE a node, answers put back in the order of
//! the ids.
//!
//! Called by the cluster handle. Invariants: each id has exactly one answer; what cannot be
//! answered is `Unreachable`, never `Held`, and to a probe absent; a lease that the caller does not
//! get to see is given back.

use std::sync::Arc;

use tessera_proto::limits::{BATCH_ITEMS_MAX, LEASE_MS_MAX};
use tessera_proto::message::{self, Acquire, AcquireAnswer};
use tessera_proto::{Kind, LeaseId, ObjectId};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::node::Node;
use super::outcome::{AcquireOutcome, Lease, NodeError, Presence};
use super::requests::body;
use crate::connection::{Cargo, Connection, Failure};
use crate::routing::{NodeIndex, Ring};

/// The ids of one request, with their places in the caller's list.
#[derive(Debug, Default)]
struct Share {
    node: usize,
    places: Vec<usize>,
    ids: Vec<ObjectId>,
}

/// Probes and leases `ids`.
pub(super) async fn run(
    nodes: &[Arc<Node>],
    ring: &Ring,
    ids: &[ObjectId],
    acquire: Acquire,
    deadline: Instant,
) -> AcquireOutcome {
    let mut outcome = AcquireOutcome {
        items: vec![Presence::Unreachable; ids.len()],
        lease_ms: u32::MAX,
    };
    let shares = shares(nodes.len(), ring, ids);
    // From here on nothing waits, so that the caller gets all of it.
    for answered in ask_all(nodes, shares, acquire, count, deadline).await {
        outcome.put(answered);
    }
    if outcome.lease_ms == u32::MAX {
        outcome.lease_ms = 0;
    }
    outcome
}

/// Asks which of `ids` are there, and holds none of them: a hint, and no promise.
pub(super) async fn probe(
    nodes: &[Arc<Node>],
    ring: &Ring,
    ids: &[ObjectId],
    deadline: Instant,
) -> Vec<bool> {
    let question = Acquire {
        lease_ms: 0,
        bytes_max: 0,
        ids: Vec::new(),
    };
    let mut present = vec![false; ids.len()];
    let shares = shares(nodes.len(), ring, ids);
    let answers = ask_all(nodes, shares, question, count_probe, deadline).await;
    for Answered { places, granted } in answers {
        // A lease that nobody asked for goes back here.
        let Some(granted) = granted else { continue };
        for (place, item) in places.into_iter().zip(&granted.items) {
            present[place] = is_present(item);
        }
    }
    present
}

/// Asks all nodes at once.
async fn ask_all(
    nodes: &[Arc<Node>],
    mut shares: Vec<Share>,
    acquire: Acquire,
    count: Count,
    deadline: Instant,
) -> Vec<Answered> {
    // The last share runs here: with one node there is no task at all.
    let last = shares.pop();
    let mut tasks = JoinSet::new();
    for share in shares {
        let node = Arc::clone(&nodes[share.node]);
        let acquire = Acquire {
            ids: Vec::new(),
            ..acquire
        };
        tasks.spawn(async move { ask(&node, share, acquire, count, deadline).await });
    }
    let mut answers = Vec::new();
    if let Some(share) = last {
        let node = &nodes[share.node];
        answers.push(ask(node, share, acquire, count, deadline).await);
    }
    while let Some(joined) = tasks.join_next().await {
        answers.extend(joined);
    }
    answers
}

/// Groups the ids by node, in requests of at most the wire's bound.
fn shares(nodes: usize, ring: &Ring, ids: &[ObjectId]) -> Vec<Share> {
    let mut open: Vec<Share> = (0..nodes)
        .map(|node| Share {
            node,
            ..Share::default()
        })
        .collect();
    let mut full = Vec::new();
    for (place, id) in ids.iter().enumerate() {
        let Some(NodeIndex(node)) = ring.owner(id) else {
            continue;
        };
        let share = &mut open[node];
        share.places.push(place);
        share.ids.push(*id);
        if share.ids.len() >= BATCH_ITEMS_MAX as usize {
            full.push(std::mem::replace(
                share,
                Share {
                    node,
                    ..Share::default()
                },
            ));
        }
    }
    full.extend(open.into_iter().filter(|share| !share.ids.is_empty()));
    full
}

/// What a node said of one share.
struct Answered {
    places: Vec<usize>,
    granted: Option<Granted>,
}

/// Presences under a lease, which goes back to the node unless it is claimed: the lookup may be
/// dropped while another node is still being waited for.
struct Granted {
    connection: Arc<Connection>,
    lease: Option<LeaseId>,
    items: Vec<Presence>,
    lease_ms: u32,
}

impl Granted {
    fn claim(mut self) -> (Vec<Presence>, u32) {
        self.lease = None;
        (std::mem::take(&mut self.items), self.lease_ms)
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.connection.release_unused(self.lease);
    }
}

impl AcquireOutcome {
    fn put(&mut self, Answered { places, granted }: Answered) {
        let Some((items, lease_ms)) = granted.map(Granted::claim) else {
            return;
        };
        if items
            .iter()
            .any(|item| matches!(item, Presence::Held { .. }))
        {
            self.lease_ms = self.lease_ms.min(lease_ms);
        }
        for (place, item) in places.into_iter().zip(items) {
            self.items[place] = item;
        }
    }
}

/// Counts what a node answered to that many ids.
type Count = fn(&Node, usize, Option<&Granted>);

async fn ask(
    node: &Node,
    share: Share,
    acquire: Acquire,
    count: Count,
    deadline: Instant,
) -> Answered {
    let acquire = Acquire {
        ids: share.ids,
        ..acquire
    };
    let granted = request(node, NodeIndex(share.node), &acquire, deadline).await;
    let granted = granted.ok();
    count(node, acquire.ids.len(), granted.as_ref());
    Answered {
        places: share.places,
        granted,
    }
}

/// One request. The lease belongs to the process start that the connection was made with.
async fn request(
    node: &Node,
    index: NodeIndex,
    acquire: &Acquire,
    deadline: Instant,
) -> Result<Granted, NodeError> {
    let until = &deadline.into();
    let connection = node
        .connection(until)
        .await
        .map_err(|failure| match failure {
            Failure::Deadline => NodeError::Deadline,
            Failure::Crowded | Failure::Recalled | Failure::Lost => NodeError::Unreachable,
        })?;
    let mut message = Vec::with_capacity(16 * acquire.ids.len() + 32);
    acquire.encode(&mut message);
    let completion = node
        .call_over(&connection, Kind::Acquire, &message, Cargo::None, until)
        .await;
    let answer = AcquireAnswer::decode(&body(completion.answer)?)?;
    let lease = answer.lease.map(|id| Lease {
        node: index,
        incarnation: connection.incarnation(),
        id,
    });
    let mut items: Vec<Presence> = answer
        .items
        .iter()
        .map(|item| match (item.presence, lease) {
            (message::Presence::Held, Some(lease)) => Presence::Held {
                lease,
                length_bytes: item.length_bytes,
            },
            (message::Presence::Refused, _) => Presence::Refused,
            (message::Presence::Held | message::Presence::Missing, _) => Presence::Missing,
        })
        .collect();
    // A node that answers fewer items than it was asked for promises nothing about the rest.
    items.resize(acquire.ids.len(), Presence::Unreachable);
    Ok(Granted {
        connection,
        lease: answer.lease,
        items,
        lease_ms: answer.lease_ms.min(LEASE_MS_MAX),
    })
}

fn count(node: &Node, asked: usize, granted: Option<&Granted>) {
    let Some(Granted { items, .. }) = granted else {
        node.counters.acquire_unknown.add(asked as u64);
        return;
    };
    let of = |wanted: fn(&Presence) -> bool| items.iter().filter(|item| wanted(item)).count();
    let held = of(|item| matches!(item, Presence::Held { .. }));
    let missing = of(|item| matches!(item, Presence::Missing));
    node.counters.acquire_held.add(held as u64);
    node.counters.acquire_missing.add(missing as u64);
    node.counters
        .acquire_unknown
        .add((asked - held - missing) as u64);
}

fn count_probe(node: &Node, asked: usize, granted: Option<&Granted>) {
    let items = granted.map_or(&[][..], |granted| &granted.items);
    let of = |wanted: fn(&Presence) -> bool| items.iter().filter(|item| wanted(item)).count();
    let present = of(is_present);
    let absent = of(|item| matches!(item, Presence::Missing));
    node.counters.probe_present.add(present as u64);
    node.counters.probe_absent.add(absent as u64);
    node.counters
        .probe_unknown
        .add((asked - present - absent) as u64);
}

/// Held or not, it is there.
fn is_present(item: &Presence) -> bool {
    matches!(item, Presence::Held { .. } | Presence::Refused)
}

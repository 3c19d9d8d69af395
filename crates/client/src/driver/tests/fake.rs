//! Cache nodes in memory, with faults.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tessera_proto::{
    Expectation, Incarnation, LeaseId, ObjectHeader, ObjectId, ObjectMismatch, TenantTag, WriteId,
    checksum,
};
use tessera_transport::{Lent, Segments};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::cluster::{AcquireOutcome, FetchOutcome, Lease, Presence, StoreOutcome};
use crate::driver::Remote;
use crate::routing::NodeIndex;
use crate::until::{Over, Until};

/// What goes wrong with fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Missing,
    LeaseOver,
    Length,
    /// Bytes arrive, and they are wrong.
    Corrupt,
    Busy,
    Unreachable,
    /// Some bytes arrive before the connection is lost.
    Partial,
    /// Nothing until the deadline.
    Silence,
    /// The code itself fails.
    Panic,
    /// The memory never comes back.
    Stuck,
}

/// What the nodes say when they are asked what they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Truth,
    /// That they have nothing.
    Denial,
    /// That they have what came first, and of the rest nothing.
    Short,
    /// Nothing, until the deadline.
    Silence,
    /// The code itself fails.
    Panic,
}

#[derive(Debug, Default)]
struct Nodes {
    objects: Mutex<HashMap<ObjectId, (ObjectHeader, Vec<u8>)>>,
    leased: Mutex<HashMap<u64, Vec<ObjectId>>>,
    next_lease: AtomicU64,
}

/// One client of the nodes. Clones of the nodes are shared between clients.
#[derive(Debug, Clone)]
pub(super) struct Fake {
    nodes: Arc<Nodes>,
    pub(super) fault: Arc<Mutex<Fault>>,
    /// Fetches wait for a permit while it is set.
    pub(super) gate: Arc<Mutex<Option<Arc<Semaphore>>>>,
    /// Lookups are not answered.
    pub(super) deaf: Arc<Mutex<bool>>,
    pub(super) word: Arc<Mutex<Word>>,
    /// Probes wait for a permit while it is set.
    pub(super) probe_gate: Arc<Mutex<Option<Arc<Semaphore>>>>,
    pub(super) probes: Arc<AtomicUsize>,
    pub(super) fetches: Arc<AtomicUsize>,
    /// Payloads that were sent.
    pub(super) stores: Arc<AtomicUsize>,
    /// What they were told that it costs to compute what is stored.
    pub(super) price: Arc<Mutex<Option<NonZeroU32>>>,
    pub(super) shutdowns: Arc<AtomicUsize>,
    /// Calls to end all connections that will fail themselves.
    pub(super) broken_shutdowns: Arc<AtomicUsize>,
}

impl Fake {
    pub(super) fn new() -> Self {
        Self {
            nodes: Arc::default(),
            fault: Arc::new(Mutex::new(Fault::None)),
            gate: Arc::default(),
            deaf: Arc::default(),
            word: Arc::new(Mutex::new(Word::Truth)),
            probe_gate: Arc::default(),
            probes: Arc::default(),
            fetches: Arc::default(),
            stores: Arc::default(),
            price: Arc::default(),
            shutdowns: Arc::default(),
            broken_shutdowns: Arc::default(),
        }
    }

    /// Another client of the same nodes, with faults of its own.
    pub(super) fn another(&self) -> Self {
        Self {
            nodes: Arc::clone(&self.nodes),
            ..Self::new()
        }
    }

    pub(super) fn objects(&self) -> usize {
        self.nodes.objects.lock().len()
    }

    pub(super) fn tenants(&self) -> Vec<TenantTag> {
        let objects = self.nodes.objects.lock();
        objects.values().map(|(header, _)| header.tenant).collect()
    }

    pub(super) fn payloads(&self) -> Vec<Vec<u8>> {
        let objects = self.nodes.objects.lock();
        objects.values().map(|(_, bytes)| bytes.clone()).collect()
    }

    pub(super) fn clear(&self) {
        self.nodes.objects.lock().clear();
    }

    /// One object goes, as by a restart of its node.
    pub(super) fn lose_one(&self) {
        let mut objects = self.nodes.objects.lock();
        let id = *objects.keys().next().expect("an object to lose");
        objects.remove(&id);
    }

    pub(super) fn leased(&self) -> usize {
        self.nodes.leased.lock().values().map(Vec::len).sum()
    }

    pub(super) fn hold(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock() = Some(Arc::clone(&gate));
        gate
    }

    pub(super) fn hold_probes(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.probe_gate.lock() = Some(Arc::clone(&gate));
        gate
    }

    fn deliver(&self, expectation: &Expectation, lent: &mut Lent, fault: Fault) -> FetchOutcome {
        let found = self.nodes.objects.lock().get(&expectation.id()).cloned();
        let Some((header, mut bytes)) = found else {
            return FetchOutcome::Missing;
        };
        if let Err(mismatch) = header.check(expectation) {
            let write = header.write;
            return FetchOutcome::Corrupt { mismatch, write };
        }
        match fault {
            Fault::Partial => {
                let half = bytes.len() / 2;
                bytes[half..].fill(0xEE);
                lent.copy_from(&bytes).unwrap();
                return FetchOutcome::Unreachable;
            }
            Fault::Corrupt => bytes[0] ^= 1,
            _ => {}
        }
        lent.copy_from(&bytes).unwrap();
        match header.check_payload(lent.checksum()) {
            Ok(()) => FetchOutcome::Loaded,
            Err(mismatch @ ObjectMismatch::Checksum { .. }) => {
                let write = header.write;
                FetchOutcome::Corrupt { mismatch, write }
            }
            Err(_) => FetchOutcome::Missing,
        }
    }
}

impl Remote for Fake {
    async fn acquire(&self, ids: Vec<ObjectId>, ttl_ms: u32, deadline: Instant) -> AcquireOutcome {
        if *self.deaf.lock() {
            tokio::time::sleep_until(deadline).await;
            let items = vec![Presence::Unreachable; ids.len()];
            return AcquireOutcome { items, lease_ms: 0 };
        }
        let number = self.nodes.next_lease.fetch_add(1, Ordering::Relaxed) + 1;
        let lease = Lease {
            node: NodeIndex(0),
            incarnation: Incarnation(3),
            id: LeaseId::new(number).unwrap(),
        };
        let objects = self.nodes.objects.lock();
        let mut leased = Vec::new();
        let items = ids.iter().map(|id| match objects.get(id) {
            Some((header, _)) => {
                leased.push(*id);
                let length_bytes = header.length_bytes;
                Presence::Held {
                    lease,
                    length_bytes,
                }
            }
            None => Presence::Missing,
        });
        let items = items.collect();
        self.nodes.leased.lock().insert(number, leased);
        AcquireOutcome {
            items,
            lease_ms: ttl_ms,
        }
    }

    async fn probe(&self, ids: Vec<ObjectId>, deadline: Instant) -> Vec<bool> {
        let (word, gate) = (*self.word.lock(), self.probe_gate.lock().clone());
        self.probes.fetch_add(1, Ordering::Relaxed);
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        match word {
            Word::Truth | Word::Short => {}
            Word::Denial => return vec![false; ids.len()],
            Word::Silence => {
                tokio::time::sleep_until(deadline).await;
                return vec![false; ids.len()];
            }
            Word::Panic => panic!("injected: the probe itself fails"),
        }
        let objects = self.nodes.objects.lock();
        let mut said: Vec<_> = ids.iter().map(|id| objects.contains_key(id)).collect();
        if word == Word::Short {
            said.truncate(1);
        }
        said
    }

    async fn fetch(
        &self,
        expectation: Expectation,
        lease: Option<Lease>,
        mut lent: Lent,
        until: Until,
    ) -> (FetchOutcome, Lent) {
        assert!(lease.is_some(), "a load consumes the lease of its lookup");
        let fault = *self.fault.lock();
        let gate = self.gate.lock().clone();
        // After both: a test that has counted it may change them for the next.
        self.fetches.fetch_add(1, Ordering::Relaxed);
        if let Some(gate) = gate
            && let Err(over) = until.limit(gate.acquire()).await
        {
            return (ended(over), lent);
        }
        let outcome = match fault {
            Fault::Missing => FetchOutcome::Missing,
            Fault::LeaseOver => FetchOutcome::LeaseOver,
            Fault::Length => FetchOutcome::Length,
            Fault::Busy => FetchOutcome::Busy,
            Fault::Unreachable => FetchOutcome::Unreachable,
            Fault::Panic => panic!("injected: the fetch itself fails"),
            Fault::Silence => ended(until.passed().await),
            Fault::Stuck => std::future::pending().await,
            fault => self.deliver(&expectation, &mut lent, fault),
        };
        (outcome, lent)
    }

    fn price(&self, price: NonZeroU32) {
        *self.price.lock() = Some(price);
    }

    async fn store(
        &self,
        header: ObjectHeader,
        segments: Segments,
        _deadline: Instant,
    ) -> (StoreOutcome, Segments) {
        self.stores.fetch_add(1, Ordering::Relaxed);
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        let fault = *self.fault.lock();
        assert_ne!(fault, Fault::Panic, "injected: the store itself fails");
        let length = usize::try_from(header.length_bytes).unwrap();
        let mut bytes = vec![0; length];
        segments.copy_to(&mut bytes).unwrap();
        assert_eq!(
            checksum(&bytes),
            header.checksum,
            "stored with a wrong checksum"
        );
        assert_ne!(header.write, WriteId(0));
        let before = self
            .nodes
            .objects
            .lock()
            .insert(header.id(), (header, bytes));
        let outcome = match before {
            Some(_) => StoreOutcome::Existed,
            None => StoreOutcome::Stored,
        };
        (outcome, segments)
    }

    async fn release(&self, leases: Vec<(Lease, Vec<ObjectId>)>, _deadline: Instant) -> u64 {
        let mut leased = self.nodes.leased.lock();
        for (lease, ids) in leases {
            if let Some(held) = leased.get_mut(&lease.id.get()) {
                held.retain(|id| !ids.contains(id));
            }
        }
        0
    }

    async fn shutdown(&self) {
        self.shutdowns.fetch_add(1, Ordering::Relaxed);
        let broken = self.broken_shutdowns.load(Ordering::Relaxed);
        if broken > 0 {
            self.broken_shutdowns.store(broken - 1, Ordering::Relaxed);
            panic!("injected: the connections do not end");
        }
    }
}

fn ended(over: Over) -> FetchOutcome {
    match over {
        Over::Deadline => FetchOutcome::Deadline,
        Over::Recalled => FetchOutcome::Recalled,
    }
}

/// Waits for a condition, within ten seconds.
pub(super) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(std::time::Instant::now() < limit, "never: {what}");
        std::thread::yield_now();
    }
}

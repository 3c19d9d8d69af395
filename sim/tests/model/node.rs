//! The one node: which objects it has, and what it holds for the engine.

use std::collections::BTreeMap;

use tessera_lifecycle::scheduler::{Found, Held, NodeIndex};
use tessera_proto::{Incarnation, Instant, LeaseId};

/// A lease, as the node granted it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    /// Objects that were not given back, as bits.
    pub(crate) held: u32,
    pub(crate) until: Instant,
}

/// Objects are bits of a word: their number in [`Objects`](crate::objects::Objects).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) incarnation: u128,
    pub(crate) present: u32,
    pub(crate) leases: BTreeMap<u64, Lease>,
    next_lease: u64,
}

impl Node {
    /// A node that has `objects` objects.
    pub(crate) fn new(objects: usize) -> Self {
        Self {
            incarnation: 1,
            present: (1 << objects) - 1,
            leases: BTreeMap::new(),
            next_lease: 0,
        }
    }

    pub(crate) fn acquire(&mut self, objects: &[usize], until: Instant) -> Vec<Found> {
        self.next_lease += 1;
        let held = Held {
            node: NodeIndex(0),
            incarnation: Incarnation(self.incarnation),
            lease: LeaseId::new(self.next_lease).expect("not zero"),
        };
        let mut bits = 0;
        let mut found = Vec::new();
        for object in objects {
            let here = self.present & 1 << object;
            bits |= here;
            found.push(match here {
                0 => Found::Missing,
                _ => Found::Held(held),
            });
        }
        if bits != 0 {
            let lease = Lease { held: bits, until };
            self.leases.insert(self.next_lease, lease);
        }
        found
    }

    /// Whether `held` is of this process of the node.
    pub(crate) fn knows(&self, held: Held) -> bool {
        held.incarnation == Incarnation(self.incarnation)
    }

    /// Whether the node still holds `object` under `held`, or has lost all its leases.
    pub(crate) fn holds(&self, held: Held, object: usize) -> bool {
        let lease = self.leases.get(&held.lease.get());
        !self.knows(held) || lease.is_some_and(|lease| lease.held & 1 << object != 0)
    }

    /// Takes one object back. False if it was not held.
    pub(crate) fn release(&mut self, held: Held, object: usize) -> bool {
        if !self.knows(held) {
            return true;
        }
        let was_held = self.holds(held, object);
        if let Some(lease) = self.leases.get_mut(&held.lease.get()) {
            lease.held &= !(1 << object);
        }
        self.leases.retain(|_, lease| lease.held != 0);
        was_held
    }

    /// Whether `object` may be evicted.
    pub(crate) fn is_free(&self, object: usize, now: Instant) -> bool {
        let bit = 1 << object;
        let mut leases = self.leases.values();
        let leased = leases.any(|lease| lease.until > now && lease.held & bit != 0);
        self.present & bit != 0 && !leased
    }

    /// Dies and comes back empty.
    pub(crate) fn restart(&mut self) {
        self.incarnation += 1;
        self.present = 0;
        self.leases.clear();
    }
}

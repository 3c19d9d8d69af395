//! The books of leases: which object is held by which lease on which node.
//!
//! Called by lookups and loads. The invariant: every lease that a node granted to us is released
//! exactly once, by value: a [`LeaseBook`] is moved from lookup to hit to load and ends in a
//! release command.

use tessera_proto::{Incarnation, LeaseId, ObjectId};

/// A node, as an index into the client's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

/// One object that a node holds for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The node.
    pub node: NodeIndex,
    /// The node's process start: a lease of an earlier one is worth nothing.
    pub incarnation: Incarnation,
    /// The lease on that node.
    pub lease: LeaseId,
}

/// Objects to release under one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseGrant {
    /// The node and the lease.
    pub held: Held,
    /// The objects.
    pub ids: Vec<ObjectId>,
}

/// Objects held for one request.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct LeaseBook {
    grants: Vec<LeaseGrant>,
}

impl LeaseBook {
    pub(crate) fn add(&mut self, held: Held, id: ObjectId) {
        // Few nodes: the list of leases is short, and its newest entry is hit most often.
        match self
            .grants
            .iter_mut()
            .rev()
            .find(|grant| grant.held == held)
        {
            Some(grant) => grant.ids.push(id),
            None => self.grants.push(LeaseGrant {
                held,
                ids: vec![id],
            }),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    pub(crate) fn into_grants(self) -> Vec<LeaseGrant> {
        self.grants
    }

    pub(crate) fn objects(&self) -> usize {
        self.grants.iter().map(|grant| grant.ids.len()).sum()
    }
}

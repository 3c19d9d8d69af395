//! What a [`HandoverRoot`](super::HandoverRoot) is started with, its limits and its counters.

use tessera_proto::ticket::TicketKey;

use crate::shape::Shape;

/// Settings of the machine, fixed at start.
#[derive(Clone, Debug)]
pub struct HandoverConfig {
    /// The engine's cache.
    pub shape: Shape,
    /// How many ranks the engines at the other end have.
    pub peer_ranks: usize,
    /// Signs tickets, and opens them.
    pub key: TicketKey,
    /// Whether this engine offers what it has computed.
    pub offers: bool,
    /// Whether it takes what others offer.
    pub takes: bool,
    /// How long an offer waits to be claimed.
    pub lease_ms: u64,
    /// How long a transfer may take; then its request computes.
    pub timeout_ms: u64,
    /// Bounds of the tables.
    pub limits: HandoverLimits,
}

/// Bounds of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoverLimits {
    /// Requests with a ticket that are known at once; further ones compute.
    pub requests: usize,
}

impl Default for HandoverLimits {
    fn default() -> Self {
        Self { requests: 65_536 }
    }
}

/// What happened so far. Counts only; a snapshot is a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandoverCounters {
    /// Prompts that were offered.
    pub offers: u64,
    /// Finished prompts that a router wanted and that could not be offered.
    pub offers_withheld: u64,
    /// Tickets that were opened.
    pub tickets: u64,
    /// Tickets that were refused.
    pub tickets_refused: u64,
    /// Transfers that were ordered for a request that waits.
    pub takes: u64,
    /// Tokens of those.
    pub tokens_taken: u64,
    /// Transfers whose request was gone before they ended.
    pub takes_cancelled: u64,
    /// Tickets that were given back unused.
    pub declined: u64,
    /// Requests with a pass whose prompt is to be written.
    pub passes: u64,
    /// Prompts that were ordered to be written.
    pub writes: u64,
    /// Prompts that were not, since they or their ticket did not come, or did not fit.
    pub writes_refused: u64,
}

//! Tickets of transfers that are over, so that none is used twice.
//!
//! Called by [`PeerRoot`](super::PeerRoot). The invariant: the newest are remembered, up to a
//! limit; beyond it the lender still refuses, since it has released what the ticket names.

use std::collections::{BTreeSet, VecDeque};

use tessera_proto::peer::TransferId;

use crate::ids::RequestKey;

/// The newest tickets, each with the requests that came with it.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Tickets {
    /// The oldest first.
    order: VecDeque<(TransferId, RequestKey)>,
    known: BTreeSet<(TransferId, RequestKey)>,
}

impl Tickets {
    pub(crate) fn remember(&mut self, transfer: TransferId, request: RequestKey, limit: usize) {
        if self.known.insert((transfer, request)) {
            self.order.push_back((transfer, request));
        }
        while self.order.len() > limit {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }

    /// Whether this request has come with the ticket.
    pub(crate) fn has(&self, transfer: TransferId, request: RequestKey) -> bool {
        self.known.contains(&(transfer, request))
    }

    /// Whether anybody has.
    pub(crate) fn is_used(&self, transfer: TransferId) -> bool {
        let all = (transfer, RequestKey(0))..=(transfer, RequestKey(u64::MAX));
        self.known.range(all).next().is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}

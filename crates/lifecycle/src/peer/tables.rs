//! How full the machine's tables are, what must hold of them, and what decides its future.
//!
//! Called by tests after each step, and by searches that must know a state they have seen. The
//! invariant: two machines of one configuration with equal digests answer every later call alike,
//! but for the numbers of new fences.

use std::hash::{Hash, Hasher};

use crate::peer::order::Mode;
use crate::peer::part::{Access, Part};
use crate::peer::root::PeerRoot;
use crate::peer::transfer::Transfer;

/// Entries in each table of a [`PeerRoot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTables {
    /// Transfers that are not over.
    pub transfers: usize,
    /// Transfers that are over here, of which the lender has not taken note.
    pub releasing: usize,
    /// Offers that no order has met.
    pub offers: usize,
    /// Claims on what no order has offered yet.
    pub early: usize,
    /// Messages that are not acknowledged.
    pub unacknowledged: usize,
    /// Processes that are known.
    pub peers: usize,
    /// Tickets that are remembered.
    pub tickets: usize,
    /// Requests that a source has failed.
    pub failed_sources: usize,
}

impl PeerRoot {
    /// How full the tables are.
    #[must_use]
    pub fn tables(&self) -> PeerTables {
        PeerTables {
            transfers: self.transfers.len(),
            releasing: self.releasing.len(),
            offers: self.offers.len(),
            early: self.early.len(),
            unacknowledged: self.sessions.values().map(|of| of.outbox.len()).sum(),
            peers: self.sessions.len(),
            tickets: self.tickets.len(),
            failed_sources: self.failed_sources.len(),
        }
    }

    /// Whether nothing is open, on this side or as far as this side knows on another.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let fences = self.sessions.values().any(|of| of.fence.is_some());
        let tables = self.tables();
        !fences && tables.transfers == 0 && tables.releasing == 0 && self.settled.is_empty()
    }

    /// Panics with a message if the machine is broken.
    pub fn check_invariants(&self) {
        if self.stopped.is_some() {
            return;
        }
        let limits = self.config.limits;
        assert!(
            self.tickets.len() <= limits.tickets,
            "too many tickets are remembered"
        );
        assert!(self.offers.len() <= limits.offers, "too many offers wait");
        assert!(self.early.len() <= limits.offers, "too many claims wait");
        assert!(
            self.sessions.len() <= limits.peers,
            "too many processes are known"
        );
        for session in self.sessions.values() {
            let fenced = session.fence.is_some() || session.dead;
            assert!(
                !fenced || session.connection.is_none(),
                "a fenced process is connected"
            );
        }
        for (id, of) in self.transfers.iter() {
            for part in of.parts.values() {
                self.check_part(of, part);
                assert!(
                    of.failure.is_none() || !part.is_untouched(),
                    "{id:?} has failed, and {part:?} may still be claimed"
                );
                let bad = matches!(part.outcome, Some(Err(_)));
                let lapsed = of.lends() && of.mode == Mode::Read;
                assert!(
                    !bad || of.failure.is_some() || lapsed,
                    "{part:?} has failed, and {id:?} has not"
                );
            }
        }
    }

    fn check_part(&self, of: &Transfer, part: &Part) {
        let session = part.peer.and_then(|peer| self.sessions.get(&peer));
        assert!(
            !part.is_live() || session.is_some(),
            "{part:?} is claimed by a process that is not known"
        );
        if let Access::Granted(connection) = part.access {
            let current = session.is_some_and(|of| of.connection == Some(connection));
            assert!(current, "{part:?} is granted on a connection that is gone");
        }
        assert!(
            !part.dirty || part.is_live(),
            "{part:?} is proven and in doubt"
        );
        assert!(
            !part.is_over() || part.outcome.is_some(),
            "{part:?} is over and nobody knows how"
        );
        let lent = matches!(part.access, Access::Claiming | Access::Granted(_));
        assert!(!(lent && of.lends()), "{part:?} is lent and claims");
    }
}

impl Hash for PeerRoot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Every field is named, so that a new one cannot be forgotten.
        let Self {
            config: _,
            transfers,
            sessions,
            offers,
            early,
            releasing,
            tickets,
            failed_sources,
            settled,
            refused,
            commands,
            next_fence: _,
            stirred: _,
            stopped,
            counters: _,
        } = self;
        (transfers, sessions, offers, early, releasing).hash(state);
        (tickets, failed_sources, settled, commands).hash(state);
        for failure in refused {
            (failure.transfer, failure.request, failure.failure).hash(state);
        }
        (stopped.is_some()).hash(state);
    }
}

//! A request as the engine keeps it.

use std::collections::BTreeSet;

use crate::truth::Text;

/// Where a request stands in the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Has no blocks, or those that a load has filled.
    Waiting,
    /// Waits for a load of tokens up to `limit`.
    Parked {
        limit: u64,
        /// Ranks that have reported.
        finished: BTreeSet<usize>,
        failed: bool,
        /// The user is gone; the blocks are held until the receive is over.
        aborted: bool,
    },
    /// Computes in every step.
    Running,
    /// Is no more.
    Ended,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) name: String,
    pub(crate) text: Text,
    /// Tokens at which it is done.
    pub(crate) target: u64,
    /// Tokens whose content is in its blocks.
    pub(crate) computed: u64,
    /// Block ids for each group; 0 is null.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Entries of each table that the scheduler's machine was told of.
    pub(crate) told: Vec<usize>,
    /// Whether the next step gives whole tables.
    pub(crate) fresh: bool,
    /// A load of it has failed.
    pub(crate) failed_before: bool,
    /// Whether the engine hashes what it samples only now and then.
    pub(crate) hashed_late: bool,
    pub(crate) phase: Phase,
}

impl Request {
    pub(crate) fn new(name: String, text: Text, target: u64, groups: usize) -> Self {
        Self {
            name,
            text,
            target,
            computed: 0,
            tables: vec![Vec::new(); groups],
            told: vec![0; groups],
            fresh: true,
            failed_before: false,
            hashed_late: false,
            phase: Phase::Waiting,
        }
    }

    /// Whether `block` is in one of its tables.
    pub(crate) fn holds(&self, block: u32) -> bool {
        self.tables.iter().flatten().any(|id| *id == block)
    }

    /// All its blocks, taken away from it.
    pub(crate) fn take_blocks(&mut self) -> Vec<u32> {
        self.computed = 0;
        self.fresh = true;
        self.told.fill(0);
        let tables = self.tables.iter_mut().flat_map(std::mem::take);
        tables.filter(|id| *id != 0).collect()
    }
}

//! What the scheduler's machine keeps of one request.
//!
//! Called by the other files of this folder. A request is known from its first lookup or its first
//! step until the engine says that it has finished; its load, if one is under way then, lives on in
//! [`Load`] until every rank has reported it.

use std::collections::BTreeMap;

use tessera_proto::Instant;

use crate::ids::{Attempt, LoadId, LookupId, RequestKey};
use crate::metadata::ChunkHash;
use crate::plan::Piece;
use crate::scheduler::leases::{Held, LeaseBook};

/// The hashes of a request's whole chunks, in order.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct ChunkHashes {
    /// Hashes of the engine that were seen, of all units.
    units: u64,
    chunks: Vec<ChunkHash>,
}

impl ChunkHashes {
    /// Takes the engine's hashes from unit `from` on. Hashes known already are replaced, since an
    /// engine that takes tokens back hashes anew; a gap is ignored.
    pub(crate) fn extend(&mut self, per_chunk: u64, from: u64, hashes: &[&[u8]]) {
        if from > self.units {
            return;
        }
        self.units = from;
        let whole = usize::try_from(from / per_chunk).unwrap_or(usize::MAX);
        self.chunks.truncate(whole);
        for hash in hashes {
            if (self.units + 1).is_multiple_of(per_chunk) {
                let Some(hash) = ChunkHash::new(hash) else {
                    return;
                };
                self.chunks.push(hash);
            }
            self.units += 1;
        }
    }

    /// Takes hashes that the list lacks, out of the engine's whole list.
    pub(crate) fn catch_up(&mut self, per_chunk: u64, all: &[&[u8]]) {
        let length = u64::try_from(all.len()).unwrap_or(u64::MAX);
        let from = self.units.min(length);
        let start = usize::try_from(from).unwrap_or(all.len());
        self.extend(per_chunk, from, &all[start..]);
    }

    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    pub(crate) fn chunks(&self) -> &[ChunkHash] {
        &self.chunks
    }

    pub(crate) fn get(&self, chunk: u64) -> Option<&ChunkHash> {
        self.chunks.get(usize::try_from(chunk).ok()?)
    }
}

/// A promise that the engine has not taken yet.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Hit {
    pub(crate) computed: u64,
    pub(crate) boundary: u64,
    /// One for each needed piece and shard at `computed` and `boundary`, in plan order.
    pub(crate) holders: Vec<(Piece, Held)>,
    pub(crate) book: LeaseBook,
    /// After this the leases no longer outlast a load.
    pub(crate) usable_until: Instant,
}

/// Where a request's lookup stands.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) enum Lookup {
    /// Not asked, or taken.
    #[default]
    None,
    /// The nodes have been asked.
    Asked {
        id: LookupId,
        deadline: Instant,
        computed: u64,
        limit: u64,
    },
    /// There is a promise.
    Hit(Hit),
    /// There is none for this state of the request.
    Zero { computed: u64, limit: u64 },
}

impl Lookup {
    /// The promise, taken out; whatever else stands here stays.
    pub(crate) fn take_hit(&mut self) -> Option<Hit> {
        match std::mem::take(self) {
            Self::Hit(hit) => Some(hit),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// A load under way.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Load {
    pub(crate) id: LoadId,
    /// A plan has told the workers: no news before that can be its own.
    pub(crate) sent: bool,
    pub(crate) book: LeaseBook,
    /// A rank has failed; kept until all ranks are done.
    pub(crate) failed: bool,
    /// Ranks that have reported, and whether they failed.
    pub(crate) reports: BTreeMap<u32, bool>,
    /// The blocks that it writes: ids are unambiguous in block-level layouts only.
    pub(crate) blocks: Vec<u32>,
}

/// The time of a request in the running batch, from (re)start to preemption.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Life {
    pub(crate) tables: Vec<Vec<u32>>,
    /// For each group the next chunk to save. It begins where the request began to compute: what
    /// it did not compute, it does not save.
    pub(crate) next_chunk: Vec<u64>,
}

/// One request.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Entry {
    pub(crate) key: RequestKey,
    pub(crate) attempts: Attempt,
    pub(crate) hashes: ChunkHashes,
    pub(crate) lookup: Lookup,
    /// A hit of this request has failed: none is offered again.
    pub(crate) quarantined: bool,
    pub(crate) load: Option<Load>,
    pub(crate) life: Option<Life>,
}

impl Entry {
    pub(crate) fn new(key: RequestKey) -> Self {
        Self {
            key,
            attempts: Attempt(0),
            hashes: ChunkHashes::default(),
            lookup: Lookup::None,
            quarantined: false,
            load: None,
            life: None,
        }
    }

    pub(crate) fn next_load(&mut self) -> LoadId {
        self.attempts = Attempt(self.attempts.0 + 1);
        LoadId {
            request: self.key,
            attempt: self.attempts,
        }
    }
}

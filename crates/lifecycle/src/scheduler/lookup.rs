//! Lookups: how many tokens can be promised, and the leases behind the promise.
//!
//! Called by [`SchedulerRoot`] when the engine asks, and when the nodes answer. The invariants: a
//! lookup is re-callable and gives the same answer while nothing has changed; it is undecided only
//! until its deadline; the objects it checked are the objects that a load at that boundary takes.

use tessera_proto::{Instant, ObjectId};

use crate::ids::LookupId;
use crate::plan;
use crate::plan::Piece;
use crate::scheduler::leases::{Held, LeaseBook};
use crate::scheduler::request::{Entry, Hit, Lookup};
use crate::scheduler::root::{Question, SchedulerCommand, SchedulerRoot};

/// What the engine asks.
#[derive(Clone, Copy, Debug)]
pub struct LookupInput<'a> {
    /// The engine's name of the request.
    pub request: &'a str,
    /// Tokens of the request.
    pub num_tokens: u64,
    /// Tokens that the engine has cached itself.
    pub computed_tokens: u64,
    /// The engine's hashes, from the start of the request.
    pub block_hashes: &'a [&'a [u8]],
    /// False if the engine could not compute a tail over loaded tokens.
    pub can_load: bool,
}

/// What the engine is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupAnswer {
    /// Tokens beyond the computed ones that will be loaded; `None` while undecided.
    pub tokens: Option<u64>,
}

impl LookupAnswer {
    /// Nothing will be loaded.
    pub const ZERO: Self = Self { tokens: Some(0) };
    /// Ask again.
    pub const UNDECIDED: Self = Self { tokens: None };

    /// Whether the request waits, parked in the engine, until every rank has reported its load:
    /// whenever there is anything to load. The engine lets others share the blocks of a request
    /// that runs, and must not before their content is known to be right.
    #[must_use]
    pub const fn parks(self) -> bool {
        matches!(self.tokens, Some(1..))
    }
}

/// What the nodes know of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is there, and held for us.
    Held(Held),
    /// It is not there, or its node does not answer.
    Missing,
}

impl SchedulerRoot {
    /// Answers the engine's question, from what is known; asks the nodes if nothing is.
    pub fn lookup(&mut self, now: Instant, input: LookupInput<'_>) -> LookupAnswer {
        if !self.config.loads || !input.can_load {
            return LookupAnswer::ZERO;
        }
        let Some(entry) = self.entry(input.request) else {
            return LookupAnswer::ZERO;
        };
        let (per_chunk, computed) = (entry.1, input.computed_tokens);
        entry.0.hashes.catch_up(per_chunk, input.block_hashes);
        if entry.0.quarantined {
            self.counters.lookups_quarantined += 1;
            return LookupAnswer::ZERO;
        }
        if entry.0.load.is_some() {
            return LookupAnswer::ZERO;
        }
        let chunks = u64::try_from(entry.0.hashes.chunks().len()).unwrap_or(u64::MAX);
        let limit = self.lookup_limit(computed, input.num_tokens, chunks);
        let state = match self.entries.get_mut(input.request) {
            Some(entry) => std::mem::take(&mut entry.lookup),
            None => return LookupAnswer::ZERO,
        };
        let (state, answer) = self.decide(now, input.request, state, computed, limit);
        if let Some(entry) = self.entries.get_mut(input.request) {
            entry.lookup = state;
        }
        answer
    }

    /// The entry of a request, made if there is room, and the hashes of one chunk.
    pub(crate) fn entry(&mut self, request: &str) -> Option<(&mut Entry, u64)> {
        let per_chunk = self.config.shape.hashes_per_chunk();
        if !self.entries.contains_key(request) {
            if self.entries.len() >= self.config.limits.requests {
                self.counters.requests_refused += 1;
                return None;
            }
            let key = self.new_key();
            self.entries.insert(request.to_owned(), Entry::new(key));
        }
        self.entries
            .get_mut(request)
            .map(|entry| (entry, per_chunk))
    }

    /// The last token must be computed to be sampled from, so it is never promised. `chunks` is how
    /// many have a hash.
    fn lookup_limit(&self, computed: u64, num_tokens: u64, chunks: u64) -> u64 {
        let chunk_tokens = self.config.shape.chunk_tokens();
        let first = computed / chunk_tokens;
        let groups = 0..self.config.shape.groups().len();
        let per_chunk: usize = groups.map(|group| self.shards.count(group)).sum();
        let fits = self.config.limits.lookup_objects / per_chunk.max(1);
        let fits = first.saturating_add(u64::try_from(fits).unwrap_or(u64::MAX));
        let whole = num_tokens.saturating_sub(1) / chunk_tokens;
        whole.min(chunks).min(fits) * chunk_tokens
    }

    fn decide(
        &mut self,
        now: Instant,
        request: &str,
        state: Lookup,
        computed: u64,
        limit: u64,
    ) -> (Lookup, LookupAnswer) {
        let zero = (Lookup::Zero { computed, limit }, LookupAnswer::ZERO);
        match state {
            Lookup::Asked { deadline, .. } if now >= deadline => {
                self.counters.lookups_expired += 1;
                zero
            }
            Lookup::Asked {
                deadline,
                computed: asked,
                ..
            } => {
                if asked <= computed {
                    return (state, LookupAnswer::UNDECIDED);
                }
                // The engine has lost cached blocks since: the question was too small.
                self.ask(now, request, computed, limit, deadline)
            }
            Lookup::Hit(hit) => {
                let usable = now <= hit.usable_until && hit.boundary <= limit;
                if usable && hit.computed <= computed && computed < hit.boundary {
                    let hit = self.narrow(hit, computed);
                    let answer = LookupAnswer {
                        tokens: Some(hit.boundary - computed),
                    };
                    return (Lookup::Hit(hit), answer);
                }
                let covered = computed >= hit.boundary;
                self.release(hit.book);
                match covered {
                    true => zero,
                    false => self.ask_anew(now, request, computed, limit),
                }
            }
            Lookup::Zero {
                computed: had,
                limit: to,
            } if (had, to) == (computed, limit) => zero,
            Lookup::Zero { .. } | Lookup::None => self.ask_anew(now, request, computed, limit),
        }
    }

    fn ask_anew(
        &mut self,
        now: Instant,
        request: &str,
        computed: u64,
        limit: u64,
    ) -> (Lookup, LookupAnswer) {
        if limit <= computed {
            return (Lookup::Zero { computed, limit }, LookupAnswer::ZERO);
        }
        self.counters.lookups += 1;
        let deadline = now.after_millis(self.config.lookup_timeout_ms);
        self.ask(now, request, computed, limit, deadline)
    }

    fn ask(
        &mut self,
        now: Instant,
        request: &str,
        computed: u64,
        limit: u64,
        deadline: Instant,
    ) -> (Lookup, LookupAnswer) {
        let probes = self.probes(request, computed, limit);
        if probes.is_empty() {
            return (Lookup::Zero { computed, limit }, LookupAnswer::ZERO);
        }
        let lookup = self.new_lookup();
        self.commands.push_back(SchedulerCommand::Acquire {
            lookup,
            ids: probes.iter().map(|(_, id)| *id).collect(),
            lease_ms: self.config.lease_ms,
            deadline,
        });
        let question = Question {
            request: request.to_owned(),
            asked: now,
            probes,
        };
        self.questions.insert(lookup, question);
        let state = Lookup::Asked {
            id: lookup,
            deadline,
            computed,
            limit,
        };
        (state, LookupAnswer::UNDECIDED)
    }

    fn probes(&self, request: &str, computed: u64, limit: u64) -> Vec<(Piece, ObjectId)> {
        let Some(entry) = self.entries.get(request) else {
            return Vec::new();
        };
        let pieces = plan::candidates(&self.config.shape, computed, limit);
        let mut probes = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let hash = entry
                .hashes
                .get(piece.chunk)
                .and_then(|hash| hash.block_hash());
            let Some(hash) = hash else {
                continue;
            };
            probes.extend(self.shards.of(piece.group).map(|at| {
                let key = plan::key(&self.config.namespace, piece.group, at, &hash);
                (piece, key.object_id())
            }));
        }
        probes
    }

    /// The same promise after the engine has cached more by itself.
    fn narrow(&self, mut hit: Hit, computed: u64) -> Hit {
        if hit.computed != computed {
            let pieces = plan::needed(&self.config.shape, computed, hit.boundary);
            hit.holders
                .retain(|(piece, _)| pieces.binary_search(piece).is_ok());
            hit.computed = computed;
        }
        hit
    }

    pub(crate) fn acquired(
        &mut self,
        now: Instant,
        lookup: LookupId,
        found: &[Found],
        lease_ms: u32,
    ) {
        let Some(question) = self.questions.remove(&lookup) else {
            self.counters.late_lookups += 1;
            return;
        };
        let waits = self
            .entries
            .get(&question.request)
            .and_then(|entry| match entry.lookup {
                Lookup::Asked {
                    id,
                    deadline,
                    computed,
                    limit,
                } if id == lookup => Some((deadline, computed, limit)),
                _ => None,
            });
        let Some((deadline, computed, limit)) = waits else {
            self.counters.late_lookups += 1;
            self.release_found(&question, found);
            return;
        };
        let expired = now >= deadline;
        let hit = match expired {
            true => None,
            false => self.promise(&question, found, (computed, limit), lease_ms),
        };
        let state = match hit {
            Some(hit) => {
                self.counters.hits += 1;
                self.next_timeout = self.next_timeout.min(hit.usable_until.after_nanos(1));
                Lookup::Hit(hit)
            }
            None => {
                self.release_found(&question, found);
                match expired {
                    true => self.counters.lookups_expired += 1,
                    false => self.counters.misses += 1,
                }
                Lookup::Zero { computed, limit }
            }
        };
        if let Some(entry) = self.entries.get_mut(&question.request) {
            entry.lookup = state;
        }
    }

    /// The longest promise that the answer allows; what it does not need is released.
    fn promise(
        &mut self,
        question: &Question,
        found: &[Found],
        (computed, limit): (u64, u64),
        lease_ms: u32,
    ) -> Option<Hit> {
        let mut missing: Vec<Piece> = Vec::new();
        for (index, (piece, _)) in question.probes.iter().enumerate() {
            let held = matches!(found.get(index), Some(Found::Held(_)));
            if !held && missing.last() != Some(piece) {
                missing.push(*piece);
            }
        }
        // Probes are in plan order, so the list of what is missing is sorted.
        let held = |piece: Piece| missing.binary_search(&piece).is_err();
        let boundary = plan::longest(&self.config.shape, computed, limit, held)?;
        let needed = plan::needed(&self.config.shape, computed, boundary);
        let (mut book, mut surplus) = (LeaseBook::default(), LeaseBook::default());
        let mut holders = Vec::new();
        for (index, (piece, id)) in question.probes.iter().enumerate() {
            let Some(Found::Held(held)) = found.get(index).copied() else {
                continue;
            };
            if needed.binary_search(piece).is_ok() {
                holders.push((*piece, held));
                book.add(held, *id);
            } else {
                surplus.add(held, *id);
            }
        }
        self.release(surplus);
        let lease_end = question.asked.after_millis(u64::from(lease_ms));
        let load = self.config.load_timeout_ms.saturating_mul(1_000_000);
        Some(Hit {
            computed,
            boundary,
            holders,
            book,
            usable_until: Instant(lease_end.0.saturating_sub(load)),
        })
    }

    fn release_found(&mut self, question: &Question, found: &[Found]) {
        let mut book = LeaseBook::default();
        for ((_, id), found) in question.probes.iter().zip(found) {
            if let Found::Held(held) = found {
                book.add(*held, *id);
            }
        }
        self.release(book);
    }
}

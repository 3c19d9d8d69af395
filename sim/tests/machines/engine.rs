//! The engine's scheduler, as far as it matters here: admission, blocks, steps, ends.
//!
//! Modelled after vLLM: a request with a hit parks until every rank has reported; a failed load is
//! recomputed; an abort of a parked request holds its blocks until the receive is over; what was
//! received or computed is shared with requests that begin alike; blocks before a window, and all
//! states but the last, are given up while the engine schedules.

use std::collections::BTreeSet;

use tessera_client::options::IoMode;
use tessera_lifecycle::scheduler::{LookupInput, ScheduledRequest, StepInput};
use tessera_lifecycle::{GroupKind, LayoutClass, StepPlan};

use crate::invariants;
use crate::request::{Phase, Request};
use crate::world::{HASH_TOKENS, World};

/// Most tokens that one request computes in a step.
const BUDGET: u64 = 20;

impl World {
    /// One step of the engine, empty or not.
    pub(crate) fn step(&mut self) {
        let mut input = StepInput::default();
        let mut computing = Vec::new();
        for at in 0..self.requests.len() {
            if self.faulty() && self.random.chance(3) {
                self.preempt(at, &mut input);
            }
            self.admit(at);
            if let Some(tokens) = self.schedule(at, &mut input) {
                computing.push((at, tokens));
            }
        }
        let plan = self.root.step(self.now, &input);
        self.root.check_invariants();
        let plan = StepPlan::decode(&plan.encode()).expect("a plan that was encoded just now");
        self.carry_out();
        for rank in &mut self.ranks {
            rank.root.begin_step(self.now, &plan);
            rank.drain();
        }
        if self.io == IoMode::Serial {
            (0..self.ranks.len()).for_each(|place| self.load(place));
        }
        for &(at, tokens) in &computing {
            self.forward(at, tokens);
        }
        for rank in &mut self.ranks {
            rank.root.end_step();
            rank.drain();
        }
        self.collect();
        for (at, tokens) in computing {
            self.advance(at, tokens);
        }
        self.requests
            .retain(|request| request.phase != Phase::Ended);
    }

    /// The model thread of one rank waits for its loads. Their deadlines may pass meanwhile.
    fn load(&mut self, place: usize) {
        while self.ranks[place].root.is_any_loading() {
            let faulty = self.faulty();
            if faulty && self.random.chance(5) {
                self.pass_time();
                self.ranks[place].root.handle_timeout(self.now);
                self.ranks[place].drain();
            }
            let Self {
                random,
                nodes,
                coverage,
                ..
            } = self;
            self.ranks[place].progress_load(random, nodes, faulty, coverage);
        }
    }

    /// Takes the blocks of a running request away: it starts again.
    fn preempt(&mut self, at: usize, input: &mut StepInput) {
        if self.requests[at].phase == Phase::Running {
            self.drop_blocks(at);
            self.requests[at].phase = Phase::Waiting;
            input.preempted.push(self.requests[at].name.clone());
            self.coverage.preempted += 1;
        }
    }

    /// Looks a waiting request up and gives it blocks: for what will be loaded, or to compute in.
    fn admit(&mut self, at: usize) {
        let request = &self.requests[at];
        if request.phase != Phase::Waiting {
            return;
        }
        if request.computed > 0 {
            self.requests[at].phase = Phase::Running;
            return;
        }
        // Tokens that the engine has cached by itself, as it may say differently each time.
        let chunks = (request.text.len() - 1) / self.shape.chunk_tokens();
        let (shared, local) = match self.random.below(4) {
            0 => (
                Vec::new(),
                self.random.below(chunks + 1) * self.shape.chunk_tokens(),
            ),
            1 | 2 => self.begins_alike(at),
            _ => (Vec::new(), 0),
        };
        let request = &self.requests[at];
        let hashes = request.text.hashes(HASH_TOKENS);
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        let (name, num_tokens) = (request.name.clone(), request.text.len());
        let answer = self.root.lookup(
            self.now,
            LookupInput {
                request: &name,
                num_tokens,
                computed_tokens: local,
                block_hashes: &hashes,
                can_load: true,
            },
        );
        let Some(external) = answer.tokens else {
            return;
        };
        invariants::promises::check(&self.requests[at], local, external, answer);
        let limit = local + external;
        let fills = shared.is_empty();
        if !fills {
            self.requests[at].tables[0] = shared;
            self.coverage.prefixes_shared += 1;
        }
        if !self.allocate(at, limit, limit.max(1)) {
            self.coverage.allocations_failed += u64::from(external > 0);
            self.drop_blocks(at);
            return;
        }
        if fills {
            self.fill(at, local);
        }
        let tables = self.requests[at].tables.clone();
        self.root
            .allocated(&name, &tables, external)
            .expect("what was promised was taken");
        let request = &mut self.requests[at];
        if external > 0 {
            let finished = BTreeSet::new();
            request.phase = Phase::Parked {
                limit,
                finished,
                failed: false,
                aborted: false,
            };
        } else {
            request.computed = limit;
            request.phase = Phase::Running;
        }
    }

    /// Blocks of another request that begins like this one, and how many tokens they hold, as the
    /// engine's prefix cache finds them. Layouts of several groups share nothing here.
    fn begins_alike(&self, at: usize) -> (Vec<u32>, u64) {
        if self.shape.class() == LayoutClass::Request {
            return (Vec::new(), 0);
        }
        let size = self.shape.groups()[0].block_tokens;
        let text = &self.requests[at].text;
        let alike = |other: &Request| {
            let whole = other.computed.min(text.len() - 1) / size;
            let ends = (1..=whole).map(|block| block * size - 1);
            let equal = ends.take_while(|end| other.text.fold(*end) == text.fold(*end));
            equal.count()
        };
        let cached = |other: &&Request| matches!(other.phase, Phase::Waiting | Phase::Running);
        let others = self.requests.iter().filter(cached);
        let most = others.map(|other| &other.tables[0][..alike(other)]);
        let most = most.max_by_key(|blocks| blocks.len()).unwrap_or_default();
        (most.to_vec(), most.len() as u64 * size)
    }

    /// What the engine had cached by itself stands in the blocks.
    fn fill(&mut self, at: usize, local: u64) {
        for rank in &mut self.ranks {
            rank.compute(&self.requests[at], 0, local);
        }
    }

    /// Makes room for a step of a running request and tells the scheduler's machine of it. Returns
    /// the tokens that the step computes; without room the request is preempted.
    fn schedule(&mut self, at: usize, input: &mut StepInput) -> Option<u64> {
        let request = &self.requests[at];
        if request.phase != Phase::Running {
            return None;
        }
        let left = request.text.len() - request.computed;
        let mut tokens = left.min(1 + self.random.below(BUDGET));
        let boundary =
            (request.computed / self.shape.chunk_tokens() + 1) * self.shape.chunk_tokens();
        if request.computed + tokens > boundary && self.random.chance(70) {
            tokens = boundary - request.computed;
        }
        let computed = request.computed;
        self.give_up(at, computed);
        if !self.allocate(at, computed, computed + tokens) {
            self.preempt(at, input);
            return None;
        }
        let known = self.root.known_hashes(&self.requests[at].name);
        let late = self.requests[at].hashed_late && self.random.chance(90);
        let request = &mut self.requests[at];
        let whole_tables = std::mem::take(&mut request.fresh);
        let told = request.tables.iter().zip(&mut request.told);
        let blocks = told.map(|(table, told)| {
            let from = if whole_tables { 0 } else { *told };
            *told = table.len();
            table[from..].to_vec()
        });
        let blocks = blocks.collect();
        let hashes = request.text.hashes(HASH_TOKENS);
        let from = usize::try_from(known).expect("small").min(hashes.len());
        // An engine may hash some tokens only after the step that computes them.
        let until = if late { from } else { hashes.len() };
        input.scheduled.push(ScheduledRequest {
            request: request.name.clone(),
            whole_tables,
            computed_tokens: computed,
            scheduled_tokens: tokens,
            blocks,
            hashes: hashes[from..until].to_vec(),
            hashes_from: known,
        });
        Some(tokens)
    }

    /// Computes: reads what came before, writes what is new.
    fn forward(&mut self, at: usize, tokens: u64) {
        self.coverage.forwards += 1;
        let request = &self.requests[at];
        invariants::forward::check(&self.ranks, request);
        for rank in &mut self.ranks {
            let from = request.computed;
            rank.compute(request, from, from + tokens);
        }
    }

    /// Takes the output of a forward: samples at the end.
    fn advance(&mut self, at: usize, tokens: u64) {
        let request = &mut self.requests[at];
        request.computed += tokens;
        if request.computed < request.text.len() {
            return;
        }
        if request.text.len() < request.target {
            let sampled = 1_000 + request.text.len() % 3;
            request.text.push(sampled);
            let text = request.text.clone();
            let chunks = text.len() / self.shape.chunk_tokens();
            self.expect(&text, chunks.saturating_sub(1));
        } else {
            self.coverage.requests_done += 1;
            self.end(at);
        }
    }

    /// The user gives one request up.
    pub(crate) fn abort(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let at = self.random.index(self.requests.len());
        match &mut self.requests[at].phase {
            Phase::Parked { aborted: true, .. } | Phase::Ended => {}
            Phase::Parked { aborted, .. } => {
                *aborted = true;
                self.coverage.aborted_parked += 1;
                let held = self.root.finished(&self.requests[at].name);
                assert!(!held, "saves are copies: no block is ever held for them");
            }
            Phase::Waiting | Phase::Running => self.end(at),
        }
        self.requests
            .retain(|request| request.phase != Phase::Ended);
    }

    fn end(&mut self, at: usize) {
        self.root.finished(&self.requests[at].name);
        self.drop_blocks(at);
        self.requests[at].phase = Phase::Ended;
    }

    /// Gathers what all ranks report, and gives it to the scheduler's machine as one output.
    fn collect(&mut self) {
        let mut over: BTreeSet<String> = BTreeSet::new();
        let mut failed: BTreeSet<String> = BTreeSet::new();
        let mut invalid: BTreeSet<u32> = BTreeSet::new();
        for (place, rank) in self.ranks.iter_mut().enumerate() {
            let results = rank.root.take_results();
            invalid.extend(rank.root.take_invalid_blocks());
            for name in &results.finished_recving {
                let all = self.shape.ranks().len();
                if invariants::reports::take(&mut self.requests, name, place) == all {
                    over.insert(name.clone());
                }
            }
            for name in results.failed_recving {
                assert!(
                    results.finished_recving.contains(&name),
                    "{name} failed unfinished"
                );
                invariants::reports::fail(&mut self.requests, &name);
            }
        }
        for request in &self.requests {
            if matches!(request.phase, Phase::Parked { failed: true, .. }) {
                failed.insert(request.name.clone());
            }
        }
        let over: Vec<&str> = over.iter().map(String::as_str).collect();
        let failed: Vec<&str> = failed.iter().map(String::as_str).collect();
        let failed: Vec<&str> = failed
            .into_iter()
            .filter(|name| over.contains(name))
            .collect();
        self.distrust(&invalid);
        let invalid: Vec<u32> = invalid.into_iter().collect();
        self.root.worker_output(&over, &failed, &invalid);
        for at in 0..self.requests.len() {
            if over.contains(&self.requests[at].name.as_str()) {
                self.unpark(at);
            }
        }
    }

    /// Shortens what requests wait for to before the first block without valid content, whichever
    /// rank says so.
    fn distrust(&mut self, invalid: &BTreeSet<u32>) {
        let size = self.shape.groups()[0].block_tokens;
        for request in &mut self.requests {
            let mut table = request.tables[0].iter();
            let Some(bad) = table.position(|block| invalid.contains(block)) else {
                continue;
            };
            let bad = bad as u64 * size;
            match &mut request.phase {
                Phase::Parked { limit, .. } => *limit = (*limit).min(bad),
                other => panic!("{} has a bad block and is {other:?}", request.name),
            }
            request.failed_before = true;
        }
    }

    /// Every rank is done with a load: the request goes on with what is there.
    fn unpark(&mut self, at: usize) {
        let Phase::Parked {
            limit,
            failed,
            aborted,
            ..
        } = self.requests[at].phase
        else {
            return;
        };
        let request = &mut self.requests[at];
        request.failed_before |= failed;
        request.phase = if aborted {
            Phase::Ended
        } else {
            Phase::Waiting
        };
        if failed || aborted || limit == 0 {
            self.drop_blocks(at);
        } else {
            request.computed = limit;
        }
    }

    /// Gives each group blocks up to token `end`, where a request has `computed` tokens. False, and
    /// perhaps some blocks more, if the pool is empty.
    fn allocate(&mut self, at: usize, computed: u64, end: u64) -> bool {
        for group in 0..self.shape.groups().len() {
            let spec = self.shape.groups()[group];
            let live = |index: u64| match spec.kind {
                GroupKind::Full => true,
                GroupKind::Window { tokens } => {
                    index >= (computed + 1).saturating_sub(tokens) / spec.block_tokens
                }
                GroupKind::State => {
                    let read = computed > 0 && index == (computed - 1) / spec.block_tokens;
                    read || index == (end - 1) / spec.block_tokens
                }
            };
            let have = self.requests[at].tables[group].len() as u64;
            for index in have..end.div_ceil(spec.block_tokens) {
                let block = match live(index) {
                    false => 0,
                    true => match self.free.pop() {
                        Some(block) => block,
                        None => return false,
                    },
                };
                self.ranks.iter_mut().for_each(|rank| rank.poison(block));
                self.requests[at].tables[group].push(block);
            }
        }
        true
    }

    /// Frees blocks that the next token does not look back to.
    fn give_up(&mut self, at: usize, computed: u64) {
        for (group, spec) in self.shape.groups().iter().enumerate() {
            let first = match spec.kind {
                GroupKind::Full => 0,
                GroupKind::Window { tokens } => (computed + 1).saturating_sub(tokens),
                GroupKind::State => computed.saturating_sub(1),
            };
            let first = usize::try_from(first / spec.block_tokens).expect("small");
            let table = &mut self.requests[at].tables[group];
            let end = first.min(table.len());
            let old = table[..end].iter_mut().map(std::mem::take);
            self.free.extend(old.filter(|block| *block != 0));
        }
        self.shuffle_free();
    }

    fn drop_blocks(&mut self, at: usize) {
        let blocks = Request::take_blocks(&mut self.requests[at]);
        let shared = |block: u32| self.requests.iter().any(|request| request.holds(block));
        let own: Vec<u32> = blocks.into_iter().filter(|block| !shared(*block)).collect();
        self.free.extend(own);
        self.shuffle_free();
    }

    /// The pool gives blocks out in no order that anybody may rely on.
    fn shuffle_free(&mut self) {
        for at in 1..self.free.len() {
            let other = self.random.index(at + 1);
            self.free.swap(at, other);
        }
    }
}

//! The engine's scheduler and forward pass, as far as a connector can tell.

use tessera_lifecycle::scheduler::{LookupInput, ScheduledRequest, StepInput};
use tessera_lifecycle::worker::TransferResults;
use tessera_lifecycle::{GroupKind, StepPlan};

use crate::store::Tag;
use crate::world::{CHUNK, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Parked,
    Running,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) prompt: u8,
    pub(crate) prompt_tokens: u64,
    pub(crate) stage: Stage,
    pub(crate) computed: u64,
    pub(crate) tables: Vec<Vec<u32>>,
    /// Tables as the connector was told last.
    told: Option<Vec<usize>>,
    hashes_told: u64,
}

/// What each rank reports of one step, until the engine looks at it.
pub(crate) type StepOutput = Vec<(TransferResults, Vec<u32>)>;

impl Request {
    pub(crate) fn new(prompt: u8, prompt_tokens: u64, groups: usize) -> Self {
        Self {
            prompt,
            prompt_tokens,
            stage: Stage::Waiting,
            computed: 0,
            tables: vec![Vec::new(); groups],
            told: None,
            hashes_told: 0,
        }
    }

    fn hashes(&self) -> Vec<Vec<u8>> {
        let units = self.computed.max(self.prompt_tokens) / 4;
        (0..units)
            .map(|unit| vec![self.prompt, u8::try_from(unit).unwrap(), 9])
            .collect()
    }
}

impl World {
    /// Ends a request, by its own will or another's.
    pub(crate) fn end(&mut self, name: &str) {
        let request = self.requests.remove(name).unwrap();
        assert!(!self.scheduler.finished(name));
        self.settle_scheduler();
        self.finished.push(name.to_owned());
        match request.stage {
            Stage::Parked => {
                self.held.insert(name.to_owned(), request.tables);
            }
            _ => self.free_tables(&request.tables),
        }
    }

    pub(crate) fn preempt(&mut self, name: &str) {
        let request = self.requests.get_mut(name).unwrap();
        request.stage = Stage::Waiting;
        request.computed = 0;
        request.told = None;
        let tables = std::mem::take(&mut request.tables);
        request.tables = vec![Vec::new(); tables.len()];
        self.free_tables(&tables);
        self.preempted.push(name.to_owned());
    }

    /// Freed blocks are written by others at once.
    pub(crate) fn free_tables(&mut self, tables: &[Vec<u32>]) {
        for (group, table) in tables.iter().enumerate() {
            for block in table.iter().filter(|block| **block != 0) {
                for worker in &mut self.workers {
                    worker.memory.insert((group, *block), Tag::Junk);
                }
                self.free.push(*block);
            }
        }
    }

    fn take_block(&mut self) -> u32 {
        let at = self.random.index(self.free.len());
        self.free.swap_remove(at)
    }

    pub(crate) fn schedule(&mut self) -> StepInput {
        let mut input = StepInput {
            preempted: std::mem::take(&mut self.preempted),
            finished: std::mem::take(&mut self.finished),
            ..StepInput::default()
        };
        let names: Vec<String> = self.requests.keys().cloned().collect();
        for name in names {
            if self.requests[&name].stage == Stage::Waiting
                && !input.preempted.contains(&name)
                && !self.admit(&name)
            {
                continue;
            }
            if self.requests[&name].stage == Stage::Running {
                let scheduled = self.extend(&name);
                input.scheduled.push(scheduled);
            }
        }
        input
    }

    /// Asks the connector and allocates. False if the request does not run in this step.
    fn admit(&mut self, name: &str) -> bool {
        let request = &self.requests[name];
        let (prompt, tokens) = (request.prompt, request.prompt_tokens.max(request.computed));
        let mut local = request.computed;
        if local == 0 && self.random.chance(30) {
            local = self.random.below(tokens.div_ceil(CHUNK)) * CHUNK;
        }
        if request.computed == 0 {
            let hashes = request.hashes();
            let block_hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
            let answer = self.scheduler.lookup(
                self.now,
                LookupInput {
                    request: name,
                    num_tokens: tokens,
                    computed_tokens: local,
                    block_hashes: &block_hashes,
                    can_load: true,
                },
            );
            self.settle_scheduler();
            let Some(external) = answer.tokens else {
                return false;
            };
            assert!(local + external < tokens, "the last token is computed");
            assert!(answer.parks() == (external > 0));
            if self.free.len() < 60 || (!self.quiet && self.random.chance(10)) {
                return false;
            }
            self.allocate(name, prompt, local, external);
            let tables = self.requests[name].tables.clone();
            self.scheduler.allocated(name, &tables, external).unwrap();
            self.settle_scheduler();
            let request = self.requests.get_mut(name).unwrap();
            request.computed = local + external;
            request.told = None;
            if answer.parks() {
                request.stage = Stage::Parked;
                return false;
            }
        }
        self.requests.get_mut(name).unwrap().stage = Stage::Running;
        true
    }

    /// Blocks for the engine's own hit, with sound content, and for what will be loaded.
    fn allocate(&mut self, name: &str, prompt: u8, local: u64, external: u64) {
        let end = local + external;
        for group in 0..self.shape.groups().len() {
            let spec = self.shape.groups()[group];
            let lowest = match spec.kind {
                GroupKind::Full => 0,
                GroupKind::Window { tokens } => (end + 1).saturating_sub(tokens),
                GroupKind::State => end.saturating_sub(1),
            };
            let size = spec.block_tokens;
            let mut table = Vec::new();
            for index in 0..end.div_ceil(size) {
                if (index + 1) * size <= lowest {
                    table.push(0);
                    continue;
                }
                let block = self.take_block();
                for worker in 0..self.workers.len() {
                    let tag = match (index + 1) * size <= local {
                        true => self.sound(prompt, group, index, worker),
                        false => Tag::Junk,
                    };
                    self.workers[worker].memory.insert((group, block), tag);
                }
                table.push(block);
            }
            self.requests.get_mut(name).unwrap().tables[group] = table;
        }
    }

    /// Schedules some tokens of a running request, frees what left its windows, adds blocks.
    fn extend(&mut self, name: &str) -> ScheduledRequest {
        let request = &self.requests[name];
        let computed = request.computed;
        let left = request.prompt_tokens.saturating_sub(computed);
        let mut tokens = if left > 1 {
            1 + self.random.below(left)
        } else {
            1
        };
        let states = self
            .shape
            .groups()
            .iter()
            .any(|group| group.kind == GroupKind::State);
        if states && computed + tokens > computed.next_multiple_of(CHUNK) && left > 1 {
            // Prompts of recurrent models are cut at block boundaries first.
            let end = (computed + tokens) / CHUNK * CHUNK;
            tokens = if end > computed {
                end - computed
            } else {
                tokens
            };
        }
        let end = computed + tokens;
        let mut freed = Vec::new();
        for group in 0..self.shape.groups().len() {
            let spec = self.shape.groups()[group];
            let gone = match spec.kind {
                GroupKind::Full => 0,
                GroupKind::Window { tokens } => (computed + 1).saturating_sub(tokens),
                GroupKind::State => {
                    computed.saturating_sub(1) / spec.block_tokens * spec.block_tokens
                }
            } / spec.block_tokens;
            let mut table = std::mem::take(&mut self.requests.get_mut(name).unwrap().tables[group]);
            for block in table.iter_mut().take(usize::try_from(gone).unwrap()) {
                let mut one = vec![Vec::new(); group];
                one.push(vec![std::mem::take(block)]);
                freed.push(one);
            }
            let needed_blocks = usize::try_from(end.div_ceil(spec.block_tokens)).unwrap();
            while table.len() < needed_blocks {
                let last = table.len() + 1 == needed_blocks;
                let state_gap = spec.kind == GroupKind::State && !last;
                table.push(if state_gap { 0 } else { self.take_block() });
            }
            self.requests.get_mut(name).unwrap().tables[group] = table;
        }
        for tables in freed {
            self.free_tables(&tables);
        }
        self.describe(name, tokens)
    }

    /// The request in the words of the hook; hashes may come a step late.
    fn describe(&mut self, name: &str, tokens: u64) -> ScheduledRequest {
        let late = self.random.chance(30);
        let request = self.requests.get_mut(name).unwrap();
        let whole = request.told.is_none();
        let told = request
            .told
            .take()
            .unwrap_or_else(|| vec![0; request.tables.len()]);
        let added = request.tables.iter().zip(&told);
        let blocks = added.map(|(table, told)| table[*told..].to_vec()).collect();
        request.told = Some(request.tables.iter().map(Vec::len).collect());
        let from = request.hashes_told.min(self.scheduler.known_hashes(name));
        let mut hashes = request.hashes().split_off(usize::try_from(from).unwrap());
        if late {
            hashes.clear();
        }
        request.hashes_told = from + u64::try_from(hashes.len()).unwrap();
        ScheduledRequest {
            request: name.to_owned(),
            whole_tables: whole,
            computed_tokens: request.computed,
            scheduled_tokens: tokens,
            blocks,
            hashes,
            hashes_from: from,
        }
    }

    /// All ranks execute the step.
    pub(crate) fn execute(&mut self, input: &StepInput, plan: &StepPlan) -> StepOutput {
        let early = self.random.chance(50);
        if early {
            self.begin(plan);
        }
        for scheduled in &input.scheduled {
            self.forward(scheduled);
            let request = self.requests.get_mut(&scheduled.request).unwrap();
            request.computed += scheduled.scheduled_tokens;
        }
        if !early {
            self.begin(plan);
        }
        let mut reports = Vec::new();
        for index in 0..self.workers.len() {
            for save in self.workers[index].end() {
                self.save(index, &save);
            }
            for _ in 0..=self.random.below(4) {
                self.workers[index].progress(self.now, &self.store, &mut self.random);
            }
            let (results, invalid) = self.workers[index].poll();
            assert!(results.finished_sending.is_empty());
            reports.push((results, invalid));
        }
        reports
    }

    fn begin(&mut self, plan: &StepPlan) {
        for worker in &mut self.workers {
            worker.begin(self.now, plan, &self.store, &mut self.random);
        }
    }

    /// Computes tokens of one request on all ranks, from blocks that hold what they should.
    fn forward(&mut self, scheduled: &ScheduledRequest) {
        let request = &self.requests[&scheduled.request];
        let (prompt, computed) = (request.prompt, scheduled.computed_tokens);
        let end = computed + scheduled.scheduled_tokens;
        let tables = request.tables.clone();
        for (group, table) in tables.iter().enumerate() {
            let spec = self.shape.groups()[group];
            let size = spec.block_tokens;
            let lowest = match spec.kind {
                GroupKind::Full => 0,
                GroupKind::Window { tokens } => (computed + 1).saturating_sub(tokens),
                // A state between boundaries lives in a block that is not complete.
                GroupKind::State if computed % size != 0 => computed,
                GroupKind::State => computed.saturating_sub(1),
            };
            for index in lowest / size..computed / size {
                let block = table[usize::try_from(index).unwrap()];
                for worker in 0..self.workers.len() {
                    let have = self.workers[worker].memory.get(&(group, block));
                    let sound = self.sound(prompt, group, index, worker);
                    let name = &scheduled.request;
                    assert_eq!(have, Some(&sound), "{name} computes over a bad block");
                }
            }
        }
        for (group, table) in tables.iter().enumerate() {
            let size = self.shape.groups()[group].block_tokens;
            let state = self.shape.groups()[group].kind == GroupKind::State;
            for index in computed / size..end.div_ceil(size) {
                let block = table[usize::try_from(index).unwrap()];
                let complete = (index + 1) * size <= end && (!state || (index + 1) * size == end);
                for worker in 0..self.workers.len() {
                    let tag = match complete {
                        true => self.sound(prompt, group, index, worker),
                        false => Tag::Junk,
                    };
                    if block != 0 {
                        self.workers[worker].memory.insert((group, block), tag);
                    }
                }
            }
        }
    }

    /// Copies and stores one object: it must hold what its key says.
    fn save(&mut self, worker: usize, save: &tessera_lifecycle::worker::Save) {
        let memory = &self.workers[worker].memory;
        let tag = |block: &u32| {
            memory
                .get(&(save.group, *block))
                .copied()
                .unwrap_or(Tag::Junk)
        };
        let tags: Vec<Tag> = save.blocks.iter().map(tag).collect();
        assert!(
            !tags.contains(&Tag::Junk),
            "poison: {save:?} on rank {worker}"
        );
        let [Tag::Sound { prompt, index, .. }, ..] = tags[..] else {
            panic!("an object without blocks: {save:?}");
        };
        let size = self.shape.groups()[save.group].block_tokens;
        let chunk = index * size / CHUNK;
        let blocks = self.shape.object_blocks(save.group, chunk);
        let expected: Vec<Tag> = blocks
            .map(|index| self.sound(prompt, save.group, index, worker))
            .collect();
        assert_eq!(tags, expected, "an object of other blocks");
        let last_unit = u8::try_from((chunk + 1) * CHUNK / 4 - 1).unwrap();
        let hash = tessera_proto::BlockHash::new(&[prompt, last_unit, 9]).unwrap();
        let rank = self.shape.ranks()[worker];
        let at = tessera_lifecycle::plan::coordinates(&self.shape, save.group, rank);
        let namespace = tessera_proto::NamespaceDigest([3; 32]);
        let key = tessera_lifecycle::plan::key(&namespace, save.group, at, &hash);
        assert_eq!(save.key, key, "an object under another name");
        self.store.objects.insert(key.object_id(), (key, tags));
        self.workers[worker].saved(save, &mut self.random);
    }
}

//! All parts together, one event at a time.

use std::collections::HashMap;

use tessera_client::options::IoMode;
use tessera_lifecycle::plan;
use tessera_lifecycle::scheduler::{SchedulerCommand, SchedulerEvent, SchedulerLimits};
use tessera_lifecycle::{
    Axes, GroupKind, GroupSpec, LookupId, SchedulerConfig, SchedulerRoot, Shape,
};
use tessera_proto::{BlockHash, Instant, KeyDigest, NamespaceDigest, ObjectId, Topology};

use crate::coverage::Coverage;
use crate::invariants;
use crate::nodes::{Nodes, Payload};
use crate::random::Random;
use crate::rank::RankModel;
use crate::request::Request;
use crate::truth::Text;

/// Tokens of one hash of the engine.
pub(crate) const HASH_TOKENS: u64 = 2;
const NAMESPACE: NamespaceDigest = NamespaceDigest([3; 32]);
/// Blocks of the engine's pool, few enough to run out.
const BLOCKS: u32 = 60;
const LOOKUP_TIMEOUT_MS: u64 = 30;
const LOAD_TIMEOUT_MS: u64 = 40;
const LEASE_MS: u32 = 400;

/// Whether anything goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    All,
    None,
}

/// A lookup that the nodes have not answered.
#[derive(Debug)]
struct Question {
    lookup: LookupId,
    ids: Vec<ObjectId>,
    lease_ms: u32,
    asked: Instant,
    deadline: Instant,
}

/// One engine, its nodes, and a user.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) now: Instant,
    pub(crate) shape: Shape,
    pub(crate) io: IoMode,
    pub(crate) root: SchedulerRoot,
    pub(crate) ranks: Vec<RankModel>,
    pub(crate) nodes: Nodes,
    pub(crate) requests: Vec<Request>,
    /// Blocks that nobody has.
    pub(crate) free: Vec<u32>,
    pub(crate) coverage: Coverage,
    questions: Vec<Question>,
    /// What the object of each key must hold.
    pub(crate) expected: HashMap<KeyDigest, Payload>,
    names: u64,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random::new(seed);
        let shape = shape(&mut random);
        let io = match random.chance(40) {
            true => IoMode::Serial,
            false => IoMode::Async,
        };
        let config = SchedulerConfig {
            namespace: NAMESPACE,
            shape: shape.clone(),
            loads: true,
            saves: true,
            lookup_timeout_ms: LOOKUP_TIMEOUT_MS,
            load_timeout_ms: LOAD_TIMEOUT_MS,
            lease_ms: LEASE_MS,
            incarnation: u128::from(seed) + 1,
            limits: SchedulerLimits {
                requests: 64,
                lookup_objects: 256,
            },
        };
        let ranks = shape.ranks().into_iter();
        // With faults the queue may be full as well.
        let queued = if faults == Faults::All {
            40
        } else {
            usize::MAX
        };
        Self {
            ranks: ranks
                .map(|rank| RankModel::new(&shape, rank, NAMESPACE, queued))
                .collect(),
            root: SchedulerRoot::new(config),
            shape,
            io,
            random,
            faults,
            now: Instant(1),
            nodes: Nodes::new(),
            requests: Vec::new(),
            free: (1..=BLOCKS).collect(),
            coverage: Coverage::default(),
            questions: Vec::new(),
            expected: HashMap::new(),
            names: 0,
        }
    }

    pub(crate) fn coverage(&self) -> Coverage {
        let counters = self.root.counters();
        Coverage {
            hits: counters.hits,
            loads_succeeded: counters.loads_succeeded,
            loads_failed: counters.loads_failed,
            quarantined_lookups: counters.lookups_quarantined,
            ..self.coverage
        }
    }

    pub(crate) fn faulty(&self) -> bool {
        self.faults == Faults::All
    }

    /// Lets one thing happen, and checks everything.
    pub(crate) fn event(&mut self) {
        self.pass_time();
        match self.random.below(100) {
            0..12 => self.arrive(),
            12..45 => self.step(),
            45..80 => self.progress(),
            80..92 => (0..=self.random.below(4)).for_each(|_| self.answer()),
            92..95 if self.faulty() => self.abort(),
            95..97 if self.faulty() => self.nodes.evict(&mut self.random),
            97 if self.faulty() && self.random.chance(20) => {
                self.nodes.restart();
                self.coverage.restarts += 1;
            }
            _ => self.time_out(),
        }
        self.carry_out();
        invariants::check(self);
    }

    /// No more requests and no more faults: everything that began must end.
    pub(crate) fn finish(&mut self) {
        self.faults = Faults::None;
        let mut events = 0;
        while !invariants::progress::is_over(self) {
            events += 1;
            assert!(
                events < 20_000,
                "{}",
                invariants::progress::what_is_left(self)
            );
            self.pass_time();
            self.step();
            self.progress();
            self.answer();
            self.time_out();
            self.carry_out();
            invariants::check(self);
        }
        invariants::leases::check_at_the_end(self);
    }

    pub(crate) fn pass_time(&mut self) {
        let micros = match (self.faulty(), self.random.chance(1)) {
            (true, true) => self.random.below(60_000),
            (true, false) => self.random.below(400),
            // So fast that no deadline passes.
            (false, _) => self.random.below(20),
        };
        self.now = self.now.after_nanos(1_000 * micros + 1);
        self.nodes.expire(self.now);
    }

    fn time_out(&mut self) {
        let now = self.now;
        self.root.handle_timeout(now);
        for rank in &mut self.ranks {
            rank.root.handle_timeout(now);
            rank.drain();
        }
    }

    fn progress(&mut self) {
        let faulty = self.faulty();
        for _ in 0..=self.random.below(4) {
            let Self {
                random,
                nodes,
                coverage,
                ..
            } = self;
            let at = random.index(self.ranks.len());
            let stored = self.ranks[at].progress(random, nodes, faulty, coverage);
            if let Some((save, payload)) = stored {
                invariants::objects::check(&self.expected, &save, &payload);
            }
        }
    }

    /// Executes what the scheduler's machine asks for.
    pub(crate) fn carry_out(&mut self) {
        while let Some(command) = self.root.poll_command() {
            match command {
                SchedulerCommand::Acquire {
                    lookup,
                    ids,
                    lease_ms,
                    deadline,
                } => {
                    let asked = self.now;
                    self.questions.push(Question {
                        lookup,
                        ids,
                        lease_ms,
                        asked,
                        deadline,
                    });
                }
                SchedulerCommand::Release { grants } => self.nodes.release(&grants),
            }
        }
    }

    /// Answers one question, sometimes after its deadline.
    fn answer(&mut self) {
        if self.questions.is_empty() {
            return;
        }
        let at = self.random.index(self.questions.len());
        let question = self.questions.swap_remove(at);
        let until = question.asked.after_millis(u64::from(question.lease_ms));
        let found = self.nodes.acquire(&question.ids, until);
        self.coverage.late_answers += u64::from(self.now >= question.deadline);
        let (lookup, lease_ms) = (question.lookup, question.lease_ms);
        let event = SchedulerEvent::Acquired {
            lookup,
            found,
            lease_ms,
        };
        self.root.handle_event(self.now, event.clone());
        if self.faulty() && self.random.chance(5) {
            self.root.handle_event(self.now, event);
        }
    }

    /// Whether a question is open.
    pub(crate) fn is_asked(&self) -> bool {
        !self.questions.is_empty()
    }

    /// A request whose prompt often begins like those of others.
    fn arrive(&mut self) {
        if self.requests.len() >= 12 {
            return;
        }
        let family = self.random.below(3);
        let shared = self.random.below(40);
        let own = self.random.below(24) + 2;
        let mut text = Text::default();
        (0..shared).for_each(|_| text.push(family));
        let unique = self.random.below(2);
        (0..own).for_each(|at| text.push(100 + unique * at));
        let target = text.len() + self.random.below(30);
        let reuse = self.random.chance(30) && self.names > 0;
        let name = match reuse {
            true => self.random.below(self.names),
            false => self.names,
        };
        let name = format!("request-{name}");
        if self.requests.iter().any(|request| request.name == name) {
            return;
        }
        self.coverage.names_reused += u64::from(reuse);
        self.names += u64::from(!reuse);
        let mut request = Request::new(name, text, target, self.shape.groups().len());
        request.hashed_late = self.random.chance(30);
        self.expect(&request.text, 0);
        self.requests.push(request);
    }

    /// Notes what every object of `text` from chunk `first` on must hold.
    pub(crate) fn expect(&mut self, text: &Text, first: u64) {
        let chunk_tokens = self.shape.chunk_tokens();
        let hashes = text.hashes(HASH_TOKENS);
        let per_chunk = self.shape.hashes_per_chunk();
        for (place, rank) in self.shape.ranks().into_iter().enumerate() {
            for (group, spec) in self.shape.groups().iter().enumerate() {
                let shard = self.ranks[place].shards[group];
                for chunk in first..text.len() / chunk_tokens {
                    let unit = usize::try_from((chunk + 1) * per_chunk - 1).expect("a unit");
                    let hash = BlockHash::new(&hashes[unit]).expect("eight bytes");
                    let at = plan::coordinates(&self.shape, group, rank);
                    let tokens = |block: u64| match spec.kind {
                        GroupKind::State => {
                            (chunk + 1) * chunk_tokens - 1..(chunk + 1) * chunk_tokens
                        }
                        _ => block * spec.block_tokens..(block + 1) * spec.block_tokens,
                    };
                    let content = |block| {
                        tokens(block)
                            .map(|token| text.content(group, shard, token))
                            .collect()
                    };
                    let payload = self
                        .shape
                        .object_blocks(group, chunk)
                        .map(content)
                        .collect();
                    self.expected
                        .insert(plan::key(&NAMESPACE, group, at, &hash), payload);
                }
            }
        }
    }
}

/// One of the layouts that engines have, small.
fn shape(random: &mut Random) -> Shape {
    let group = |kind, block_tokens| GroupSpec {
        kind,
        block_tokens,
        replicated: Axes::default(),
    };
    let replicated = Axes {
        tp: true,
        ..Axes::default()
    };
    let (full, window) = (GroupKind::Full, GroupKind::Window { tokens: 6 });
    let groups = match random.below(5) {
        0 => vec![group(full, 4)],
        1 => vec![group(full, 4), group(window, 4)],
        2 => vec![group(GroupKind::State, 8), group(full, 8)],
        3 => vec![group(window, 2), group(full, 4), group(window, 4)],
        _ => vec![GroupSpec {
            replicated,
            ..group(full, 4)
        }],
    };
    let tp = 1 + u32::try_from(random.below(2)).expect("small");
    let topology = Topology {
        tp,
        ..Topology::SINGLE
    };
    Shape::new(groups, None, HASH_TOKENS, topology).expect("a sound shape")
}

//! A small world: its settings, its state, and what can happen in a state.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use stateright::{Model, Property};
use tessera_client::options::IoMode;
use tessera_lifecycle::scheduler::SchedulerLimits;
use tessera_lifecycle::worker::{Fetch, Phase};
use tessera_lifecycle::{
    Axes, GroupKind, GroupSpec, LoadId, LookupId, SchedulerConfig, SchedulerRoot, Shape, StepPlan,
    WorkerRoot,
};
use tessera_proto::{Instant, Topology};

use crate::law::{self, Broken};
use crate::node::Node;
use crate::objects::{Content, NAMESPACE, Objects};
use crate::rank::RankState;
use crate::reached::Reached;

/// Tokens of a chunk, of a block, and of a hash.
pub(crate) const CHUNK: u64 = 2;
pub(crate) const RANKS: usize = 2;
/// One tick of the clock.
pub(crate) const TICK_MS: u64 = 10;
const BLOCKS: usize = 24;

/// What the engine does with a request whose load has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Recompute,
    Fail,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Fetches that fail although the object is there, and nodes that do not answer.
    pub(crate) faults: u8,
    pub(crate) aborts: u8,
    pub(crate) preemptions: u8,
    pub(crate) restarts: u8,
    pub(crate) evictions: u8,
    pub(crate) ticks: u8,
    /// Requests that come again under the name of one that has ended.
    pub(crate) again: u8,
    /// Lookups for which the engine has the first chunk itself.
    pub(crate) cached: u8,
    /// Fences that fail before they are complete.
    pub(crate) failed_fences: u8,
}

/// The settings of a world.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// A single full-attention group, or one with a state beside it.
    pub(crate) hybrid: bool,
    pub(crate) io: IoMode,
    pub(crate) policy: Policy,
    /// Tokens of each request.
    pub(crate) prompts: Vec<u64>,
    /// Whether fences before a load end at any time, or at once.
    pub(crate) slow_fences: bool,
    /// Parts that a rank moves at once; one load has half of them.
    pub(crate) in_flight: usize,
    /// Whether requests lose their blocks even while they are parked, which no engine does today.
    pub(crate) preempts_parked: bool,
    pub(crate) budget: Budget,
}

/// A world: what does not change.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) shape: Shape,
    pub(crate) objects: Objects,
    /// Digests of states from which everything is known to end.
    pub(crate) ending: Arc<Mutex<BTreeSet<u64>>>,
    pub(crate) reached: Arc<[AtomicU64; Reached::COUNT]>,
}

/// Where a request stands in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stand {
    Absent,
    Waiting,
    Parked {
        limit: u64,
        /// Ranks that have reported, as bits.
        reported: u8,
        failed: bool,
        aborted: bool,
    },
    Running,
}

/// One request of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) stand: Stand,
    pub(crate) computed: u64,
    /// Block ids for each group; 0 is null.
    pub(crate) tables: Vec<Vec<u32>>,
    pub(crate) told: Vec<usize>,
    pub(crate) fresh: bool,
    /// A load of it has failed.
    pub(crate) failed_before: bool,
    /// The load that writes its blocks.
    pub(crate) load: Option<LoadId>,
    pub(crate) due: Option<Instant>,
    /// The load was called off by a plan that the ranks have.
    pub(crate) called_off: bool,
    /// Ranks on which a part of the load has failed.
    pub(crate) parts_failed: u8,
    /// Ranks on which the load may fail for another reason.
    pub(crate) excused: u8,
}

/// A question that the node has not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) lookup: LookupId,
    pub(crate) objects: Vec<usize>,
    pub(crate) asked: Instant,
}

/// Where the engine is within a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EnginePhase {
    /// Between steps.
    Idle,
    /// The ranks end the loads of preempted requests before they take the plan.
    Preempting(Arc<StepPlan>, Vec<(usize, u64)>),
    /// The ranks execute loads on the model thread before they compute.
    Loading(Vec<(usize, u64)>),
}

/// One state of a world.
#[derive(Clone, Debug, Hash)]
#[expect(
    clippy::derived_hash_with_manual_eq,
    reason = "states are equal if their digests are, and equal digests are equal hashes"
)]
pub(crate) struct State {
    pub(crate) now: Instant,
    pub(crate) root: Arc<SchedulerRoot>,
    pub(crate) ranks: [RankState; RANKS],
    pub(crate) slots: Vec<Slot>,
    /// Blocks that nobody has, lowest first.
    pub(crate) free: BTreeSet<u32>,
    pub(crate) node: Node,
    pub(crate) questions: Vec<Question>,
    pub(crate) phase: EnginePhase,
    /// Requests that have ended since the last step.
    pub(crate) ended: BTreeSet<usize>,
    pub(crate) left: Budget,
    pub(crate) broken: Option<Broken>,
}

impl State {
    pub(crate) fn digest(&self) -> u64 {
        digest(self)
    }
}

/// A digest that does not change from run to run.
pub(crate) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The engine looks a request up, and gives it blocks if there is an answer.
    Admit { slot: usize, cached: u64 },
    /// The node answers a question.
    Answer { question: usize, reachable: bool },
    /// The engine makes a step, and takes the blocks of one request away.
    Step { preempt: Option<usize> },
    /// A fence is complete.
    Fenced {
        rank: usize,
        load: LoadId,
        phase: Phase,
    },
    /// A fence fails, and is asked for again.
    FenceFailed {
        rank: usize,
        load: LoadId,
        phase: Phase,
    },
    /// A fetch is over.
    Fetched { rank: usize, at: usize, ok: bool },
    /// Time passes.
    Tick,
    /// A user gives a request up.
    Abort(usize),
    /// A request comes under a name that was used before.
    Again(usize),
    /// The node dies and comes back empty.
    Restart,
    /// The node drops an object that it does not hold for anybody.
    Evict(usize),
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let group = |kind| GroupSpec {
            kind,
            block_tokens: CHUNK,
            replicated: Axes::default(),
        };
        let mut groups = vec![group(GroupKind::Full)];
        if setup.hybrid {
            groups.push(group(GroupKind::State));
        }
        let topology = Topology {
            tp: 2,
            ..Topology::SINGLE
        };
        let shape = Shape::new(groups, None, CHUNK, topology).expect("a sound shape");
        Self {
            objects: Objects::new(&setup, &shape),
            setup,
            shape,
            ending: Arc::default(),
            reached: Arc::default(),
        }
    }

    fn initial(&self) -> State {
        let config = SchedulerConfig {
            namespace: NAMESPACE,
            shape: self.shape.clone(),
            loads: true,
            saves: true,
            lookup_timeout_ms: TICK_MS,
            load_timeout_ms: TICK_MS,
            lease_ms: u32::try_from(2 * TICK_MS).expect("small"),
            incarnation: 1,
            limits: SchedulerLimits {
                requests: 2,
                lookup_objects: 64,
            },
        };
        let ranks = self.shape.ranks();
        let rank =
            |at: usize| RankState::new(&self.shape, ranks[at], BLOCKS + 1, self.setup.in_flight);
        let slot = Slot {
            stand: Stand::Waiting,
            computed: 0,
            tables: vec![Vec::new(); self.shape.groups().len()],
            told: vec![0; self.shape.groups().len()],
            fresh: true,
            failed_before: false,
            load: None,
            due: None,
            called_off: false,
            parts_failed: 0,
            excused: 0,
        };
        State {
            now: Instant(1),
            root: Arc::new(SchedulerRoot::new(config)),
            ranks: [rank(0), rank(1)],
            slots: vec![slot; self.setup.prompts.len()],
            free: (1..=u32::try_from(BLOCKS).expect("few")).collect(),
            node: Node::new(self.objects.all.len()),
            questions: Vec::new(),
            phase: EnginePhase::Idle,
            ended: BTreeSet::new(),
            left: self.setup.budget,
            broken: None,
        }
    }

    /// Whether the node would send the bytes of `fetch`.
    pub(crate) fn available(&self, state: &State, fetch: &Fetch) -> bool {
        let object = self.objects.by_key(&fetch.key);
        let lease = fetch.lease.is_none_or(|held| state.node.knows(held));
        lease && state.node.present & 1 << object != 0
    }

    /// Requests of equal prompts come in the order of their numbers: they are alike.
    fn comes_later(&self, state: &State, at: usize) -> bool {
        let prompts = &self.setup.prompts;
        let untouched = |slot: usize| {
            let waits = state.slots[slot].stand == Stand::Waiting;
            waits && state.root.known_hashes(&crate::apply::name(slot)) == 0
        };
        let fresh = state.left.again == self.setup.budget.again;
        (0..at).any(|slot| prompts[slot] == prompts[at] && fresh && untouched(slot))
    }

    fn engine_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (at, slot) in state.slots.iter().enumerate() {
            let aborted = matches!(slot.stand, Stand::Parked { aborted: true, .. });
            match slot.stand {
                Stand::Waiting if self.comes_later(state, at) => {}
                Stand::Waiting => {
                    actions.push(Action::Admit {
                        slot: at,
                        cached: 0,
                    });
                    if left.cached > 0 && self.setup.prompts[at] > 2 * CHUNK {
                        let cached = CHUNK;
                        actions.push(Action::Admit { slot: at, cached });
                    }
                }
                Stand::Absent if left.again > 0 => actions.push(Action::Again(at)),
                _ => {}
            }
            let held = slot.stand != Stand::Absent;
            if left.aborts > 0 && held && !aborted {
                actions.push(Action::Abort(at));
            }
            let parked = matches!(slot.stand, Stand::Parked { aborted: false, .. });
            let may = match parked {
                true => self.setup.preempts_parked,
                false => slot.stand == Stand::Running,
            };
            if left.preemptions > 0 && may && held {
                actions.push(Action::Step { preempt: Some(at) });
            }
        }
        actions.push(Action::Step { preempt: None });
    }

    fn outside_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for question in 0..state.questions.len() {
            let reachable = true;
            actions.push(Action::Answer {
                question,
                reachable,
            });
            if left.faults > 0 {
                let reachable = false;
                actions.push(Action::Answer {
                    question,
                    reachable,
                });
            }
        }
        for (rank, of) in state.ranks.iter().enumerate() {
            for (load, phase) in of.fences.iter().copied() {
                actions.push(Action::Fenced { rank, load, phase });
                if left.failed_fences > 0 {
                    actions.push(Action::FenceFailed { rank, load, phase });
                }
            }
            for (at, fetch) in of.fetches.iter().enumerate() {
                let ok = self.available(state, fetch);
                actions.push(Action::Fetched { rank, at, ok });
                // The first part to fail is one of rank 1: the ranks are alike.
                let first = left.faults == self.setup.budget.faults;
                if ok && left.faults > 0 && (rank == 1 || !first) {
                    let ok = false;
                    actions.push(Action::Fetched { rank, at, ok });
                }
            }
        }
        if left.ticks > 0 {
            actions.push(Action::Tick);
        }
        if left.restarts > 0 {
            actions.push(Action::Restart);
        }
        if left.evictions > 0 {
            // Objects of one rank are enough: the ranks are alike.
            let objects = self.objects.all.iter().enumerate();
            let other = objects.filter(|(_, object)| object.rank == 1);
            let free = other.filter(|(at, _)| state.node.is_free(*at, state.now));
            actions.extend(free.map(|(at, _)| Action::Evict(at)));
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if state.phase == EnginePhase::Idle {
            self.engine_actions(state, actions);
        }
        self.outside_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.apply(last, &action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        law::properties()
    }
}

/// Blocks and machines of one rank, as the state keeps them.
pub(crate) fn clean(blocks: usize) -> Vec<Content> {
    vec![Content::Stale; blocks]
}

/// A machine to change, apart from all states that share it.
pub(crate) fn own(root: &mut Arc<WorkerRoot>) -> &mut WorkerRoot {
    Arc::make_mut(root)
}

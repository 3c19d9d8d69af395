//! One action: what it changes, and what is checked after it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use tessera_client::options::IoMode;
use tessera_lifecycle::scheduler::{Found, LookupInput, SchedulerCommand, SchedulerEvent};
use tessera_lifecycle::{LoadId, LookupId};
use tessera_proto::Instant;

use crate::law::{Broken, Law};
use crate::objects;
use crate::reached::Reached;
use crate::world::{
    self, Action, EnginePhase, Question, RANKS, Slot, Stand, State, TICK_MS, World,
};

impl World {
    /// The state after `action`. A machine that panics breaks a property.
    pub(crate) fn apply(&self, last: &State, action: &Action) -> State {
        let change = || {
            let mut state = last.clone();
            state.act(self, action);
            state.check(self);
            state
        };
        std::panic::catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let what = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let mut state = last.clone();
            state.broken = Some(Broken {
                law: Law::Machines,
                what: what.unwrap_or_default(),
            });
            state
        })
    }
}

impl State {
    fn act(&mut self, world: &World, action: &Action) {
        match *action {
            Action::Admit { slot, cached } => {
                self.left.cached -= u8::from(cached > 0);
                self.admit(world, slot, cached);
            }
            Action::Answer {
                question,
                reachable,
            } => {
                self.left.faults -= u8::from(!reachable);
                self.answer(world, question, reachable);
            }
            Action::Step { preempt } => {
                self.left.preemptions -= u8::from(preempt.is_some());
                self.step(world, preempt);
            }
            Action::Fenced { rank, load, phase } => self.fenced(world, rank, load, phase),
            Action::FenceFailed { rank, load, phase } => {
                self.left.failed_fences -= 1;
                self.fence_failed(world, rank, load, phase);
            }
            Action::Fetched { rank, at, ok } => self.fetched(world, rank, at, ok),
            Action::Tick => self.tick(world),
            Action::Abort(slot) => {
                self.left.aborts -= 1;
                self.abort(world, slot);
            }
            Action::Again(slot) => {
                self.left.again -= 1;
                world.saw(Reached::NameReused);
                self.slots[slot].stand = Stand::Waiting;
                self.slots[slot].failed_before = false;
            }
            Action::Restart => {
                self.left.restarts -= 1;
                self.node.restart();
            }
            Action::Evict(object) => {
                self.left.evictions -= 1;
                self.node.present &= !(1 << object);
            }
        }
        self.carry_out(world);
        self.advance(world);
    }

    fn tick(&mut self, world: &World) {
        self.left.ticks -= 1;
        self.now = self.now.after_millis(TICK_MS);
        let now = self.now;
        for slot in &mut self.slots {
            if slot.due.is_some_and(|due| due <= now) {
                world.saw(Reached::Deadline);
                slot.excused = u8::MAX;
            }
        }
        for rank in 0..RANKS {
            world::own(&mut self.ranks[rank].root).handle_timeout(now);
            self.drain(world, rank);
        }
    }

    /// Executes what the scheduler's machine asks for.
    pub(crate) fn carry_out(&mut self, world: &World) {
        while let Some(command) = Arc::make_mut(&mut self.root).poll_command() {
            match command {
                SchedulerCommand::Acquire { lookup, ids, .. } => {
                    let objects = ids.iter().map(|id| world.objects.by_id(id)).collect();
                    let asked = self.now;
                    self.questions.push(Question {
                        lookup,
                        objects,
                        asked,
                    });
                }
                SchedulerCommand::Release { grants } => {
                    for grant in grants {
                        for id in grant.ids {
                            let object = world.objects.by_id(&id);
                            let held = self.node.release(grant.held, object);
                            self.must(held, Law::Leases, || {
                                format!("object {object} was not held under {:?}", grant.held)
                            });
                        }
                    }
                }
            }
        }
    }

    fn answer(&mut self, world: &World, question: usize, reachable: bool) {
        let Question {
            lookup,
            objects,
            asked,
        } = self.questions.remove(question);
        let lease_ms = u32::try_from(2 * TICK_MS).expect("small");
        let found = match reachable {
            true => self.node.acquire(&objects, asked.after_millis(2 * TICK_MS)),
            false => vec![Found::Missing; objects.len()],
        };
        if self.now >= asked.after_millis(TICK_MS) {
            world.saw(Reached::LateAnswer);
        }
        let event = SchedulerEvent::Acquired {
            lookup,
            found,
            lease_ms,
        };
        Arc::make_mut(&mut self.root).handle_event(self.now, event.clone());
        self.carry_out(world);
        let mut copy = (*self.root).clone();
        let before = world::digest(&copy);
        copy.handle_event(self.now, event.clone());
        if let SchedulerEvent::Acquired { found, .. } = event {
            let lookup = LookupId(u64::MAX);
            let event = SchedulerEvent::Acquired {
                lookup,
                found,
                lease_ms,
            };
            copy.handle_event(self.now, event);
        }
        let same = world::digest(&copy) == before;
        self.must(same, Law::P7, || {
            format!("the answer to {lookup:?} changes something when it comes again")
        });
    }

    /// Looks a waiting request up and gives it blocks: for what will be loaded, or to compute in.
    fn admit(&mut self, world: &World, at: usize, cached: u64) {
        let tokens = world.setup.prompts[at];
        let hashes = objects::hashes(at, tokens);
        let hashes: Vec<&[u8]> = hashes.iter().map(<[u8; 2]>::as_slice).collect();
        let name = name(at);
        let input = LookupInput {
            request: &name,
            num_tokens: tokens,
            computed_tokens: cached,
            block_hashes: &hashes,
            can_load: true,
        };
        let answer = Arc::make_mut(&mut self.root).lookup(self.now, input);
        self.carry_out(world);
        let mut copy = (*self.root).clone();
        let before = world::digest(&copy);
        let again = copy.lookup(self.now, input);
        let same = again == answer && world::digest(&copy) == before;
        self.must(same, Law::Lookups, || {
            format!("{name} is told {answer:?}, then {again:?}")
        });
        let Some(external) = answer.tokens else {
            let until = |question: &Question| question.asked.after_millis(TICK_MS);
            let runs = self
                .questions
                .iter()
                .any(|question| until(question) > self.now);
            self.must(runs, Law::Lookups, || {
                format!("{name} is undecided for ever")
            });
            return;
        };
        self.must(cached + external < tokens, Law::Lookups, || {
            format!("{name} of {tokens} tokens is told {answer:?} after {cached}")
        });
        self.must(answer.parks() == (external > 0), Law::P11, || {
            format!("{name} is told {answer:?}, which parks: {}", answer.parks())
        });
        let failed_before = self.slots[at].failed_before;
        self.must(!(failed_before && external > 0), Law::P10, || {
            format!("{name} is promised {external} tokens again")
        });
        if failed_before {
            world.saw(Reached::QuarantinedLookup);
        }
        let limit = cached + external;
        self.allocate(world, at, limit, limit.max(1));
        self.fill(world, at, cached);
        let tables = self.slots[at].tables.clone();
        let taken = Arc::make_mut(&mut self.root).allocated(&name, &tables, external);
        self.must(taken.is_ok(), Law::Lookups, || format!("{taken:?}"));
        let slot = &mut self.slots[at];
        slot.computed = cached;
        slot.stand = match external > 0 {
            false => Stand::Running,
            true => Stand::Parked {
                limit,
                reported: 0,
                failed: false,
                aborted: false,
            },
        };
    }

    fn abort(&mut self, world: &World, at: usize) {
        if let Stand::Parked { aborted, .. } = &mut self.slots[at].stand {
            *aborted = true;
            world.saw(Reached::AbortedParked);
            self.tell_end(at);
        } else {
            self.end(at);
        }
    }

    /// The request is no more, for the engine and for the scheduler's machine.
    pub(crate) fn end(&mut self, at: usize) {
        self.tell_end(at);
        self.drop_blocks(at);
        self.slots[at].stand = Stand::Absent;
    }

    fn tell_end(&mut self, at: usize) {
        let held = Arc::make_mut(&mut self.root).finished(&name(at));
        self.must(!held, Law::P3, || {
            format!("{} is held for a save, which is a copy", name(at))
        });
        self.ended.insert(at);
    }

    /// What must hold in every state.
    fn check(&mut self, world: &World) {
        self.root.check_invariants();
        let dying = match &self.phase {
            EnginePhase::Preempting(plan, _) => plan.preempted.clone(),
            _ => Vec::new(),
        };
        for rank in 0..RANKS {
            for (load, block) in self.ranks[rank].claims().collect::<Vec<_>>() {
                let owner = self.slots.iter().find(|slot| slot.load == Some(load));
                let tables = owner.map(|slot| slot.tables.iter().flatten());
                let owned = tables.is_some_and(|mut blocks| blocks.any(|id| *id == block));
                self.must(owned || dying.contains(&load), Law::P1, || {
                    format!("{load:?} may write block {block}, which is not its own")
                });
            }
        }
        self.check_privacy(&dying);
        let serialized = world.setup.io == IoMode::Serial;
        let loading = self.ranks.iter().any(|rank| rank.root.is_any_loading());
        let idle = self.phase == EnginePhase::Idle;
        self.must(!(serialized && idle && loading), Law::P1, || {
            "a load on the model thread goes on after its step".to_owned()
        });
        self.check_tables();
    }

    /// P11: what a rank has not reported is a parked request's own.
    fn check_privacy(&mut self, dying: &[LoadId]) {
        for rank in 0..RANKS {
            let open = |slot: &Slot| {
                let bit = 1 << rank;
                matches!(slot.stand, Stand::Parked { reported, .. } if reported & bit == 0)
            };
            for at in 0..self.slots.len() {
                let slot = &self.slots[at];
                let loads = slot
                    .load
                    .is_some_and(|load| self.ranks[rank].root.is_loading(load));
                let waits = open(slot);
                self.must(waits || !loads, Law::P11, || {
                    format!("{} goes on while rank {rank} loads for it", name(at))
                });
            }
            for (load, block) in self.ranks[rank].claims().collect::<Vec<_>>() {
                let holds = |slot: &&Slot| slot.tables.iter().flatten().any(|id| *id == block);
                let holders: Vec<&Slot> = self.slots.iter().filter(holds).collect();
                let own = matches!(holders[..], [slot] if open(slot) && slot.load == Some(load));
                self.must(own || dying.contains(&load), Law::P11, || {
                    format!("block {block} is used while rank {rank} may write it for {load:?}")
                });
            }
        }
    }

    fn check_tables(&mut self) {
        let stands = |wanted: fn(&Stand) -> bool| {
            let slots = self.slots.iter();
            slots.filter(|slot| wanted(&slot.stand)).count()
        };
        let live =
            stands(|stand| !matches!(stand, Stand::Absent | Stand::Parked { aborted: true, .. }));
        let aborted = stands(|stand| matches!(stand, Stand::Parked { aborted: true, .. }));
        let tables = self.root.tables();
        let bounded = tables.requests <= live
            && tables.questions == self.questions.len()
            && tables.draining <= aborted
            && tables.unsent <= 3 * self.slots.len();
        self.must(bounded, Law::P8, || {
            format!("{tables:?} with {live} requests and {aborted} aborted ones")
        });
    }
}

/// The engine's name of a request.
pub(crate) fn name(at: usize) -> String {
    format!("r{at}")
}

/// When a load that begins at `now` has failed.
pub(crate) fn due(now: Instant) -> Instant {
    now.after_millis(TICK_MS)
}

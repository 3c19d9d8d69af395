//! One worker's machine, driven as its contract says, and its commands carried out.

use std::sync::Arc;

use tessera_lifecycle::LayoutClass;
use tessera_lifecycle::peer::{
    Message, Mode, Move, PeerCommand, PeerEvent, PeerResults, PeerRoot, TransferId,
};

use crate::law::Law;
use crate::reached::Reached;
use crate::world::{self, AGAIN, Op, Stand, State, World};

impl State {
    pub(crate) fn event(&mut self, world: &World, at: usize, event: PeerEvent) {
        let now = self.now;
        self.change(world, at, |root| root.handle_event(now, event));
    }

    /// P7: the same news once more changes nothing.
    pub(crate) fn event_twice(&mut self, world: &World, at: usize, event: PeerEvent) {
        self.event(world, at, event);
        let mut copy = (*self.workers[at].root).clone();
        let before = world::digest(&copy);
        copy.handle_event(self.now, event);
        let same = world::digest(&copy) == before || matches!(event, PeerEvent::DeviceFailed(_));
        self.must(same, Law::P7, || {
            format!("{event:?} changes something when it comes again")
        });
    }

    /// One mutation, its commands, a pass over the completions, and the engine's turn.
    pub(crate) fn change(&mut self, world: &World, at: usize, change: impl FnOnce(&mut PeerRoot)) {
        change(Arc::make_mut(&mut self.workers[at].root));
        self.carry_out(world, at);
        let now = self.now;
        for _ in 0..8 {
            let before = world::digest(&*self.workers[at].root);
            let collected = Arc::make_mut(&mut self.workers[at].root).collect(now);
            let Err(failure) = collected else {
                break;
            };
            let same = world::digest(&*self.workers[at].root) == before;
            self.must(same, Law::Raise, || format!("{failure} changed something"));
            world.saw(Reached::Raised);
            let transfer = usize::try_from(failure.request.0).expect("few");
            if let Stand::Open { raised, .. } = &mut self.workers[at].stands[transfer] {
                *raised = true;
            }
            let root = Arc::make_mut(&mut self.workers[at].root);
            root.step_failed(now, failure.transfer);
            self.carry_out(world, at);
        }
        self.carry_out(world, at);
        let results = Arc::make_mut(&mut self.workers[at].root).take_results();
        self.take(world, at, &results);
        self.end_unreported(world, at);
    }

    fn carry_out(&mut self, world: &World, at: usize) {
        while let Some(command) = Arc::make_mut(&mut self.workers[at].root).poll_command() {
            match command {
                PeerCommand::Connect(peer) => {
                    self.workers[at].dialing.insert(peer);
                }
                PeerCommand::Send(frame) => {
                    self.check_promise(at, &frame.message);
                    let to = self
                        .workers
                        .iter()
                        .position(|of| of.incarnation == frame.to);
                    let Some(to) = to else {
                        continue;
                    };
                    let link = self.links.get(&(at.min(to), at.max(to)));
                    let flows =
                        link.is_some_and(|link| link.whole && link.connection == frame.connection);
                    if flows {
                        self.net.push((to, Arc::new(frame)));
                    }
                }
                PeerCommand::Move(part) => self.post(world, at, &part),
                PeerCommand::Fence { peer, fence, kind } => {
                    let fences = &mut self.workers[at].fences;
                    fences.retain(|(of, ..)| *of != peer);
                    fences.push((peer, fence, kind));
                    self.workers[at].dialing.remove(&peer);
                }
                PeerCommand::FenceDevice(transfer) => self.workers[at].devices.push(transfer),
                PeerCommand::Stop(why) => {
                    self.must(false, Law::P4, || format!("a worker stops: {why}"));
                }
            }
        }
    }

    /// P10: a request that a source has failed claims nothing and lends nothing again.
    fn check_promise(&mut self, at: usize, message: &Message) {
        let (Message::Claim { transfer, .. } | Message::Offer { transfer, .. }) = message else {
            return;
        };
        let again = transfer
            .0
            .checked_sub(AGAIN)
            .and_then(|of| usize::try_from(of).ok());
        let failed = again.is_some_and(|of| self.workers[at].failed.contains(&of));
        self.must(!failed, Law::P10, || format!("{message:?} after a failure"));
    }

    /// P9: what is posted is granted, under this attempt, by the process that lends.
    fn post(&mut self, world: &World, at: usize, part: &Move) {
        let lender = self
            .workers
            .iter()
            .position(|of| of.incarnation == part.peer);
        let own = self.workers[at].incarnation;
        let link = world.sides(part.at.part);
        let link = self.links.get(&link).copied();
        let whole = link.is_some_and(|link| link.whole && link.connection == part.connection);
        let reaches = whole && lender.is_some();
        if let (Some(lender), true) = (lender, reaches) {
            let of = &self.workers[lender];
            let (id, at) = (part.transfer, part.at);
            let granted = of.root.lent(own, part.connection, id, at).is_some();
            let fencing = of.fences.iter().any(|(peer, ..)| *peer == own);
            self.must(granted || fencing, Law::P9, || {
                format!("{part:?} is not granted")
            });
        }
        let read = part.mode == Mode::Read;
        let transfer = usize::try_from(part.transfer.0).expect("few") - 1;
        if read || reaches {
            let (_, destination) = world.sides(part.at.part);
            self.unproven.insert((destination, transfer));
        }
        self.ops.push(Op {
            transfer,
            at: part.at,
            mover: own,
            lender: part.peer,
            connection: part.connection,
            reads: !read || reaches,
            writes: read || reaches,
            landed: false,
            settled: false,
        });
    }

    /// The engine's turn: memory of what is reported is used again.
    fn take(&mut self, world: &World, at: usize, results: &PeerResults) {
        let source = world.is_prefill(at);
        let wrong = if source {
            results.received.len()
        } else {
            results.sent.len()
        };
        self.must(wrong == 0, Law::P3, || {
            format!("{results:?} of worker {at}")
        });
        let whole = results
            .failed
            .iter()
            .all(|of| results.received.contains(of));
        let named = world.setup.class == LayoutClass::Block;
        let fits = if named {
            results.failed.is_empty()
        } else {
            results.invalid_blocks.is_empty()
        };
        self.must(whole && fits, Law::P3, || {
            format!("{results:?} of a {:?}", world.setup.class)
        });
        for request in results.sent.iter().chain(&results.received) {
            let transfer = usize::try_from(request.0).expect("few");
            let stand = self.workers[at].stands[transfer];
            self.must(matches!(stand, Stand::Open { .. }), Law::P3, || {
                format!("{transfer} is reported to worker {at} and is {stand:?}")
            });
            self.workers[at].stands[transfer] = Stand::Over;
            if !source {
                let failed = results.failed.contains(request);
                self.received(world, at, transfer, stand, failed, &results.invalid_blocks);
            }
        }
    }

    /// P5 and P6: what counts has landed; what failed has a reason of its own.
    fn received(
        &mut self,
        world: &World,
        at: usize,
        transfer: usize,
        stand: Stand,
        failed: bool,
        invalid: &[u32],
    ) {
        let rank = world.rank(at);
        let base = u32::try_from(transfer).expect("few") * 1_000;
        let bad: Vec<u32> = invalid
            .iter()
            .copied()
            .filter(|id| id / 1_000 * 1_000 == base)
            .collect();
        let mut missing = 0;
        for source in 0..world.setup.prefill {
            for index in 0..world.setup.parts {
                let part = tessera_lifecycle::peer::PartId {
                    source: world.rank(source),
                    destination: rank,
                    index,
                };
                let pair = u32::from(part.source) * 10 + u32::from(rank);
                let block = base + pair * 10 + u32::from(index) + 1;
                let landed = self.landed.contains(&(transfer, part));
                missing += u32::from(!landed && !bad.contains(&block));
            }
        }
        let again = self.workers[at].again.contains(&transfer);
        let bad = failed || !bad.is_empty();
        self.must(failed || missing == 0, Law::P5, || {
            format!("{transfer} counts at worker {at} without {missing} of its parts")
        });
        world.saw(if bad {
            Reached::Failed
        } else {
            Reached::Succeeded
        });
        let strict = world.setup.is_strict() && !self.spoiled.contains(&transfer) && !again;
        self.must(!(bad && strict), Law::P6, || {
            format!("{transfer} fails for another's error")
        });
        let aborted = matches!(stand, Stand::Open { aborted: true, .. });
        if bad && !aborted {
            self.workers[at].failed.insert(transfer);
        }
    }

    /// Transfers that are reported to nobody are over when the machine says so.
    fn end_unreported(&mut self, world: &World, at: usize) {
        for transfer in 0..world.setup.transfers {
            let stand = self.workers[at].stands[transfer];
            let open = self.workers[at]
                .root
                .is_open(TransferId(transfer as u128 + 1));
            let synchronous = world.is_synchronous(at, transfer);
            match stand {
                Stand::Preempted if !open => self.workers[at].stands[transfer] = Stand::Over,
                Stand::Open { raised, .. } if synchronous && !open => {
                    self.workers[at].stands[transfer] = Stand::Over;
                    self.received(world, at, transfer, stand, raised, &[]);
                }
                _ => {}
            }
        }
    }
}

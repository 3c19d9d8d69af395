//! One action: what it changes, and what is checked after it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use tessera_lifecycle::RequestKey;
use tessera_lifecycle::peer::ConnectionId;
use tessera_lifecycle::peer::{
    BlockRef, Drain, FenceKind, Generation, Mode, PartId, PartOrder, PeerEvent, PeerFailure, Side,
    TransferId, TransferOrder,
};
use tessera_proto::Incarnation;

use crate::law::{Broken, Law};
use crate::reached::Reached;
use crate::world::{AGAIN, Action, BYTES, LEASE_MS, Link, Stand, State, TIMEOUT_MS, World};

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

    /// What an engine orders of its worker.
    fn order(&self, state: &State, at: usize, transfer: usize, id: TransferId) -> TransferOrder {
        let setup = &self.setup;
        let side = match self.is_prefill(at) {
            true => Side::Source,
            false => Side::Destination,
        };
        let own = self.rank(at);
        let others = match side {
            Side::Source => setup.prefill..setup.prefill + setup.decode,
            Side::Destination => 0..setup.prefill,
        };
        let mut parts = Vec::new();
        for other in others {
            for index in 0..setup.parts {
                let (source, destination) = match side {
                    Side::Source => (own, self.rank(other)),
                    Side::Destination => (self.rank(other), own),
                };
                let part = PartId {
                    source,
                    destination,
                    index,
                };
                let mode = self.mode(transfer);
                let lends = side.lends(mode);
                // Who has a ticket of the other side knows whom and what it may claim.
                let by_ticket = mode == Mode::Read || setup.ticketed;
                let ticket = state.tickets[transfer]
                    .as_ref()
                    .filter(|_| self.is_prefill(at) == (by_ticket && mode == Mode::Write));
                let place = match side {
                    Side::Source => other - setup.prefill,
                    Side::Destination => other,
                };
                let peer = match ticket {
                    Some(ticket) => ticket[place],
                    None => state.workers[other].incarnation,
                };
                let theirs = match side {
                    Side::Source => Side::Destination,
                    Side::Destination => Side::Source,
                };
                parts.push(PartOrder {
                    part,
                    peer: (!(by_ticket && lends)).then_some(peer),
                    local: blocks(transfer, part, side),
                    remote: match by_ticket && !lends {
                        true => blocks(transfer, part, theirs),
                        false => Vec::new(),
                    },
                    length_bytes: BYTES,
                    ready: true,
                });
            }
        }
        TransferOrder {
            transfer: id,
            request: RequestKey(transfer as u64),
            mode: self.mode(transfer),
            side,
            synchronous: self.is_synchronous(at, transfer),
            parts,
            timeout_ms: TIMEOUT_MS,
            lease_ms: LEASE_MS,
        }
    }
}

/// The blocks of a part on one side; no two parts share any.
fn blocks(transfer: usize, part: PartId, side: Side) -> Vec<BlockRef> {
    let rank = u32::from(part.source) * 10 + u32::from(part.destination);
    let block = u32::try_from(transfer).expect("few") * 1_000 + rank * 10 + u32::from(part.index);
    vec![BlockRef {
        group: u16::from(side == Side::Source),
        block: block + 1,
        generation: Generation(transfer as u64 + 1),
    }]
}

impl State {
    fn act(&mut self, world: &World, action: &Action) {
        match *action {
            Action::Order(at, transfer) => self.order(world, at, transfer),
            Action::Deliver(at) => {
                let (to, frame) = self.net[at].clone();
                let mut before = self.net[..at].iter();
                let early = before.any(|(other, of)| *other == to && of.from == frame.from);
                self.left.early -= u8::from(early);
                self.net.remove(at);
                self.frame(world, to, &frame);
            }
            Action::Lose(at) => {
                self.left.lost -= 1;
                self.net.remove(at);
            }
            Action::Double(at) => {
                self.left.doubled -= 1;
                let (to, frame) = self.net[at].clone();
                self.frame(world, to, &frame);
            }
            Action::Connect(prefill, decode) => self.connect(world, prefill, decode),
            Action::GiveUp(at, peer) => self.give_up(world, at, peer),
            Action::Break(prefill, decode) => {
                self.left.breaks -= 1;
                self.cut(world, prefill, decode);
            }
            Action::Notice(prefill, decode, end) => self.notice(world, prefill, decode, end),
            Action::Land(at) => self.land(world, at),
            Action::Done(at) => self.done(world, at),
            Action::Error(at) => self.error(world, at),
            Action::Fenced(at) => self.fenced(world, at),
            Action::Proven(at) => {
                let transfer = self.workers[at].devices.remove(0);
                let number = usize::try_from(transfer.0).expect("few") - 1;
                self.unproven.remove(&(at, number));
                self.event_twice(world, at, PeerEvent::DeviceFenced(transfer));
            }
            Action::DeviceFails(at) => {
                self.left.devices -= 1;
                let transfer = self.workers[at].devices[0];
                self.event_twice(world, at, PeerEvent::DeviceFailed(transfer));
            }
            Action::Tick => {
                self.left.ticks -= 1;
                self.tick(world);
            }
            Action::Abort(at, transfer) => self.abort(world, at, transfer),
            Action::Preempt(at, transfer) => self.preempt(world, at, transfer),
            Action::Restart(at) => self.restart(world, at),
            Action::Mourn(at, peer) => {
                self.workers[at].mourned.insert(peer);
                world.saw(Reached::Death);
                self.event(world, at, PeerEvent::PeerDead(peer));
            }
            Action::Again(at, transfer) => {
                self.left.again -= 1;
                self.workers[at].again.insert(transfer);
                world.saw(Reached::Again);
                self.begin(world, at, transfer, TransferId(AGAIN + transfer as u128));
            }
        }
    }

    /// An engine holds a request and orders a transfer for it.
    fn begin(&mut self, world: &World, at: usize, transfer: usize, id: TransferId) {
        let order = world.order(self, at, transfer, id);
        self.workers[at].stands[transfer] = Stand::Open {
            aborted: false,
            raised: false,
        };
        let now = self.now;
        self.change(world, at, |root| root.order(now, &order));
    }

    fn give_up(&mut self, world: &World, at: usize, peer: Incarnation) {
        self.left.unreachable -= u8::from(!self.dead.contains(&peer));
        self.workers[at].dialing.remove(&peer);
        let failure = PeerFailure::Unreachable;
        self.event(world, at, PeerEvent::ConnectFailed { peer, failure });
    }

    fn notice(&mut self, world: &World, prefill: usize, decode: usize, end: usize) {
        let link = self.links.get_mut(&(prefill, decode)).expect("a link");
        link.trusted[end] = false;
        let connection = link.connection;
        let (at, other) = match end {
            0 => (prefill, decode),
            _ => (decode, prefill),
        };
        let peer = self.workers[other].incarnation;
        self.event(world, at, PeerEvent::Disconnected { peer, connection });
    }

    fn order(&mut self, world: &World, at: usize, transfer: usize) {
        self.begin(world, at, transfer, TransferId(transfer as u128 + 1));
        let prefill = world.setup.prefill;
        let lends_here = match world.setup.ticketed && world.mode(transfer) == Mode::Write {
            true => !world.is_prefill(at),
            false => world.is_prefill(at),
        };
        let lenders = match world.is_prefill(at) {
            true => &self.workers[..prefill],
            false => &self.workers[prefill..],
        };
        let ordered = lenders
            .iter()
            .all(|worker| worker.stands[transfer] != Stand::Absent);
        if lends_here && ordered {
            let incarnations = lenders.iter().map(|worker| worker.incarnation);
            self.tickets[transfer] = Some(incarnations.collect());
        }
    }

    fn connect(&mut self, world: &World, prefill: usize, decode: usize) {
        let old = self.links.get(&(prefill, decode));
        let connection = ConnectionId(old.map_or(1, |link| link.connection.0 + 1));
        let link = Link {
            connection,
            whole: true,
            trusted: [true; 2],
        };
        self.links.insert((prefill, decode), link);
        for (at, other) in [(prefill, decode), (decode, prefill)] {
            let peer = self.workers[other].incarnation;
            self.workers[at].dialing.remove(&peer);
            let rank = world.rank(other);
            self.event(
                world,
                at,
                PeerEvent::Connected {
                    peer,
                    rank,
                    connection,
                },
            );
        }
    }

    /// Nothing flows any more; what was on its way is lost.
    fn cut(&mut self, world: &World, prefill: usize, decode: usize) {
        let Some(link) = self.links.get_mut(&(prefill, decode)) else {
            return;
        };
        link.whole = false;
        world.saw(Reached::Broken);
        let connection = link.connection;
        let ends = [
            self.workers[prefill].incarnation,
            self.workers[decode].incarnation,
        ];
        self.net.retain(|(_, frame)| {
            let between = ends.contains(&frame.from) && ends.contains(&frame.to);
            !(between && frame.connection == connection)
        });
    }

    /// The lender sees the end of what is written, before the mover has its answer.
    fn land(&mut self, world: &World, at: usize) {
        let op = &mut self.ops[at];
        (op.reads, op.writes, op.landed) = (false, false, true);
        let op = op.clone();
        self.landed.insert((op.transfer, op.at.part));
        world.saw(Reached::Landed);
        let (transfer, part) = (TransferId(op.transfer as u128 + 1), op.at);
        let lender = self.address(op.lender);
        self.event_twice(world, lender, PeerEvent::Landed { transfer, at: part });
    }

    fn done(&mut self, world: &World, at: usize) {
        let op = self.ops.remove(at);
        self.landed.insert((op.transfer, op.at.part));
        let (transfer, part) = (TransferId(op.transfer as u128 + 1), op.at);
        let drain = match op.landed {
            true => Drain::Noted,
            false => Drain::Clean,
        };
        let mover = self.address(op.mover);
        self.event_twice(
            world,
            mover,
            PeerEvent::PartDrained {
                transfer,
                at: part,
                drain,
            },
        );
    }

    /// The mover learns of an error. Bytes may still move until somebody fences.
    fn error(&mut self, world: &World, at: usize) {
        let op = self.ops[at].clone();
        if world.flows(self, &op) {
            self.left.errors -= 1;
        }
        self.spoiled.insert(op.transfer);
        self.ops[at].settled = true;
        world.saw(Reached::Error);
        let (transfer, part) = (TransferId(op.transfer as u128 + 1), op.at);
        let drain = Drain::Dirty;
        let mover = self.address(op.mover);
        self.event_twice(
            world,
            mover,
            PeerEvent::PartDrained {
                transfer,
                at: part,
                drain,
            },
        );
    }

    /// A fence is complete: what it ends, it ends for good.
    fn fenced(&mut self, world: &World, at: usize) {
        let own = self.workers[at].incarnation;
        let (peer, fence, kind) = self.workers[at].fences.remove(0);
        for op in &mut self.ops {
            let read = world.mode(op.transfer) == Mode::Read;
            if op.mover == own && op.lender == peer {
                op.settled = true;
                // Bytes of a WRITE may be beyond the sender already.
                op.reads = false;
                op.writes &= !read;
            }
            if op.lender == own && op.mover == peer && kind == FenceKind::Revoke {
                op.reads &= !read;
                op.writes &= read;
            }
        }
        world.saw(match kind {
            FenceKind::Close => Reached::Closed,
            FenceKind::Revoke => Reached::Revoked,
        });
        if !self.dead.contains(&peer) {
            let other = self.address(peer);
            let (prefill, decode) = (at.min(other), at.max(other));
            self.cut(world, prefill, decode);
            if let Some(link) = self.links.get_mut(&(prefill, decode)) {
                link.trusted[usize::from(at == decode)] = false;
            }
        }
        self.ops.retain(|op| op.reads || op.writes || !op.settled);
        self.event_twice(world, at, PeerEvent::Fenced { peer, fence });
    }

    pub(crate) fn tick(&mut self, world: &World) {
        self.now = self.now.max(self.due().unwrap_or(self.now));
        let now = self.now;
        for at in 0..self.workers.len() {
            self.change(world, at, |root| root.handle_timeout(now));
        }
    }

    fn abort(&mut self, world: &World, at: usize, transfer: usize) {
        self.left.aborts -= 1;
        world.saw(Reached::Aborted);
        if let Stand::Open { aborted, .. } = &mut self.workers[at].stands[transfer] {
            *aborted = true;
        }
        self.spoiled.insert(transfer);
        let now = self.now;
        let id = TransferId(transfer as u128 + 1);
        self.change(world, at, |root| root.cancel(now, id));
    }

    fn preempt(&mut self, world: &World, at: usize, transfer: usize) {
        self.left.preemptions -= 1;
        world.saw(Reached::Preempted);
        self.workers[at].stands[transfer] = Stand::Preempted;
        self.spoiled.insert(transfer);
        let now = self.now;
        let id = TransferId(transfer as u128 + 1);
        self.change(world, at, |root| root.preempt(now, id));
    }

    /// A process dies with its memory, and another one starts at its address.
    fn restart(&mut self, world: &World, at: usize) {
        self.left.restarts -= 1;
        world.saw(Reached::Restarted);
        let old = self.workers[at].incarnation;
        let others: Vec<usize> = match world.is_prefill(at) {
            true => (world.setup.prefill..self.workers.len()).collect(),
            false => (0..world.setup.prefill).collect(),
        };
        for other in others {
            self.cut(world, at.min(other), at.max(other));
            if let Some(link) = self.links.get_mut(&(at.min(other), at.max(other))) {
                link.trusted[usize::from(at > other)] = false;
            }
            // The other end learns it from the system that took the process's place.
            let connection = self.links.get(&(at.min(other), at.max(other))).copied();
            if let Some(link) = connection.filter(|link| link.trusted[usize::from(at < other)]) {
                let connection = link.connection;
                self.event(
                    world,
                    other,
                    PeerEvent::Disconnected {
                        peer: old,
                        connection,
                    },
                );
            }
        }
        let own = |ends: &(usize, usize)| ends.0 == at || ends.1 == at;
        for (_, link) in self.links.iter_mut().filter(|(ends, _)| own(ends)) {
            link.trusted = [false; 2];
        }
        self.dead.insert(old);
        self.unproven.retain(|(worker, _)| *worker != at);
        for op in &mut self.ops {
            let read = world.mode(op.transfer) == Mode::Read;
            let (source, destination) = match read {
                true => (op.lender, op.mover),
                false => (op.mover, op.lender),
            };
            op.settled |= op.mover == old;
            op.reads &= source != old;
            op.writes &= destination != old;
        }
        self.ops.retain(|op| op.reads || op.writes || !op.settled);
        let rank = world.rank(at);
        if !world.is_prefill(at) {
            self.landed.retain(|(_, part)| part.destination != rank);
        }
        let stands = self.workers[at].stands.clone();
        let mut worker = world.start(self, at);
        worker.mourned = self.dead.clone();
        let gone = |stand: Stand| {
            if stand == Stand::Absent {
                stand
            } else {
                Stand::Over
            }
        };
        worker.stands = stands.into_iter().map(gone).collect();
        self.workers[at] = worker;
    }

    /// Where a process start is, or was.
    pub(crate) fn address(&self, incarnation: Incarnation) -> usize {
        let at = self
            .workers
            .iter()
            .position(|worker| worker.incarnation == incarnation);
        at.expect("an operation has a living mover until it is settled")
    }

    fn frame(&mut self, world: &World, to: usize, frame: &Arc<tessera_lifecycle::peer::Frame>) {
        let (now, frame) = (self.now, tessera_lifecycle::peer::Frame::clone(frame));
        self.change(world, to, |root| root.handle_frame(now, frame));
    }
}

//! One machine under test, and a scripted process on the other side of one connection.

use std::hash::{DefaultHasher, Hash, Hasher};

use tessera_proto::peer::Attempt;
use tessera_proto::{Incarnation, Instant};

use crate::ids::RequestKey;
use crate::peer::{
    BlockRef, ConnectionId, Drain, FenceId, FenceKind, Frame, Generation, LentPart, Message, Mode,
    Move, PartAttempt, PartId, PartOrder, PeerCommand, PeerConfig, PeerEvent, PeerLimits,
    PeerResults, PeerRoot, PeerTimes, Proof, Side, StepFailure, TransferId, TransferOrder,
};
use crate::shape::LayoutClass;

pub(super) const OWN: Incarnation = Incarnation(1);
pub(super) const PEER: Incarnation = Incarnation(2);
pub(super) const STRANGER: Incarnation = Incarnation(3);
pub(super) const FIRST: ConnectionId = ConnectionId(1);
pub(super) const SECOND: ConnectionId = ConnectionId(2);
pub(super) const TIMEOUT_MS: u64 = 1_000;
pub(super) const LEASE_MS: u64 = 500;
pub(super) const BYTES: u64 = 100;
pub(super) const START: Instant = Instant(1_000);

pub(super) const fn request(number: u64) -> RequestKey {
    RequestKey(number)
}

pub(super) fn transfer(number: u64) -> TransferId {
    TransferId(u128::from(number))
}

/// The `index`-th part between rank 0 and rank 0.
pub(super) const fn part(index: u16) -> PartId {
    PartId {
        source: 0,
        destination: 0,
        index,
    }
}

pub(super) const fn at(index: u16) -> PartAttempt {
    PartAttempt {
        part: part(index),
        attempt: Attempt(1),
    }
}

/// Blocks on this side, or on the other, of a part of a transfer.
pub(super) fn blocks(number: u64, index: u16, remote: bool) -> Vec<BlockRef> {
    let base = if remote { 1_000 } else { 0 };
    let block = base + 10 * u32::try_from(number).unwrap() + u32::from(index);
    vec![BlockRef {
        group: 0,
        block,
        generation: Generation(7),
    }]
}

pub(super) fn order(number: u64, mode: Mode, side: Side, parts: u16) -> TransferOrder {
    let lends = side.lends(mode);
    let from_ticket = mode == Mode::Read && !lends;
    let bound = !(lends && side == Side::Source);
    let part = |index| PartOrder {
        part: part(index),
        peer: bound.then_some(PEER),
        local: blocks(number, index, false),
        remote: if from_ticket {
            blocks(number, index, true)
        } else {
            Vec::new()
        },
        length_bytes: BYTES,
        ready: true,
    };
    TransferOrder {
        transfer: transfer(number),
        request: request(number),
        mode,
        side,
        synchronous: false,
        parts: (0..parts).map(part).collect(),
        timeout_ms: TIMEOUT_MS,
        lease_ms: LEASE_MS,
    }
}

/// The machine, its commands, sorted, and the clock.
pub(super) struct Scene {
    pub(super) root: PeerRoot,
    pub(super) now: Instant,
    pub(super) connects: Vec<Incarnation>,
    pub(super) sent: Vec<Message>,
    pub(super) moves: Vec<Move>,
    pub(super) fences: Vec<(Incarnation, FenceId, FenceKind)>,
    pub(super) devices: Vec<TransferId>,
    pub(super) stops: usize,
    pub(super) connection: ConnectionId,
    sequence: u64,
}

pub(super) fn config(class: LayoutClass) -> PeerConfig {
    PeerConfig {
        incarnation: OWN,
        rank: 0,
        class,
        times: PeerTimes {
            ping_ms: 100,
            drain_ms: 200,
            abort_ms: 300,
            fence_ms: 400,
            stop_ms: 5_000,
        },
        limits: PeerLimits {
            transfers: 8,
            peers: 3,
            offers: 2,
            tickets: 4,
            retries: 1,
            quarantine_bytes: 10 * BYTES,
            quarantine_stop_bytes: 20 * BYTES,
        },
    }
}

impl Scene {
    pub(super) fn new(class: LayoutClass) -> Self {
        Self::with(config(class))
    }

    pub(super) fn with(config: PeerConfig) -> Self {
        Self {
            root: PeerRoot::new(config),
            now: START,
            connects: Vec::new(),
            sent: Vec::new(),
            moves: Vec::new(),
            fences: Vec::new(),
            devices: Vec::new(),
            stops: 0,
            connection: FIRST,
            sequence: 0,
        }
    }

    /// A transfer of two parts, all of which may be touched: posted by us, or claimed by the peer.
    pub(super) fn live(class: LayoutClass, mode: Mode, side: Side) -> Self {
        let mut scene = Self::new(class);
        scene.begin(1, mode, side);
        scene
    }

    /// Begins one more such transfer.
    pub(super) fn begin(&mut self, number: u64, mode: Mode, side: Side) {
        self.begin_order(&order(number, mode, side, 2));
    }

    pub(super) fn begin_order(&mut self, order: &TransferOrder) {
        let transfer = order.transfer;
        self.order(order);
        if self.sequence == 0 && self.connection == FIRST {
            self.connect(FIRST);
        }
        let number = u64::try_from(transfer.0).unwrap();
        let parts: Vec<PartAttempt> = order
            .parts
            .iter()
            .map(|part| PartAttempt {
                part: part.part,
                attempt: Attempt(1),
            })
            .collect();
        if order.side.lends(order.mode) {
            let claim = |at: &PartAttempt| LentPart {
                at: *at,
                blocks: blocks(number, at.part.index, false),
            };
            let parts = parts.iter().map(claim).collect();
            self.hear(Message::Claim { transfer, parts });
        } else {
            if order.mode == Mode::Write {
                self.offer(number, u16::try_from(parts.len()).unwrap());
            }
            self.hear(Message::Grant { transfer, parts });
        }
    }

    /// The peer lends its blocks for a transfer.
    pub(super) fn offer(&mut self, number: u64, parts: u16) {
        let part = |index| LentPart {
            at: at(index),
            blocks: blocks(number, index, true),
        };
        self.hear(Message::Offer {
            transfer: transfer(number),
            lease_ms: LEASE_MS,
            parts: (0..parts).map(part).collect(),
        });
    }

    pub(super) fn order(&mut self, order: &TransferOrder) {
        self.root.order(self.now, order);
        self.drain();
    }

    pub(super) fn connect(&mut self, connection: ConnectionId) {
        self.connection = connection;
        self.sequence = 0;
        let (peer, rank) = (PEER, 0);
        self.event(PeerEvent::Connected {
            peer,
            rank,
            connection,
        });
    }

    pub(super) fn disconnect(&mut self) {
        let (peer, connection) = (PEER, self.connection);
        self.event(PeerEvent::Disconnected { peer, connection });
    }

    pub(super) fn event(&mut self, event: PeerEvent) {
        self.root.handle_event(self.now, event);
        self.drain();
    }

    /// The next frame of the connection.
    pub(super) fn frame(&mut self, message: Message) -> Frame {
        let sequenced = message.is_sequenced();
        self.sequence += u64::from(sequenced);
        Frame {
            from: PEER,
            to: OWN,
            connection: self.connection,
            sequence: if sequenced { self.sequence } else { 0 },
            acknowledged: 0,
            message,
        }
    }

    /// The first or a later frame of another process, on its first connection.
    pub(super) fn strange(&mut self, sequence: u64, message: Message) {
        let frame = Frame {
            from: STRANGER,
            to: OWN,
            connection: FIRST,
            sequence,
            acknowledged: 0,
            message,
        };
        self.take(frame);
    }

    /// The peer says something.
    pub(super) fn hear(&mut self, message: Message) {
        let frame = self.frame(message);
        self.take(frame);
    }

    pub(super) fn take(&mut self, frame: Frame) {
        self.root.handle_frame(self.now, frame);
        self.drain();
    }

    pub(super) fn drained(&mut self, number: u64, index: u16, drain: Drain) {
        let (transfer, at) = (transfer(number), at(index));
        self.event(PeerEvent::PartDrained {
            transfer,
            at,
            drain,
        });
    }

    /// All bytes of a part have landed here.
    pub(super) fn succeed(&mut self, mode: Mode, number: u64, index: u16) {
        match mode {
            Mode::Read => self.drained(number, index, Drain::Clean),
            Mode::Write => self.event(PeerEvent::Landed {
                transfer: transfer(number),
                at: at(index),
            }),
        }
    }

    /// A part has failed, and is at rest.
    pub(super) fn fail(&mut self, mode: Mode, number: u64, index: u16) {
        let (transfer, at) = (transfer(number), at(index));
        match mode {
            Mode::Read => {
                let failure = crate::peer::PeerFailure::Corrupt;
                self.event(PeerEvent::PartFailed {
                    transfer,
                    at,
                    failure,
                });
                self.drained(number, index, Drain::Clean);
            }
            Mode::Write => self.hear(Message::PartErr {
                transfer,
                at,
                proof: Some(Proof::Clean),
            }),
        }
    }

    /// Time passes, and the machine learns of it.
    pub(super) fn wait(&mut self, millis: u64) {
        self.now = self.now.after_millis(millis);
        self.tick();
    }

    pub(super) fn tick(&mut self) {
        self.root.handle_timeout(self.now);
        self.drain();
    }

    pub(super) fn collect(&mut self) -> Result<(), StepFailure> {
        let result = self.root.collect(self.now);
        self.drain();
        result
    }

    /// Passes of an engine that nothing must be raised in.
    pub(super) fn passes(&mut self, passes: usize) {
        for _ in 0..passes {
            assert_eq!(self.collect(), Ok(()));
        }
    }

    /// Completes every fence of a connection that was asked for.
    pub(super) fn fence(&mut self) {
        for (peer, fence, _) in std::mem::take(&mut self.fences) {
            self.event(PeerEvent::Fenced { peer, fence });
        }
    }

    /// Completes every fence of a device that was asked for.
    pub(super) fn prove(&mut self) {
        for transfer in std::mem::take(&mut self.devices) {
            self.event(PeerEvent::DeviceFenced(transfer));
        }
    }

    pub(super) fn drain(&mut self) {
        self.root.check_invariants();
        while let Some(command) = self.root.poll_command() {
            match command {
                PeerCommand::Connect(peer) => self.connects.push(peer),
                PeerCommand::Send(frame) => self.sent.push(frame.message),
                PeerCommand::Move(part) => self.moves.push(part),
                PeerCommand::Fence { peer, fence, kind } => self.fences.push((peer, fence, kind)),
                PeerCommand::FenceDevice(transfer) => self.devices.push(transfer),
                PeerCommand::Stop(_) => self.stops += 1,
            }
        }
    }

    pub(super) fn results(&mut self) -> PeerResults {
        self.root.take_results()
    }

    /// Messages that end a claim or tell the other side that the transfer is over.
    pub(super) fn take_releases(&mut self) -> Vec<Message> {
        let release = |message: &Message| {
            matches!(
                message,
                Message::Release { .. } | Message::ReleaseAck { .. }
            )
        };
        let sent = std::mem::take(&mut self.sent);
        sent.into_iter().filter(release).collect()
    }

    pub(super) fn assert_silent(&mut self) {
        assert_eq!(self.results(), PeerResults::default());
        assert_eq!(self.take_releases(), Vec::new());
    }

    /// A number that two machines share exactly if they will answer alike.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.root.hash(&mut hasher);
        hasher.finish()
    }
}

/// Results of received requests: all, and those that failed as a whole.
pub(super) fn received(all: &[u64], failed: &[u64]) -> PeerResults {
    PeerResults {
        received: all.iter().copied().map(request).collect(),
        failed: failed.iter().copied().map(request).collect(),
        ..PeerResults::default()
    }
}

pub(super) fn sent(all: &[u64]) -> PeerResults {
    PeerResults {
        sent: all.iter().copied().map(request).collect(),
        ..PeerResults::default()
    }
}

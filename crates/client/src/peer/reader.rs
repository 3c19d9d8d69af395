//! What comes on one connection: messages for the machine, and bytes for blocks.
//!
//! One task a connection. The invariants: bytes are received only into blocks that the machine says
//! are lent to this peer, or that were posted by this side; whatever comes instead of what belongs
//! there ends the connection, and nothing else.

use std::sync::Arc;

use tessera_lifecycle::peer::{Frame, PeerFailure, Side};
use tessera_proto::message::{
    PartName, PartStatus, PeerPull, PeerPullAnswer, PeerPush, PeerPushAnswer,
};
use tessera_proto::{DecodeError, FrameHeader, Kind};
use tessera_transport::{LinkError, Receiver};
use tokio::time::{Instant, timeout};

use super::core::Core;
use super::link::{End, Job, Link, Pull};
use super::memory::{Broken, Scratch};
use super::pieces::{self, Piece};

/// The receiving side of a connection.
struct Reader {
    core: Arc<Core>,
    link: Arc<Link>,
    receiver: Receiver,
    scratch: Scratch,
    pulling: Option<Pull>,
    pushed: Option<Pushed>,
}

/// A part that the peer pushes.
struct Pushed {
    named: PartName,
    /// All of its pieces, as its blocks were when it began.
    pieces: Vec<Piece>,
    next: u32,
    status: PartStatus,
}

/// Receives until the connection ends.
pub(super) async fn run(core: Arc<Core>, link: Arc<Link>, receiver: Receiver) -> End {
    let mut reader = Reader {
        core,
        link,
        receiver,
        scratch: Scratch::default(),
        pulling: None,
        pushed: None,
    };
    loop {
        if let Err(end) = reader.frame().await {
            return end;
        }
    }
}

impl From<DecodeError> for End {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<LinkError> for End {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Header(_) | LinkError::PayloadLength { .. } => {
                Self::Malformed(error.to_string())
            }
            error => Self::Broken(Broken::Link(error)),
        }
    }
}

fn malformed<T>(what: &str) -> Result<T, End> {
    Err(End::Malformed(what.to_owned()))
}

impl Reader {
    async fn frame(&mut self) -> Result<(), End> {
        let bounds = self.core.bounds;
        let begun = timeout(bounds.idle_timeout, self.receiver.begin()).await;
        begun.map_err(|_| End::Idle)??;
        if self.link.is_closed() {
            return Err(End::Closed);
        }
        let deadline = Instant::now() + bounds.frame_timeout;
        let header = self.receiver.header(deadline).await?;
        let body = self.receiver.body(deadline).await?;
        let messages = &self.core.counts.messages_received;
        messages.add(u64::from(header.payload_bytes == 0));
        match header.kind {
            Kind::PeerControl => {
                let frame = Frame::decode(body)?;
                if frame.from != self.link.peer {
                    return malformed("a message in the name of another process");
                }
                self.core.turn(|root, now| root.handle_frame(now, frame));
                Ok(())
            }
            Kind::PeerPull => {
                let named = PeerPull::decode(body)?.part;
                self.link.owe(Job::Serve(named), bounds.parts)
            }
            Kind::PeerPullAnswer => {
                let answer = PeerPullAnswer::decode(body)?;
                self.piece(&header, answer).await
            }
            Kind::PeerPush => {
                let push = PeerPush::decode(body)?;
                self.push(&header, push).await
            }
            Kind::PeerPushAnswer => {
                let PeerPushAnswer { part, status } = PeerPushAnswer::decode(body)?;
                let named = part;
                if self.link.next_push() != Some(named) {
                    return malformed("an answer to a part that was not pushed");
                }
                self.core.part_over(&self.link, named, failure(status));
                Ok(())
            }
            _ => malformed("a frame that no engine sends to another"),
        }
    }

    fn deadline(&self, header: &FrameHeader) -> Instant {
        Instant::now() + self.core.bounds.frame_limit(header.payload_bytes)
    }

    /// One piece of a part that was asked for.
    async fn piece(&mut self, header: &FrameHeader, answer: PeerPullAnswer) -> Result<(), End> {
        let deadline = self.deadline(header);
        let next = self.pulling.take().or_else(|| self.link.next_pull());
        let named = answer.part;
        let Some(mut pull) = next.filter(|of| of.named == named && of.next == answer.piece) else {
            return malformed("a piece that was not asked for");
        };
        if answer.status != PartStatus::Done {
            self.receiver.payload_discard(deadline).await?;
            self.core
                .part_over(&self.link, named, failure(answer.status));
            return Ok(());
        }
        let Some((piece, place)) = pull.left.pop_front() else {
            return malformed("a piece too many");
        };
        let memory = &self.core.memory;
        let length = piece.length_bytes;
        let (receiver, scratch) = (&mut self.receiver, &mut self.scratch);
        let received = memory
            .receive(receiver, place, length, answer.checksum, deadline, scratch)
            .await;
        let received = received.map_err(ended)?;
        self.core
            .landed(named.transfer, length, &received.status, received.written);
        if pull.status == PartStatus::Done {
            pull.status = received.status;
        }
        pull.next += 1;
        match pull.left.is_empty() {
            true => self.core.part_over(&self.link, named, failure(pull.status)),
            false => self.pulling = Some(pull),
        }
        Ok(())
    }

    /// One piece of a part that the peer pushes into our blocks.
    async fn push(&mut self, header: &FrameHeader, push: PeerPush) -> Result<(), End> {
        let deadline = self.deadline(header);
        let named = push.part;
        let mut pushed = match (self.pushed.take(), push.piece) {
            (None, 0) => self.begin(named).await?,
            (Some(pushed), piece) if pushed.named == named && pushed.next == piece => pushed,
            _ => return malformed("a pushed piece out of its order"),
        };
        let at = usize::try_from(push.piece).unwrap_or(usize::MAX);
        let last = at + 1 == pushed.pieces.len();
        let piece = pushed.pieces.get(at);
        if pushed.status == PartStatus::Done && (piece.is_none() || push.last != last) {
            return malformed("a part is pushed in other pieces than it has");
        }
        // Asked before each piece: a claim may have ended since the last one.
        if pushed.status == PartStatus::Done && !self.core.is_lent(&self.link, named) {
            pushed.status = PartStatus::Refused;
        }
        let lent = piece.filter(|_| pushed.status == PartStatus::Done);
        let memory = &self.core.memory;
        let place = lent.and_then(|piece| memory.lend(std::slice::from_ref(piece))?.pop());
        match (lent, place) {
            (Some(piece), Some(place)) => {
                let (length, sent) = (piece.length_bytes, push.checksum);
                let (receiver, scratch) = (&mut self.receiver, &mut self.scratch);
                let received = memory.receive(receiver, place, length, sent, deadline, scratch);
                let received = received.await.map_err(ended)?;
                self.core
                    .landed(named.transfer, length, &received.status, received.written);
                pushed.status = received.status;
            }
            (wanted, _) => {
                if wanted.is_some() {
                    pushed.status = PartStatus::Refused;
                }
                self.receiver.payload_discard(deadline).await?;
            }
        }
        pushed.next += 1;
        if !push.last {
            self.pushed = Some(pushed);
            return Ok(());
        }
        let answer = PeerPushAnswer {
            part: push.part,
            status: pushed.status,
        };
        self.link.owe(Job::Answer(answer), self.core.bounds.parts)
    }

    /// The first piece of a part: its blocks are lent, and earlier work on them is over.
    async fn begin(&self, named: PartName) -> Result<Pushed, End> {
        let core = &self.core;
        let pieces = core.lent(&self.link, named).and_then(|blocks| {
            let share = core.shares.of(named.at.part, Side::Destination)?;
            pieces::of_lent(share, core.bounds.piece_bytes, &blocks)
        });
        let mut status = match pieces {
            Some(_) => PartStatus::Done,
            None => PartStatus::Refused,
        };
        if status == PartStatus::Done && core.memory.rest().await.is_err() {
            status = PartStatus::Device;
        }
        Ok(Pushed {
            named,
            pieces: pieces.unwrap_or_default(),
            next: 0,
            status,
        })
    }
}

fn ended(broken: Broken) -> End {
    match broken {
        Broken::Link(error) => error.into(),
        fault => End::Broken(fault),
    }
}

/// What a status says of the transfer.
pub(super) const fn failure(status: PartStatus) -> Option<PeerFailure> {
    match status {
        PartStatus::Done => None,
        PartStatus::Refused => Some(PeerFailure::Refused),
        PartStatus::Corrupt => Some(PeerFailure::Corrupt),
        PartStatus::Device => Some(PeerFailure::Device),
    }
}

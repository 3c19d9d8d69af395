//! What goes out on one connection: the machine's messages first, then bytes of blocks.
//!
//! One task a connection. The invariants: blocks are read only while the machine says that they are
//! lent to this peer, asked before each piece, or while a part of ours was posted; between two
//! pieces the machine's messages go out.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use tessera_lifecycle::peer::{Mode, Move, PeerFailure, Side};
use tessera_proto::message::{PartName, PartStatus, PeerPull, PeerPullAnswer, PeerPush};
use tessera_proto::{FrameHeader, Kind};
use tessera_transport::{Payload, Segments, Sender};
use tokio::time::Instant;

use super::core::Core;
use super::link::{End, Job, Link, Pull};
use super::memory::{Broken, Scratch};
use super::pieces::{self, Piece};
use crate::driver::MemoryFault;

/// The sending side of a connection.
struct Writer {
    core: Arc<Core>,
    link: Arc<Link>,
    sender: Sender,
    scratch: Scratch,
    body: Vec<u8>,
}

/// Sends until the connection ends.
pub(super) async fn run(core: Arc<Core>, link: Arc<Link>, sender: Sender) -> End {
    let mut writer = Writer {
        core,
        link,
        sender,
        scratch: Scratch::default(),
        body: Vec::new(),
    };
    loop {
        if let Err(end) = writer.step().await {
            return end;
        }
    }
}

impl Writer {
    async fn step(&mut self) -> Result<(), End> {
        self.control().await?;
        match self.link.next_job() {
            Some(Job::Move(order)) => self.post(order).await,
            Some(Job::Serve(named)) => self.serve(named).await,
            Some(Job::Answer(answer)) => {
                self.body.clear();
                answer.encode(&mut self.body);
                self.send(Kind::PeerPushAnswer, Payload::None).await
            }
            None => {
                self.link.wake.notified().await;
                Ok(())
            }
        }
    }

    /// Sends what the machine has to say.
    async fn control(&mut self) -> Result<(), End> {
        if self.link.is_closed() {
            return Err(End::Closed);
        }
        while let Some(frame) = self.link.next_control() {
            self.body.clear();
            frame.encode(&mut self.body);
            self.send(Kind::PeerControl, Payload::None).await?;
        }
        Ok(())
    }

    async fn send(&mut self, kind: Kind, payload: Payload<'_>) -> Result<(), End> {
        let payload_bytes = payload.length_bytes();
        let header = FrameHeader {
            kind,
            request: 0,
            deadline_ms: 0,
            body_bytes: u32::try_from(self.body.len()).unwrap_or(u32::MAX),
            payload_bytes,
        };
        let deadline = Instant::now() + self.core.bounds.frame_limit(payload_bytes);
        self.sender
            .send(&header, &self.body, payload, deadline)
            .await?;
        let counts = &self.core.counts;
        counts.bytes_sent.add(payload_bytes);
        counts.messages_sent.add(u64::from(payload_bytes == 0));
        Ok(())
    }

    /// Begins a part that we move.
    async fn post(&mut self, order: Move) -> Result<(), End> {
        let named = PartName {
            transfer: order.transfer,
            at: order.at,
        };
        let core = Arc::clone(&self.core);
        let side = match order.mode {
            Mode::Read => Side::Destination,
            Mode::Write => Side::Source,
        };
        let (most, mode) = (core.bounds.piece_bytes, order.mode);
        let share = core.shares.of(order.at.part, side);
        let cut =
            share.and_then(|share| pieces::of_move(share, most, mode, &order.local, &order.remote));
        let cut = cut.filter(|cut| pieces::length_bytes(cut) == order.length_bytes);
        let over = |failure| core.part_over(&self.link, named, failure);
        let Some(cut) = cut else {
            over(Some(PeerFailure::Malformed));
            return Ok(());
        };
        if cut.is_empty() {
            over(None);
            return Ok(());
        }
        if self.rest().await?.is_err() {
            over(Some(PeerFailure::Device));
            return Ok(());
        }
        match order.mode {
            Mode::Read => self.pull(named, cut).await,
            Mode::Write => self.push(named, &cut).await,
        }
    }

    /// Waits until earlier work on the memory is over, or the connection is.
    async fn rest(&self) -> Result<Result<(), MemoryFault>, End> {
        tokio::select! {
            biased;
            rested = self.core.memory.rest() => Ok(rested),
            () = self.link.closing.waited() => Err(End::Closed),
        }
    }

    async fn pull(&mut self, named: PartName, cut: Vec<Piece>) -> Result<(), End> {
        let Some(places) = self.core.memory.lend(&cut) else {
            let failure = Some(PeerFailure::Malformed);
            self.core.part_over(&self.link, named, failure);
            return Ok(());
        };
        self.link.expect_pieces(Pull {
            named,
            left: cut.into_iter().zip(places).collect::<VecDeque<_>>(),
            next: 0,
            status: PartStatus::Done,
        });
        self.body.clear();
        let part = named;
        PeerPull { part }.encode(&mut self.body);
        self.send(Kind::PeerPull, Payload::None).await
    }

    /// Pushes a part. What cannot be read any more ends the connection: the lender would wait.
    async fn push(&mut self, named: PartName, cut: &[Piece]) -> Result<(), End> {
        for (at, piece) in (0..).zip(cut) {
            self.control().await?;
            let checksum = self.checksum(named, piece).await?;
            let (Some(checksum), Some(bytes)) = (checksum, self.read(piece).await?) else {
                return Err(End::Unreadable);
            };
            let push = PeerPush {
                part: named,
                piece: at,
                last: at as usize + 1 == cut.len(),
                checksum,
            };
            if push.last {
                self.link.expect_answer(named);
            }
            self.body.clear();
            push.encode(&mut self.body);
            self.send(Kind::PeerPush, Payload::Segments(&bytes)).await?;
        }
        Ok(())
    }

    /// Sends a part that the peer asks for, as long as it may have it.
    async fn serve(&mut self, named: PartName) -> Result<(), End> {
        let core = Arc::clone(&self.core);
        let lent = core.lent(&self.link, named).unwrap_or_default();
        let share = core.shares.of(named.at.part, Side::Source);
        let most = core.bounds.piece_bytes;
        let cut = share.and_then(|share| pieces::of_lent(share, most, &lent));
        let cut = cut.unwrap_or_default();
        let rested = self.rest().await?;
        // A part that is not lent has no piece, and is answered all the same.
        for at in 0..cut.len().max(1) {
            self.control().await?;
            let checksum = match cut.get(at) {
                Some(piece) if rested.is_ok() => self.checksum(named, piece).await?,
                _ => None,
            };
            // Asked after the last wait before the bytes are read.
            let piece = cut.get(at).filter(|_| core.is_lent(&self.link, named));
            let bytes = match (piece, checksum) {
                (Some(piece), Some(_)) => self.read(piece).await?,
                _ => None,
            };
            let status = match (piece, &bytes) {
                (None, _) => PartStatus::Refused,
                (Some(_), None) => PartStatus::Device,
                (Some(_), Some(_)) => PartStatus::Done,
            };
            let answer = PeerPullAnswer {
                part: named,
                status,
                piece: u32::try_from(at).unwrap_or(u32::MAX),
                checksum: checksum.filter(|_| bytes.is_some()).unwrap_or(0),
            };
            self.body.clear();
            answer.encode(&mut self.body);
            let payload = bytes.as_ref().map_or(Payload::None, Payload::Segments);
            self.send(Kind::PeerPullAnswer, payload).await?;
            if status != PartStatus::Done {
                return Ok(());
            }
        }
        self.link.served();
        Ok(())
    }

    /// The checksum of a piece as it was offered; while it is not made, messages go out. `None` if
    /// its blocks could not be read.
    async fn checksum(&mut self, named: PartName, piece: &Piece) -> Result<Option<u64>, End> {
        let core = Arc::clone(&self.core);
        let mut made = pin!(core.offered_checksum(named, piece));
        loop {
            tokio::select! {
                biased;
                checksum = &mut made => return Ok(checksum),
                () = self.link.wake.notified() => self.control().await?,
            }
        }
    }

    /// The bytes of a piece as they are now.
    async fn read(&mut self, piece: &Piece) -> Result<Option<Segments>, End> {
        let bytes = self.core.memory.read(piece, &mut self.scratch).await;
        bytes.map_err(|fault| End::Broken(Broken::Fault(fault)))
    }
}

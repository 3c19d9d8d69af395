//! One process on the other side: its connection, what it has not acknowledged, and our fence.
//!
//! Called by [`PeerRoot`](super::PeerRoot). The invariant: within a connection each sequenced
//! message is delivered once and in order; a last word is kept, over all connections, until it is
//! acknowledged.

use std::collections::VecDeque;

use tessera_proto::limits::LEASE_MS_MAX;
use tessera_proto::peer::{ConnectionId, Frame, Message, Proof};
use tessera_proto::{Incarnation, Instant};

use crate::peer::command::FenceKind;
use crate::peer::ids::FenceId;

/// A fence that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fence {
    pub(crate) id: FenceId,
    pub(crate) kind: FenceKind,
    pub(crate) since: Instant,
}

/// What a frame is to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Deliver,
    Duplicate,
    /// One before it is missing, and both will come again.
    Early,
}

/// What is known of one process.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Session {
    pub(crate) rank: u16,
    pub(crate) connection: Option<ConnectionId>,
    /// The newest connection there has been.
    newest: ConnectionId,
    pub(crate) dialing: bool,
    /// Not dialled before.
    pub(crate) dial_at: Instant,
    pub(crate) dead: bool,
    /// Since when there is no connection, if there is none.
    lost_at: Instant,
    pub(crate) ping_at: Instant,
    pub(crate) fence: Option<Fence>,
    /// Sent or to be sent, and not acknowledged.
    pub(crate) outbox: VecDeque<Message>,
    /// The place of the first of them.
    first: u64,
    /// The last that came.
    received: u64,
}

impl Session {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            rank: 0,
            connection: None,
            newest: ConnectionId(0),
            dialing: false,
            dial_at: now,
            dead: false,
            lost_at: now,
            ping_at: now,
            fence: None,
            outbox: VecDeque::new(),
            first: 1,
            received: 0,
        }
    }

    /// Takes a new connection. False if it is none: an old one, or one that a fence forbids.
    pub(crate) fn connect(&mut self, connection: ConnectionId, rank: u16) -> bool {
        if connection <= self.newest || self.fence.is_some() || self.dead {
            return false;
        }
        self.newest = connection;
        self.connection = Some(connection);
        self.rank = rank;
        self.dialing = false;
        self.lose_passing();
        (self.first, self.received) = (1, 0);
        true
    }

    /// Whether there was a connection ever.
    pub(crate) fn was_met(&self) -> bool {
        self.newest > ConnectionId(0)
    }

    /// Whether there has been no connection for longer than any lease. Longer is strictly longer.
    pub(crate) fn is_lost(&self, now: Instant) -> bool {
        let until = self.lost_at.after_millis(u64::from(LEASE_MS_MAX));
        self.connection.is_none() && self.fence.is_none() && now > until
    }

    /// Whether bytes that we have posted may still land there, which it has not heard.
    pub(crate) fn has_doubt(&self) -> bool {
        let doubtful = |message: &Message| match message {
            Message::PartErr { proof, .. } => proof.is_none_or(|proof| proof == Proof::Fenced),
            _ => false,
        };
        self.outbox.iter().any(doubtful)
    }

    /// Drops the connection, and what has no meaning without it.
    pub(crate) fn lose(&mut self, now: Instant) {
        if self.connection.is_some() {
            self.lost_at = now;
        }
        self.connection = None;
        self.dialing = false;
        self.lose_passing();
    }

    fn lose_passing(&mut self) {
        self.outbox.retain(Message::is_kept);
    }

    /// Keeps a message, and gives its frame if there is a connection to send it on.
    pub(crate) fn send(
        &mut self,
        from: Incarnation,
        to: Incarnation,
        message: Message,
    ) -> Option<Frame> {
        let (true, Some(connection)) = (self.fence.is_none(), self.connection) else {
            if message.is_kept() && !self.dead {
                self.outbox.push_back(message);
            }
            return None;
        };
        let mut sequence = 0;
        if message.is_sequenced() {
            sequence = self.first + self.outbox.len() as u64;
            self.outbox.push_back(message.clone());
        }
        Some(Frame {
            from,
            to,
            connection,
            sequence,
            acknowledged: self.received,
            message,
        })
    }

    /// Everything that is not acknowledged, once more.
    pub(crate) fn again(&self, from: Incarnation, to: Incarnation) -> Vec<Frame> {
        let Some(connection) = self.connection else {
            return Vec::new();
        };
        let frame = |(sequence, message): (u64, &Message)| Frame {
            from,
            to,
            connection,
            sequence,
            acknowledged: self.received,
            message: message.clone(),
        };
        (self.first..).zip(&self.outbox).map(frame).collect()
    }

    /// Notes the place and the acknowledgement of a frame of this connection.
    pub(crate) fn take(&mut self, frame: &Frame) -> Taken {
        while self.first <= frame.acknowledged && self.outbox.pop_front().is_some() {
            self.first += 1;
        }
        match frame.sequence {
            0 => Taken::Deliver,
            sequence if sequence <= self.received => Taken::Duplicate,
            sequence if sequence > self.received + 1 => Taken::Early,
            sequence => {
                self.received = sequence;
                Taken::Deliver
            }
        }
    }
}

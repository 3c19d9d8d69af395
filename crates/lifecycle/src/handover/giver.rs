//! Prefill's end of a prompt that it writes: a request that came with a pass, and the ticket of the
//! decode engine that waits for it, whichever is first.
//!
//! Called by [`HandoverRoot`]'s driver. The invariants: blocks of a finished prompt that are kept
//! are ordered exactly once, to be written or to be given back; a ticket is answered once, when its
//! fate is known; nothing is kept past its lease but for a ticket that has come.

use tessera_proto::Instant;
use tessera_proto::peer::{BlockRef, Generation, TransferId};
use tessera_proto::ticket::{Lender, Pass, Ticket};

use crate::handover::order::{End, HandoverBlock};
use crate::handover::root::{HandoverRoot, Offered, Refused};
use crate::handover::taker;
use crate::peer::Mode;
use crate::shape::Shape;

/// What becomes of a ticket that was brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Our workers claim its blocks, unless it names none.
    Claimed,
    /// Nothing will be written.
    Refused,
}

/// A request that came with a pass.
#[derive(Clone, Debug)]
pub(super) struct Giver {
    request: String,
    stage: Giving,
    /// How long the stage lasts at most.
    until: Instant,
}

#[derive(Clone, Debug)]
enum Giving {
    /// The engine has it.
    Computes,
    /// It has ended well, and its blocks are kept.
    Holds(Held),
    /// Ordered, or nothing comes of it. What else comes with the pass is answered.
    Over(Answer),
}

/// A finished prompt.
#[derive(Clone, Debug)]
struct Held {
    /// Tokens that decode lacks of it, and their digest.
    tokens: u64,
    prompt: [u8; 32],
    tables: Vec<Vec<u32>>,
}

/// A ticket that its prompt has not met.
#[derive(Clone, Debug)]
pub(super) struct Brought {
    ticket: Ticket,
    until: Instant,
}

impl HandoverRoot {
    /// A request has come with a pass: a decode engine waits for it, or soon will.
    ///
    /// # Errors
    /// [`Refused`]: its blocks are kept for nobody.
    pub fn promise(&mut self, now_unix_ms: u64, request: &str, text: &str) -> Result<(), Refused> {
        let judged = self.judge_giver(now_unix_ms, text);
        let transfer = judged.inspect_err(|_| self.note_refused())?;
        let giver = Giver {
            request: request.to_owned(),
            stage: Giving::Computes,
            until: Instant::NEVER,
        };
        self.givers.insert(transfer, giver);
        self.giving.insert(request.to_owned(), transfer);
        self.counters.passes += 1;
        Ok(())
    }

    fn judge_giver(&self, now_unix_ms: u64, text: &str) -> Result<TransferId, Refused> {
        if !self.config.offers || !self.is_met() {
            return Err(Refused::Role);
        }
        let pass = Pass::open(text, &self.config.key, now_unix_ms)?;
        if self.givers.len() >= self.config.limits.requests {
            return Err(Refused::Full);
        }
        match self.givers.contains_key(&pass.transfer) {
            true => Err(Refused::Used),
            false => Ok(pass.transfer),
        }
    }

    /// Decode has brought a ticket of the blocks that it waits for. [`take_answers`] says what
    /// becomes of it. One that comes again changes nothing.
    ///
    /// # Errors
    /// [`Refused`]: nothing becomes of it.
    ///
    /// [`take_answers`]: Self::take_answers
    pub fn brought(
        &mut self,
        (now, now_unix_ms): (Instant, u64),
        text: &str,
    ) -> Result<TransferId, Refused> {
        let judged = self.judge_brought(now_unix_ms, text);
        let ticket = judged.inspect_err(|_| self.note_refused())?;
        let transfer = ticket.transfer;
        match self.givers.get(&transfer).map(|giver| &giver.stage) {
            Some(Giving::Over(answer)) => self.answers.push((transfer, *answer)),
            _ => {
                let left_ms = ticket.expires_unix_ms.saturating_sub(now_unix_ms);
                let until = now.after_millis(left_ms);
                self.brought.insert(transfer, Brought { ticket, until });
                self.meet_giver(now, transfer);
            }
        }
        Ok(transfer)
    }

    fn judge_brought(&self, now_unix_ms: u64, text: &str) -> Result<Ticket, Refused> {
        if !self.config.offers {
            return Err(Refused::Role);
        }
        let ticket = Ticket::open_by(Lender::Decode, text, &self.config.key, now_unix_ms)?;
        if ticket.workers.len() != self.config.peer_ranks {
            return Err(Refused::Shape);
        }
        match self.brought.get(&ticket.transfer) {
            Some(first) if first.ticket != ticket => Err(Refused::Used),
            None if self.brought.len() >= self.config.limits.requests => Err(Refused::Full),
            _ => Ok(ticket),
        }
    }

    /// The engine has finished with a request that came with a pass; `offered` is what it has
    /// computed, if it has ended well. True if the engine must keep its blocks until it is reported
    /// as sent.
    pub fn computed(&mut self, now: Instant, request: &str, offered: Option<&Offered<'_>>) -> bool {
        let Some(transfer) = self.giving.remove(request) else {
            return false;
        };
        let held = offered.and_then(|offered| self.hold(offered));
        let lease = now.after_millis(self.config.lease_ms);
        let Some(giver) = self.givers.get_mut(&transfer) else {
            return false;
        };
        giver.until = lease;
        if matches!(giver.stage, Giving::Over(_)) {
            // Its ticket has come, and has expired.
            return false;
        }
        let kept = held.is_some();
        match held {
            Some(held) => {
                giver.stage = Giving::Holds(held);
                self.sending.insert(request.to_owned());
                self.meet_giver(now, transfer);
            }
            None => {
                self.counters.offers_withheld += 1;
                self.close_giver(now, transfer, Answer::Refused);
            }
        }
        kept
    }

    fn hold(&self, offered: &Offered<'_>) -> Option<Held> {
        let tokens = self.standing(offered)?;
        // Decode computes the last token itself; beside a window or a state it was left out here.
        let full = taker::is_full(&self.config.shape);
        let tokens = tokens - u64::from(full);
        Some(Held {
            tokens,
            prompt: offered.prompt.digest(tokens)?,
            tables: offered.tables.to_vec(),
        })
    }

    /// Orders what is to be written, when both the prompt and the ticket are there.
    fn meet_giver(&mut self, now: Instant, transfer: TransferId) {
        let giver = self.givers.get(&transfer);
        let Some((request, Giving::Holds(held))) = giver.map(|of| (&of.request, &of.stage)) else {
            return;
        };
        let Some(brought) = self.brought.get(&transfer) else {
            return;
        };
        let (request, ticket) = (request.clone(), brought.ticket.clone());
        let blocks = fill(&self.config.shape, held, &ticket);
        let answer = match blocks {
            Some(_) => Answer::Claimed,
            None => Answer::Refused,
        };
        let blocks = blocks.unwrap_or_default();
        self.counters.writes += u64::from(!blocks.is_empty());
        self.give(request, &ticket, blocks);
        self.close_giver(now, transfer, answer);
    }

    /// Has the workers write `blocks`, or report at once where there are none.
    fn give(&mut self, request: String, ticket: &Ticket, blocks: Vec<HandoverBlock>) {
        self.order(Some(request), ticket, (End::Gives, Mode::Write), blocks);
    }

    fn close_giver(&mut self, now: Instant, transfer: TransferId, answer: Answer) {
        if let Some(giver) = self.givers.get_mut(&transfer) {
            giver.stage = Giving::Over(answer);
            giver.until = now.after_millis(self.config.lease_ms);
        }
        if self.brought.remove(&transfer).is_some() {
            self.answers.push((transfer, answer));
        }
        self.counters.writes_refused += u64::from(answer == Answer::Refused);
    }

    /// Answers to tickets that were brought, each once.
    pub fn take_answers(&mut self) -> Vec<(TransferId, Answer)> {
        std::mem::take(&mut self.answers)
    }

    /// Gives back what nobody has come for, and lets go of tickets whose prompt has not come.
    /// Older than a lease is strictly older.
    pub fn expire(&mut self, now: Instant) {
        let late = |until: Instant| now > until;
        let brought = self.brought.iter().filter(|(_, of)| late(of.until));
        let expired: Vec<_> = brought.map(|(transfer, _)| *transfer).collect();
        for transfer in expired {
            self.close_giver(now, transfer, Answer::Refused);
        }
        let givers = self.givers.iter().filter(|(_, of)| late(of.until));
        let expired: Vec<_> = givers.map(|(transfer, _)| *transfer).collect();
        for transfer in expired {
            let Some(giver) = self.givers.get(&transfer) else {
                continue;
            };
            if matches!(giver.stage, Giving::Holds(_)) {
                self.give(giver.request.clone(), &nothing(transfer), Vec::new());
                self.close_giver(now, transfer, Answer::Refused);
            } else if !self.giving.contains_key(&giver.request) {
                self.givers.remove(&transfer);
            }
        }
    }

    /// A request was reported as sent by all workers.
    pub fn sent(&mut self, request: &str) {
        self.sending.remove(request);
    }

    /// Whether blocks of finished requests are kept for a decode engine to be written: the engine
    /// must go on with its steps, for nobody else learns that they can be freed.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    pub(super) fn check_givers(&self) {
        assert!(self.givers.len() <= self.config.limits.requests);
        assert!(self.brought.len() <= self.config.limits.requests);
        for (request, transfer) in &self.giving {
            let giver = self.givers.get(transfer);
            let own = giver.is_some_and(|giver| giver.request == *request);
            assert!(own, "{request} came with a pass that is not its own");
        }
        for (transfer, giver) in &self.givers {
            let met = self.brought.contains_key(transfer);
            let waits = matches!(giver.stage, Giving::Computes);
            assert!(!met || waits, "{giver:?} has met its ticket and waits");
        }
    }
}

/// Names no blocks.
fn nothing(transfer: TransferId) -> Ticket {
    Ticket {
        transfer,
        expires_unix_ms: 0,
        prompt: [0; 32],
        tokens: 0,
        generation: Generation(0),
        workers: Vec::new(),
        tables: Vec::new(),
    }
}

/// The blocks of decode's ticket with ours. `None` if it is of another prompt, or if we lack one.
/// Empty if none is asked for.
fn fill(shape: &Shape, held: &Held, ticket: &Ticket) -> Option<Vec<HandoverBlock>> {
    if ticket.blocks().all(|block| block.is_null()) {
        return Some(Vec::new());
    }
    let of_it = (ticket.tokens, ticket.prompt) == (held.tokens, held.prompt);
    if !of_it || ticket.tables.len() != shape.groups().len() {
        return None;
    }
    let mut pairs = Vec::new();
    for ((group, lent), own) in (0_u16..).zip(&ticket.tables).zip(&held.tables) {
        for (index, remote) in lent.iter().enumerate() {
            let own = own.get(index).copied().filter(|block| *block != 0);
            let local = match *remote {
                BlockRef::NULL => BlockRef::NULL,
                _ => own?,
            };
            pairs.push(HandoverBlock {
                group,
                local,
                remote: *remote,
            });
        }
    }
    Some(pairs)
}

//! Decode's end of a prompt that prefill writes: what it lends, and the ticket that prefill gets.
//!
//! Called by [`HandoverRoot`] and by its driver, which brings tickets to prefill. The invariant: a
//! request that was admitted with a pass writes exactly one ticket, for the blocks that it waits
//! for or for none, so that prefill never waits for its lease.

use std::sync::Arc;

use tessera_proto::Instant;
use tessera_proto::peer::{Generation, TransferId};
use tessera_proto::ticket::{Lender, Pass, Prompt, Ticket};

use crate::handover::order::{End, HandoverBlock};
use crate::handover::root::{HandoverRoot, Refused};
use crate::handover::taker::{self, Stage};
use crate::peer::{BlockRef, Mode};

/// A ticket of ours that is to be brought to prefill. When it cannot be, or is refused there,
/// [`HandoverRoot::not_brought`] is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The transfer.
    pub transfer: TransferId,
    /// Where prefill takes tickets: an address that the pass vouches for.
    pub inbox: String,
    /// The sealed ticket.
    pub ticket: String,
    /// When it is of no use any more.
    pub until: Instant,
}

impl HandoverRoot {
    /// A request has come with a pass: prefill computes it now, and will write it into our blocks.
    ///
    /// # Errors
    /// [`Refused`]: the request computes.
    pub fn expect(
        &mut self,
        (now, now_unix_ms): (Instant, u64),
        request: &str,
        text: &str,
        prompt: Prompt<'_>,
    ) -> Result<(), Refused> {
        let opened = Pass::open(text, &self.config.key, now_unix_ms);
        let pass = opened.inspect_err(|_| self.note_refused())?;
        let blank = Ticket {
            transfer: pass.transfer,
            expires_unix_ms: pass.expires_unix_ms,
            prompt: [0; 32],
            tokens: 0,
            generation: Generation(0),
            workers: Vec::new(),
            tables: Vec::new(),
        };
        match self.judge_expected(prompt) {
            Ok((tokens, prompt)) => {
                let ticket = Ticket {
                    prompt,
                    tokens,
                    ..blank
                };
                let inbox = Some(pass.inbox);
                self.take_in((now, now_unix_ms), request, ticket, tokens, inbox);
                Ok(())
            }
            Err(refused) => {
                self.note_refused();
                // Prefill need not wait for us.
                self.send_back(&blank, pass.inbox, now.after_millis(self.config.timeout_ms));
                Err(refused)
            }
        }
    }

    /// How many tokens we lack of a prompt, and their digest.
    fn judge_expected(&self, prompt: Prompt<'_>) -> Result<(u64, [u8; 32]), Refused> {
        if !self.config.takes || !self.is_met() {
            return Err(Refused::Role);
        }
        if self.is_full() {
            return Err(Refused::Full);
        }
        let tokens = prompt.tokens.len().saturating_sub(1);
        let tokens = u64::try_from(tokens).map_err(|_| Refused::Prompt)?;
        let digest = prompt.digest(tokens).ok_or(Refused::Prompt)?;
        Ok((tokens, digest))
    }

    /// Lends our blocks for tokens `[computed, limit)`, and has prefill told of them.
    pub(super) fn invite(
        &mut self,
        request: &str,
        tables: &[Vec<u32>],
        (computed, limit): (u64, u64),
    ) {
        let Some(taker) = self.takers.get(request) else {
            return;
        };
        let (ticket, until) = (Arc::clone(&taker.ticket), taker.until);
        let inbox = taker.inbox.clone().unwrap_or_default();
        let own = taker::wanted(&self.config.shape, tables, computed, limit);
        let whole = own.is_some();
        let ticket = Ticket {
            generation: self.new_generation(),
            tables: own.unwrap_or_default(),
            ..Ticket::clone(&ticket)
        };
        let lent = |block: BlockRef| HandoverBlock {
            group: block.group,
            local: block.block,
            remote: BlockRef::NULL,
        };
        let blocks = ticket.blocks().map(lent).collect();
        let request = Some(request.to_owned());
        self.order(request, &ticket, (End::Takes, Mode::Write), blocks);
        if !whole {
            // The engine has left out what it will read: the transfer fails, and the request
            // computes.
            self.cancels.push(ticket.transfer.0);
        }
        self.write_letter(ticket, inbox, until);
    }

    /// Tells prefill that nobody waits for what it computes.
    pub(super) fn send_back(&mut self, ticket: &Ticket, inbox: String, until: Instant) {
        self.write_letter(ticket.clone(), inbox, until);
    }

    fn write_letter(&mut self, ticket: Ticket, inbox: String, until: Instant) {
        let ticket = Ticket {
            workers: self.workers.clone(),
            ..ticket
        };
        self.letters.push(Letter {
            transfer: ticket.transfer,
            inbox,
            ticket: ticket.seal_by(Lender::Decode, &self.config.key),
            until,
        });
    }

    /// Tickets that are to be brought to prefill, each once.
    pub fn take_letters(&mut self) -> Vec<Letter> {
        std::mem::take(&mut self.letters)
    }

    /// Prefill was not reached, or refuses: its blocks will not come. What a worker of it has
    /// claimed all the same is at rest by that claim's own proof, as ever.
    pub fn not_brought(&mut self, transfer: TransferId) {
        let waits = self.takers.values().any(|of| {
            of.ticket.transfer == transfer && of.stage == Stage::Taken && of.inbox.is_some()
        });
        if waits {
            self.cancels.push(transfer.0);
        }
    }
}

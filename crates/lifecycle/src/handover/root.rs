//! The machine of handovers: its state, and what the engine's hooks do to it.
//!
//! Called by the client's scheduler driver, one mutation at a time (see the crate's documentation).
//! Invariants: a ticket that was admitted is ordered exactly once, to be taken or to be declined;
//! the blocks of an offer stay with the engine until every worker has said that they were read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_proto::Instant;
use tessera_proto::peer::{BlockRef, Generation, TransferId};
use tessera_proto::ticket::{Prompt, Ticket, TicketError, TicketWorker};
use thiserror::Error;

use crate::handover::config::{HandoverConfig, HandoverCounters};
use crate::handover::giver::{Answer, Brought, Giver};
use crate::handover::meeting::Letter;
use crate::handover::order::{End, HandoverBlock, HandoverOrder};
use crate::handover::taker::{self, Stage, Taker};
use crate::peer::Mode;
use crate::scheduler::{LookupAnswer, NotPromised};

/// A finished request whose blocks others may want.
#[derive(Clone, Copy, Debug)]
pub struct Offered<'a> {
    /// The engine's name of it.
    pub request: &'a str,
    /// Names the transfer: random, never used twice.
    pub transfer: TransferId,
    /// Its prompt, all of which is offered.
    pub prompt: Prompt<'a>,
    /// Tokens that the engine has computed of it.
    pub computed_tokens: u64,
    /// Block ids for each group, 0 where there is none.
    pub tables: &'a [Vec<u32>],
}

/// Why a request's ticket is not used: it computes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// This engine takes nothing.
    #[error("this engine takes nothing from others: set kv_role and peer_listen so that it may")]
    Role,
    /// The ticket is not good.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// The ticket is of another prompt.
    #[error("the ticket was written for another prompt: pass it on with its own request only")]
    Prompt,
    /// The ticket is of an engine with another cache or with ranks that were not expected.
    #[error(
        "the ticket is of an engine with another cache, or with another number of ranks than \
         peer_tp_size says"
    )]
    Shape,
    /// Another request came with the same pass, or another ticket.
    #[error("a pass admits one request on each engine, and this one was used before")]
    Used,
    /// Too many requests have one.
    #[error("too many requests with a ticket are under way")]
    Full,
}

/// The machine of handovers of one scheduler.
#[derive(Clone, Debug)]
pub struct HandoverRoot {
    pub(super) config: HandoverConfig,
    /// Our own workers, once they are known.
    pub(super) workers: Vec<TicketWorker>,
    pub(super) takers: BTreeMap<String, Taker>,
    /// Requests that ended while they were parked, until their receive has ended too.
    draining: BTreeSet<String>,
    /// Our tickets, to be brought to prefill.
    pub(super) letters: Vec<Letter>,
    /// Prompts that we write, and those that were just written.
    pub(super) givers: BTreeMap<TransferId, Giver>,
    /// Requests with a pass that the engine has, and their transfers.
    pub(super) giving: BTreeMap<String, TransferId>,
    /// Tickets whose prompt is not finished, or has not come.
    pub(super) brought: BTreeMap<TransferId, Brought>,
    pub(super) answers: Vec<(TransferId, Answer)>,
    /// Finished requests whose blocks are kept to be written.
    pub(super) sending: BTreeSet<String>,
    orders: Vec<HandoverOrder>,
    pub(super) cancels: Vec<u128>,
    next_generation: u64,
    pub(super) counters: HandoverCounters,
}

impl HandoverRoot {
    /// An idle machine.
    #[must_use]
    pub fn new(config: HandoverConfig) -> Self {
        Self {
            config,
            workers: Vec::new(),
            takers: BTreeMap::new(),
            draining: BTreeSet::new(),
            letters: Vec::new(),
            givers: BTreeMap::new(),
            giving: BTreeMap::new(),
            brought: BTreeMap::new(),
            answers: Vec::new(),
            sending: BTreeSet::new(),
            orders: Vec::new(),
            cancels: Vec::new(),
            next_generation: 0,
            counters: HandoverCounters::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> HandoverCounters {
        self.counters
    }

    /// Our own workers, in rank order. Nothing is offered before they are known.
    pub fn meet(&mut self, workers: Vec<TicketWorker>) {
        self.workers = workers;
    }

    /// How many tokens at the end of a prompt prefill leaves to decode: a window and a state stand
    /// behind the last token computed, and decode computes the last of the prompt itself.
    #[must_use]
    pub fn left_to_decode(&self) -> u64 {
        u64::from(self.config.offers && !taker::is_full(&self.config.shape))
    }

    pub(super) fn is_met(&self) -> bool {
        self.workers.len() == self.config.shape.ranks().len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.takers.len() >= self.config.limits.requests
    }

    pub(super) const fn note_refused(&mut self) {
        self.counters.tickets_refused += 1;
    }

    /// How many tokens a finished prompt has, if all of them stand in its blocks.
    pub(super) fn standing(&self, offered: &Offered<'_>) -> Option<u64> {
        let tokens = u64::try_from(offered.prompt.tokens.len()).ok()?;
        let shape = &self.config.shape;
        let computed = offered.computed_tokens;
        let stands = computed == tokens || computed > tokens && taker::is_full(shape);
        let fits = tokens > 0 && stands && offered.tables.len() == shape.groups().len();
        (fits && self.config.offers && self.is_met()).then_some(tokens)
    }

    /// The ticket of a finished request, or `None` if it cannot be offered. If there is one, the
    /// engine keeps the blocks until the request is reported as sent.
    pub fn offer(&mut self, now_unix_ms: u64, offered: &Offered<'_>) -> Option<String> {
        let standing = self.standing(offered);
        let offer = standing.and_then(|tokens| Some((tokens, offered.prompt.digest(tokens)?)));
        let Some((tokens, prompt)) = offer else {
            self.counters.offers_withheld += 1;
            return None;
        };
        let null = |block: &u32| if *block == 0 { BlockRef::NULL } else { *block };
        let ticket = Ticket {
            transfer: offered.transfer,
            expires_unix_ms: now_unix_ms.saturating_add(self.config.lease_ms),
            prompt,
            tokens,
            generation: self.new_generation(),
            workers: self.workers.clone(),
            tables: offered
                .tables
                .iter()
                .map(|table| table.iter().map(null).collect())
                .collect(),
        };
        let own = |block: BlockRef| HandoverBlock {
            group: block.group,
            local: block.block,
            remote: BlockRef::NULL,
        };
        self.counters.offers += 1;
        let request = Some(offered.request.to_owned());
        let blocks = ticket.blocks().map(own).collect();
        self.order(request, &ticket, (End::Gives, Mode::Read), blocks);
        Some(ticket.seal(&self.config.key))
    }

    /// A request has come with a ticket. One that is good, but not for this request, is given back.
    ///
    /// # Errors
    /// [`Refused`]: the request computes.
    pub fn admit(
        &mut self,
        (now, now_unix_ms): (Instant, u64),
        request: &str,
        text: &str,
        prompt: Prompt<'_>,
    ) -> Result<(), Refused> {
        let opened = self.open(now_unix_ms, text);
        let ticket = opened.inspect_err(|_| self.note_refused())?;
        match self.judge(&ticket, prompt) {
            Ok(limit) => {
                self.take_in((now, now_unix_ms), request, ticket, limit, None);
                Ok(())
            }
            Err(refused) => {
                self.note_refused();
                self.give_back(&ticket);
                Err(refused)
            }
        }
    }

    /// Keeps a ticket for its request, or for the next sample of it.
    pub(super) fn take_in(
        &mut self,
        (now, now_unix_ms): (Instant, u64),
        request: &str,
        ticket: Ticket,
        limit: u64,
        inbox: Option<String>,
    ) {
        self.counters.tickets += 1;
        // By one that holds it, or has spent it: a second order could only fail.
        let mut others = self.takers.values();
        let shared = others.any(|of| of.ticket.transfer == ticket.transfer);
        let patience = self.config.lease_ms.saturating_add(self.config.timeout_ms);
        let left = ticket.expires_unix_ms.saturating_sub(now_unix_ms);
        let taker = Taker {
            ticket: Arc::new(ticket),
            inbox,
            limit,
            stage: if shared { Stage::Waits } else { Stage::Held },
            promised: None,
            expires: now.after_millis(left),
            until: now.after_millis(patience),
        };
        self.takers.insert(request.to_owned(), taker);
    }

    fn open(&self, now_unix_ms: u64, text: &str) -> Result<Ticket, Refused> {
        if !self.config.takes {
            return Err(Refused::Role);
        }
        Ok(Ticket::open(text, &self.config.key, now_unix_ms)?)
    }

    /// How many tokens a ticket brings.
    fn judge(&self, ticket: &Ticket, prompt: Prompt<'_>) -> Result<u64, Refused> {
        if self.is_full() {
            return Err(Refused::Full);
        }
        if ticket.workers.len() != self.config.peer_ranks {
            return Err(Refused::Shape);
        }
        if prompt.digest(ticket.tokens) != Some(ticket.prompt) {
            return Err(Refused::Prompt);
        }
        let num_tokens = u64::try_from(prompt.tokens.len()).unwrap_or(u64::MAX);
        taker::limit(&self.config.shape, ticket, num_tokens).ok_or(Refused::Shape)
    }

    /// Releases what a ticket offers that was refused: nobody else comes for it, unless another
    /// request has it. Of another number of ranks than expected it is not known who holds what.
    fn give_back(&mut self, ticket: &Ticket) {
        let mut others = self.takers.values();
        let shared = others.any(|of| of.ticket.transfer == ticket.transfer);
        if !shared && ticket.workers.len() == self.config.peer_ranks {
            self.counters.declined += 1;
            self.claim_none(ticket);
        }
    }

    /// Who has the ticket of a transfer and has not spent it.
    fn holder(&self, transfer: TransferId) -> Option<&Taker> {
        let mut takers = self.takers.values();
        takers.find(|of| {
            of.ticket.transfer == transfer && matches!(of.stage, Stage::Held | Stage::Taken)
        })
    }

    /// How many tokens beyond `computed` come by a ticket. `None`: none do, ask the cache.
    pub fn lookup(
        &mut self,
        now: Instant,
        request: &str,
        computed: u64,
        can_load: bool,
    ) -> Option<LookupAnswer> {
        let taker = self.takers.get(request)?;
        if taker.stage == Stage::Waits && can_load && computed < taker.limit {
            let holder = self.holder(taker.ticket.transfer);
            if holder.is_some_and(|holder| now <= holder.until) {
                return Some(LookupAnswer::UNDECIDED);
            }
        }
        let taker = self.takers.get_mut(request)?;
        taker.promised = None;
        let good = taker.stage == Stage::Held && now <= taker.expires;
        if !good || !can_load || computed >= taker.limit {
            return None;
        }
        let tokens = taker.limit - computed;
        taker.promised = Some((tokens, computed));
        Some(LookupAnswer {
            tokens: Some(tokens),
        })
    }

    /// The engine has allocated blocks. True if its external tokens come by a ticket; else a ticket
    /// that was not taken is given back.
    ///
    /// # Errors
    /// [`NotPromised`]: the step must fail.
    pub fn allocated(
        &mut self,
        request: &str,
        tables: &[Vec<u32>],
        external_tokens: u64,
    ) -> Result<bool, NotPromised> {
        let Some(taker) = self.takers.get_mut(request) else {
            return Ok(false);
        };
        if taker.stage != Stage::Held {
            return Ok(false);
        }
        let promised = taker.promised.take().filter(|_| external_tokens > 0);
        let Some((promised, computed)) = promised else {
            taker.stage = Stage::Spent;
            let taker = taker.clone();
            self.decline(&taker);
            return Ok(false);
        };
        if promised != external_tokens {
            return Err(NotPromised {
                request: request.to_owned(),
                external_tokens,
                promised,
            });
        }
        taker.stage = Stage::Taken;
        let (ticket, limit) = (Arc::clone(&taker.ticket), taker.limit);
        let is_written = taker.inbox.is_some();
        self.counters.takes += 1;
        self.counters.tokens_taken += external_tokens;
        if is_written {
            self.invite(request, tables, (computed, limit));
            return Ok(true);
        }
        // An order without blocks fits no offer: the transfer fails, and the request computes.
        let pairs = taker::pair(&self.config.shape, &ticket, tables, computed, limit);
        let request = Some(request.to_owned());
        let way = (End::Takes, Mode::Read);
        self.order(request, &ticket, way, pairs.unwrap_or_default());
        Ok(true)
    }

    /// All ranks have received a request, well or not. False if it came by no ticket.
    pub fn received(&mut self, request: &str) -> bool {
        if self.draining.remove(request) {
            return true;
        }
        let taker = self.takers.get_mut(request);
        let taken = taker.filter(|of| of.stage == Stage::Taken);
        taken.map(|of| of.stage = Stage::Spent).is_some()
    }

    /// Whether a receive of this request is under way by a ticket.
    #[must_use]
    pub fn is_taking(&self, request: &str) -> bool {
        let taker = self.takers.get(request);
        self.draining.contains(request) || taker.is_some_and(|of| of.stage == Stage::Taken)
    }

    /// The request is gone. Its ticket goes to another sample of its prompt, or back.
    pub fn finished(&mut self, request: &str) {
        let Some(taker) = self.takers.remove(request) else {
            return;
        };
        match taker.stage {
            Stage::Waits | Stage::Spent => {}
            Stage::Taken => {
                self.counters.takes_cancelled += 1;
                self.cancels.push(taker.ticket.transfer.0);
                self.draining.insert(request.to_owned());
            }
            Stage::Held => {
                let mut others = self.takers.values_mut();
                let heir = others.find(|of| {
                    of.stage == Stage::Waits && of.ticket.transfer == taker.ticket.transfer
                });
                match heir {
                    Some(heir) => heir.stage = Stage::Held,
                    None => self.decline(&taker),
                }
            }
        }
    }

    /// What the workers are to do from this step on: orders, and transfers that are called off.
    pub fn take_orders(&mut self) -> (Vec<HandoverOrder>, Vec<u128>) {
        let cancels = std::mem::take(&mut self.cancels);
        (std::mem::take(&mut self.orders), cancels)
    }

    /// Claims nothing of what a ticket offers, and releases it; or tells prefill that nobody waits.
    fn decline(&mut self, taker: &Taker) {
        self.counters.declined += 1;
        if let Some(inbox) = taker.inbox.clone() {
            self.send_back(&taker.ticket, inbox, taker.until);
            return;
        }
        self.claim_none(&taker.ticket);
    }

    fn claim_none(&mut self, ticket: &Ticket) {
        let way = (End::Takes, Mode::Read);
        self.order(None, ticket, way, taker::none_of(ticket));
    }

    pub(super) fn order(
        &mut self,
        request: Option<String>,
        ticket: &Ticket,
        (end, mode): (End, Mode),
        blocks: Vec<HandoverBlock>,
    ) {
        let claims = matches!(
            (end, mode),
            (End::Takes, Mode::Read) | (End::Gives, Mode::Write)
        );
        // Decode waits for prefill to compute, and then for the bytes.
        let computing = (end, mode) == (End::Takes, Mode::Write);
        let lease_ms = self.config.lease_ms;
        let computing_ms = if computing { lease_ms } else { 0 };
        let workers = ticket.workers.iter().filter(|_| claims);
        let workers = workers.map(|of| (of.incarnation.0, of.address.clone()));
        self.orders.push(HandoverOrder {
            request,
            transfer: ticket.transfer.0,
            end,
            mode,
            workers: workers.collect(),
            blocks,
            generation: ticket.generation.0,
            timeout_ms: self.config.timeout_ms.saturating_add(computing_ms),
            lease_ms,
        });
    }

    pub(super) const fn new_generation(&mut self) -> Generation {
        self.next_generation += 1;
        Generation(self.next_generation)
    }

    /// Panics with a message if the machine is broken.
    pub fn check_invariants(&self) {
        assert!(self.takers.len() <= self.config.limits.requests);
        self.check_givers();
        let mut held = BTreeSet::new();
        for (name, taker) in &self.takers {
            let holds = matches!(taker.stage, Stage::Held | Stage::Taken);
            let alone = !holds || held.insert(taker.ticket.transfer);
            assert!(alone, "{name} shares a ticket that another one holds");
        }
    }
}

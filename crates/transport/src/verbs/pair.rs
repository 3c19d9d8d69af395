//! One side of a reliable connection: requests go in with their memory, and come out with it.
//!
//! Made and driven by whoever moves bytes, from one thread at a time. Invariants: a request that
//! the device may have is in the table of posted ones, with its memory, until its own completion or
//! a reset; after the first failure nothing more is posted; every request has a completion, so that
//! posted = finished can be seen.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{BasicCompletionQueue, PollCompletionQueueError};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostSendError, PostSendGuard, QueuePair as _, QueuePairAttribute,
    QueuePairState, SetScatterGatherEntry, WorkRequestFlags,
};

use super::bell::Bell;
use super::card::Card;
use super::error::VerbsError;
use super::rail::{PORT, Rail};
use super::request::{Ended, Event, Failure, PostError, Request, Work};

/// Ranges of memory that a request may have, where the device allows as many.
const RANGES: usize = 16;

/// Numbers that a peer may tell before they are polled.
const TOLD: u32 = 64;

/// This bit of a completion's number is that of a number told.
const TOLD_ID: u64 = 1 << 63;

/// The wait for an answer before a retry, as verbs count it: 4.096 us x 2^17 = 0.54 s.
const ANSWER_WAIT: u8 = 17;

/// Retries before a peer counts as gone, after four seconds. Not 7, which some devices take for
/// ever.
const RETRIES: u8 = 6;

/// A peer that is slow to poll is not gone: this means for ever, and deadlines are the caller's.
const POLL_RETRIES: u8 = 7;

/// The wait that a peer is asked for which tells numbers faster than they are polled: 0.64 ms.
const POLL_WAIT: u8 = 12;

/// One side of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    // Dropped before the memory of its requests. Not the extended kind: its Soft-RoCE provider
    // counts the bytes of lists by their first range, and reports the rest as done.
    pair: BasicQueuePair,
    completions: Arc<BasicCompletionQueue>,
    bell: Bell,
    rail: Arc<Rail>,
    card: Card,
    posted: BTreeMap<u64, Request>,
    next: u64,
    depth: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Made,
    Connected,
    /// Something failed, or it was closed.
    Ended,
}

impl QueuePair {
    /// Makes one that may have `depth` requests posted.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn new(rail: &Arc<Rail>, depth: u32) -> Result<Self, VerbsError> {
        let depth = depth.clamp(1, rail.limits.requests);
        let refused =
            |call, error: &dyn std::error::Error| VerbsError::refused(call, rail.name(), error);
        let bell = Bell::new(rail)?;
        let completions = rail
            .context
            .create_cq_builder()
            .setup_cqe(depth + TOLD)
            .setup_comp_channel(bell.channel(), 0)
            .build()
            .map_err(|error| refused("ibv_create_cq", &error))?;
        let ranges = u32::try_from(RANGES.min(rail.limits.ranges)).unwrap_or(1);
        let pair = rail
            .domain
            .create_qp_builder()
            .setup_send_cq(Arc::clone(&completions))
            .setup_recv_cq(Arc::clone(&completions))
            .setup_max_send_wr(depth)
            .setup_max_recv_wr(TOLD)
            .setup_max_send_sge(ranges)
            .setup_max_recv_sge(1)
            .build()
            .map_err(|error| refused("ibv_create_qp", &error))?;
        let card = Card {
            mtu: rail.address.mtu,
            reads: rail.limits.reads,
            packet: first_packet(),
            pair: pair.qp_number(),
            lid: rail.address.lid,
            gid: rail.address.gid.raw,
        };
        let mut made = Self {
            pair,
            completions,
            bell,
            rail: Arc::clone(rail),
            card,
            posted: BTreeMap::new(),
            next: 0,
            depth: usize::try_from(depth).unwrap_or(usize::MAX),
            state: State::Made,
        };
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteRead | AccessFlags::RemoteWrite;
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(PORT)
            .setup_access_flags(access);
        made.modify("ibv_modify_qp to INIT", &init)?;
        for _ in 0..TOLD {
            made.await_told()?;
        }
        Ok(made)
    }

    /// What the peer must know, to be sent over another link.
    pub const fn card(&self) -> Card {
        self.card
    }

    /// Connects with the pair that has the card `peer`. Both sides do, before either posts.
    ///
    /// # Errors
    /// The device's refusal, for one if there is no way to the peer's address.
    pub fn connect(&mut self, peer: &Card) -> Result<(), VerbsError> {
        let mut way = AddressHandleAttribute::new();
        way.setup_dest_lid(peer.lid)
            .setup_port(PORT)
            .setup_service_level(0)
            .setup_grh_src_gid_index(self.rail.address.gid_index)
            .setup_grh_dest_gid(&Gid { raw: peer.gid })
            .setup_grh_hop_limit(64);
        let mut receive = QueuePairAttribute::new();
        receive
            .setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(Mtu::from(u32::from(peer.mtu.min(self.card.mtu))))
            .setup_dest_qp_num(peer.pair)
            .setup_rq_psn(peer.packet)
            .setup_max_dest_read_atomic(self.card.reads)
            .setup_min_rnr_timer(POLL_WAIT)
            .setup_address_vector(&way);
        self.modify("ibv_modify_qp to RTR", &receive)?;
        let mut send = QueuePairAttribute::new();
        send.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(self.card.packet)
            .setup_timeout(ANSWER_WAIT)
            .setup_retry_cnt(RETRIES)
            .setup_rnr_retry(POLL_RETRIES)
            .setup_max_read_atomic(peer.reads.min(self.card.reads));
        self.modify("ibv_modify_qp to RTS", &send)?;
        self.state = State::Connected;
        Ok(())
    }

    /// How many requests may be posted now.
    pub fn room(&self) -> usize {
        self.depth - self.posted.len()
    }

    /// F1: whether all that was posted has finished.
    pub fn is_drained(&self) -> bool {
        self.posted.is_empty()
    }

    /// Posts all of `batch` with one doorbell, in order.
    ///
    /// # Errors
    /// [`PostError`], with the batch: nothing was posted. It is empty after
    /// [`PostError::InDoubt`].
    pub fn post(&mut self, batch: Vec<Request>) -> Result<(), (PostError, Vec<Request>)> {
        let entries = match self.check(&batch) {
            Ok(entries) => entries,
            Err(error) => return Err((error, batch)),
        };
        let mut guard = self.pair.start_post_send();
        for (request, entries) in batch.iter().zip(&entries) {
            let work = guard.construct_wr(self.next, WorkRequestFlags::Signaled);
            let remote = request.work.remote();
            let local = match request.work {
                Work::Read { .. } => work.setup_read(remote.key, remote.address),
                Work::Write { tell: None, .. } => work.setup_write(remote.key, remote.address),
                Work::Write {
                    tell: Some(number), ..
                } => work.setup_write_imm(remote.key, remote.address, number.to_be()),
            };
            // SAFETY: the entries are ranges that the request owns, inside the registration that it
            // holds; the table keeps it until the device is done.
            unsafe { local.setup_sge_list(entries) };
            self.next += 1;
        }
        let first = self.next - batch.len() as u64;
        let posted = guard.post();
        self.posted.extend((first..).zip(batch));
        posted.map_err(|error| {
            self.state = State::Ended;
            let code = code(&error);
            (PostError::InDoubt { code }, Vec::new())
        })
    }

    /// Appends what has happened to `events`, and says how much that was.
    ///
    /// # Errors
    /// The device's refusal; nothing is known of what was posted.
    pub fn poll(&mut self, events: &mut Vec<Event>) -> Result<usize, VerbsError> {
        let completions = Arc::clone(&self.completions);
        let poller = match completions.start_poll() {
            Ok(poller) => poller,
            Err(PollCompletionQueueError::CompletionQueueEmpty) => return Ok(0),
            Err(error) => {
                self.state = State::Ended;
                return Err(VerbsError::refused("ibv_poll_cq", self.rail.name(), &error));
            }
        };
        let before = events.len();
        for completion in poller {
            let outcome = Failure::read(completion.status());
            if outcome.is_err() {
                self.state = State::Ended;
            }
            if completion.wr_id() & TOLD_ID != 0 {
                if outcome.is_ok() {
                    events.push(Event::Told(u32::from_be(completion.imm_data())));
                    self.await_told()?;
                }
            } else if let Some(request) = self.posted.remove(&completion.wr_id()) {
                events.push(Event::Ended(Ended { request, outcome }));
            }
        }
        Ok(events.len() - before)
    }

    /// Makes the descriptor of the pair readable with the next event. What came before this call is
    /// not announced: poll once more behind it, and sleep only if there was nothing.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        self.bell
            .arm(&self.completions)
            .map_err(|error| VerbsError::refused("ibv_req_notify_cq", self.rail.name(), &error))
    }

    /// F2: closes our side. Nothing of ours is started any more; every request that is posted ends
    /// with an event, the last of which is the proof for the memory that reads write.
    ///
    /// # Errors
    /// The device's refusal: a [`reset`](Self::reset) is left.
    pub fn close(&mut self) -> Result<(), VerbsError> {
        self.state = State::Ended;
        let mut error = QueuePairAttribute::new();
        error.setup_state(QueuePairState::Error);
        self.modify("ibv_modify_qp to ERR", &error)
    }

    /// F3: ends the pair. The peer reaches nothing through it any more, and our own requests are
    /// over; those that had not ended come back as [`Failure::Reset`].
    ///
    /// # Errors
    /// The device's refusal, with the pair: nothing is proven.
    pub fn reset(mut self) -> Result<Vec<Ended>, Box<(Self, VerbsError)>> {
        if let Err(error) = self.stop() {
            return Err(Box::new((self, error)));
        }
        let over = mem::take(&mut self.posted).into_values();
        let ended = over.map(|request| Ended {
            request,
            outcome: Err(Failure::Reset),
        });
        Ok(ended.collect())
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        self.state = State::Ended;
        let mut reset = QueuePairAttribute::new();
        reset.setup_state(QueuePairState::Reset);
        self.modify("ibv_modify_qp to RESET", &reset)
    }

    /// The entries of each request, if all of them can be posted.
    fn check(&self, batch: &[Request]) -> Result<Vec<Vec<rdma_mummy_sys::ibv_sge>>, PostError> {
        if self.state != State::Connected {
            return Err(PostError::Ended);
        }
        let (want, room) = (batch.len(), self.room());
        if want > room {
            return Err(PostError::Full { want, room });
        }
        let most = RANGES.min(self.rail.limits.ranges);
        let entries = batch.iter().map(|request| {
            if !request.within.is_on(&self.rail) {
                return Err(PostError::NotRegistered { id: request.id });
            }
            request.entries(most)
        });
        entries.collect()
    }

    /// Makes room for one number that the peer tells.
    fn await_told(&mut self) -> Result<(), VerbsError> {
        let mut guard = self.pair.start_post_recv();
        let _ = guard.construct_wr(TOLD_ID);
        guard
            .post()
            .map_err(|error| VerbsError::refused("ibv_post_recv", self.rail.name(), &error))
    }

    fn modify(
        &mut self,
        call: &'static str,
        attribute: &QueuePairAttribute,
    ) -> Result<(), VerbsError> {
        self.pair
            .modify(attribute)
            .map_err(|error| VerbsError::refused(call, self.rail.name(), &error))
    }
}

/// Readable when something has happened since [`QueuePair::arm`].
impl AsFd for QueuePair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.posted.is_empty() && self.stop().is_err() {
            // The device may still touch what was posted: it stays lent, and mapped.
            mem::forget(mem::take(&mut self.posted));
        }
    }
}

/// A number that a stray packet of an earlier pair does not guess.
fn first_packet() -> u32 {
    let random = RandomState::new().hash_one(0_u64).to_le_bytes();
    u32::from_le_bytes([random[0], random[1], random[2], 0])
}

fn code(error: &PostSendError) -> i32 {
    match error {
        PostSendError::Ibverbs(source)
        | PostSendError::InvalidWorkRequest(source)
        | PostSendError::InvalidQueuePair(source)
        | PostSendError::NotEnoughResources(source) => source.raw_os_error().unwrap_or(0),
        _ => 0,
    }
}

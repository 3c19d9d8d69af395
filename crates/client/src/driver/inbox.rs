//! Tickets between two schedulers: decode brings one to the prefill engine that is to write into
//! its blocks, and hears what becomes of it on the same connection.
//!
//! Tasks of the scheduler driver's runtime. The invariants: nothing that comes is looked at before
//! its signature holds; no address is dialled that no pass vouches for; whatever ends a connection
//! before the answer is told to the machine as a ticket that was not brought.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tessera_lifecycle::handover::{Answer, Letter};
use tessera_proto::limits::BODY_BYTES_MAX;
use tessera_proto::message::{PeerTicket, PeerTicketAnswer, Refusal, Refused};
use tessera_proto::peer::TransferId;
use tessera_proto::{DecodeError, FrameHeader, Kind};
use tessera_transport::{Address, Link, LinkError, Listener, Payload, Receiver, Sender};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep};

use super::config::EngineConfig;
use super::error::StartError;
use super::remote::Remote;
use super::scheduler::{Shared, State, unix_ms};
use crate::peer::PeerStartError;

/// Connections of decode engines at once; one more is closed.
const CONNECTIONS_MAX: usize = 4_096;
/// For a ticket, and for its answer once it is known.
const FRAME_TIMEOUT: Duration = Duration::from_secs(2);
/// How long prefill may be out of reach before its prompt is computed instead.
const REACH: Duration = Duration::from_secs(3);
/// Between two tries to reach it.
const PAUSE: Duration = Duration::from_millis(100);

/// Those who wait for the answer to a ticket.
pub(super) type Waiting = BTreeMap<TransferId, Vec<oneshot::Sender<Answer>>>;

#[derive(Debug, thiserror::Error)]
enum BringError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("prefill refuses the ticket: {0}")]
    Refused(String),
    #[error("{0:?} came where the answer to a ticket belongs")]
    Kind(Kind),
}

/// Listens, if this engine writes prompts to others.
pub(super) async fn open<R: Remote>(
    shared: &Arc<Shared<R>>,
    config: &EngineConfig,
) -> Result<Option<Address>, StartError> {
    let hands_over = config.options.peer_listen.is_some() && config.can_save;
    let inbox = config.options.peer_inbox.as_ref();
    let Some((host, port)) = inbox.filter(|_| hands_over) else {
        return Ok(None);
    };
    let address = Address::Tcp(format!("{host}:{port}"));
    if !config.options.peer_insecure && !address.is_loopback() {
        let address = address.to_string();
        return Err(PeerStartError::NotLoopback { address }.into());
    }
    let bound = Listener::bind(&address).await;
    let bound = bound.and_then(|listener| Ok((listener.address()?, listener)));
    let (address, listener) = bound.map_err(|source| PeerStartError::Listen {
        address: address.to_string(),
        source,
    })?;
    shared.runtime.spawn(run(Arc::clone(shared), listener));
    Ok(Some(address))
}

/// Sends off what the machine has written, and says what it has decided.
pub(super) fn post<R: Remote>(shared: &Arc<Shared<R>>, state: &mut State) {
    let Some(handover) = &mut state.handover else {
        return;
    };
    for letter in handover.take_letters() {
        shared.runtime.spawn(bring(Arc::clone(shared), letter));
    }
    for (transfer, answer) in handover.take_answers() {
        for waits in state.waiting.remove(&transfer).unwrap_or_default() {
            // Whoever has left asks again, or does not care.
            let _ = waits.send(answer);
        }
    }
}

/// Accepts until the runtime ends. Nothing that comes ends it.
async fn run<R: Remote>(shared: Arc<Shared<R>>, listener: Listener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (sender, receiver) = match listener.accept().await {
            Ok(halves) => halves,
            Err(error) => {
                tracing::warn!(%error, "a decode engine's connection cannot be accepted");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::<Semaphore>::clone(&places).try_acquire_owned() else {
            continue;
        };
        let own = Arc::clone(&shared);
        shared.runtime.spawn(async move {
            if let Err(error) = serve(&own, sender, receiver).await {
                tracing::debug!(%error, "a ticket was not answered");
            }
            drop(place);
        });
    }
}

/// One ticket, and its answer.
async fn serve<R: Remote>(
    shared: &Arc<Shared<R>>,
    mut sender: Sender,
    mut receiver: Receiver,
) -> Result<(), BringError> {
    let deadline = Instant::now() + FRAME_TIMEOUT;
    let header = receiver.header(deadline).await?;
    if header.kind != Kind::PeerTicket {
        return Err(BringError::Kind(header.kind));
    }
    let PeerTicket { ticket } = PeerTicket::decode(receiver.body(deadline).await?)?;
    let decided = match take(shared, &ticket) {
        Ok((transfer, answer)) => {
            let far = Instant::now() + Duration::from_secs(1 << 20);
            tokio::select! {
                answer = answer => answer.map(|answer| (transfer, answer)).ok(),
                // Nothing more is said on this connection: it has ended.
                _ = receiver.header(far) => return Ok(()),
            }
        }
        Err(message) => return refuse(&mut sender, message).await,
    };
    match decided {
        Some((transfer, Answer::Claimed)) => {
            let mut body = Vec::new();
            PeerTicketAnswer { transfer }.encode(&mut body);
            send(&mut sender, Kind::PeerTicketAnswer, &body).await
        }
        _ => {
            let message = "the prompt did not come, or it is another one";
            refuse(&mut sender, message.to_owned()).await
        }
    }
}

/// Gives a ticket to the machine.
fn take<R: Remote>(
    shared: &Arc<Shared<R>>,
    ticket: &str,
) -> Result<(TransferId, oneshot::Receiver<Answer>), String> {
    let closed = |_| "this engine has ended".to_owned();
    let mut state = shared.open().map_err(closed)?;
    let now = (shared.clock.now(), unix_ms());
    let handover = state
        .handover
        .as_mut()
        .ok_or("this engine offers nothing")?;
    let transfer = handover
        .brought(now, ticket)
        .map_err(|why| why.to_string())?;
    let (waits, answer) = oneshot::channel();
    let others = state.waiting.entry(transfer).or_default();
    others.retain(|waits| !waits.is_closed());
    others.push(waits);
    Shared::execute(shared, &mut state);
    Ok((transfer, answer))
}

/// Brings a ticket to prefill, and tells the machine if it cannot be or is refused.
async fn bring<R: Remote>(shared: Arc<Shared<R>>, letter: Letter) {
    let until = shared.clock.deadline(letter.until);
    let address = Address::Tcp(letter.inbox.clone());
    let mut reach = Instant::now() + REACH;
    let failed = loop {
        match ask(&address, &letter, until, &mut reach).await {
            Ok(()) => return,
            Err(BringError::Link(error)) => {
                if Instant::now() + PAUSE >= reach.min(until) {
                    break BringError::Link(error);
                }
                sleep(PAUSE).await;
            }
            Err(error) => break error,
        }
    };
    tracing::warn!(%address, error = %failed, "a prompt will not come from prefill");
    let mut state = shared.state.lock();
    if let Some(handover) = &mut state.handover {
        handover.not_brought(letter.transfer);
    }
}

/// One try. Whoever was reached may be out of reach for as long again.
async fn ask(
    address: &Address,
    letter: &Letter,
    until: Instant,
    reach: &mut Instant,
) -> Result<(), BringError> {
    let ticket = letter.ticket.clone();
    let fits = u32::try_from(4 + ticket.len()).is_ok_and(|bytes| bytes <= BODY_BYTES_MAX);
    if !fits {
        return Err(BringError::Refused("it is too long for a frame".to_owned()));
    }
    let (mut sender, mut receiver) = Link::connect(address, until.min(*reach)).await?;
    let mut body = Vec::new();
    PeerTicket { ticket }.encode(&mut body);
    send(&mut sender, Kind::PeerTicket, &body).await?;
    *reach = until;
    let header = receiver.header(until).await;
    *reach = Instant::now() + REACH;
    let header = header?;
    let body = receiver.body(Instant::now() + FRAME_TIMEOUT).await?;
    match header.kind {
        Kind::PeerTicketAnswer => {
            let PeerTicketAnswer { transfer } = PeerTicketAnswer::decode(body)?;
            match transfer == letter.transfer {
                true => Ok(()),
                false => Err(BringError::Kind(header.kind)),
            }
        }
        Kind::Refused => Err(BringError::Refused(Refused::decode(body)?.message)),
        kind => Err(BringError::Kind(kind)),
    }
}

async fn refuse(sender: &mut Sender, message: String) -> Result<(), BringError> {
    let reason = Refusal::Malformed;
    let mut body = Vec::new();
    Refused { reason, message }.encode(&mut body);
    send(sender, Kind::Refused, &body).await
}

async fn send(sender: &mut Sender, kind: Kind, body: &[u8]) -> Result<(), BringError> {
    let header = FrameHeader {
        kind,
        request: 0,
        deadline_ms: 0,
        body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
        payload_bytes: 0,
    };
    let deadline = Instant::now() + FRAME_TIMEOUT;
    Ok(sender.send(&header, body, Payload::None, deadline).await?)
}

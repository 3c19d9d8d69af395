//! Connecting to a process that the machine wants to speak with.
//!
//! One task an order to connect. The invariants: tries come at a bounded rate, over all orders for
//! one process; the order is answered once, by a connection or by a failure.

use std::sync::Arc;
use std::time::Duration;

use tessera_lifecycle::peer::{PeerEvent, PeerFailure};
use tessera_proto::Incarnation;
use tessera_proto::message::Refusal;
use tessera_transport::Address;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

use super::core::Core;
use super::handshake::{self, HandshakeError};
use crate::latch::Latch;

/// Dials until there is a connection, an end of patience, or no use for it. Whoever has no address
/// is waited for: it dials.
pub(super) async fn run(
    core: Arc<Core>,
    peer: Incarnation,
    address: Option<Address>,
    stop: Latch,
    dial: u64,
) {
    let until = Instant::now() + core.bounds.dial_limit;
    let tried = async {
        match address {
            Some(address) => tries(&core, peer, &address, until).await,
            None => {
                sleep_until(until).await;
                Some(unreachable(peer))
            }
        }
    };
    let ended = tokio::select! {
        biased;
        () = stop.waited() => return,
        () = core.ended.waited() => return,
        ended = tried => ended,
    };
    let ours = core.with(|state| {
        let ours = state.dials.get(&peer).is_some_and(|(of, _)| *of == dial);
        if ours {
            state.dials.remove(&peer);
        }
        ours
    });
    if let Some(event) = ended.filter(|_| ours) {
        core.report([event]);
    }
}

const fn unreachable(peer: Incarnation) -> PeerEvent {
    let failure = PeerFailure::Unreachable;
    PeerEvent::ConnectFailed { peer, failure }
}

/// Tries until one has an answer that counts. `None` for a connection.
async fn tries(
    core: &Arc<Core>,
    peer: Incarnation,
    address: &Address,
    until: Instant,
) -> Option<PeerEvent> {
    loop {
        let pause = pause(core, peer);
        if Instant::now() + pause >= until {
            sleep_until(until).await;
            return Some(unreachable(peer));
        }
        sleep(pause).await;
        let Ok(place) = Arc::<Semaphore>::clone(&core.places).try_acquire_owned() else {
            core.counts.refused_full.add(1);
            continue;
        };
        core.counts.dialled.add(1);
        match handshake::greet(core, peer, address).await {
            Ok(shaken) => {
                core.adopt(shaken, place).await;
                return None;
            }
            // Another process listens where this one did: the address is taken only when the
            // process that had it has given it up.
            Err(HandshakeError::Refused(refused)) if refused.reason == Refusal::Stranger => {
                tracing::info!(%address, refusal = refused.message, "a peer is gone");
                return Some(PeerEvent::PeerDead(peer));
            }
            Err(error) if error.is_final() => {
                tracing::warn!(%address, %error, "a peer is not what a transfer needs");
                let failure = PeerFailure::Handshake;
                return Some(PeerEvent::ConnectFailed { peer, failure });
            }
            Err(error) => tracing::debug!(%address, %error, "no connection to a peer"),
        }
    }
}

/// How long to wait before the next try.
fn pause(core: &Core, peer: Incarnation) -> Duration {
    core.with(|state| {
        let Some(road) = state.roads.get_mut(&peer) else {
            return core.bounds.pauses.backoff_max;
        };
        match std::mem::take(&mut road.rested) {
            true => Duration::ZERO,
            // Jitter need not be good; without a source of randomness there is none.
            false => road.backoff.pause(getrandom::u64().unwrap_or(0)),
        }
    })
}

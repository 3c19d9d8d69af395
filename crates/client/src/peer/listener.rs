//! Takes connections of other engines.
//!
//! One task a driver. The invariant: nothing that comes ends it: a bad connection costs itself, and
//! one too many waits for nobody.

use std::sync::Arc;
use std::time::Duration;

use tessera_transport::Listener;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::core::Core;
use super::handshake;

/// How long nothing is accepted when the system has no more to give.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until the driver ends.
pub(super) async fn run(core: Arc<Core>, listener: Listener) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = core.ended.waited() => return,
            accepted = listener.accept() => accepted,
        };
        let (sender, receiver) = match accepted {
            Ok(halves) => halves,
            Err(error) => {
                tracing::warn!(%error, "a peer's connection cannot be accepted");
                sleep(PAUSE).await;
                continue;
            }
        };
        core.counts.accepted.add(1);
        let Ok(place) = Arc::<Semaphore>::clone(&core.places).try_acquire_owned() else {
            core.counts.refused_full.add(1);
            continue;
        };
        let own = Arc::clone(&core);
        core.spawn(async move {
            match handshake::welcome(&own, sender, receiver).await {
                Ok(shaken) => own.adopt(shaken, place).await,
                Err(error) => {
                    tracing::debug!(%error, "a peer is refused");
                    handshake::count(&own, &error);
                }
            }
        });
    }
}

//! The pace of the scrub: a pass over the disks a day, never faster than it was told.
//!
//! Run as one task beside the accept loop, which ends it. Each step reads for a fraction of a
//! second at most and is followed by a pause as long as its bytes are worth.

use std::time::Duration;

use tessera_store::{Scrub, ScrubStep};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::node::apart;
use crate::shared::stopped;

/// From the end of one pass to the begin of the next.
const REST: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of one step.
const STEP_BYTES: usize = 2 << 20;

/// Scrubs until it is told to stop; `bytes_s` is above zero.
pub(crate) async fn run(mut scrub: Scrub, bytes_s: u64, mut stop: watch::Receiver<bool>) {
    loop {
        let step;
        (scrub, step) = apart(move || {
            let step = scrub.step(STEP_BYTES);
            (scrub, step)
        })
        .await;
        let rest = match step {
            ScrubStep::Read(bytes) => worth(bytes, bytes_s),
            ScrubStep::PassEnded => REST,
        };
        if timeout(rest, stopped(&mut stop)).await.is_ok() {
            return;
        }
    }
}

/// The time that `bytes` may take.
fn worth(bytes: u64, bytes_s: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_s);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_add_up_to_the_rate_that_was_asked_for() {
        assert_eq!(worth(8 << 20, 8 << 20), Duration::from_secs(1));
        assert_eq!(worth(1 << 20, 8 << 20), Duration::from_millis(125));
        assert_eq!(worth(1 << 30, 1), Duration::from_secs(1 << 30));
        assert_eq!(worth(u64::MAX, 1), Duration::from_nanos(u64::MAX));
    }
}

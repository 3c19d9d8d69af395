//! Passes, as a dispatcher makes them.
//!
//! Called by whoever sends one request to a prefill and a decode engine at once. The invariant: no
//! two passes name one transfer.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tessera_lifecycle::peer::TransferId;
use tessera_proto::ticket::{Pass, TicketKey};

/// A pass for one request: both engines get it in their `kv_transfer_params`, as `tessera_pass`
/// beside `do_remote_decode` or `do_remote_prefill`. `inbox` is where the prefill engine takes
/// tickets, its option `peer_inbox`; `valid` is how long the two may take to meet.
///
/// # Errors
/// The system has no randomness.
pub fn mint_pass(key: &TicketKey, inbox: &str, valid: Duration) -> io::Result<String> {
    let mut transfer = [0; 16];
    getrandom::fill(&mut transfer).map_err(|error| io::Error::other(error.to_string()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let expires = now.unwrap_or_default().saturating_add(valid);
    let pass = Pass {
        transfer: TransferId(u128::from_le_bytes(transfer)),
        expires_unix_ms: u64::try_from(expires.as_millis()).unwrap_or(u64::MAX),
        inbox: inbox.to_owned(),
    };
    Ok(pass.seal(key))
}

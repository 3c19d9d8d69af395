//! Asks engines after their health, each by itself and for as long as the proxy runs.
//!
//! Called by `server`. An engine that answers is healthy at once; one that does not twice in a row
//! is not. `dispatch` says so at once of an engine that cannot be reached.

use std::sync::Arc;

use hyper::{HeaderMap, StatusCode};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::Limits;
use crate::legs::Legs;
use crate::pool::{Engine, Role};

/// How often in a row an engine may not answer.
const MISSES: u32 = 2;

/// Asks once, of an engine that nobody has heard of yet.
pub(crate) async fn ask_once(legs: Arc<Legs>, engine: Arc<Engine>, role: Role, limits: Limits) {
    let well = is_well(&legs, &engine, &limits).await;
    tell(&engine, role, well);
}

/// Asks for ever.
pub(crate) async fn watch(legs: Arc<Legs>, engine: Arc<Engine>, role: Role, limits: Limits) {
    let mut missed = 0;
    loop {
        sleep(limits.health).await;
        if is_well(&legs, &engine, &limits).await {
            missed = 0;
            tell(&engine, role, true);
        } else {
            missed += 1;
            if missed >= MISSES {
                tell(&engine, role, false);
            }
        }
    }
}

/// Notes how an engine is, and logs what is news.
pub(crate) fn tell(engine: &Engine, role: Role, healthy: bool) {
    if !engine.mark(healthy) {
        return;
    }
    if healthy {
        info!(engine = engine.authority(), %role, "healthy");
    } else {
        warn!(engine = engine.authority(), %role, "not healthy");
    }
}

async fn is_well(legs: &Legs, engine: &Engine, limits: &Limits) -> bool {
    let headers = HeaderMap::new();
    let limit = limits.health_answer;
    let asked = legs.ask(engine.authority(), "/health", &headers, None, limit);
    matches!(asked.await, Ok(answer) if answer.head.status == StatusCode::OK)
}

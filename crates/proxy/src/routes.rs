//! What clients may ask for: completions, the models, health, metrics.
//!
//! Called by `server` with every request. A body is read here, within its limits, before any engine
//! hears of it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::asked::Asked;
use crate::dispatch::{Call, Dispatch};
use crate::failure::Failure;
use crate::legs::{REQUEST_ID, forwarded};
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::record::Record;

/// Characters of the name that a client may give its request.
const ID_LENGTH_MAX: usize = 128;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dispatch: Dispatch,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) room: Arc<Semaphore>,
}

/// All routes.
pub(crate) fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/completions", post(complete))
        .route("/v1/chat/completions", post(complete))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .with_state(shared)
}

async fn complete(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let id = request_id(request.headers());
    let path = request.uri().path().to_owned();
    let record = Record::begin(Arc::clone(&shared.metrics), &id, &path);
    let answer = match receive(&shared, request, path, &id).await {
        Ok((call, room)) => shared.dispatch.answer(&call, record, room).await,
        Err(failure) => Err((failure, record)),
    };
    named(answer, &id)
}

async fn models(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let id = request_id(request.headers());
    let path = request.uri().path();
    let record = Record::begin(Arc::clone(&shared.metrics), &id, path);
    let headers = forwarded(request.headers(), &id);
    named(shared.dispatch.get(path, &headers, record).await, &id)
}

/// Well, if there is anybody who can answer.
async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let Dispatch {
        prefill, decode, ..
    } = &shared.dispatch;
    let status = if decode.healthy() == 0 {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    let of = |pool: &Pool| {
        let engines = pool.engines().len();
        json!({"healthy": pool.healthy(), "engines": engines})
    };
    let text = json!({"prefill": of(prefill), "decode": of(decode)}).to_string();
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let dispatch = &shared.dispatch;
    let under_way = dispatch.limits.requests - shared.room.available_permits();
    let pools = [&dispatch.prefill, &dispatch.decode];
    let text = shared.metrics.text(pools, under_way);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn nothing(request: Request) -> Response {
    Failure::NoSuchPath(request.uri().path().to_owned()).into_response()
}

/// Takes a request, if there is room for it and it can be read.
async fn receive(
    shared: &Shared,
    request: Request,
    path: String,
    id: &str,
) -> Result<(Call, tokio::sync::OwnedSemaphorePermit), Failure> {
    let limits = &shared.dispatch.limits;
    let room = Arc::clone(&shared.room)
        .try_acquire_owned()
        .map_err(|_| Failure::Busy(limits.requests))?;
    let (head, body) = request.into_parts();
    let body = Limited::new(body, limits.body_bytes).collect();
    let body: Bytes = match timeout(limits.receive, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err(Failure::TooLong(limits.body_bytes));
        }
        Ok(Err(_)) => return Err(Failure::BrokenOff),
        Err(_) => return Err(Failure::TooSlow(limits.receive)),
    };
    let call = Call {
        path,
        headers: forwarded(&head.headers, id),
        asked: Asked::parse(&body)?,
    };
    Ok((call, room))
}

/// The answer with the name of the request, and the end of its record if there is none.
fn named(answer: Result<Response, (Failure, Record)>, id: &str) -> Response {
    let mut response = answer.unwrap_or_else(|(failure, mut record)| {
        record.refused(failure.status(), &failure.to_string());
        failure.into_response()
    });
    if let Ok(id) = id.parse() {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The client's own name for a request, or a new one if it gave none that engines would take.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_plain = |id: &&str| {
        let plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
        (1..=ID_LENGTH_MAX).contains(&id.len()) && id.chars().all(plain)
    };
    given.filter(is_plain).map_or_else(new_id, str::to_owned)
}

fn new_id() -> String {
    let mut random = [0; 16];
    match getrandom::fill(&mut random) {
        Ok(()) => format!("{:032x}", u128::from_ne_bytes(random)),
        // Engines name a request that comes without a name.
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(given: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, given.parse().expect("a header's value"));
        request_id(&headers)
    }

    #[test]
    fn a_plain_name_is_kept_and_any_other_replaced() {
        assert_eq!(id_of("job-7_a.b"), "job-7_a.b");
        for odd in ["", "a b", "___prefill_addr_x:1", "a/b", &"a".repeat(129)] {
            let id = id_of(odd);
            assert_eq!(id.len(), 32, "{odd}");
            assert_ne!(id, id_of(odd), "each is new");
        }
    }
}

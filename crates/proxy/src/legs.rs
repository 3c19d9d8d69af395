//! One leg of a request: what an engine is asked, up to the first piece of its answer.
//!
//! Called by `dispatch`, `routes` and `health`. Dropping what is returned here, or the future that
//! returns it, closes the connection, which is how an engine learns that nobody waits any more.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use hyper::http::response;
use hyper::{HeaderMap, Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use crate::config::Limits;
use crate::failure::LegError;

/// Shorter than any engine's own, so that a connection is not used that it is about to close.
const IDLE_CONNECTION: Duration = Duration::from_secs(2);

/// The header that names a request, for clients and engines.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What of a client's headers concerns engines.
const FORWARDED: [HeaderName; 3] = [
    AUTHORIZATION,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// The connections to all engines.
#[derive(Debug)]
pub(crate) struct Legs {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, as far as it has come.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: response::Parts,
    pub(crate) first: Option<Bytes>,
    pub(crate) rest: Incoming,
}

impl Legs {
    pub(crate) fn new(limits: &Limits) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(limits.connect));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION)
            .build(connector);
        Self { client }
    }

    /// Asks an engine. Returns with the first piece of its answer, within `limit`, so that one that
    /// breaks off before it has said anything can be told from one that does in the middle.
    pub(crate) async fn ask(
        &self,
        authority: &str,
        path: &str,
        headers: &HeaderMap,
        body: Option<Bytes>,
        limit: Duration,
    ) -> Result<Answer, LegError> {
        let request = request(authority, path, headers, body)?;
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| {
                if error.is_connect() {
                    LegError::Unreachable(cause(&error))
                } else {
                    LegError::BrokenOff(cause(&error))
                }
            })?;
            let (head, mut rest) = response.into_parts();
            let first = next_piece(&mut rest).await?;
            Ok(Answer { head, first, rest })
        };
        timeout(limit, answer)
            .await
            .map_err(|_| LegError::Silent(limit))?
    }
}

impl Answer {
    /// The whole body, if it has at most `limit_bytes` and comes within `limit`.
    pub(crate) async fn whole(
        mut self,
        limit_bytes: usize,
        limit: Duration,
    ) -> Result<(response::Parts, Bytes), LegError> {
        let all = async {
            let mut whole = BytesMut::from(self.first.as_deref().unwrap_or_default());
            while let Some(piece) = next_piece(&mut self.rest).await? {
                if whole.len() + piece.len() > limit_bytes {
                    return Err(LegError::TooLong(limit_bytes));
                }
                whole.extend_from_slice(&piece);
            }
            Ok((self.head, whole.freeze()))
        };
        timeout(limit, all)
            .await
            .map_err(|_| LegError::Silent(limit))?
    }
}

/// The next bytes of a body; None at its end.
async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, LegError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| LegError::BrokenOff(cause(&error)))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn request(
    authority: &str,
    path: &str,
    headers: &HeaderMap,
    body: Option<Bytes>,
) -> Result<Request<Full<Bytes>>, LegError> {
    let method = if body.is_some() {
        Method::POST
    } else {
        Method::GET
    };
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{authority}{path}"))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body.unwrap_or_default()))
        .map_err(|error| LegError::Unreachable(error.to_string()))?;
    request.headers_mut().extend(headers.clone());
    Ok(request)
}

/// What of a client's headers goes on to engines, with the name of the request.
pub(crate) fn forwarded(headers: &HeaderMap, id: &str) -> HeaderMap {
    let kept = |name: &HeaderName| Some((name.clone(), headers.get(name)?.clone()));
    let mut forwarded: HeaderMap = FORWARDED.iter().filter_map(kept).collect();
    if let Ok(id) = id.parse() {
        forwarded.insert(REQUEST_ID, id);
    }
    forwarded
}

/// The innermost cause, which says most.
fn cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

//! Why a client gets no answer of an engine, and how it is told.
//!
//! Made by `routes` and `dispatch`. The words and the form are those of the OpenAI interface, so
//! that its clients show them.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::json;
use thiserror::Error;

use crate::pool::Role;

/// Why a request has no answer.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("the body is not a JSON object: {0}")]
    NoJson(String),
    #[error("kv_transfer_params is set by the proxy: leave it out")]
    ForeignHandover,
    #[error("the body is longer than {0} bytes: send less, or raise --max-body")]
    TooLong(usize),
    #[error("the body did not come within {} ms", .0.as_millis())]
    TooSlow(Duration),
    #[error("the body broke off")]
    BrokenOff,
    #[error("{0} requests are under way, and no more are taken: try again")]
    Busy(usize),
    #[error("no {0} engine is healthy: see /health, and the log")]
    NoEngine(Role),
    #[error("{engine}: {reason}")]
    Engine { engine: String, reason: LegError },
    #[error("there is nothing at {0}")]
    NoSuchPath(String),
}

/// What went wrong between the proxy and one engine.
#[derive(Debug, Clone, Error)]
pub(crate) enum LegError {
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("broke off before its end: {0}")]
    BrokenOff(String),
    #[error("said nothing for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("answered with more than {0} bytes")]
    TooLong(usize),
}

impl Failure {
    /// The HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NoJson(_) | Self::ForeignHandover | Self::BrokenOff => StatusCode::BAD_REQUEST,
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NoEngine(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Engine { reason, .. } => match reason {
                LegError::Silent(_) => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            },
            Self::NoSuchPath(_) => StatusCode::NOT_FOUND,
        }
    }
}

/// An error in the form of the OpenAI interface.
pub(crate) fn document(status: StatusCode, message: &str) -> String {
    let kind = if status.is_client_error() {
        "invalid_request_error"
    } else {
        "server_error"
    };
    json!({"error": {"message": message, "type": kind, "code": status.as_u16()}}).to_string()
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = self.status();
        let text = document(status, &self.to_string());
        let mut response = (status, [(CONTENT_TYPE, "application/json")], text).into_response();
        if matches!(self, Self::Busy(_) | Self::NoEngine(_)) {
            let soon = hyper::header::HeaderValue::from_static("1");
            response.headers_mut().insert(RETRY_AFTER, soon);
        }
        response
    }
}

//! What becomes of one request: one line of the log and one count, when it is over.
//!
//! Begun by `routes`, filled by `dispatch`, ended by `relay`. A request that nobody ends was given
//! up by its client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use tracing::info;

use crate::metrics::{Metrics, Outcome, add};

/// One request.
#[derive(Debug)]
pub(crate) struct Record {
    metrics: Arc<Metrics>,
    id: String,
    path: String,
    begun: Instant,
    outcome: Outcome,
    status: Option<StatusCode>,
    reason: Option<String>,
    prefill: Option<String>,
    decode: Option<String>,
    prefill_time: Option<Duration>,
    first_byte: Option<Duration>,
    handed_over: bool,
    retries: u32,
}

impl Record {
    /// A request has come.
    pub(crate) fn begin(metrics: Arc<Metrics>, id: &str, path: &str) -> Self {
        Self {
            metrics,
            id: id.to_owned(),
            path: path.to_owned(),
            begun: Instant::now(),
            outcome: Outcome::Gone,
            status: None,
            reason: None,
            prefill: None,
            decode: None,
            prefill_time: None,
            first_byte: None,
            handed_over: false,
            retries: 0,
        }
    }

    /// Prefill has answered, `time` after it was asked.
    pub(crate) fn prefilled(&mut self, engine: &str, time: Duration) {
        self.metrics.prefill.add(time);
        self.prefill = Some(engine.to_owned());
        self.prefill_time = Some(time);
    }

    /// Prefill is asked at once with decode.
    pub(crate) fn asking(&mut self, engine: &str) {
        self.prefill = Some(engine.to_owned());
    }

    /// What decode is asked brings what prefill has computed, or not.
    pub(crate) fn handed_over(&mut self, handed_over: bool) {
        add(if handed_over {
            &self.metrics.handovers
        } else {
            &self.metrics.without_handover
        });
        self.handed_over = handed_over;
    }

    /// Another engine is asked, for what was wrong with one.
    pub(crate) fn retried(&mut self, reason: &str) {
        add(&self.metrics.retries);
        self.retries += 1;
        self.reason = Some(reason.to_owned());
    }

    /// The first byte of an engine's answer is there.
    pub(crate) fn answering(&mut self, engine: &str, status: StatusCode) {
        let time = self.begun.elapsed();
        self.metrics.first_byte.add(time);
        self.first_byte = Some(time);
        self.decode = Some(engine.to_owned());
        self.status = Some(status);
    }

    /// The answer is whole.
    pub(crate) fn answered(&mut self) {
        self.outcome = Outcome::Answered;
    }

    /// The proxy says no.
    pub(crate) fn refused(&mut self, status: StatusCode, reason: &str) {
        self.outcome = Outcome::Refused;
        self.status = Some(status);
        self.reason = Some(reason.to_owned());
    }

    /// The answer broke off.
    pub(crate) fn cut(&mut self, reason: &str) {
        self.outcome = Outcome::Cut;
        self.reason = Some(reason.to_owned());
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.metrics.ended(self.outcome);
        info!(
            request = self.id,
            path = self.path,
            outcome = self.outcome.name(),
            status = self.status.map(|status| status.as_u16()),
            reason = self.reason,
            prefill = self.prefill,
            decode = self.decode,
            handed_over = self.handed_over,
            retries = self.retries,
            prefill_ms = self.prefill_time.map(millis),
            first_byte_ms = self.first_byte.map(millis),
            total_ms = millis(self.begun.elapsed()),
            "request"
        );
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

//! What a proxy counts, and its text for Prometheus.
//!
//! `record` counts each request once, when it is over; gauges are read when they are asked for.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::pool::Pool;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// An engine's answer reached the client whole, whatever it said.
    Answered,
    /// The proxy itself said no.
    Refused,
    /// The answer broke off after it had begun.
    Cut,
    /// The client went before the end.
    Gone,
}

const OUTCOMES: [Outcome; 4] = [
    Outcome::Answered,
    Outcome::Refused,
    Outcome::Cut,
    Outcome::Gone,
];

/// A sum of times, and of how many.
#[derive(Debug, Default)]
pub(crate) struct Times {
    micros: AtomicU64,
    count: AtomicU64,
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    outcomes: [AtomicU64; OUTCOMES.len()],
    /// Requests whose prompt was handed over.
    pub(crate) handovers: AtomicU64,
    /// Requests that decode computed by itself, because no prefill engine gave it anything.
    pub(crate) without_handover: AtomicU64,
    /// Legs that were asked of another engine.
    pub(crate) retries: AtomicU64,
    /// Of prefill's legs.
    pub(crate) prefill: Times,
    /// From a request to the first byte of its answer.
    pub(crate) first_byte: Times,
}

impl Metrics {
    /// A request is over.
    pub(crate) fn ended(&self, outcome: Outcome) {
        add(&self.outcomes[outcome as usize]);
    }

    /// The text for Prometheus.
    pub(crate) fn text(&self, pools: [&Pool; 2], requests: usize) -> String {
        let mut text = String::new();
        head(
            &mut text,
            "requests_total",
            "counter",
            "Requests that are over, by their end",
        );
        for outcome in OUTCOMES {
            let count = self.outcomes[outcome as usize].load(Ordering::Relaxed);
            let name = outcome.name();
            line(
                &mut text,
                "requests_total",
                &format!("{{outcome=\"{name}\"}}"),
                count,
            );
        }
        let counters = [
            (
                "handovers_total",
                "Requests handed over from prefill",
                &self.handovers,
            ),
            (
                "without_handover_total",
                "Requests that decode computed without prefill",
                &self.without_handover,
            ),
            (
                "retries_total",
                "Legs that were asked of another engine",
                &self.retries,
            ),
        ];
        for (name, what, counter) in counters {
            head(&mut text, name, "counter", what);
            line(&mut text, name, "", counter.load(Ordering::Relaxed));
        }
        self.prefill
            .text(&mut text, "prefill_seconds", "Prefill's legs");
        self.first_byte.text(
            &mut text,
            "first_byte_seconds",
            "Requests, to their first byte",
        );
        head(&mut text, "requests", "gauge", "Requests under way");
        line(&mut text, "requests", "", requests);
        head(
            &mut text,
            "engine_healthy",
            "gauge",
            "Whether an engine is healthy",
        );
        engines(&mut text, "engine_healthy", pools, |engine| {
            usize::from(engine.is_healthy())
        });
        head(
            &mut text,
            "engine_requests",
            "gauge",
            "Requests under way at an engine",
        );
        engines(
            &mut text,
            "engine_requests",
            pools,
            crate::pool::Engine::turns,
        );
        text
    }
}

impl Outcome {
    /// The word for it, in metrics and in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Cut => "cut",
            Self::Gone => "gone",
        }
    }
}

impl Times {
    /// One more.
    pub(crate) fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        add(&self.count);
    }

    fn text(&self, text: &mut String, name: &str, what: &str) {
        head(text, name, "summary", what);
        let seconds = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        line(text, &format!("{name}_sum"), "", seconds);
        line(
            text,
            &format!("{name}_count"),
            "",
            self.count.load(Ordering::Relaxed),
        );
    }
}

/// Adds one.
pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn head(text: &mut String, name: &str, kind: &str, what: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP tessera_proxy_{name} {what}.");
    let _ = writeln!(text, "# TYPE tessera_proxy_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "tessera_proxy_{name}{labels} {value}");
}

fn engines(
    text: &mut String,
    name: &str,
    pools: [&Pool; 2],
    value: impl Fn(&crate::pool::Engine) -> usize,
) {
    for pool in pools {
        for engine in pool.engines() {
            let (role, at) = (pool.role, engine.authority());
            line(
                text,
                name,
                &format!("{{role=\"{role}\",engine=\"{at}\"}}"),
                value(engine),
            );
        }
    }
}

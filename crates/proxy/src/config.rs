//! What a proxy is told: where it listens, the engines of either kind, and its limits.
//!
//! Made by the binary; everything else here only reads it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Authority;
use thiserror::Error;

/// The longest address of an inbox, bytes.
const INBOX_BYTES_MAX: usize = 256;

/// How prefill and decode share a prompt.
#[derive(Debug, Clone)]
pub enum Mode {
    /// One after the other: prefill's answer names what decode pulls.
    Read,
    /// Both at once: they meet by a pass, and prefill writes what decode waits for.
    Write(Passes),
}

/// Writes passes: each is for one request, and for a prefill engine that takes tickets at the inbox
/// that is given. Whoever makes it has the engines' key; nothing here sees it.
#[derive(Clone)]
pub struct Passes(Arc<Mint>);

type Mint = dyn Fn(&str) -> io::Result<String> + Send + Sync;

/// Where a prefill engine takes tickets: `HOST:PORT`, its option `peer_inbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox(String);

/// Text that is no inbox.
#[derive(Debug, Error)]
#[error("{0:?} is no inbox: give HOST:PORT, which is the prefill engine's option peer_inbox")]
pub struct InvalidInbox(String);

/// An engine's address: `http://HOST:PORT`. TLS ends elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream(String);

/// Text that is no address of an engine.
#[derive(Debug, Error)]
#[error("{0:?} is no address of an engine: give http://HOST:PORT, without a path")]
pub struct InvalidUpstream(String);

/// A proxy's engines and limits.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Where clients connect; port 0 takes a free one.
    pub listen: SocketAddr,
    /// How both engines share a prompt.
    pub mode: Mode,
    /// Engines that compute prompts.
    pub prefill: Vec<Upstream>,
    /// Where each of them takes tickets, in the same order; empty where nothing is written.
    pub inboxes: Vec<Inbox>,
    /// Engines that answer. Each can compute a prompt by itself, and does when no prefill can.
    pub decode: Vec<Upstream>,
    /// What bounds a request.
    pub limits: Limits,
}

/// What bounds requests and engines.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Requests at once; one more is refused with 429.
    pub requests: usize,
    /// Connections of clients at once; one more waits.
    pub connections: usize,
    /// Engines that are asked for one leg of one request.
    pub attempts: usize,
    /// For a client to send what it asks.
    pub receive: Duration,
    /// For a connection to an engine.
    pub connect: Duration,
    /// For the first byte of an engine's answer, and for the whole of prefill's.
    pub answer: Duration,
    /// Between two pieces of an answer.
    pub silence: Duration,
    /// Between two questions after an engine's health.
    pub health: Duration,
    /// For the answer to one.
    pub health_answer: Duration,
    /// For answers under way, when the proxy is told to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            requests: 1024,
            connections: 4096,
            attempts: 3,
            receive: Duration::from_secs(30),
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(1800),
            silence: Duration::from_secs(120),
            health: Duration::from_secs(2),
            health_answer: Duration::from_secs(2),
            drain: Duration::from_secs(60),
        }
    }
}

impl Passes {
    /// `mint` gets an inbox and answers a pass, never the same one again.
    pub fn new(mint: impl Fn(&str) -> io::Result<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(mint))
    }

    /// A pass for one request.
    pub(crate) fn mint(&self, inbox: &Inbox) -> io::Result<String> {
        (self.0)(&inbox.0)
    }
}

/// Shows nothing of what it has.
impl fmt::Debug for Passes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Passes")
    }
}

impl FromStr for Inbox {
    type Err = InvalidInbox;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let authority = text.parse::<Authority>().ok();
        let port = authority.as_ref().and_then(Authority::port_u16);
        let plain = text.len() <= INBOX_BYTES_MAX && !text.contains('@');
        match port {
            Some(1..) if plain => Ok(Self(text.to_owned())),
            _ => Err(InvalidInbox(text.to_owned())),
        }
    }
}

impl Upstream {
    /// `HOST:PORT`.
    pub(crate) fn authority(&self) -> &str {
        &self.0
    }
}

impl FromStr for Upstream {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidUpstream(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        let plain = uri.scheme_str() == Some("http")
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
            && !authority.as_str().contains('@');
        // Without a port a name would mean another one than people expect of an engine.
        if !plain || authority.port().is_none() {
            return Err(invalid());
        }
        Ok(Self(authority.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_and_nothing_else() {
        for good in [
            "http://127.0.0.1:8000",
            "http://engine.local:1/",
            "http://[::1]:80",
        ] {
            assert!(good.parse::<Upstream>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1:8000",
            "http://engine",
            "https://engine:1",
            "http://engine:1/v1",
            "http://engine:1/?a",
            "http://me@engine:1",
            "/health",
        ] {
            assert!(bad.parse::<Upstream>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_inbox_is_a_host_and_a_port_and_nothing_else() {
        for good in ["127.0.0.1:7500", "engine.local:1", "[::1]:80"] {
            assert!(good.parse::<Inbox>().is_ok(), "{good}");
        }
        let long = format!("{}:1", "a".repeat(INBOX_BYTES_MAX));
        for bad in [
            "",
            "engine",
            "engine:0",
            ":",
            "http://engine:1",
            "engine:1/x",
            "a@b:1",
            &long,
        ] {
            assert!(bad.parse::<Inbox>().is_err(), "{bad}");
        }
    }
}

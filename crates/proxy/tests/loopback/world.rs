//! A proxy before fake engines, and clients of it.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tessera_proxy::{Limits, Mode, Passes, Proxy, ProxyConfig, RunningProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::engine::FakeEngine;

/// Longer than anything here takes, and a failure of the test.
const SOON: Duration = Duration::from_secs(30);

/// Waits for what must come.
pub(crate) async fn soon<T>(it: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, it)
        .await
        .expect("it did not come")
}

/// Limits that no test reaches by itself.
pub(crate) fn limits() -> Limits {
    Limits {
        health: Duration::from_millis(20),
        health_answer: SOON,
        ..Limits::default()
    }
}

/// A proxy, and as many engines of either kind as the test wants.
pub(crate) struct World {
    pub(crate) proxy: RunningProxy,
    pub(crate) prefill: Vec<FakeEngine>,
    pub(crate) decode: Vec<FakeEngine>,
}

impl World {
    pub(crate) async fn start(prefill: usize, decode: usize, limits: Limits) -> Self {
        Self::start_in(Mode::Read, prefill, decode, limits).await
    }

    /// Asks both engines at once. Passes count from 1, and name the inbox that they are for.
    pub(crate) async fn writing(prefill: usize, decode: usize, limits: Limits) -> Self {
        let count = AtomicU64::new(1);
        let mint = move |inbox: &str| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            Ok(format!("pass {number} to {inbox}"))
        };
        Self::start_in(Mode::Write(Passes::new(mint)), prefill, decode, limits).await
    }

    /// As [`writing`](Self::writing), by who cannot sign.
    pub(crate) async fn without_passes() -> Self {
        let passes = Passes::new(|_| Err(io::Error::other("no randomness")));
        Self::start_in(Mode::Write(passes), 1, 1, limits()).await
    }

    async fn start_in(mode: Mode, prefill: usize, decode: usize, limits: Limits) -> Self {
        let (prefill, decode) = (engines(prefill).await, engines(decode).await);
        let urls = |engines: &[FakeEngine]| {
            let urls = engines.iter().map(|engine| engine.url().parse());
            urls.collect::<Result<_, _>>().expect("addresses")
        };
        let inboxes = match mode {
            Mode::Read => Vec::new(),
            Mode::Write(_) => prefill.iter().map(FakeEngine::inbox).collect(),
        };
        let config = ProxyConfig {
            listen: "127.0.0.1:0".parse().expect("an address"),
            mode,
            inboxes,
            prefill: urls(&prefill),
            decode: urls(&decode),
            limits,
        };
        let proxy = Proxy::start(config).await.expect("a free port");
        Self {
            proxy,
            prefill,
            decode,
        }
    }

    /// One engine of either kind.
    pub(crate) async fn pair() -> Self {
        Self::start(1, 1, limits()).await
    }

    /// A client that asks for a completion.
    pub(crate) async fn ask(&self, body: &Value) -> Client {
        self.send("POST /v1/completions", "", &body.to_string())
            .await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), "", "")
            .await
            .whole()
            .await
    }

    /// A client that sends a request with more headers, each ended by a line break.
    pub(crate) async fn send(&self, line: &str, headers: &str, body: &str) -> Client {
        let mut client = self.connect().await;
        let length = body.len();
        client
            .write(&format!(
                "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\
                 content-length: {length}\r\n\r\n{body}"
            ))
            .await;
        client
    }

    pub(crate) async fn connect(&self) -> Client {
        let socket = TcpStream::connect(self.proxy.address()).await;
        Client {
            socket: socket.expect("the proxy listens"),
            read: String::new(),
        }
    }

    /// The first prefill engine offers the prompt that it is asked for.
    pub(crate) async fn offer(&mut self) {
        let asked = self.prefill[0].next().await;
        let handover = json!({"kv_transfer_params": handover()});
        asked.answer(200, &handover).await;
    }

    /// A counter or a gauge of the proxy.
    pub(crate) async fn metric(&self, name: &str) -> String {
        let text = self.get("/metrics").await.body;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .to_owned()
    }

    /// Waits until a metric has a value.
    pub(crate) async fn until(&self, name: &str, value: &str) {
        soon(async {
            while self.metric(name).await != value {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn engines(count: usize) -> Vec<FakeEngine> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(FakeEngine::start().await);
    }
    engines
}

/// What a prefill engine passes on.
pub(crate) fn handover() -> Value {
    json!({"do_remote_prefill": true, "tessera_ticket": "sealed", "remote_block_ids": [[1]]})
}

/// A client's connection. Dropped, the client is gone.
pub(crate) struct Client {
    socket: TcpStream,
    read: String,
}

/// An answer, up to the end of its connection.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Client {
    pub(crate) async fn write(&mut self, text: &str) {
        self.socket
            .write_all(text.as_bytes())
            .await
            .expect("the proxy listens");
    }

    /// Reads until the text has come.
    pub(crate) async fn until(&mut self, text: &str) {
        while !self.read.contains(text) {
            assert!(
                self.more().await,
                "{text:?} did not come, but {:?}",
                self.read
            );
        }
    }

    /// Reads to the end of the connection.
    pub(crate) async fn whole(mut self) -> Answer {
        while self.more().await {}
        let (head, body) = self.read.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status");
        Answer {
            status: status.parse().expect("a number"),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// Waits for the end of the connection.
    pub(crate) async fn ended(mut self) {
        while self.more().await {}
    }

    async fn more(&mut self) -> bool {
        let mut piece = vec![0; 1 << 16];
        let count = soon(self.socket.read(&mut piece)).await.unwrap_or(0);
        self.read
            .push_str(&String::from_utf8_lossy(&piece[..count]));
        count > 0
    }
}

impl Answer {
    /// Whether its sender has said that it is over.
    pub(crate) fn is_ended(&self) -> bool {
        self.body.ends_with("0\r\n\r\n")
    }
}

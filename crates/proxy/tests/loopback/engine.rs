//! An engine of which the test decides what it says, byte by byte, and when it goes.
//!
//! Used by every test here. Questions after its health are answered by itself, everything else
//! waits for the test.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tessera_proxy::Inbox;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::world::soon;

/// One engine.
pub(crate) struct FakeEngine {
    address: SocketAddr,
    well: Arc<AtomicBool>,
    heard: mpsc::UnboundedReceiver<Heard>,
    accepting: JoinHandle<()>,
}

/// A request that waits for its answer. Dropped, it ends the connection.
pub(crate) struct Heard {
    pub(crate) head: String,
    pub(crate) body: Value,
    socket: TcpStream,
}

impl FakeEngine {
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().expect("an address")).await
    }

    async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let well = Arc::new(AtomicBool::new(true));
        let (tell, heard) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(accept(listener, Arc::clone(&well), tell));
        Self {
            address,
            well,
            heard,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it takes tickets, which no test brings.
    pub(crate) fn inbox(&self) -> Inbox {
        self.address.to_string().parse().expect("an inbox")
    }

    /// What it says when it is asked after its health.
    pub(crate) fn set_well(&self, well: bool) {
        self.well.store(well, Ordering::Relaxed);
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> Heard {
        soon(self.heard.recv()).await.expect("the engine runs")
    }

    /// Whether it was asked anything that the test has not taken.
    pub(crate) fn was_asked(&mut self) -> bool {
        self.heard.try_recv().is_ok()
    }

    /// Nobody listens there any more.
    pub(crate) async fn end(self) {
        self.accepting.abort();
        let _ = self.accepting.await;
    }
}

impl Heard {
    /// A whole answer.
    pub(crate) async fn answer(mut self, status: u16, body: &Value) {
        let body = body.to_string();
        let kind = "content-type: application/json\r\nconnection: close";
        let length = body.len();
        let text =
            format!("HTTP/1.1 {status} x\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}");
        self.say(&text).await;
    }

    /// The head of a stream of events, and nothing of it.
    pub(crate) async fn begin_events(&mut self) {
        self.begin("text/event-stream").await;
    }

    /// The head of an answer that comes in pieces.
    pub(crate) async fn begin(&mut self, kind: &str) {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close");
        self.say(&format!("{head}\r\ntransfer-encoding: chunked\r\n\r\n"))
            .await;
    }

    pub(crate) async fn event(&mut self, text: &str) {
        let event = format!("data: {text}\n\n");
        self.say(&format!("{:x}\r\n{event}\r\n", event.len())).await;
    }

    pub(crate) async fn end_events(mut self) {
        self.say("0\r\n\r\n").await;
    }

    /// Whether the proxy still waits for an answer, as far as can be seen.
    pub(crate) fn is_awaited(&self) -> bool {
        let mut byte = [0; 1];
        let read = self.socket.try_read(&mut byte);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits until the proxy has gone.
    pub(crate) async fn gone(mut self) {
        let mut byte = [0; 1];
        let end = soon(self.socket.read(&mut byte)).await;
        assert!(matches!(end, Ok(0) | Err(_)), "nothing more is asked here");
    }

    async fn say(&mut self, text: &str) {
        self.socket
            .write_all(text.as_bytes())
            .await
            .expect("the proxy listens");
    }
}

async fn accept(listener: TcpListener, well: Arc<AtomicBool>, tell: mpsc::UnboundedSender<Heard>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (well, tell) = (Arc::clone(&well), tell.clone());
        tokio::spawn(async move {
            let Some(heard) = read(socket).await else {
                return;
            };
            if heard.head.starts_with("GET /health ") {
                let status = if well.load(Ordering::Relaxed) {
                    200
                } else {
                    503
                };
                heard.answer(status, &Value::Null).await;
            } else {
                // The test may be over.
                let _ = tell.send(heard);
            }
        });
    }
}

/// Reads one request; None if the proxy goes first.
async fn read(mut socket: TcpStream) -> Option<Heard> {
    let mut text = Vec::new();
    loop {
        let found = text.windows(4).position(|end| end == b"\r\n\r\n");
        if let Some(end) = found {
            let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
            let head = head.replacen("get", "GET", 1).replacen("post", "POST", 1);
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
            if text.len() >= end + 4 + length {
                let body = serde_json::from_slice(&text[end + 4..]).unwrap_or(Value::Null);
                return Some(Heard { head, body, socket });
            }
        }
        if socket.read_buf(&mut text).await.ok()? == 0 {
            return None;
        }
    }
}

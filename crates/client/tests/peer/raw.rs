//! Another engine by hand: frames as a test writes them.

use tessera_client::Incarnation;
use tessera_proto::message::{
    Features, PEER_QUIESCENCE, PeerGroup, PeerHello, PeerHelloAnswer, PeerSetup, Refused,
};
use tessera_proto::{FRAME_HEADER_BYTES, FrameHeader, Kind, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::worker::Worker;

/// A connection.
pub(crate) struct Raw {
    stream: TcpStream,
}

/// The process start by which a raw engine calls itself.
pub(crate) const STRANGER: Incarnation = Incarnation(0xbad);

/// What an engine must say to be let in to `worker`.
pub(crate) fn hello(worker: &Worker) -> PeerHello {
    let kinds = ["full", "window of 6 tokens", "state"];
    let tokens = [4, 4, 8];
    let group = |group: usize| PeerGroup {
        kind: kinds[group].into(),
        block_tokens: tokens[group],
        block_bytes: worker.layout.payload_bytes(group, 1),
        fingerprint: worker.layout.fingerprint(group),
    };
    PeerHello {
        features: PEER_QUIESCENCE,
        from: STRANGER,
        to: worker.driver.incarnation(),
        rank: 0,
        connection_min: 2,
        setup: PeerSetup {
            model: "m".into(),
            revision: "1".into(),
            dtype: "bfloat16".into(),
            speculative: String::new(),
            topology: Topology::SINGLE,
            piece_bytes: 500,
            groups: (0..worker.groups()).map(group).collect(),
        },
    }
}

pub(crate) const NO_FEATURES: Features = Features(0);

impl Raw {
    pub(crate) async fn dial(worker: &Worker) -> Self {
        let address = worker.driver.address().to_string();
        let stream = TcpStream::connect(address).await.unwrap();
        Self { stream }
    }

    /// A connection that has shaken hands, and its number.
    pub(crate) async fn connected(worker: &Worker) -> (Self, u64) {
        let mut raw = Self::dial(worker).await;
        raw.hello(&hello(worker)).await;
        let (kind, body, _) = raw.frame().await.expect("an answer");
        assert_eq!(kind, Kind::PeerHelloAnswer);
        let answer = PeerHelloAnswer::decode(&body).unwrap();
        assert_eq!(answer.from, worker.driver.incarnation());
        (raw, answer.connection)
    }

    pub(crate) async fn hello(&mut self, hello: &PeerHello) {
        let mut body = Vec::new();
        hello.encode(&mut body);
        self.send(Kind::PeerHello, &body, &[]).await;
    }

    pub(crate) async fn send(&mut self, kind: Kind, body: &[u8], payload: &[u8]) {
        let header = FrameHeader {
            kind,
            request: 0,
            deadline_ms: 0,
            body_bytes: u32::try_from(body.len()).unwrap(),
            payload_bytes: payload.len() as u64,
        };
        self.write(&header.encode()).await;
        self.write(body).await;
        self.write(payload).await;
    }

    /// Bytes as they are. The other side may have closed already.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next frame: kind, body and payload. `None` at the end of the connection.
    pub(crate) async fn frame(&mut self) -> Option<(Kind, Vec<u8>, Vec<u8>)> {
        let mut head = [0; FRAME_HEADER_BYTES];
        self.stream.read_exact(&mut head).await.ok()?;
        let header = FrameHeader::decode(&head).unwrap();
        let mut body = vec![0; header.body_bytes as usize];
        self.stream.read_exact(&mut body).await.ok()?;
        let mut payload = vec![0; usize::try_from(header.payload_bytes).unwrap()];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some((header.kind, body, payload))
    }

    /// The refusal that comes next, and nothing after it.
    pub(crate) async fn refusal(&mut self) -> Refused {
        let (kind, body, _) = self.frame().await.expect("a refusal");
        assert_eq!(kind, Kind::Refused);
        assert!(self.frame().await.is_none(), "the connection goes on");
        Refused::decode(&body).unwrap()
    }

    /// Waits for the end, whatever comes before it.
    pub(crate) async fn end(&mut self) {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest).await;
    }
}

//! Another engine by hand: frames as a test writes them.

use tessera_client::Incarnation;
use tessera_client::peer::{Mode, PartOrder, Side, TransferOrder};
use tessera_lifecycle::RequestKey;
use tessera_proto::message::{
    Features, PEER_QUIESCENCE, PartName, PeerGroup, PeerHello, PeerHelloAnswer, PeerPush,
    PeerSetup, Refused,
};
use tessera_proto::peer::{
    Attempt, ConnectionId, Frame, LentPart, Message, PartAttempt, PartId, TransferId,
};
use tessera_proto::{FRAME_HEADER_BYTES, FrameHeader, Kind, Topology, checksum};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::worker::{Worker, part};

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
        heads: 0,
        head_fingerprint: worker.layout.head_fingerprint(group),
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
            weights: "c001".into(),
            tenant: "a".into(),
            dtype: "bfloat16".into(),
            speculative: String::new(),
            layout: [0; 32],
            topology: Topology::SINGLE,
            peer_tp: 1,
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

pub(crate) fn name(transfer: u128) -> PartName {
    let part = PartId {
        source: 0,
        destination: 0,
        index: 0,
    };
    let attempt = Attempt(1);
    PartName {
        transfer: TransferId(transfer),
        at: PartAttempt { part, attempt },
    }
}

/// A raw engine that writes blocks 1 to 4 of the first group: two pieces of two blocks.
pub(crate) struct Pusher {
    pub(crate) raw: Raw,
    named: PartName,
    to: Incarnation,
    connection: ConnectionId,
    sequence: u64,
}

impl Pusher {
    pub(crate) const PIECE_BYTES: usize = 384;

    /// Orders the transfer at `worker`, connects, and claims the blocks.
    pub(crate) async fn claim(worker: &Worker) -> Self {
        let table: Vec<_> = (1..5).map(|at| (0, at, at)).collect();
        let blocks = part((0, 0), 0, &table).destination;
        let named = name(7);
        let (raw, connection) = Raw::connected(worker).await;
        worker.driver.order(&TransferOrder {
            transfer: named.transfer,
            request: RequestKey(7),
            mode: Mode::Write,
            side: Side::Destination,
            synchronous: false,
            parts: vec![PartOrder {
                part: named.at.part,
                peer: Some(STRANGER),
                local: blocks.clone(),
                remote: Vec::new(),
                length_bytes: 2 * Self::PIECE_BYTES as u64,
                ready: true,
            }],
            timeout_ms: 20_000,
            lease_ms: 20_000,
        });
        let mut pusher = Self {
            raw,
            named,
            to: worker.driver.incarnation(),
            connection: ConnectionId(connection),
            sequence: 0,
        };
        let parts = vec![LentPart {
            at: named.at,
            blocks,
        }];
        let transfer = named.transfer;
        pusher.say(Message::Claim { transfer, parts }).await;
        pusher
    }

    pub(crate) async fn say(&mut self, message: Message) {
        self.sequence += 1;
        let mut body = Vec::new();
        let frame = Frame {
            from: STRANGER,
            to: self.to,
            connection: self.connection,
            sequence: self.sequence,
            acknowledged: 0,
            message,
        };
        frame.encode(&mut body);
        self.raw.send(Kind::PeerControl, &body, &[]).await;
    }

    /// Says that all has landed.
    pub(crate) async fn done(&mut self) {
        let (transfer, at) = (self.named.transfer, self.named.at);
        self.say(Message::DataDone { transfer, at }).await;
    }

    pub(crate) async fn push(&mut self, piece: u32, bytes: &[u8]) {
        let mut body = Vec::new();
        let push = PeerPush {
            part: self.named,
            piece,
            last: piece == 1,
            checksum: checksum(bytes),
        };
        push.encode(&mut body);
        self.raw.send(Kind::PeerPush, &body, bytes).await;
    }
}

//! A node on a free port, and a client that speaks the wire by hand: it can do what the product's
//! own client never would.
//!
//! Called by the tests of this folder. Every wait is bounded by `PATIENCE`.

use std::time::Duration;

use tessera_node::{Address, Node, NodeConfig, RunningNode};
use tessera_proto::message::{
    Acquire, AcquireAnswer, Features, Get, GetAnswer, Hello, HelloAnswer, Put, PutAnswer,
    PutStatus, Refused,
};
use tessera_proto::{
    FrameHeader, Incarnation, KeyDigest, Kind, LeaseId, NamespaceDigest, ObjectHeader, ObjectId,
    PROTOCOL_VERSION, TenantTag, WriteId, checksum,
};
use tessera_transport::{Link, LinkError, Payload, Receiver, Sender};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn config() -> NodeConfig {
    NodeConfig::new("127.0.0.1:0".parse().expect("an address"), 64 * MIB)
}

/// With room for objects of 16 MiB, which no socket takes at once.
pub(crate) fn roomy() -> NodeConfig {
    NodeConfig::new("127.0.0.1:0".parse().expect("an address"), 128 * MIB)
}

pub(crate) async fn start(config: NodeConfig) -> RunningNode {
    Node::start(config).await.expect("the node starts")
}

pub(crate) async fn stop(mut node: RunningNode) {
    node.shutdown();
    tokio::time::timeout(PATIENCE, node.wait())
        .await
        .expect("the node stops in time");
}

/// The number with this name.
pub(crate) fn stat(node: &RunningNode, name: &str) -> u64 {
    let entries = node.stat();
    let entry = entries.iter().find(|entry| entry.name == name);
    entry
        .unwrap_or_else(|| panic!("no number {name} among {entries:?}"))
        .value
}

/// Waits until the number with this name is `value`.
pub(crate) async fn until_stat(node: &RunningNode, name: &str, value: u64) {
    let deadline = Instant::now() + PATIENCE;
    while stat(node, name) != value {
        assert!(
            Instant::now() < deadline,
            "{name} is {} and not {value}",
            stat(node, name)
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// An object of `length` bytes, all different for different seeds.
pub(crate) fn object(seed: u64, length: usize) -> (ObjectHeader, Vec<u8>) {
    let mut bytes = vec![0; length];
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed + 1);
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let header = ObjectHeader {
        namespace: NamespaceDigest([7; 32]),
        key: KeyDigest(key),
        layout: 1,
        length_bytes: length as u64,
        checksum: checksum(&bytes),
        write: WriteId(seed + 1),
        tenant: TenantTag::NONE,
    };
    (header, bytes)
}

fn hello(version_min: u16, version_max: u16) -> Hello {
    let (features, incarnation) = (Features::default(), Incarnation(1));
    Hello {
        version_min,
        version_max,
        features,
        incarnation,
        name: "a test".to_owned(),
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) header: FrameHeader,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Reply {
    pub(crate) fn refusal(&self) -> Refused {
        assert_eq!(self.header.kind, Kind::Refused, "{self:?}");
        Refused::decode(&self.body).expect("a refusal")
    }
}

pub(crate) struct Client {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// What the next request says of the client's patience.
    pub(crate) deadline_ms: u32,
    next: u64,
}

impl Client {
    /// Connected, and nothing said.
    pub(crate) async fn silent(address: &Address) -> Self {
        let (sender, receiver) = Link::connect(address, Instant::now() + PATIENCE)
            .await
            .expect("the node accepts");
        Self {
            sender,
            receiver,
            deadline_ms: 10_000,
            next: 1,
        }
    }

    /// Connected and greeted.
    pub(crate) async fn connect(address: &Address) -> Self {
        let mut client = Self::silent(address).await;
        client.hello(PROTOCOL_VERSION, PROTOCOL_VERSION).await;
        let reply = client.reply().await;
        assert_eq!(reply.header.kind, Kind::HelloAnswer, "{reply:?}");
        HelloAnswer::decode(&reply.body).expect("an answer to HELLO");
        client
    }

    pub(crate) async fn hello(&mut self, version_min: u16, version_max: u16) -> u64 {
        let hello = hello(version_min, version_max);
        self.request(Kind::Hello, |body| hello.encode(body), &[])
            .await
    }

    /// Sends a request and returns its id.
    pub(crate) async fn request(
        &mut self,
        kind: Kind,
        encode: impl FnOnce(&mut Vec<u8>),
        payload: &[u8],
    ) -> u64 {
        let request = self.next;
        self.next += 1;
        let mut body = Vec::new();
        encode(&mut body);
        let header = FrameHeader {
            kind,
            request,
            deadline_ms: self.deadline_ms,
            body_bytes: u32::try_from(body.len()).expect("a small body"),
            payload_bytes: payload.len() as u64,
        };
        let deadline = Instant::now() + PATIENCE;
        self.sender
            .send(&header, &body, Payload::Bytes(payload), deadline)
            .await
            .expect("the node takes the request");
        request
    }

    pub(crate) async fn try_reply(&mut self) -> Result<Reply, LinkError> {
        let deadline = Instant::now() + PATIENCE;
        let header = self.receiver.header(deadline).await?;
        let body = self.receiver.body(deadline).await?.to_vec();
        let mut payload = vec![0; usize::try_from(header.payload_bytes).expect("fits")];
        self.receiver.payload_into(&mut payload, deadline).await?;
        Ok(Reply {
            header,
            body,
            payload,
        })
    }

    pub(crate) async fn reply(&mut self) -> Reply {
        self.try_reply().await.expect("the node answers")
    }

    /// One request and its answer.
    pub(crate) async fn call(
        &mut self,
        kind: Kind,
        encode: impl FnOnce(&mut Vec<u8>),
        payload: &[u8],
    ) -> Reply {
        let request = self.request(kind, encode, payload).await;
        let reply = self.reply().await;
        assert_eq!(reply.header.request, request, "{reply:?}");
        reply
    }

    pub(crate) async fn put(&mut self, header: ObjectHeader, payload: &[u8]) -> PutStatus {
        let reply = self
            .call(Kind::Put, |body| Put { header }.encode(body), payload)
            .await;
        PutAnswer::decode(&reply.body)
            .expect("an answer to PUT")
            .status
    }

    pub(crate) async fn get(&mut self, get: Get) -> (GetAnswer, Vec<u8>) {
        let reply = self.call(Kind::Get, |body| get.encode(body), &[]).await;
        (
            GetAnswer::decode(&reply.body).expect("an answer to GET"),
            reply.payload,
        )
    }

    /// GET without a lease of what `header` says.
    pub(crate) async fn get_object(&mut self, header: &ObjectHeader) -> (GetAnswer, Vec<u8>) {
        self.get(Get {
            id: header.id(),
            lease: None,
            length_bytes: header.length_bytes,
        })
        .await
    }

    pub(crate) async fn acquire(&mut self, ids: Vec<ObjectId>, lease_ms: u32) -> AcquireAnswer {
        self.acquire_within(ids, lease_ms, u64::MAX).await
    }

    pub(crate) async fn acquire_within(
        &mut self,
        ids: Vec<ObjectId>,
        lease_ms: u32,
        bytes_max: u64,
    ) -> AcquireAnswer {
        let acquire = Acquire {
            lease_ms,
            bytes_max,
            ids,
        };
        let reply = self
            .call(Kind::Acquire, |body| acquire.encode(body), &[])
            .await;
        AcquireAnswer::decode(&reply.body).expect("an answer to ACQUIRE")
    }

    /// Asserts that the node closes the connection, whatever it said before.
    pub(crate) async fn expect_closed(&mut self) {
        loop {
            match self.try_reply().await {
                Ok(_) => {}
                Err(LinkError::Deadline) => panic!("the node keeps the connection"),
                Err(_) => return,
            }
        }
    }
}

pub(crate) fn lease_of(answer: &AcquireAnswer) -> LeaseId {
    answer.lease.expect("something is held")
}

/// The bytes of a whole PUT.
pub(crate) fn put_frame(object: ObjectHeader, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    Put { header: object }.encode(&mut body);
    let mut frame = frame_header(Kind::Put, body.len(), payload.len() as u64)
        .encode()
        .to_vec();
    frame.extend_from_slice(&body);
    frame.extend_from_slice(payload);
    frame
}

pub(crate) fn frame_header(kind: Kind, body: usize, payload_bytes: u64) -> FrameHeader {
    let body_bytes = u32::try_from(body).expect("a small body");
    FrameHeader {
        kind,
        request: 1,
        deadline_ms: 0,
        body_bytes,
        payload_bytes,
    }
}

/// A bare socket to the node.
pub(crate) async fn bare(address: &Address) -> TcpStream {
    let Address::Tcp(host_port) = address else {
        panic!("not TCP: {address}")
    };
    TcpStream::connect(host_port)
        .await
        .expect("the node accepts")
}

/// A bare socket that was greeted.
pub(crate) async fn raw(address: &Address) -> TcpStream {
    let mut stream = bare(address).await;
    let mut body = Vec::new();
    hello(PROTOCOL_VERSION, PROTOCOL_VERSION).encode(&mut body);
    write(
        &mut stream,
        &frame_header(Kind::Hello, body.len(), 0).encode(),
    )
    .await;
    write(&mut stream, &body).await;
    let mut header = [0; 64];
    stream.read_exact(&mut header).await.expect("an answer");
    let header = FrameHeader::decode(&header).expect("a header");
    assert_eq!(header.kind, Kind::HelloAnswer);
    let mut body = vec![0; header.body_bytes as usize];
    stream
        .read_exact(&mut body)
        .await
        .expect("the rest of the answer");
    stream
}

pub(crate) async fn write(stream: &mut TcpStream, bytes: &[u8]) {
    timeout(PATIENCE, stream.write_all(bytes))
        .await
        .expect("in time")
        .expect("the node reads");
}

/// Everything that the node still sends until it closes the connection.
pub(crate) async fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is as good as an end: the node may close with bytes unread.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .expect("the node closes");
    bytes
}

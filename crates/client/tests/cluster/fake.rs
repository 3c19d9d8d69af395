//! A node that does what a test says, and what the tests share.

use std::time::Duration;

use tessera_client::{
    CircuitState, Cluster, ClusterConfig, Expectation, FetchOutcome, Lent, NodeSpec, ObjectHeader,
    Region, Segments, TenantTag, Until, WriteId,
};
use tessera_proto::message::{Features, Get, GetAnswer, Hello, HelloAnswer};
use tessera_proto::{
    FRAME_HEADER_BYTES, FrameHeader, Incarnation, KeyDigest, Kind, NamespaceDigest, checksum,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

/// For what must happen: a test that waits this long has failed.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// A deadline that is never reached.
pub(crate) fn far() -> Instant {
    Instant::now() + BOUND * 2
}

/// A deadline that will be reached.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_millis(150)
}

/// Waits for something that must happen.
pub(crate) async fn must<T>(what: impl Future<Output = T>) -> T {
    timeout(BOUND, what).await.expect("did not happen in time")
}

/// Waits for a condition that must come true.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    must(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// A listening node.
pub(crate) struct Fake {
    listener: TcpListener,
    pub(crate) incarnation: u128,
    pub(crate) in_flight_max: u32,
    pub(crate) features: Features,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        Self::listening(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn listening(listener: TcpListener) -> Self {
        Self {
            listener,
            incarnation: 1,
            in_flight_max: 64,
            features: Features(0),
        }
    }

    pub(crate) fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    /// A cluster of this node alone, connected.
    pub(crate) async fn connected(&self) -> (Cluster, Peer) {
        let cluster = cluster(&[self.address()]);
        let peer = self.accept().await;
        (cluster, peer)
    }

    /// The next connection, after its handshake.
    pub(crate) async fn accept(&self) -> Peer {
        let mut peer = self.accept_silent().await;
        let hello = peer.request().await;
        assert_eq!(hello.header.kind, Kind::Hello);
        Hello::decode(&hello.body).unwrap();
        let answer = HelloAnswer {
            version: 1,
            features: self.features,
            incarnation: Incarnation(self.incarnation),
            object_bytes_max: 1 << 30,
            in_flight_max: self.in_flight_max,
        };
        peer.answer(hello.header.request, Kind::HelloAnswer, |body| {
            answer.encode(body);
        })
        .await;
        peer
    }

    /// The next connection, when the cluster knows of it too.
    pub(crate) async fn accept_again(&self, cluster: &Cluster) -> Peer {
        let peer = self.accept().await;
        until(|| cluster.metrics().nodes[0].circuit == CircuitState::Closed).await;
        peer
    }

    /// The next connection, without a word.
    pub(crate) async fn accept_silent(&self) -> Peer {
        let (stream, _) = must(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Peer { stream }
    }
}

/// The node's end of one connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
}

/// One frame from the client.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) header: FrameHeader,
    pub(crate) body: Vec<u8>,
}

impl Peer {
    /// Header and body of the next frame.
    pub(crate) async fn request(&mut self) -> Request {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        must(self.stream.read_exact(&mut bytes)).await.unwrap();
        let header = FrameHeader::decode(&bytes).unwrap();
        let mut body = vec![0; header.body_bytes as usize];
        must(self.stream.read_exact(&mut body)).await.unwrap();
        Request { header, body }
    }

    /// The payload of the frame whose header was read.
    pub(crate) async fn payload(&mut self, header: &FrameHeader) -> Vec<u8> {
        let mut payload = vec![0; usize::try_from(header.payload_bytes).unwrap()];
        must(self.stream.read_exact(&mut payload)).await.unwrap();
        payload
    }

    /// The id of the next request, which must be a GET.
    pub(crate) async fn get(&mut self) -> (u64, Get) {
        let request = self.request().await;
        assert_eq!(request.header.kind, Kind::Get);
        (request.header.request, Get::decode(&request.body).unwrap())
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        must(self.stream.write_all(bytes)).await.unwrap();
    }

    pub(crate) async fn answer(&mut self, id: u64, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) {
        let bytes = frame(id, kind, body, &[]);
        self.send(&bytes).await;
    }

    /// Answers a GET with the object.
    pub(crate) async fn found(&mut self, id: u64, object: &Object) {
        self.send(&object.answer(id)).await;
    }

    /// Waits for the client to end the connection.
    pub(crate) async fn ended(&mut self) {
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = must(self.stream.read_to_end(&mut rest)).await;
    }
}

/// An encoded frame.
pub(crate) fn frame(
    id: u64,
    kind: Kind,
    encode: impl FnOnce(&mut Vec<u8>),
    payload: &[u8],
) -> Vec<u8> {
    let mut body = Vec::new();
    encode(&mut body);
    let body_bytes = u32::try_from(body.len()).unwrap();
    let payload_bytes = payload.len() as u64;
    let header = FrameHeader {
        kind,
        request: id,
        deadline_ms: 0,
        body_bytes,
        payload_bytes,
    };
    let mut bytes = header.encode().to_vec();
    bytes.append(&mut body);
    bytes.extend_from_slice(payload);
    bytes
}

/// A cluster of the nodes at `addresses`, quick to try again.
pub(crate) fn cluster(addresses: &[String]) -> Cluster {
    let node = |address: &String| NodeSpec::new(address.parse().unwrap());
    let mut config = ClusterConfig::new(addresses.iter().map(node).collect());
    config.connect_timeout = Duration::from_millis(300);
    config.health.backoff_min = Duration::from_millis(5);
    config.health.backoff_max = Duration::from_millis(40);
    Cluster::start(config, &Handle::current())
}

/// One object with its bytes.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) header: ObjectHeader,
    pub(crate) bytes: Vec<u8>,
}

impl Object {
    pub(crate) fn new(number: u8, length: usize) -> Self {
        let cycle: Vec<u8> = (0..251).map(|n: u8| n.wrapping_add(number) | 1).collect();
        let mut bytes = cycle.repeat(length / cycle.len() + 1);
        bytes.truncate(length);
        let mut key = [0; 32];
        key[0] = number;
        let header = ObjectHeader {
            namespace: NamespaceDigest([3; 32]),
            key: KeyDigest(key),
            layout: 5,
            length_bytes: length as u64,
            checksum: checksum(&bytes),
            write: WriteId(u64::from(number) + 100),
            tenant: TenantTag::NONE,
        };
        Self { header, bytes }
    }

    pub(crate) fn expectation(&self) -> Expectation {
        let ObjectHeader {
            namespace,
            key,
            layout,
            length_bytes,
            ..
        } = self.header;
        Expectation {
            namespace,
            key,
            layout,
            length_bytes,
        }
    }

    /// The answer to a GET of it.
    pub(crate) fn answer(&self, id: u64) -> Vec<u8> {
        let body = |body: &mut Vec<u8>| GetAnswer::Found(self.header).encode(body);
        frame(id, Kind::GetAnswer, body, &self.bytes)
    }

    /// Zeroed memory for it, in three ranges.
    pub(crate) fn memory(&self) -> Lent {
        Lent::new(self.segments()).unwrap()
    }

    /// Its bytes in memory, in three ranges.
    pub(crate) fn source(&self) -> Segments {
        let mut lent = self.memory();
        lent.copy_from(&self.bytes).unwrap();
        lent.into_segments()
    }

    fn segments(&self) -> Segments {
        let length = self.bytes.len();
        let region = Region::allocate(length * 2).unwrap();
        let third = length / 3;
        let mut segments = Segments::with_capacity(3);
        segments.push(&region, length, third).unwrap();
        segments.push(&region, 0, third).unwrap();
        segments
            .push(&region, length + third + 1, length - 2 * third)
            .unwrap();
        segments
    }

    /// Fetches it in a task of its own.
    pub(crate) fn fetch(
        &self,
        cluster: &Cluster,
        until: impl Into<Until>,
    ) -> tokio::task::JoinHandle<(FetchOutcome, Lent)> {
        let until = until.into();
        let (cluster, expectation, lent) = (cluster.clone(), self.expectation(), self.memory());
        tokio::spawn(async move { cluster.fetch(expectation, None, lent, until).await })
    }
}

pub(crate) fn bytes_of(lent: &Lent) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(lent.length_bytes()).unwrap()];
    lent.copy_to(&mut bytes).unwrap();
    bytes
}

//! What the tests of links share: sockets, headers, memory in odd pieces.

use std::time::Duration;

use tessera_proto::{FrameHeader, Kind};
use tessera_transport::{
    Address, Lent, Link, LinkError, Listener, Receiver, Region, Segments, Sender,
};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Far away: a test that waits for it has failed.
pub(crate) fn far() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_millis(150)
}

pub(crate) fn header(kind: Kind, request: u64, body: &[u8], payload: u64) -> FrameHeader {
    let body_bytes = u32::try_from(body.len()).unwrap();
    FrameHeader {
        kind,
        request,
        deadline_ms: 7,
        body_bytes,
        payload_bytes: payload,
    }
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|n| u8::try_from((n * 31 + n / 257) % 251).unwrap())
        .collect()
}

/// Ranges of odd lengths, far apart and out of order, that hold `length` bytes.
pub(crate) fn scattered(length: usize) -> Segments {
    let region = Region::allocate(length * 2 + 4096).unwrap();
    let mut segments = Segments::with_capacity(length / 1000 + 1);
    let (mut at, mut left) = (length * 2 + 4096, length);
    while left > 0 {
        let piece = left.min(1 + (left * 7) % 4093);
        at -= piece + piece / 2 + 1;
        segments.push(&region, at, piece).unwrap();
        left -= piece;
    }
    segments
}

pub(crate) fn filled(bytes: &[u8]) -> Segments {
    let mut lent = Lent::new(scattered(bytes.len())).unwrap();
    lent.copy_from(bytes).unwrap();
    lent.into_segments()
}

pub(crate) fn bytes_of(lent: &Lent) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(lent.length_bytes()).unwrap()];
    lent.copy_to(&mut bytes).unwrap();
    bytes
}

pub(crate) async fn tcp() -> (Listener, Address) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.address().unwrap();
    (listener, address)
}

/// Both ends of a TCP link.
pub(crate) async fn pair() -> ((Sender, Receiver), (Sender, Receiver)) {
    let (listener, address) = tcp().await;
    let (near, far) = tokio::join!(Link::connect(&address, far()), listener.accept());
    (near.unwrap(), far.unwrap())
}

/// A raw peer of a receiver.
pub(crate) async fn raw() -> (TcpStream, (Sender, Receiver)) {
    let (listener, address) = tcp().await;
    let (peer, link) = tokio::join!(TcpStream::connect(address.to_string()), listener.accept());
    let peer = peer.unwrap();
    peer.set_nodelay(true).unwrap();
    (peer, link.unwrap())
}

pub(crate) fn encoded(kind: Kind, request: u64, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(kind, request, body, payload.len() as u64)
        .encode()
        .to_vec();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) async fn take_frame(
    receiver: &mut Receiver,
    deadline: Instant,
) -> Result<(), LinkError> {
    receiver.header(deadline).await?;
    assert_eq!(receiver.body(deadline).await?, [1; 40]);
    let mut payload = [0; 50];
    receiver.payload_into(&mut payload, deadline).await?;
    assert_eq!(payload, [2; 50]);
    Ok(())
}

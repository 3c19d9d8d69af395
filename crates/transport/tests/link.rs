//! Links over real sockets: whole frames, hostile peers, deadlines. The peers that misbehave are
//! raw sockets; everything waits for a condition with a bound, never for time to pass.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tessera_proto::{FrameHeader, Kind, checksum};
use tessera_transport::{
    Address, Frame, Lent, Link, LinkError, Listener, Payload, Receiver, Region, Segments, Sender,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Far away: a test that waits for it has failed.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(150)
}

fn header(kind: Kind, request: u64, body: &[u8], payload: u64) -> FrameHeader {
    let body_bytes = u32::try_from(body.len()).unwrap();
    FrameHeader {
        kind,
        request,
        deadline_ms: 7,
        body_bytes,
        payload_bytes: payload,
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|n| u8::try_from((n * 31 + n / 257) % 251).unwrap())
        .collect()
}

/// Ranges of odd lengths, far apart and out of order, that hold `length` bytes.
fn scattered(length: usize) -> Segments {
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

fn filled(bytes: &[u8]) -> Segments {
    let mut lent = Lent::new(scattered(bytes.len())).unwrap();
    lent.copy_from(bytes).unwrap();
    lent.into_segments()
}

fn bytes_of(lent: &Lent) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(lent.length_bytes()).unwrap()];
    lent.copy_to(&mut bytes).unwrap();
    bytes
}

async fn tcp() -> (Listener, Address) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.address().unwrap();
    (listener, address)
}

/// Both ends of a TCP link.
async fn pair() -> ((Sender, Receiver), (Sender, Receiver)) {
    let (listener, address) = tcp().await;
    let (near, far) = tokio::join!(Link::connect(&address, far()), listener.accept());
    (near.unwrap(), far.unwrap())
}

/// A raw peer of a receiver.
async fn raw() -> (TcpStream, (Sender, Receiver)) {
    let (listener, address) = tcp().await;
    let (peer, link) = tokio::join!(TcpStream::connect(address.to_string()), listener.accept());
    let peer = peer.unwrap();
    peer.set_nodelay(true).unwrap();
    (peer, link.unwrap())
}

fn encoded(kind: Kind, request: u64, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(kind, request, body, payload.len() as u64)
        .encode()
        .to_vec();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(payload);
    bytes
}

/// Frames of every shape, in batches, with payloads larger than all buffers together.
async fn every_shape(mut sender: Sender, mut receiver: Receiver) {
    let big = pattern(9 << 20);
    let small = pattern(300);
    let segments = filled(&big);
    let sending = tokio::spawn({
        let (big, small) = (big.clone(), small.clone());
        async move {
            let frames = [
                Frame {
                    header: header(Kind::Ping, 1, &[], 0),
                    body: &[],
                    payload: Payload::None,
                },
                Frame {
                    header: header(Kind::Put, 2, &small, big.len() as u64),
                    body: &small,
                    payload: Payload::Segments(&segments),
                },
                Frame {
                    header: header(Kind::Put, 3, &big[..20_000], 300),
                    body: &big[..20_000],
                    payload: Payload::Bytes(&small),
                },
                Frame {
                    header: header(Kind::Ping, 4, &small, 0),
                    body: &small,
                    payload: Payload::None,
                },
            ];
            sender.send_batch(&frames, far()).await.unwrap();
            for frame in frames {
                sender
                    .send(&frame.header, frame.body, frame.payload, far())
                    .await
                    .unwrap();
            }
        }
    });
    for _ in 0..2 {
        assert_eq!(
            receiver.header(far()).await.unwrap(),
            header(Kind::Ping, 1, &[], 0)
        );
        assert_eq!(receiver.body(far()).await.unwrap(), b"");
        receiver.begin().await.unwrap();
        let second = receiver.header(far()).await.unwrap();
        assert_eq!(second, header(Kind::Put, 2, &small, big.len() as u64));
        assert_eq!(receiver.body(far()).await.unwrap(), small);
        let mut lent = Lent::new(scattered(big.len())).unwrap();
        let sum = receiver.payload_scatter(&mut lent, far()).await.unwrap();
        assert_eq!(sum, checksum(&big));
        assert_eq!(bytes_of(&lent), big);
        assert_eq!(receiver.header(far()).await.unwrap().request, 3);
        assert_eq!(receiver.body(far()).await.unwrap(), &big[..20_000]);
        let mut buffer = vec![0; 300];
        let sum = receiver.payload_into(&mut buffer, far()).await.unwrap();
        assert_eq!((sum, buffer), (checksum(&small), small.clone()));
        assert_eq!(receiver.header(far()).await.unwrap().request, 4);
        assert_eq!(receiver.body(far()).await.unwrap(), small);
    }
    sending.await.unwrap();
    assert!(matches!(
        receiver.header(far()).await,
        Err(LinkError::Closed)
    ));
}

#[tokio::test]
async fn frames_of_every_shape_arrive_whole_over_tcp() {
    let ((sender, near), (far, receiver)) = pair().await;
    drop((near, far));
    every_shape(sender, receiver).await;
}

#[tokio::test]
async fn frames_of_every_shape_arrive_whole_over_a_unix_socket() {
    let folder = TempDir::new().unwrap();
    let address = Address::Unix(folder.path().join("socket"));
    let listener = Listener::bind(&address).await.unwrap();
    assert_eq!(listener.address().unwrap(), address);
    let (near, far) = tokio::join!(Link::connect(&address, far()), listener.accept());
    let ((sender, near), (far, receiver)) = (near.unwrap(), far.unwrap());
    drop((near, far));
    every_shape(sender, receiver).await;
}

#[tokio::test]
async fn a_peer_that_sends_one_byte_at_a_time_is_understood() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    let payload = pattern(300);
    let bytes = encoded(Kind::GetAnswer, 9, b"body", &payload);
    let trickle = tokio::spawn(async move {
        for byte in bytes {
            peer.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        peer
    });
    assert_eq!(receiver.header(far()).await.unwrap().request, 9);
    assert_eq!(receiver.body(far()).await.unwrap(), b"body");
    let mut lent = Lent::new(scattered(300)).unwrap();
    receiver.payload_scatter(&mut lent, far()).await.unwrap();
    assert_eq!(bytes_of(&lent), payload);
    drop(trickle.await.unwrap());
}

/// The peer keeps sending: every single wait is short, only the sum is too long.
#[tokio::test]
async fn a_trickling_peer_does_not_extend_the_deadline() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    let start = header(Kind::GetAnswer, 1, &[], 1 << 20).encode();
    peer.write_all(&start).await.unwrap();
    let trickle = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        while peer.write_all(&[0]).await.is_ok() {
            tick.tick().await;
        }
    });
    receiver.header(far()).await.unwrap();
    receiver.body(far()).await.unwrap();
    let mut lent = Lent::new(scattered(1 << 20)).unwrap();
    let receiving = receiver.payload_scatter(&mut lent, soon());
    let ended = timeout(Duration::from_secs(10), receiving)
        .await
        .expect("the deadline held");
    assert!(matches!(ended, Err(LinkError::Deadline)), "{ended:?}");
    assert!(matches!(receiver.header(far()).await, Err(LinkError::Cut)));
    drop(receiver);
    drop(_sender);
    trickle.await.unwrap();
}

#[tokio::test]
async fn a_receive_past_its_deadline_stops_though_all_bytes_are_there() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    let bytes = encoded(Kind::GetAnswer, 1, &[], &[1; 1 << 20]);
    timeout(Duration::from_secs(10), peer.write_all(&bytes))
        .await
        .expect("it fits")
        .unwrap();
    receiver.header(far()).await.unwrap();
    receiver.body(far()).await.unwrap();
    let mut lent = Lent::new(scattered(1 << 20)).unwrap();
    let ended = receiver.payload_scatter(&mut lent, Instant::now()).await;
    assert!(matches!(ended, Err(LinkError::Deadline)), "{ended:?}");
}

#[tokio::test]
async fn each_part_of_a_frame_has_a_deadline() {
    let whole = encoded(Kind::GetAnswer, 1, &[1; 40], &[2; 50]);
    for sent in [0, 1, 63, 64, 80, 103, 104, 153] {
        let (mut peer, (_sender, mut receiver)) = raw().await;
        peer.write_all(&whole[..sent]).await.unwrap();
        let ended = take_frame(&mut receiver, soon()).await;
        assert!(
            matches!(ended, Err(LinkError::Deadline)),
            "{sent} bytes: {ended:?}"
        );
        drop(peer);
    }
}

#[tokio::test]
async fn the_end_of_a_connection_is_clean_only_between_frames() {
    let whole = encoded(Kind::GetAnswer, 1, &[1; 40], &[2; 50]);
    for sent in [0, 1, 63, 64, 80, 103, 104, 153, 154] {
        let (mut peer, (_sender, mut receiver)) = raw().await;
        peer.write_all(&whole[..sent]).await.unwrap();
        drop(peer);
        let ended = take_frame(&mut receiver, far()).await;
        match sent {
            0 => assert!(matches!(ended, Err(LinkError::Closed)), "{ended:?}"),
            154 => {
                ended.unwrap();
                assert!(matches!(receiver.begin().await, Err(LinkError::Closed)));
            }
            _ => assert!(
                matches!(ended, Err(LinkError::Cut)),
                "{sent} bytes: {ended:?}"
            ),
        }
    }
}

async fn take_frame(receiver: &mut Receiver, deadline: Instant) -> Result<(), LinkError> {
    receiver.header(deadline).await?;
    assert_eq!(receiver.body(deadline).await?, [1; 40]);
    let mut payload = [0; 50];
    receiver.payload_into(&mut payload, deadline).await?;
    assert_eq!(payload, [2; 50]);
    Ok(())
}

#[tokio::test]
async fn a_payload_of_another_length_writes_nothing_and_the_link_goes_on() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    let mut bytes = encoded(Kind::GetAnswer, 1, b"x", &pattern(70_000));
    bytes.extend(encoded(Kind::GetAnswer, 2, b"y", &pattern(90)));
    let writing = tokio::spawn(async move {
        peer.write_all(&bytes).await.unwrap();
        peer
    });
    receiver.header(far()).await.unwrap();
    receiver.body(far()).await.unwrap();
    for room in [0, 69_999, 70_001] {
        let mut lent = Lent::new(scattered(room)).unwrap();
        let refused = receiver.payload_scatter(&mut lent, far()).await;
        let expected = room as u64;
        let Err(LinkError::PayloadLength { declared, room }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((declared, room), (70_000, expected));
        assert!(bytes_of(&lent).iter().all(|byte| *byte == 0));
    }
    receiver.payload_discard(far()).await.unwrap();
    assert_eq!(receiver.header(far()).await.unwrap().request, 2);
    assert_eq!(receiver.body(far()).await.unwrap(), b"y");
    let mut buffer = [0; 90];
    receiver.payload_into(&mut buffer, far()).await.unwrap();
    assert_eq!(buffer[..], pattern(90));
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn parts_of_a_frame_cannot_be_skipped_by_mistake() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    peer.write_all(&encoded(Kind::GetAnswer, 1, b"body", b"payload"))
        .await
        .unwrap();
    receiver.header(far()).await.unwrap();
    assert!(matches!(
        receiver.header(far()).await,
        Err(LinkError::Order)
    ));
    let mut buffer = [0; 7];
    assert!(matches!(
        receiver.payload_into(&mut buffer, far()).await,
        Err(LinkError::Order)
    ));
    receiver.body(far()).await.unwrap();
    assert!(matches!(
        receiver.header(far()).await,
        Err(LinkError::Order)
    ));
    receiver.payload_into(&mut buffer, far()).await.unwrap();
    assert_eq!(&buffer, b"payload");
}

#[tokio::test]
async fn bytes_that_are_no_frame_are_refused() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    peer.write_all(&[b'G'; 64]).await.unwrap();
    assert!(matches!(
        receiver.header(far()).await,
        Err(LinkError::Header(_))
    ));
    let (mut peer, (_sender, mut receiver)) = raw().await;
    peer.write_all(&header(Kind::GetAnswer, 1, &[], 1 << 40).encode())
        .await
        .unwrap();
    assert!(matches!(
        receiver.header(far()).await,
        Err(LinkError::Header(_))
    ));
}

#[tokio::test]
async fn waiting_for_a_header_can_be_cancelled_at_any_byte() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    let bytes = encoded(Kind::Ping, 5, b"nonce", b"");
    for byte in &bytes[..64] {
        peer.write_all(&[*byte]).await.unwrap();
        let cancelled = tokio::select! {
            biased;
            header = receiver.header(far()) => Some(header.unwrap()),
            () = tokio::task::yield_now() => None,
        };
        if let Some(header) = cancelled {
            assert_eq!(header.request, 5);
            peer.write_all(&bytes[64..]).await.unwrap();
            assert_eq!(receiver.body(far()).await.unwrap(), b"nonce");
            return;
        }
    }
    assert_eq!(receiver.header(far()).await.unwrap().request, 5);
}

/// The destination is only borrowed: when the future is dropped, nothing writes any more, and the
/// receiver knows that it has lost its place.
#[tokio::test]
async fn a_receive_dropped_inside_a_payload_breaks_the_receiver() {
    let (mut peer, (_sender, mut receiver)) = raw().await;
    let bytes = encoded(Kind::GetAnswer, 1, &[], &[7; 100_000]);
    peer.write_all(&bytes[..50_000]).await.unwrap();
    receiver.header(far()).await.unwrap();
    receiver.body(far()).await.unwrap();
    let mut lent = Lent::new(scattered(100_000)).unwrap();
    tokio::select! {
        biased;
        done = receiver.payload_scatter(&mut lent, far()) => panic!("only half was sent: {done:?}"),
        () = tokio::task::yield_now() => {}
    }
    lent.copy_from(&vec![0; 100_000]).unwrap();
    peer.write_all(&bytes[50_000..]).await.unwrap();
    assert!(matches!(receiver.header(far()).await, Err(LinkError::Cut)));
    assert!(matches!(receiver.begin().await, Err(LinkError::Cut)));
    assert!(bytes_of(&lent).iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_peer_that_does_not_read_ends_a_send_at_its_deadline() {
    let (peer, (mut sender, _receiver)) = raw().await;
    let segments = filled(&pattern(64 << 20));
    let put = header(Kind::Put, 1, &[], 64 << 20);
    let sending = sender.send(&put, &[], Payload::Segments(&segments), soon());
    let ended = timeout(Duration::from_secs(10), sending)
        .await
        .expect("the deadline held");
    assert!(matches!(ended, Err(LinkError::Deadline)), "{ended:?}");
    assert!(sender.is_broken());
    let ping = header(Kind::Ping, 2, &[], 0);
    assert!(matches!(
        sender.send(&ping, &[], Payload::None, far()).await,
        Err(LinkError::Cut)
    ));
    drop(peer);
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte_of_partial_writes() {
    let (mut peer, (mut sender, receiver)) = raw().await;
    let payload = pattern(12 << 20);
    let segments = filled(&payload);
    let expected = encoded(Kind::Put, 1, b"put", &payload);
    let sending = tokio::spawn(async move {
        let put = header(Kind::Put, 1, b"put", 12 << 20);
        sender
            .send(&put, b"put", Payload::Segments(&segments), far())
            .await
            .unwrap();
    });
    let mut got = Vec::with_capacity(expected.len());
    let mut piece = vec![0; 70_001];
    loop {
        let count = peer.read(&mut piece).await.unwrap();
        got.extend_from_slice(&piece[..count]);
        if got.len() == expected.len() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(got == expected, "bytes differ");
    sending.await.unwrap();
    drop(receiver);
}

#[tokio::test]
async fn closing_ends_what_waits_on_both_sides() {
    let ((near_sender, mut near), (_far_sender, mut far)) = pair().await;
    let waiting = tokio::spawn(async move { near.begin().await });
    near_sender.closer().close();
    assert!(waiting.await.unwrap().is_err());
    assert!(matches!(far.begin().await, Err(LinkError::Closed)));
}

#[tokio::test]
async fn nobody_there_is_an_error_and_not_a_wait() {
    let (listener, address) = tcp().await;
    drop(listener);
    assert!(matches!(
        Link::connect(&address, far()).await,
        Err(LinkError::Io(_))
    ));
    let folder = TempDir::new().unwrap();
    let address = Address::Unix(folder.path().join("none"));
    assert!(matches!(
        Link::connect(&address, far()).await,
        Err(LinkError::Io(_))
    ));
}

#[tokio::test]
async fn memory_of_a_dropped_link_is_free() {
    let region = Region::allocate(1 << 20).unwrap();
    let lent = Lent::new(Segments::whole(&region)).unwrap();
    let weak = Arc::downgrade(&region);
    drop(region);
    let (mut peer, (sender, mut receiver)) = raw().await;
    peer.write_all(&header(Kind::GetAnswer, 1, &[], 1 << 20).encode())
        .await
        .unwrap();
    let receiving = tokio::spawn(async move {
        let mut lent = lent;
        receiver.header(far()).await.unwrap();
        receiver.body(far()).await.unwrap();
        receiver.payload_scatter(&mut lent, far()).await
    });
    sender.closer().close();
    assert!(receiving.await.unwrap().is_err());
    assert!(weak.upgrade().is_none());
}

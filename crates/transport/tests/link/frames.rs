//! Frames arrive whole or are refused, whatever their shape and however they are cut.

use tempfile::TempDir;
use tessera_proto::{Kind, checksum};
use tessera_transport::{
    Address, Frame, Lent, Link, LinkError, Listener, Payload, Receiver, Sender,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{bytes_of, encoded, far, filled, header, pair, pattern, raw, scattered};

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

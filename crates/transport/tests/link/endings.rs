//! Deadlines, cancellation and the ends of connections.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tessera_proto::Kind;
use tessera_transport::{Address, Lent, Link, LinkError, Payload, Region, Segments};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};

use crate::support::{
    bytes_of, encoded, far, filled, header, pair, pattern, raw, scattered, soon, take_frame, tcp,
};

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

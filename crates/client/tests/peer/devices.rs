//! Memory of a device is reported only behind its fence, and never if that does not come.

use std::sync::Arc;
use std::time::Duration;

use tessera_client::SimDevice;
use tessera_client::peer::{Mode, PeerError, PeerResults};
use tessera_lifecycle::RequestKey;
use tessera_proto::Kind;
use tessera_transport::FenceSide;

use crate::raw::{Pusher, Raw};
use crate::worker::{Transfer, Worker, options, part, quiet, results, until};

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];

/// Prefill on the host, decode on a device, and a transfer between them.
async fn scene(mode: Mode, proof_timeout: Duration) -> (Worker, Worker, Arc<SimDevice>, Transfer) {
    let device = SimDevice::start(7).unwrap();
    let mut options = options("hybrid", 0);
    let source = Worker::start(&options, None).await;
    options.incarnation.0 ^= 1;
    options.bounds.proof_timeout = proof_timeout;
    let destination = Worker::start(&options, Some(Arc::clone(&device))).await;
    source.fill_differently(3);
    destination.meets(&source);
    let table = [(0, 1, 2), (1, 3, 4), (2, 5, 6)];
    let transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &table)]);
    (source, destination, device, transfer)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_before_earlier_work_of_the_device_is_over() {
    for mode in MODES {
        let (source, destination, device, transfer) = scene(mode, Duration::from_secs(60)).await;
        destination.fill(9);
        device.hold();
        transfer.begin(&[&source], &[&destination]);
        until("a fence", || device.fences(FenceSide::Before).0 > 0).await;
        assert!(destination.driver.collect().unwrap().received.is_empty());
        assert!(destination.driver.is_open(transfer.id));
        device.release();
        assert!(results(&destination, 1).await.failed.is_empty());
        for part in &transfer.parts {
            for (from, to) in part.source.iter().zip(&part.destination) {
                let group = to.group.into();
                assert_eq!(
                    destination.block(group, to.block),
                    source.block(group, from.block)
                );
            }
        }
        results(&source, 1).await;
        quiet(&[&source, &destination]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_fails_keeps_the_memory_until_one_succeeds_and_fails_the_transfer() {
    for mode in MODES {
        let (source, destination, device, transfer) = scene(mode, Duration::from_secs(60)).await;
        device.fail_fences(FenceSide::After, u32::MAX);
        transfer.begin(&[&source], &[&destination]);
        until("some tries", || device.fences(FenceSide::After).0 > 2).await;
        assert!(destination.driver.collect().unwrap().received.is_empty());
        assert!(destination.driver.is_open(transfer.id));
        device.fail_fences(FenceSide::After, 0);
        assert_eq!(results(&destination, 1).await.failed, [RequestKey(1)]);
        results(&source, 1).await;
        quiet(&[&source, &destination]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_fails_the_transfer_behind_a_fence() {
    for mode in MODES {
        let (source, destination, device, transfer) = scene(mode, Duration::from_secs(60)).await;
        device.fail_copies(1);
        transfer.begin(&[&source], &[&destination]);
        assert_eq!(results(&destination, 1).await.failed, [RequestKey(1)]);
        assert!(device.fences(FenceSide::After).1 > 0);
        results(&source, 1).await;
        quiet(&[&source, &destination]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_owes_its_proof_stops_the_worker_which_reports_nothing() {
    for mode in MODES {
        let limit = Duration::from_millis(100);
        let (source, destination, device, transfer) = scene(mode, limit).await;
        device.fail_fences(FenceSide::After, u32::MAX);
        transfer.begin(&[&source], &[&destination]);
        until("a stop", || match destination.driver.collect() {
            Ok(results) => {
                assert!(results.received.is_empty());
                false
            }
            Err(error) => matches!(error, PeerError::Memory(_)),
        })
        .await;
        assert!(destination.driver.is_open(transfer.id));
    }
}

/// A worker on a device, and a raw engine that pushes into its blocks.
async fn pushed() -> (Worker, Arc<SimDevice>, Pusher) {
    let device = SimDevice::start(7).unwrap();
    let worker = Worker::start(&options("full", 0), Some(Arc::clone(&device))).await;
    let pusher = Pusher::claim(&worker).await;
    (worker, device, pusher)
}

async fn stops(worker: &Worker) {
    until("a stop", || match worker.driver.collect() {
        Ok(results) => {
            assert_eq!(results, PeerResults::default());
            false
        }
        Err(error) => matches!(error, PeerError::Memory(_)),
    })
    .await;
}

/// What a lender's device reads for ever may not be given to anybody, whatever the peer says.
#[tokio::test(flavor = "multi_thread")]
async fn a_lender_whose_device_reads_its_blocks_for_ever_stops() {
    for mode in MODES {
        let device = SimDevice::start(7).unwrap();
        let mut options = options("hybrid", 0);
        options.bounds.proof_timeout = Duration::from_millis(100);
        let source = Worker::start(&options, Some(Arc::clone(&device))).await;
        options.incarnation.0 ^= 1;
        let destination = Worker::start(&options, None).await;
        for (one, other) in [(&source, &destination), (&destination, &source)] {
            one.meets(other);
        }
        device.hold_behind(FenceSide::Before);
        let transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &[(0, 1, 2)])]);
        transfer.begin(&[&source], &[&destination]);
        stops(&source).await;
        assert!(source.driver.is_open(transfer.id));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_panics_with_a_peers_bytes_in_its_hands_stops_the_worker() {
    let (worker, device, mut pusher) = pushed().await;
    device.break_copies(1);
    pusher.push(0, &[1; Pusher::PIECE_BYTES]).await;
    stops(&worker).await;
}

/// Until all of the first connection is over its bytes may still move: whatever the peer says on
/// the second is heard after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_is_heard_only_when_the_first_is_over() {
    let (worker, device, mut pusher) = pushed().await;
    let before = device.fences(FenceSide::Before).1;
    device.hold_behind(FenceSide::Before);
    pusher.push(0, &[1; Pusher::PIECE_BYTES]).await;
    until("a piece in the hands of the device", || {
        device.fences(FenceSide::Before).1 > before
    })
    .await;
    let (mut second, _) = Raw::connected(&worker).await;
    second.send(Kind::PeerControl, &[], &[]).await;
    for _ in 0..50 {
        assert_eq!(worker.driver.metrics().connected, 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    device.release();
    second.end().await;
    assert_eq!(worker.driver.metrics().connected, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_returns_when_what_a_device_was_given_shows() {
    let (worker, device, mut pusher) = pushed().await;
    worker.fill(9);
    pusher.push(0, &[1; Pusher::PIECE_BYTES]).await;
    until("a piece", || worker.driver.metrics().bytes_received > 0).await;
    let fenced = device.fences(FenceSide::After).1;
    worker.driver.shutdown().await;
    assert!(device.fences(FenceSide::After).1 > fenced);
}

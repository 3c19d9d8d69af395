//! What a source offers is fixed when it is offered: bytes that change between the offer and the
//! sending are refused where they land.

use std::sync::Arc;
use std::time::Duration;

use tessera_client::SimDevice;
use tessera_client::peer::{Mode, Side};
use tessera_transport::FenceSide;

use crate::worker::{Transfer, Worker, options, part, quiet, results, until};

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];
const TABLE: [(u16, u32, u32); 6] = [
    (0, 3, 4),
    (0, 7, 5),
    (0, 8, 6),
    (0, 9, 7),
    (0, 1, 8),
    (0, 2, 9),
];

async fn worker(layout: &str, device: bool) -> Worker {
    let device = device.then(|| SimDevice::start(3).unwrap());
    Worker::start(&options(layout, 0), device).await
}

/// Orders the source's side, and returns when the checksums of all that it offers are made.
async fn offer(transfer: &Transfer, source: &Worker, destination: &Worker) {
    let before = source.driver.metrics().bytes_summed;
    let blocks = transfer.parts.iter().flat_map(|part| &part.source);
    let bytes: u64 = blocks.map(|block| source.block_bytes(block.group)).sum();
    transfer.order(Side::Source, source, &[destination]);
    until("checksums", || {
        source.driver.metrics().bytes_summed == before + bytes
    })
    .await;
}

/// Changes the last byte of a block, as a request does to which it was given too early.
fn overwrite(worker: &Worker, block: u32) {
    let mut bytes = worker.block(0, block);
    *bytes.last_mut().unwrap() ^= 1;
    let written = tokio::task::block_in_place(|| worker.layout.write(0, &[block], &bytes));
    written.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_overwritten_after_its_offer_is_refused_by_the_other_side() {
    let cases = MODES
        .map(|mode| [("full", false), ("hybrid", false), ("hybrid", true)].map(|of| (mode, of)));
    for (mode, (layout, device)) in cases.into_iter().flatten() {
        let (source, destination) = (worker(layout, device).await, worker(layout, false).await);
        source.fill_differently(1);
        destination.fill(0);
        destination.meets(&source);
        for (number, (_, block, _)) in (1..).zip(TABLE) {
            let transfer = Transfer::new(number, mode, vec![part((0, 0), 0, &TABLE)]);
            offer(&transfer, &source, &destination).await;
            overwrite(&source, block);
            transfer.order(Side::Destination, &destination, &[&source]);
            let received = results(&destination, 1).await;
            assert_eq!(received.received, [transfer.request]);
            match layout {
                "full" => assert_eq!(received.invalid_blocks.len(), TABLE.len(), "{mode:?}"),
                _ => assert_eq!(received.failed, [transfer.request], "{mode:?} {device}"),
            }
            let metrics = destination.driver.metrics();
            assert_eq!(metrics.integrity_failures, number, "{mode:?} {layout}");
            assert_eq!(metrics.connected, 1);
            assert_eq!(results(&source, 1).await.sent, [transfer.request]);
        }
        quiet(&[&source, &destination]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_before_it_is_ready_is_what_is_offered() {
    let (source, destination) = (worker("full", false).await, worker("full", false).await);
    destination.meets(&source);
    let mut transfer = Transfer::new(1, Mode::Write, vec![part((0, 0), 0, &TABLE)]);
    transfer.ready = false;
    transfer.begin(&[&source], &[&destination]);
    until("a grant", || {
        destination.driver.metrics().gauges.claimed_bytes > 0
    })
    .await;
    assert_eq!(source.driver.metrics().bytes_summed, 0);
    source.fill_differently(5);
    source.driver.ready(transfer.id, transfer.parts[0].id);
    assert!(results(&destination, 1).await.invalid_blocks.is_empty());
    for (_, from, to) in TABLE {
        assert_eq!(destination.block(0, to), source.block(0, from));
    }
    results(&source, 1).await;
    quiet(&[&source, &destination]).await;
}

/// A pass over blocks that are offered is an access like any other: it is over before they are
/// given out, though nobody ever claimed them.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_reported_while_its_checksums_are_made() {
    let device = SimDevice::start(3).unwrap();
    let source = Worker::start(&options("full", 0), Some(Arc::clone(&device))).await;
    let destination = worker("full", false).await;
    device.hold_behind(FenceSide::Before);
    let transfer = Transfer::new(1, Mode::Read, vec![part((0, 0), 0, &TABLE)]);
    transfer.order(Side::Source, &source, &[&destination]);
    until("a fence", || device.fences(FenceSide::Before).1 > 0).await;
    for _ in 0..100 {
        assert_eq!(source.driver.metrics().bytes_summed, 0);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    source.driver.cancel(transfer.id);
    for _ in 0..50 {
        assert!(source.driver.collect().unwrap().sent.is_empty());
        assert!(source.driver.is_open(transfer.id) && !source.driver.is_idle());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    device.release();
    assert_eq!(results(&source, 1).await.sent, [transfer.request]);
    quiet(&[&source]).await;
}

//! What moves: both modes, layouts, tables, parts and ranks.

use tessera_client::SimDevice;
use tessera_client::peer::{BlockRef, Mode, PeerBounds};
use tessera_lifecycle::RequestKey;

use crate::worker::{BLOCKS, CANARY, Part, Transfer, Worker, options, part, quiet, results, until};

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];

/// A permutation of the blocks, without block 0.
fn shuffled(seed: u32) -> Vec<u32> {
    let mut blocks: Vec<u32> = (1..BLOCKS).collect();
    let mut state = seed;
    for at in (1..blocks.len()).rev() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        blocks.swap(at, (state >> 16) as usize % (at + 1));
    }
    blocks
}

/// Block tables of all groups, shuffled differently on both sides.
fn table(groups: usize, count: usize, seed: u32) -> Vec<(u16, u32, u32)> {
    let mut table = Vec::new();
    for group in 0..u16::try_from(groups).unwrap() {
        let (from, to) = (shuffled(seed), shuffled(seed + 100));
        table.extend((0..count).map(|at| (group, from[at], to[at])));
    }
    table
}

/// Checks that the destination has the source's blocks where the parts say, and the canary
/// everywhere else.
fn assert_moved(source: &Worker, destination: &Worker, parts: &[Part]) {
    let mut left: Vec<Vec<u32>> = vec![(0..BLOCKS).collect(); destination.groups()];
    for part in parts {
        for (from, to) in part.source.iter().zip(&part.destination) {
            if to.is_null() {
                continue;
            }
            let group = usize::from(to.group);
            left[group].retain(|block| *block != to.block);
            assert_eq!(
                destination.block(group, to.block),
                source.block(group, from.block),
                "{from:?} to {to:?}"
            );
        }
    }
    for (group, blocks) in left.iter().enumerate() {
        for block in blocks {
            let bytes = destination.block(group, *block);
            assert!(bytes.iter().all(|byte| *byte == CANARY), "block {block}");
        }
    }
    for region in destination.all() {
        // Between two blocks of a layer.
        assert!(region[120..128].iter().all(|byte| *byte == CANARY));
    }
}

async fn pair(layout: &str) -> (Worker, Worker) {
    let (source, destination) = (Worker::new(layout, 0).await, Worker::new(layout, 0).await);
    source.fill_differently(3);
    destination.fill(CANARY);
    destination.meets(&source);
    (source, destination)
}

/// Runs a transfer that succeeds.
async fn succeeds(transfer: &Transfer, source: &Worker, destination: &Worker) {
    transfer.begin(&[source], &[destination]);
    let received = results(destination, 1).await;
    assert_eq!(received.received, [transfer.request]);
    assert!(received.failed.is_empty() && received.invalid_blocks.is_empty());
    assert_moved(source, destination, &transfer.parts);
    assert_eq!(results(source, 1).await.sent, [transfer.request]);
    quiet(&[source, destination]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_move_between_shuffled_tables_in_both_modes_and_layouts() {
    for (layout, mode) in ["full", "hybrid"]
        .iter()
        .zip([MODES; 2])
        .flat_map(|(layout, modes)| modes.map(|mode| (*layout, mode)))
    {
        let (source, destination) = pair(layout).await;
        let table = table(source.groups(), 40, 1);
        let transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &table)]);
        succeeds(&transfer, &source, &destination).await;
        let bytes: u64 = table.iter().map(|(of, ..)| source.block_bytes(*of)).sum();
        assert_eq!(destination.driver.metrics().bytes_received, bytes);
        assert_eq!(source.driver.metrics().bytes_sent, bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_of_several_parts_is_over_with_the_last() {
    for mode in MODES {
        let (source, destination) = pair("hybrid").await;
        let table = table(source.groups(), 10, 5);
        let parts = (0..).zip(table.chunks(3));
        let parts = parts
            .map(|(index, some)| part((0, 0), index, some))
            .collect();
        succeeds(&Transfer::new(1, mode, parts), &source, &destination).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_transfers_empty_parts_and_single_blocks_are_over_as_others_are() {
    for mode in MODES {
        let (source, destination) = pair("full").await;
        let tables: [Vec<Part>; 4] = [
            vec![],
            vec![part((0, 0), 0, &[])],
            vec![part((0, 0), 0, &[(0, 9, 7)])],
            vec![part((0, 0), 0, &[(0, 9, 7)]), part((0, 0), 1, &[])],
        ];
        for (number, parts) in (1..).zip(tables) {
            let empty = parts.is_empty();
            let transfer = Transfer::new(number, mode, parts);
            transfer.begin(&[&source], &[&destination]);
            let received = results(&destination, 1).await;
            assert_eq!(received.received, [RequestKey(number)], "{mode:?}");
            assert!(received.invalid_blocks.is_empty(), "{mode:?} {number}");
            assert_eq!(results(&source, 1).await.sent, [RequestKey(number)]);
            if !empty && number > 2 {
                assert_eq!(destination.block(0, 7), source.block(0, 9));
            }
        }
        quiet(&[&source, &destination]).await;
    }
}

/// A window that has moved on has places without memory in its table, on one side or on both.
#[tokio::test(flavor = "multi_thread")]
async fn null_blocks_of_a_window_move_nothing_and_touch_nothing() {
    const NULL: u32 = BlockRef::NULL;
    for mode in MODES {
        let (source, destination) = pair("hybrid").await;
        let mut table = vec![(0, 4, 30), (0, 5, 31), (1, NULL, NULL), (1, NULL, NULL)];
        table.extend([(1, 6, 32), (1, 7, 33), (2, NULL, NULL), (2, 8, 34)]);
        if mode == Mode::Read {
            // What decode does not keep is forgotten where it lands.
            table.extend([(1, 9, NULL), (1, 10, 35), (1, 11, NULL)]);
        }
        let transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &table)]);
        succeeds(&transfer, &source, &destination).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_would_stay_without_content_fails_the_part_before_anything_moves() {
    for mode in MODES {
        let (source, destination) = pair("hybrid").await;
        let table = [(0, 4, 30), (1, BlockRef::NULL, 31)];
        let transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &table)]);
        transfer.begin(&[&source], &[&destination]);
        assert_eq!(results(&destination, 1).await.failed, [RequestKey(1)]);
        results(&source, 1).await;
        assert_eq!(destination.driver.metrics().bytes_received, 0);
        quiet(&[&source, &destination]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rank_of_one_engine_moves_its_parts_with_every_rank_of_the_other() {
    for mode in MODES {
        let mut sources = Vec::new();
        let mut destinations = Vec::new();
        for rank in 0..2 {
            sources.push(Worker::new("full", rank).await);
            destinations.push(Worker::new("full", rank).await);
            sources[usize::from(rank)].fill_differently(rank.into());
            destinations[usize::from(rank)].fill(CANARY);
        }
        let mut parts = Vec::new();
        for (from, to) in [(0_u16, 0_u16), (0, 1), (1, 0), (1, 1)] {
            destinations[usize::from(to)].meets(&sources[usize::from(from)]);
            let first = 1 + 10 * u32::from(from);
            let blocks: Vec<_> = (first..first + 8).map(|at| (0, at, at + 20)).collect();
            parts.push(part((from, to), 0, &blocks));
        }
        let transfer = Transfer::new(1, mode, parts);
        let (sources, destinations): (Vec<_>, Vec<_>) =
            (sources.iter().collect(), destinations.iter().collect());
        transfer.begin(&sources, &destinations);
        for worker in &destinations {
            assert_eq!(results(worker, 1).await.received, [RequestKey(1)]);
        }
        for worker in &sources {
            assert_eq!(results(worker, 1).await.sent, [RequestKey(1)]);
        }
        for part in &transfer.parts {
            for (from, to) in part.source.iter().zip(&part.destination) {
                let source = sources[usize::from(part.id.source)];
                let destination = destinations[usize::from(part.id.destination)];
                assert_eq!(source.block(0, from.block), destination.block(0, to.block));
            }
        }
        quiet(&[sources, destinations].concat()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_transfers_both_ways_at_once_share_a_connection() {
    let (left, right) = (Worker::new("full", 0).await, Worker::new("full", 0).await);
    left.fill_differently(1);
    right.fill_differently(2);
    let before = (left.all(), right.all());
    right.meets(&left);
    let mut transfers = Vec::new();
    for number in 0..24_u32 {
        let mode = MODES[number as usize % 2];
        let table = [(0, 1 + number, 33 + number), (0, 25, 57)];
        let table = &table[..1];
        transfers.push(Transfer::new(
            number.into(),
            mode,
            vec![part((0, 0), 0, table)],
        ));
    }
    for (number, transfer) in transfers.iter().enumerate() {
        match number % 3 {
            0 => transfer.begin(&[&left], &[&right]),
            _ => transfer.begin(&[&right], &[&left]),
        }
    }
    let (at_left, at_right) = (results(&left, 24).await, results(&right, 24).await);
    for results in [&at_left, &at_right] {
        assert!(results.invalid_blocks.is_empty());
    }
    assert_ne!((left.all(), right.all()), before);
    for (number, transfer) in transfers.iter().enumerate() {
        let (from, to) = match number % 3 {
            0 => (&left, &right),
            _ => (&right, &left),
        };
        let part = &transfer.parts[0];
        let (from, to) = (
            from.block(0, part.source[0].block),
            to.block(0, part.destination[0].block),
        );
        assert_eq!(from, to, "transfer {number}");
    }
    assert_eq!(left.driver.metrics().connected, 1);
    quiet(&[&left, &right]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_a_device_move_behind_its_fences() {
    for (mode, seed) in MODES
        .into_iter()
        .flat_map(|mode| (0..3).map(move |seed| (mode, seed)))
    {
        let device = |seed| Some(SimDevice::start(seed).unwrap());
        let options = |()| options("hybrid", 0);
        let source = Worker::start(&options(()), device(seed)).await;
        let destination = Worker::start(&options(()), device(seed + 10)).await;
        destination.meets(&source);
        source.fill_differently(seed);
        destination.fill(CANARY);
        let table = table(3, 12, 4);
        let transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &table)]);
        transfer.begin(&[&source], &[&destination]);
        let received = results(&destination, 1).await;
        assert_eq!(received.received, [RequestKey(1)]);
        assert!(received.failed.is_empty(), "{mode:?} {seed}");
        // Read as a later kernel would, without a fence of its own.
        let seen = destination.all();
        for (group, from, to) in table {
            let region = &seen[2 * usize::from(group)];
            let at = 128 * to as usize;
            let expected = source.block(group.into(), from);
            assert_eq!(region[at..at + 96], expected[..96], "{mode:?} seed {seed}");
        }
        results(&source, 1).await;
        quiet(&[&source, &destination]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_moves_only_when_its_source_is_ready() {
    let (source, destination) = pair("full").await;
    let mut transfer = Transfer::new(1, Mode::Write, vec![part((0, 0), 0, &[(0, 3, 4)])]);
    transfer.ready = false;
    transfer.begin(&[&source], &[&destination]);
    until("a grant", || {
        destination.driver.metrics().gauges.claimed_bytes > 0
    })
    .await;
    assert_eq!(source.driver.metrics().bytes_sent, 0);
    source.driver.ready(transfer.id, transfer.parts[0].id);
    assert!(results(&destination, 1).await.invalid_blocks.is_empty());
    assert_moved(&source, &destination, &transfer.parts);
    results(&source, 1).await;
    quiet(&[&source, &destination]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_larger_than_a_piece_moves_in_several_whatever_their_size() {
    for (mode, piece_bytes) in MODES
        .into_iter()
        .flat_map(|mode| [1, 192, 193, 1_000, 1 << 20].map(|piece_bytes| (mode, piece_bytes)))
    {
        let mut options = options("hybrid", 0);
        options.bounds = PeerBounds {
            piece_bytes,
            ..options.bounds
        };
        let source = Worker::start(&options, None).await;
        options.incarnation.0 ^= 1;
        let destination = Worker::start(&options, None).await;
        destination.meets(&source);
        source.fill_differently(9);
        destination.fill(CANARY);
        let table = table(3, 20, 8);
        let transfer = Transfer::new(1, mode, vec![part((0, 0), 0, &table)]);
        succeeds(&transfer, &source, &destination).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_do_not_exist_or_are_named_twice_fail_the_transfer_and_nothing_else() {
    for mode in MODES {
        let (source, destination) = pair("hybrid").await;
        let cases = [
            [(0, BLOCKS + 5, 1), (0, 3, 2)],
            [(0, 1, BLOCKS + 5), (0, 3, 2)],
            [(0, 1, 2), (0, 3, 2)],
            [(7, 1, 2), (7, 3, 4)],
        ];
        for (number, table) in (1..).zip(cases) {
            let mut part = part((0, 0), 0, &table);
            if mode == Mode::Read && table[0].0 == 7 {
                // A group that is the lender's fault, and not in the order of who moves.
                part.destination
                    .iter_mut()
                    .for_each(|block| block.group = 7);
            }
            let transfer = Transfer::new(number, mode, vec![part]);
            transfer.begin(&[&source], &[&destination]);
            let failed = results(&destination, 1).await.failed;
            assert_eq!(failed, [RequestKey(number)], "{mode:?} {table:?}");
            results(&source, 1).await;
        }
        let table = table(3, 4, 2);
        let transfer = Transfer::new(9, mode, vec![part((0, 0), 0, &table)]);
        transfer.begin(&[&source], &[&destination]);
        assert!(results(&destination, 1).await.failed.is_empty());
        results(&source, 1).await;
        quiet(&[&source, &destination]).await;
    }
}

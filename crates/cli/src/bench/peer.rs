//! The peer family: blocks from the memory of one process into that of another, in both modes, over
//! one connection, against what a raw socket does in the same seconds.
//!
//! Called by [`run`](super::run::run). Prefill is a process of its own, decode is this one. What is
//! measured is all of a transfer: the checksums of the offer, its dispatch, the claim, the bytes,
//! the release; two are under way at a time, as of two requests that follow each other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use tessera_client::peer::{Mode, PeerDriver, PeerResults, Side};
use tokio::runtime::Runtime;

use super::floor::{ARENA_BYTES, Floor};
use super::prefill::{Prefill, Shape, Transfer};
use super::row::Row;
use super::statistics::{median, median_us};

/// Pairs of a repeat and what it is measured against.
const REPEATS: u32 = 5;
/// Bytes of one transfer of the rows of speed: a prompt of some thousand tokens.
const TRANSFER_BYTES: usize = 64 << 20;
/// Transfers under way at once.
const IN_FLIGHT: u64 = 2;
/// Parts of the larger of the two transfers whose messages are compared.
const PARTS: u32 = 65;
/// Transfers of one block, for the row of their time.
const SINGLE: u32 = 200;
const MODES: [(Mode, &str); 2] = [(Mode::Read, "read"), (Mode::Write, "write")];

/// One layer, of which a block is a region of 1 MiB.
const REGIONS: Shape = Shape {
    layers: 1,
    layer_bytes: 1 << 20,
    blocks: ARENA_BYTES >> 20,
    block_tokens: 16,
};
/// 16 layers of 4 KiB a token, in blocks of `tokens`.
const fn model(tokens: usize) -> Shape {
    let layer_bytes = tokens * (4 << 10);
    Shape {
        layers: 16,
        layer_bytes,
        blocks: ARENA_BYTES / (16 * layer_bytes),
        block_tokens: tokens as u64,
    }
}

/// Rows of this family, for the progress bar.
pub(crate) const ROWS: u64 = 10;

/// Both sides.
struct Pair {
    runtime: Runtime,
    shape: Shape,
    prefill: Prefill,
    decode: PeerDriver,
    next: u64,
}

impl Pair {
    fn start(shape: Shape) -> Result<Self> {
        let runtime = Runtime::new().context("starting the runtime")?;
        let decode = shape.worker(&runtime)?;
        let prefill = Prefill::start(&shape, decode.incarnation())?;
        decode.introduce(prefill.incarnation, &prefill.address);
        Ok(Self {
            runtime,
            shape,
            prefill,
            decode,
            next: 0,
        })
    }

    /// Orders a transfer on both sides.
    fn begin(&mut self, mode: Mode, blocks: u32, stride: u32, parts: u32) -> Result<()> {
        let places = u64::try_from(self.shape.blocks)? / u64::from(blocks);
        let transfer = Transfer {
            number: self.next,
            mode,
            first: match stride {
                1 => u32::try_from(self.next % places)? * blocks,
                // So that two transfers under way share no block.
                _ => u32::try_from(self.next % 2)? * blocks * stride,
            },
            blocks,
            stride,
            parts,
        };
        self.next += 1;
        self.prefill.order(&transfer)?;
        let peer = self.prefill.incarnation;
        transfer.order(&self.decode, Side::Destination, peer, &self.shape);
        Ok(())
    }

    /// What has been received since the last call.
    fn received(&self) -> Result<u64> {
        let PeerResults {
            received,
            failed,
            invalid_blocks,
            ..
        } = self.decode.collect()?;
        ensure!(
            failed.is_empty() && invalid_blocks.is_empty(),
            "a transfer of the bench has failed"
        );
        Ok(u64::try_from(received.len())?)
    }

    fn wait(&self, pause: Duration) -> Result<u64> {
        loop {
            match self.received()? {
                0 => std::thread::sleep(pause),
                some => return Ok(some),
            }
        }
    }

    /// Bytes a second, for about `time`.
    fn throughput(&mut self, mode: Mode, stride: u32, time: Duration) -> Result<f64> {
        let blocks = u32::try_from(TRANSFER_BYTES / self.shape.block_bytes())?;
        let (begun, mut open, mut over) = (Instant::now(), 0, 0_u64);
        while begun.elapsed() < time || open > 0 {
            if open < IN_FLIGHT && begun.elapsed() < time {
                self.begin(mode, blocks, stride, 1)?;
                open += 1;
                continue;
            }
            let ended = self.wait(Duration::from_micros(200))?;
            open -= ended;
            over += ended;
        }
        Ok(over as f64 * TRANSFER_BYTES as f64 / begun.elapsed().as_secs_f64())
    }

    /// Frames that carry no block, both ways, that one transfer takes.
    fn messages(&mut self, mode: Mode, parts: u32) -> Result<f64> {
        let count = |decode: &PeerDriver| {
            let metrics = decode.metrics();
            metrics.messages_sent + metrics.messages_received
        };
        let before = count(&self.decode);
        self.begin(mode, parts, 1, parts)?;
        self.wait(Duration::from_micros(50))?;
        while !self.decode.is_idle() {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok((count(&self.decode) - before) as f64)
    }

    /// The time of each of some transfers of one block, dispatch left out.
    fn singles(&mut self, mode: Mode) -> Result<Vec<Duration>> {
        (0..SINGLE)
            .map(|_| {
                let begun = Instant::now();
                self.begin(mode, 1, 1, 1)?;
                self.wait(Duration::from_micros(10))?;
                Ok(begun.elapsed())
            })
            .collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.runtime.block_on(self.decode.shutdown());
    }
}

/// Measures the family; a row takes about `seconds`.
pub(crate) fn run(seconds: u32, progress: &ProgressBar) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let slice = Duration::from_secs(u64::from(seconds)) / (2 * REPEATS);
    let mut push = |row: Row| {
        progress.inc(1);
        rows.push(row);
    };
    progress.set_message("regions of 1MiB");
    let mut floor = Floor::start()?;
    let mut pair = Pair::start(REGIONS)?;
    for (mode, verb) in MODES {
        push(stream(&mut pair, mode, verb, &mut floor, slice)?);
    }
    for (mode, verb) in MODES {
        push(messages(&mut pair, mode, verb)?);
    }
    for (mode, verb) in MODES {
        push(single(&mut pair, mode, verb, &mut floor)?);
    }
    drop((pair, floor));
    progress.set_message("blocks of 16 and 128 tokens");
    let (mut small, mut large) = (Pair::start(model(16))?, Pair::start(model(128))?);
    for (stride, how, must) in [(1, "in order", Some(1.3)), (3, "scattered", None)] {
        for (mode, verb) in MODES {
            let name = format!("{verb} blocks of 16, {how}");
            push(block_size(
                &mut small, &mut large, mode, stride, name, must, slice,
            )?);
        }
    }
    Ok(rows)
}

/// One stream of regions of 1 MiB, as part of a raw socket.
fn stream(
    pair: &mut Pair,
    mode: Mode,
    verb: &str,
    floor: &mut Floor,
    slice: Duration,
) -> Result<Row> {
    let (mut speeds, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let raw = floor.throughput(REGIONS.layer_bytes, slice)?;
        let speed = pair.throughput(mode, 1, slice)?;
        floors.push(raw / 1e9);
        speeds.push(speed / 1e9);
        ratios.push(speed / raw);
    }
    Ok(Row {
        name: format!("{verb} 1MiB regions"),
        value: median(&ratios),
        unit: "of raw socket",
        floor: Some(median(&floors)),
        must: Some(0.7),
        reach: Some(0.95),
        higher: true,
        absolute: format!("{:.2} GB/s", median(&speeds)),
    })
}

/// What blocks of 16 tokens cost over blocks of 128: the same bytes.
fn block_size(
    small: &mut Pair,
    large: &mut Pair,
    mode: Mode,
    stride: u32,
    name: String,
    must: Option<f64>,
    slice: Duration,
) -> Result<Row> {
    let (mut speeds, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let best = large.throughput(mode, 1, slice)?;
        let speed = small.throughput(mode, stride, slice)?;
        floors.push(best / 1e9);
        speeds.push(speed / 1e9);
        ratios.push(best / speed);
    }
    Ok(Row {
        name,
        value: median(&ratios),
        unit: "times blocks of 128",
        floor: Some(median(&floors)),
        must,
        reach: None,
        higher: false,
        absolute: format!("{:.2} GB/s", median(&speeds)),
    })
}

/// What one more part of a transfer adds in messages, of the repeat into which the fewest
/// heartbeats fell.
fn messages(pair: &mut Pair, mode: Mode, verb: &str) -> Result<Row> {
    let (mut many, mut one) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..REPEATS {
        many = many.min(pair.messages(mode, PARTS)?);
        one = one.min(pair.messages(mode, 1)?);
    }
    Ok(Row {
        name: format!("{verb} messages"),
        value: (many - one) / f64::from(PARTS - 1),
        unit: "a part",
        floor: None,
        must: Some(1.0),
        reach: None,
        higher: false,
        absolute: format!("{one:.0} with one part"),
    })
}

/// One block of 1 MiB from its dispatch to its report, beside a ping-pong.
fn single(pair: &mut Pair, mode: Mode, verb: &str, floor: &mut Floor) -> Result<Row> {
    let time = median_us(&pair.singles(mode)?);
    Ok(Row {
        name: format!("{verb} one block of 1MiB"),
        value: time,
        unit: "us",
        floor: Some(median_us(&floor.ping(100)?)),
        must: None,
        reach: None,
        higher: false,
        absolute: format!("{time:.0} us"),
    })
}

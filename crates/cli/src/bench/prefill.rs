//! Two workers for the peer family: the prefill side in a process of its own, this binary again,
//! and what both sides agree on: block memory of a shape, and which blocks a transfer moves.
//!
//! Called by the rows of the family and, as a hidden subcommand, by the process that they start.
//! The invariant: a transfer follows from its line alone, so that both sides order the same.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tessera_client::driver::EngineConfig;
use tessera_client::layout::{BlockRun, LayerMemory, Layout};
use tessera_client::peer::{
    BlockRef, Generation, Mode, PartId, PartOrder, PeerDriver, PeerOptions, RequestKey, Side,
    TransferId, TransferOrder,
};
use tessera_client::{Address, Incarnation, Region};
use tokio::runtime::Runtime;

/// The hidden subcommand that runs the prefill side.
pub(crate) const SUBCOMMAND: &str = "bench-prefill";

/// Longer than any transfer of the bench takes.
const PATIENCE_MS: u64 = 60_000;

/// Block memory: equal layers, each of which has so many bytes of a block in one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) layer_bytes: usize,
    pub(crate) blocks: usize,
    pub(crate) block_tokens: u64,
}

impl Shape {
    /// Bytes of one block, all layers together.
    pub(crate) const fn block_bytes(&self) -> usize {
        self.layers * self.layer_bytes
    }

    /// A worker with this memory, every page of it touched.
    pub(crate) fn worker(&self, runtime: &Runtime) -> Result<PeerDriver> {
        let options = serde_json::json!({ "chunk_tokens": self.block_tokens });
        let engine = serde_json::json!({
            "namespace": {
                "model": "bench", "dtype": "bytes", "layout_fingerprint": "be".repeat(32),
            },
            "groups": [{ "kind": "full", "block_tokens": self.block_tokens }],
            "hash_tokens": self.block_tokens,
            "options": options,
        });
        let engine = EngineConfig::from_json(&engine.to_string())?;
        let options = PeerOptions::new(&engine)?;
        let layers = (0..self.layers).map(|layer| self.layer(layer));
        let layout = Layout::new(&options.shape, layers.collect::<Result<_>>()?)?;
        let every: Vec<u32> = (0..u32::try_from(self.blocks)?).collect();
        let ones = vec![1; self.block_bytes()];
        for block in every {
            layout.write(0, &[block], &ones)?;
        }
        let started = PeerDriver::start(&options, Arc::new(layout));
        runtime.block_on(started).context("starting a worker")
    }

    fn layer(&self, layer: usize) -> Result<LayerMemory> {
        let region = Region::allocate(self.layer_bytes * self.blocks);
        let region = region.context("memory for the bench")?;
        let bytes = u64::try_from(self.layer_bytes)?;
        Ok(LayerMemory {
            name: format!("layer {layer:03}"),
            group: 0,
            format: "bytes".to_owned(),
            num_blocks: u64::try_from(self.blocks)?,
            runs: vec![BlockRun {
                region,
                offset_bytes: 0,
                block_stride_bytes: bytes,
                length_bytes: bytes,
            }],
            heads: None,
        })
    }
}

/// One transfer, as a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) number: u64,
    pub(crate) mode: Mode,
    /// Blocks from this one on.
    pub(crate) first: u32,
    pub(crate) blocks: u32,
    /// How far apart two blocks are: 1 for neighbours.
    pub(crate) stride: u32,
    /// Each of as many blocks.
    pub(crate) parts: u32,
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.mode == Mode::Read { 0 } else { 1 };
        let (number, first, blocks) = (self.number, self.first, self.blocks);
        let (stride, parts) = (self.stride, self.parts);
        write!(f, "{number} {mode} {first} {blocks} {stride} {parts}")
    }
}

impl FromStr for Transfer {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words = line.split_whitespace().map(str::parse);
        let words: Vec<u32> = words.collect::<Result<_, _>>()?;
        let [number, mode, first, blocks, stride, parts] = words[..] else {
            anyhow::bail!("{line:?} is no transfer");
        };
        Ok(Self {
            number: number.into(),
            mode: if mode == 0 { Mode::Read } else { Mode::Write },
            first,
            blocks,
            stride,
            parts,
        })
    }
}

impl Transfer {
    /// Orders one side of it: the blocks are the same on both.
    pub(crate) fn order(&self, driver: &PeerDriver, side: Side, peer: Incarnation, shape: &Shape) {
        let count = u32::try_from(shape.blocks).unwrap_or(u32::MAX);
        let block = |at: u32| BlockRef {
            group: 0,
            block: (self.first + at * self.stride) % count,
            generation: Generation(1),
        };
        let (read, lends) = (self.mode == Mode::Read, side.lends(self.mode));
        let each = self.blocks / self.parts;
        let parts = (0..self.parts).map(|index| {
            let blocks: Vec<BlockRef> = (index * each..(index + 1) * each).map(block).collect();
            let length = shape.block_bytes() * blocks.len();
            PartOrder {
                part: PartId {
                    source: 0,
                    destination: 0,
                    index: u16::try_from(index).unwrap_or(u16::MAX),
                },
                peer: (!(read && lends)).then_some(peer),
                remote: if read && !lends {
                    blocks.clone()
                } else {
                    Vec::new()
                },
                local: blocks,
                length_bytes: u64::try_from(length).unwrap_or(u64::MAX),
                ready: true,
            }
        });
        driver.order(&TransferOrder {
            transfer: TransferId(self.number.into()),
            request: RequestKey(self.number),
            mode: self.mode,
            side,
            synchronous: false,
            parts: parts.collect(),
            timeout_ms: PATIENCE_MS,
            lease_ms: PATIENCE_MS,
        });
    }
}

/// The prefill side as the rows see it.
pub(crate) struct Prefill {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) incarnation: Incarnation,
    pub(crate) address: Address,
}

impl Prefill {
    /// Starts the process; `decode` is the worker that it will lend to.
    pub(crate) fn start(shape: &Shape, decode: Incarnation) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let numbers = [shape.layers, shape.layer_bytes, shape.blocks];
        let mut child = Command::new(program)
            .arg(SUBCOMMAND)
            .args(numbers.map(|number| number.to_string()))
            .args([shape.block_tokens.to_string(), format!("{:x}", decode.0)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the prefill side")?;
        let lines = child
            .stdin
            .take()
            .context("the prefill side has no input")?;
        let answers = child
            .stdout
            .take()
            .context("the prefill side has no output")?;
        let mut answers = BufReader::new(answers);
        let mut hello = String::new();
        answers.read_line(&mut hello)?;
        let (incarnation, address) = hello
            .trim()
            .split_once(' ')
            .context("the prefill side did not start")?;
        Ok(Self {
            incarnation: Incarnation(u128::from_str_radix(incarnation, 16)?),
            address: address.parse()?,
            child,
            lines,
            answers,
        })
    }

    /// Has it order its side of a transfer.
    pub(crate) fn order(&mut self, transfer: &Transfer) -> Result<()> {
        writeln!(self.lines, "{transfer}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(!answer.is_empty(), "the prefill side is gone");
        Ok(())
    }
}

impl Drop for Prefill {
    fn drop(&mut self) {
        // It ends with its input; one that does not has nothing that anybody waits for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The prefill side: orders what its lines say, and collects, until they end.
pub(crate) fn serve(arguments: &[String]) -> Result<()> {
    let [layers, layer_bytes, blocks, block_tokens, decode] = arguments else {
        anyhow::bail!("this command is started by `tessera bench`");
    };
    let shape = Shape {
        layers: layers.parse()?,
        layer_bytes: layer_bytes.parse()?,
        blocks: blocks.parse()?,
        block_tokens: block_tokens.parse()?,
    };
    let decode = Incarnation(u128::from_str_radix(decode, 16)?);
    let runtime = Runtime::new().context("starting the runtime")?;
    let driver = shape.worker(&runtime)?;
    println!("{:x} {}", driver.incarnation().0, driver.address());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        match lines.recv_timeout(Duration::from_millis(1)) {
            Ok(line) => {
                let transfer: Transfer = line.parse()?;
                transfer.order(&driver, Side::Source, decode, &shape);
                println!("{}", transfer.number);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        driver.collect()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_the_same_on_the_other_side_of_its_line() {
        let transfer = Transfer {
            number: 7,
            mode: Mode::Write,
            first: 3,
            blocks: 64,
            stride: 5,
            parts: 2,
        };
        let line = transfer.to_string();
        let parsed: Transfer = line.parse().unwrap();
        assert_eq!(parsed.to_string(), line);
        assert_eq!(parsed.mode, Mode::Write);
        assert!("7 1 3".parse::<Transfer>().is_err());
    }
}

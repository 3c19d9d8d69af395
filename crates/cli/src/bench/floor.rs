//! The raw socket floor: what two processes and one loopback connection can do with no product in
//! between. One blocking sender (a child process of this binary) and one blocking reader (this
//! process), the block size of the row, arenas of 512 MiB so that the cache is not what is
//! measured, and the congestion control that the product asks for.
//!
//! The bench alternates it with every repeat of every row; nothing else calls it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Both sides walk memory of this size.
pub(crate) const ARENA_BYTES: usize = 512 << 20;

/// The hidden subcommand that runs the sending process.
pub(crate) const SUBCOMMAND: &str = "bench-floor";

const CONGESTION_CONTROL: &str = "cubic";
const PING_BYTES: usize = 64;
/// What is asked of the sender at once.
const ORDER_BYTES: usize = 32 << 20;

/// Who decides on the congestion control of a floor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Congestion {
    /// The product, as for its own sockets.
    Ours,
    /// The system, as for the sockets of those who ask for nothing.
    System,
}

/// The reading side, and the owner of the sending process.
pub(crate) struct Floor {
    child: Child,
    stream: TcpStream,
    arena: Vec<u8>,
    cursor: usize,
}

impl Floor {
    /// Starts the sending process and connects to it.
    pub(crate) fn start() -> Result<Self> {
        Self::start_with(Congestion::Ours)
    }

    /// The same with the congestion control of whoever is asked.
    pub(crate) fn start_with(congestion: Congestion) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .arg(SUBCOMMAND)
            .args((congestion == Congestion::System).then_some("--system"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the sending process of the floor")?;
        let stdout = child.stdout.take().context("the floor has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port: u16 = line
            .trim()
            .parse()
            .context("the floor did not print its port")?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        congestion.tune(&stream);
        Ok(Self {
            child,
            stream,
            arena: vec![1; ARENA_BYTES],
            cursor: 0,
        })
    }

    /// Bytes a second of one stream in blocks of `block_bytes`, for about `time`.
    pub(crate) fn throughput(&mut self, block_bytes: usize, time: Duration) -> Result<f64> {
        let blocks = ORDER_BYTES.div_ceil(block_bytes);
        let begun = Instant::now();
        let mut bytes = 0;
        // Two orders ahead, so that the sender never waits for the next one.
        self.order(block_bytes, blocks)?;
        while begun.elapsed() < time {
            self.order(block_bytes, blocks)?;
            bytes += self.receive(block_bytes, blocks)?;
        }
        bytes += self.receive(block_bytes, blocks)?;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    /// The memory that it reads into, for whoever measures in its turn.
    pub(crate) fn arena(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    fn receive(&mut self, block_bytes: usize, blocks: usize) -> Result<usize> {
        for _ in 0..blocks {
            if self.cursor + block_bytes > self.arena.len() {
                self.cursor = 0;
            }
            let block = &mut self.arena[self.cursor..self.cursor + block_bytes];
            self.stream.read_exact(block)?;
            self.cursor += block_bytes;
        }
        Ok(blocks * block_bytes)
    }

    /// The time of each of `count` round trips of 64 bytes.
    pub(crate) fn ping(&mut self, count: usize) -> Result<Vec<Duration>> {
        let mut message = [0; PING_BYTES];
        (0..count)
            .map(|_| {
                let begun = Instant::now();
                self.order(PING_BYTES, 1)?;
                self.stream.read_exact(&mut message)?;
                Ok(begun.elapsed())
            })
            .collect()
    }

    /// Orders are as long as a ping, so that the same exchange serves both measurements.
    fn order(&mut self, block_bytes: usize, blocks: usize) -> Result<()> {
        let mut order = [0; PING_BYTES];
        order[..8].copy_from_slice(&u64::try_from(block_bytes)?.to_le_bytes());
        order[8..16].copy_from_slice(&u64::try_from(blocks)?.to_le_bytes());
        Ok(self.stream.write_all(&order)?)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // The sender ends when its connection does; a failure to wait leaves nothing to repair.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// The sending process: prints its port, serves one connection, ends with it.
pub(crate) fn serve(congestion: Congestion) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    congestion.tune(&stream);
    let arena = vec![2; ARENA_BYTES];
    let mut cursor = 0;
    let mut order = [0; PING_BYTES];
    while stream.read_exact(&mut order).is_ok() {
        let (block_bytes, blocks) = (field(&order[..8])?, field(&order[8..16])?);
        ensure!(
            (1..=ARENA_BYTES).contains(&block_bytes),
            "a block of {block_bytes} bytes"
        );
        for _ in 0..blocks {
            if cursor + block_bytes > ARENA_BYTES {
                cursor = 0;
            }
            stream.write_all(&arena[cursor..cursor + block_bytes])?;
            cursor += block_bytes;
        }
    }
    Ok(())
}

impl Congestion {
    fn tune(self, stream: &TcpStream) {
        match self {
            Self::Ours => tune(stream),
            Self::System => {
                let _ = stream.set_nodelay(true);
            }
        }
    }
}

fn field(bytes: &[u8]) -> Result<usize> {
    Ok(usize::try_from(u64::from_le_bytes(bytes.try_into()?))?)
}

/// Best effort, as in the product: a container may allow neither.
pub(crate) fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_congestion(stream, CONGESTION_CONTROL);
}

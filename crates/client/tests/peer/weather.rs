//! A network that does by seed what networks do: it delays frames, ends connections before and
//! inside them, goes half open, brings the end of an old connection after the beginning of a new
//! one, and flips bits of blocks.
//!
//! The invariants: while it is calm, frames pass whole and in order; only the bytes of blocks
//! change, since nothing but the socket's own checks guards the words.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::relay::{both_ways, next_frame};

/// What may happen to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    Waits,
    EndsBefore,
    EndsInside,
    /// Nothing comes through this way any more, and nobody is told.
    HalfOpen,
    /// The sender's side ends, and the frame arrives when a next connection may be there.
    ComesLate,
    BitFlips,
}

/// How often, of 10,000 frames.
const FATES: [(Fate, usize); 6] = [
    (Fate::Waits, 200),
    (Fate::EndsBefore, 8),
    (Fate::EndsInside, 8),
    (Fate::HalfOpen, 4),
    (Fate::ComesLate, 8),
    (Fate::BitFlips, 60),
];

#[derive(Debug)]
struct Sky {
    upstream: String,
    seed: u64,
    calm: watch::Sender<bool>,
    connections: AtomicU64,
    faults: AtomicU64,
}

/// The way to one worker.
#[derive(Debug)]
pub(crate) struct Weather {
    pub(crate) address: String,
    sky: Arc<Sky>,
}

impl Weather {
    pub(crate) async fn start(upstream: &str, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let sky = Arc::new(Sky {
            upstream: upstream.to_owned(),
            seed,
            calm: watch::Sender::new(false),
            connections: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let own = Arc::clone(&sky);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&own).join(near));
            }
        });
        Self { address, sky }
    }

    /// From here on nothing happens to any frame, and what is half open ends.
    pub(crate) fn calm(&self) {
        self.sky.calm.send_replace(true);
    }

    /// Frames so far to which more happened than a delay.
    pub(crate) fn faults(&self) -> u64 {
        self.sky.faults.load(Ordering::Relaxed)
    }
}

impl Sky {
    async fn join(self: Arc<Self>, near: TcpStream) {
        let Ok(far) = TcpStream::connect(&self.upstream).await else {
            return;
        };
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let (near_in, near_out) = near.into_split();
        let (far_in, far_out) = far.into_split();
        let seed = self.seed;
        let dice = |way| Dice::new(seed ^ (number << 1 | way));
        let there = Arc::clone(&self).pass(near_in, far_out, dice(0));
        // What comes late has a task of its own.
        both_ways(there, self.pass(far_in, near_out, dice(1))).await;
    }

    async fn pass(
        self: Arc<Self>,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        mut dice: Dice,
    ) -> io::Result<()> {
        loop {
            let (header, mut frame) = next_frame(&mut from).await?;
            match self.fate(&mut dice, header.payload_bytes) {
                Fate::Passes => {}
                Fate::Waits => sleep(Duration::from_millis(1 + dice.next() % 20)).await,
                Fate::EndsBefore => return Ok(()),
                Fate::EndsInside => {
                    let some = dice.below(frame.len());
                    return to.write_all(&frame[..some]).await;
                }
                Fate::HalfOpen => {
                    let mut calm = self.calm.subscribe();
                    let mut nowhere = tokio::io::sink();
                    let swallowed = tokio::io::copy(&mut from, &mut nowhere);
                    tokio::select! {
                        _ = swallowed => {}
                        _ = calm.wait_for(|calm| *calm) => {}
                    }
                    return Ok(());
                }
                Fate::ComesLate => {
                    let pause = Duration::from_millis(20 + dice.next() % 300);
                    tokio::spawn(async move {
                        sleep(pause).await;
                        let _ = to.write_all(&frame).await;
                    });
                    return Ok(());
                }
                Fate::BitFlips => {
                    let payload = usize::try_from(header.payload_bytes).unwrap();
                    let at = frame.len() - 1 - dice.below(payload);
                    frame[at] ^= 1 << dice.below(8);
                }
            }
            to.write_all(&frame).await?;
        }
    }

    fn fate(&self, dice: &mut Dice, payload_bytes: u64) -> Fate {
        let mut number = dice.below(10_000);
        if *self.calm.borrow() {
            return Fate::Passes;
        }
        for (fate, often) in FATES {
            if number < often {
                if fate == Fate::BitFlips && payload_bytes == 0 {
                    return Fate::Passes;
                }
                let counts = fate != Fate::Waits;
                self.faults.fetch_add(counts.into(), Ordering::Relaxed);
                return fate;
            }
            number -= often;
        }
        Fate::Passes
    }
}

//! A proxy between two workers that does to single frames what networks do, at the moment that a
//! test chooses: it holds a frame back, passes half of one, ends the connection, flips a bit.
//!
//! The invariant: frames without a fault pass whole and in order.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tessera_proto::Kind;
use tessera_transport::Address;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::relay::{both_ways, next_frame};

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the side that dials.
    There,
    /// To it.
    Back,
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends before it.
    Cut,
    /// The connection ends in the middle of it.
    CutInside,
    /// It waits until it is released, and everything behind it too.
    Stall,
    /// Half of it passes, and the rest waits.
    StallInside,
    /// One bit of its last byte is another.
    Flip,
}

/// Where: the first frame of a kind or, from 0, the number of a frame of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Frame(u64),
    Kind(Kind),
}

/// A fault that happens once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) way: Way,
    pub(crate) at: At,
    pub(crate) fault: Fault,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    plan: Option<Plan>,
    /// Frames so far, each way.
    frames: [AtomicU64; 2],
    /// All that came from the side that dials.
    recorded: Mutex<(u64, Vec<u8>)>,
    happened: watch::Sender<bool>,
    released: watch::Sender<bool>,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: Address,
    shared: Arc<Shared>,
}

impl Proxy {
    pub(crate) async fn start(upstream: &Address, plan: Option<Plan>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let shared = Arc::new(Shared {
            upstream: upstream.to_string(),
            plan,
            frames: Default::default(),
            recorded: Mutex::default(),
            happened: watch::Sender::new(false),
            released: watch::Sender::new(false),
        });
        let own = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&own).join(near));
            }
        });
        Self { address, shared }
    }

    /// Whether the fault has met its frame.
    pub(crate) fn has_happened(&self) -> bool {
        *self.shared.happened.borrow()
    }

    /// Lets what waits go on.
    pub(crate) fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// What came from the side that dials: how many frames, and their bytes.
    pub(crate) fn recorded(&self) -> (u64, Vec<u8>) {
        self.shared.recorded.lock().unwrap().clone()
    }

    /// Frames that came so far, whichever way.
    pub(crate) fn frames(&self) -> u64 {
        let frames = self.shared.frames.iter();
        frames.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl Shared {
    async fn join(self: Arc<Self>, near: TcpStream) {
        let Ok(far) = TcpStream::connect(&self.upstream).await else {
            return;
        };
        let (near_in, near_out) = near.into_split();
        let (far_in, far_out) = far.into_split();
        let there = Arc::clone(&self).pass(near_in, far_out, Way::There);
        both_ways(there, self.pass(far_in, near_out, Way::Back)).await;
    }

    async fn pass(
        self: Arc<Self>,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        way: Way,
    ) -> io::Result<()> {
        loop {
            let (header, mut frame) = next_frame(&mut from).await?;
            if way == Way::There {
                let (frames, bytes) = &mut *self.recorded.lock().unwrap();
                *frames += 1;
                bytes.extend_from_slice(&frame);
            }
            let number = self.frames[way as usize].fetch_add(1, Ordering::Relaxed);
            let half = frame.len() / 2 + 1;
            match self.fault(way, number, header.kind) {
                None => to.write_all(&frame).await?,
                Some(Fault::Cut) => return Ok(()),
                Some(Fault::CutInside) => return to.write_all(&frame[..half]).await,
                Some(Fault::Stall) => {
                    self.wait().await;
                    to.write_all(&frame).await?;
                }
                Some(Fault::StallInside) => {
                    to.write_all(&frame[..half]).await?;
                    self.wait().await;
                    to.write_all(&frame[half..]).await?;
                }
                Some(Fault::Flip) => {
                    *frame.last_mut().unwrap() ^= 4;
                    to.write_all(&frame).await?;
                }
            }
        }
    }

    fn fault(&self, way: Way, number: u64, kind: Kind) -> Option<Fault> {
        let plan = self.plan.filter(|plan| {
            plan.way == way
                && match plan.at {
                    At::Frame(wanted) => wanted == number,
                    At::Kind(wanted) => wanted == kind,
                }
        })?;
        let first = self
            .happened
            .send_if_modified(|happened| !std::mem::replace(happened, true));
        first.then_some(plan.fault)
    }

    async fn wait(&self) {
        let mut released = self.released.subscribe();
        // The sender lives in `self`.
        let _ = released.wait_for(|released| *released).await;
    }
}

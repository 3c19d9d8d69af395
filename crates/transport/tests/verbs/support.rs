//! Devices, pairs that are connected, memory with a pattern, and waiting with a bound.

use std::env;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tessera_transport::verbs::{
    Card, Ended, Event, QueuePair, Rail, Registered, Remote, Request, Rights, Work,
};
use tessera_transport::{Lent, Region, Segments};
use tokio::io::unix::AsyncFd;

/// How long anything may take. A peer that is gone is noticed after some seconds.
const BOUND: Duration = Duration::from_secs(60);

/// Requests that a pair of these tests may have posted.
pub(crate) const DEPTH: u32 = 16;

/// The device `which` of those that the tests may use.
pub(crate) fn rail(which: usize) -> Arc<Rail> {
    let names = env::var("TESSERA_RDMA_DEVICES")
        .expect("TESSERA_RDMA_DEVICES names no devices: run `cargo xtask rdma-test`");
    let name = names.split(',').nth(which).expect("three devices");
    Rail::open(name).unwrap()
}

/// Two pairs that are connected, on these devices.
pub(crate) fn connected(near: &Arc<Rail>, far: &Arc<Rail>) -> (QueuePair, QueuePair) {
    let mut near = QueuePair::new(near, DEPTH).unwrap();
    let mut far = QueuePair::new(far, DEPTH).unwrap();
    let (to_far, to_near) = (near.card().encode(), far.card().encode());
    near.connect(&Card::decode(&to_near).unwrap()).unwrap();
    far.connect(&Card::decode(&to_far).unwrap()).unwrap();
    (near, far)
}

/// The bytes of `seed`, such that no two pages are equal. Made by the page: the guest that runs
/// this is slow.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    let page: Vec<u8> = (0..4096_usize)
        .map(|at| at.wrapping_mul(31).to_le_bytes()[0] ^ seed)
        .collect();
    let mut bytes = page.repeat(length.div_ceil(page.len()));
    for (number, page) in bytes.chunks_mut(page.len()).enumerate() {
        page[8..16].copy_from_slice(&number.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Memory with `bytes` in it.
pub(crate) fn filled(bytes: &[u8]) -> Arc<Region> {
    let region = Region::allocate(bytes.len()).unwrap();
    fill(&region, 0, bytes);
    region
}

/// Writes `bytes` at `offset`.
pub(crate) fn fill(region: &Arc<Region>, offset: usize, bytes: &[u8]) {
    let mut lent = Lent::new(range(region, offset, bytes.len())).unwrap();
    lent.copy_from(bytes).unwrap();
}

/// A list of one range.
pub(crate) fn range(region: &Arc<Region>, offset: usize, length: usize) -> Segments {
    let mut segments = Segments::with_capacity(1);
    segments.push(region, offset, length).unwrap();
    segments
}

/// What the region has now.
pub(crate) fn bytes(region: &Arc<Region>) -> Vec<u8> {
    let mut bytes = vec![0; region.length_bytes()];
    Segments::whole(region).copy_to(&mut bytes).unwrap();
    bytes
}

/// Whether the region has exactly `want`; never prints them.
#[track_caller]
pub(crate) fn assert_bytes(region: &Arc<Region>, want: &[u8], what: &str) {
    let have = bytes(region);
    if have != want {
        let differs = have.iter().zip(want).position(|(have, want)| have != want);
        let (have, want) = (have.len(), want.len());
        panic!("{what}: {have} bytes for {want}, the first that differs is {differs:?}");
    }
}

/// Memory of ours, registered for our own requests.
pub(crate) struct Local {
    pub(crate) region: Arc<Region>,
    pub(crate) within: Arc<Registered>,
}

impl Local {
    pub(crate) fn new(rail: &Arc<Rail>, bytes: &[u8]) -> Self {
        let region = filled(bytes);
        let within = Registered::new(rail, &region, Rights::Local).unwrap();
        Self { region, within }
    }

    /// A read into `offset`.
    pub(crate) fn read(&self, id: u64, offset: usize, from: Remote) -> Request {
        let length = usize::try_from(from.length).unwrap();
        let into = Lent::new(range(&self.region, offset, length)).unwrap();
        Request {
            id,
            within: Arc::clone(&self.within),
            work: Work::Read { from, into },
        }
    }

    /// A write from `offset`.
    pub(crate) fn write(&self, id: u64, offset: usize, to: Remote, tell: Option<u32>) -> Request {
        let length = usize::try_from(to.length).unwrap();
        let from = range(&self.region, offset, length);
        Request {
            id,
            within: Arc::clone(&self.within),
            work: Work::Write { from, to, tell },
        }
    }
}

/// A part of what a peer has exposed.
pub(crate) fn part(of: Remote, offset: u64, length: u64) -> Remote {
    assert!(offset + length <= of.length);
    Remote {
        address: of.address + offset,
        length,
        ..of
    }
}

/// Posts a batch that must be taken.
#[track_caller]
pub(crate) fn post(pair: &mut QueuePair, batch: Vec<Request>) {
    if let Err((error, _)) = pair.post(batch) {
        panic!("{error}");
    }
}

/// Waits until `done`.
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < BOUND, "in {BOUND:?} never: {what}");
        thread::yield_now();
    }
}

/// Sleeps until something has happened on a pair that was armed.
pub(crate) fn asleep(pair: &QueuePair) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // SAFETY: the descriptor is that of the pair, which is borrowed for as long.
        let descriptor = unsafe { AsyncFd::register(pair.as_fd()) }.unwrap();
        let woken = tokio::time::timeout(BOUND, descriptor.readable()).await;
        let _ = woken.expect("the pair wakes whoever sleeps").unwrap();
    });
}

/// Waits until all that was posted has ended.
#[track_caller]
pub(crate) fn drained(pair: &mut QueuePair) -> Vec<Ended> {
    let mut events = Vec::new();
    until("all that was posted has ended", || {
        pair.poll(&mut events).unwrap();
        pair.is_drained()
    });
    let ended = events.into_iter().map(|event| match event {
        Event::Ended(ended) => ended,
        Event::Told(number) => panic!("nobody tells {number}"),
    });
    ended.collect()
}

/// Waits for the next number that the peer tells.
#[track_caller]
pub(crate) fn told(pair: &mut QueuePair) -> u32 {
    let mut events = Vec::new();
    until("the peer tells a number", || {
        pair.poll(&mut events).unwrap() > 0
    });
    let [Event::Told(number)] = events[..] else {
        panic!("{} events", events.len())
    };
    number
}

/// The ids of requests, in the order in which they ended.
pub(crate) fn ids(ended: &[Ended]) -> Vec<u64> {
    ended.iter().map(|ended| ended.request.id).collect()
}

/// The cable, worse than it is until this is dropped.
pub(crate) struct Cable;

impl Cable {
    /// `cut`, or what `tc` calls it: `loss 2%`, `delay 1s`.
    pub(crate) fn made(how: &[&str]) -> Self {
        cable(how);
        Self
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        cable(&["mend"]);
    }
}

fn cable(how: &[&str]) {
    let script = env::var("TESSERA_RDMA_CABLE").expect("TESSERA_RDMA_CABLE names no script");
    let status = Command::new("sh").arg(script).args(how).status().unwrap();
    assert!(status.success(), "{how:?} of the cable");
}

//! What fails: connections at every frame, processes at every frame, bytes, and requests that are
//! given up in the middle. Freed memory is filled with a canary, which nothing may change.

use std::time::Duration;

use tessera_client::peer::{Mode, Side};
use tessera_lifecycle::RequestKey;
use tessera_proto::Kind;
use tessera_transport::Address;
use tokio::net::TcpSocket;

use crate::proxy::{At, Fault, Plan, Proxy, Way};
use crate::worker::{CANARY, Transfer, Worker, options, part, quiet, results, until};

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];
const WAYS: [Way; 2] = [Way::There, Way::Back];

/// What blocks hold that nobody has written, or what was cleared.
const BLANK: u8 = 0;

/// Prefill, decode, and a proxy between them through which decode dials.
struct Scene {
    source: Worker,
    destination: Worker,
    proxy: Proxy,
    transfer: Transfer,
}

impl Scene {
    async fn new(mode: Mode, plan: Option<Plan>) -> Self {
        let (source, destination) = (impatient().await, impatient().await);
        source.fill_differently(1);
        destination.fill(BLANK);
        let proxy = Proxy::start(source.driver.address(), plan).await;
        destination.meets_at(&source, &proxy.address);
        let table: Vec<_> = (1..13)
            .map(|at| (at % 3, u32::from(at), 40 - u32::from(at)))
            .collect();
        let parts = (0..).zip(table.chunks(6));
        let parts = parts
            .map(|(index, some)| part((0, 0), index, some))
            .collect();
        let transfer = Transfer::new(1, mode, parts);
        Self {
            source,
            destination,
            proxy,
            transfer,
        }
    }

    fn begin(&self) {
        self.transfer.begin(&[&self.source], &[&self.destination]);
    }

    async fn stalled(&self) {
        until("a stall", || self.proxy.has_happened()).await;
    }

    /// Each block of the destination, and that of the source for it.
    fn blocks(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let parts = self.transfer.parts.iter();
        let pairs = parts.flat_map(|part| part.destination.iter().zip(&part.source));
        pairs.map(|(to, from)| {
            let to = self.destination.block(to.group.into(), to.block);
            (to, self.source.block(from.group.into(), from.block))
        })
    }

    fn is_moved(&self) -> bool {
        self.blocks().all(|(to, from)| to == from)
    }

    /// A piece has whole blocks here: none is left with bytes that nobody has verified.
    fn is_verified(&self) -> bool {
        let is_blank = |block: &[u8]| block.iter().all(|byte| *byte == BLANK);
        self.blocks().all(|(to, from)| to == from || is_blank(&to))
    }

    /// Both sides have reported once, and everything is quiet. What was reported is free: it gets a
    /// canary, which must be there when nothing can come any more.
    async fn ends(self) -> bool {
        let received = results(&self.destination, 1).await;
        assert_eq!(received.received, [self.transfer.request]);
        let well = received.failed.is_empty();
        if well {
            assert!(self.is_moved(), "reported well, and not whole");
        }
        assert!(self.is_verified(), "blocks are free with anything in them");
        self.destination.fill(CANARY);
        assert_eq!(results(&self.source, 1).await.sent, [self.transfer.request]);
        self.source.fill(CANARY);
        self.proxy.release();
        quiet(&[&self.source, &self.destination]).await;
        for worker in [&self.source, &self.destination] {
            let again = worker.driver.collect().unwrap();
            assert_eq!((again.sent.len(), again.received.len()), (0, 0));
            worker.driver.shutdown().await;
            let clean = worker.all().iter().flatten().all(|byte| *byte == CANARY);
            assert!(clean, "freed memory was touched");
        }
        well
    }
}

/// A worker that soon gives up whom it cannot reach.
async fn impatient() -> Worker {
    let mut options = options("hybrid", 0);
    options.bounds.dial_limit = Duration::from_millis(500);
    Worker::start(&options, None).await
}

/// Frames that a transfer without faults takes each way, at most.
const FRAMES: u64 = 24;

async fn at_every_frame(fault: Fault) {
    for (mode, way) in MODES
        .into_iter()
        .flat_map(|mode| WAYS.map(|way| (mode, way)))
    {
        let runs = (0..FRAMES).map(|number| {
            tokio::spawn(async move {
                let at = At::Frame(number);
                let mut scene = Scene::new(mode, Some(Plan { way, at, fault })).await;
                // Beyond the test's patience: no clock may be what ends it.
                scene.transfer.timeout_ms = 600_000;
                scene.begin();
                scene.ends().await
            })
        });
        let runs: Vec<_> = runs.collect();
        let mut well = 0;
        for run in runs {
            well += usize::from(run.await.unwrap());
        }
        assert!(
            well > 0,
            "{mode:?} {way:?}: a cut beyond the last frame fails nothing"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_before_any_frame_ends_both_sides_soundly() {
    at_every_frame(Fault::Cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_inside_any_frame_ends_both_sides_soundly() {
    at_every_frame(Fault::CutInside).await;
}

/// The stage in the middle of the data of a mode.
fn data(mode: Mode, fault: Fault) -> Plan {
    match mode {
        Mode::Read => Plan {
            way: Way::Back,
            at: At::Kind(Kind::PeerPullAnswer),
            fault,
        },
        Mode::Write => Plan {
            way: Way::Back,
            at: At::Kind(Kind::PeerPush),
            fault,
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_given_up_in_the_middle_keeps_its_memory_until_a_fence() {
    let sides = [Side::Source, Side::Destination];
    for (mode, side) in MODES
        .into_iter()
        .flat_map(|mode| sides.map(|side| (mode, side)))
    {
        let scene = Scene::new(mode, Some(data(mode, Fault::StallInside))).await;
        scene.begin();
        scene.stalled().await;
        let worker = match side {
            Side::Source => &scene.source,
            Side::Destination => &scene.destination,
        };
        worker.driver.cancel(scene.transfer.id);
        let now = worker.driver.collect().unwrap();
        assert_eq!(
            (now.sent.len(), now.received.len()),
            (0, 0),
            "{mode:?} {side:?}"
        );
        until("an end here", || !worker.driver.is_open(scene.transfer.id)).await;
        let machine = worker.driver.metrics().machine;
        let fences = machine.fences_close + machine.fences_revoke;
        assert!(fences > 0, "{mode:?} {side:?}: over without a fence");
        assert!(!scene.ends().await, "{mode:?} {side:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_stalls_beyond_its_deadline_fails_and_is_fenced() {
    for mode in MODES {
        let mut scene = Scene::new(mode, Some(data(mode, Fault::StallInside))).await;
        scene.transfer.timeout_ms = 200;
        scene.begin();
        scene.stalled().await;
        assert!(!scene.ends().await, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_change_on_the_way_fail_the_transfer_and_keep_the_connection() {
    for mode in MODES {
        let scene = Scene::new(mode, Some(data(mode, Fault::Flip))).await;
        scene.begin();
        until("a flip", || scene.proxy.has_happened()).await;
        until("an end", || {
            !scene.destination.driver.is_open(scene.transfer.id)
        })
        .await;
        let metrics = scene.destination.driver.metrics();
        assert_eq!(metrics.integrity_failures, 1, "{mode:?}");
        assert_eq!((metrics.connected, metrics.machine.fences_close), (1, 0));
        assert_eq!(metrics.machine.fences_revoke, 0, "{mode:?}");
        assert!(!scene.ends().await, "{mode:?}");
    }
}

/// Kills one side at each frame, and starts another process on its address.
async fn killed_at_every_frame(side: Side) {
    for (mode, way) in MODES
        .into_iter()
        .flat_map(|mode| WAYS.map(|way| (mode, way)))
    {
        let runs: Vec<_> = (0..FRAMES)
            .map(|number| tokio::spawn(killed(mode, way, number, side)))
            .collect();
        for run in runs {
            run.await.unwrap();
        }
    }
}

async fn killed(mode: Mode, way: Way, number: u64, side: Side) {
    let (at, fault) = (At::Frame(number), Fault::Stall);
    let mut scene = Scene::new(mode, Some(Plan { way, at, fault })).await;
    (scene.transfer.timeout_ms, scene.transfer.lease_ms) = (500, 500);
    scene.begin();
    let request = scene.transfer.request;
    let over = |worker: &Worker| !worker.driver.is_open(scene.transfer.id);
    until("a stall or an end", || {
        scene.proxy.has_happened() || over(&scene.source) && over(&scene.destination)
    })
    .await;
    let (dead, alive) = match side {
        Side::Source => (&scene.source, &scene.destination),
        Side::Destination => (&scene.destination, &scene.source),
    };
    dead.driver.shutdown().await;
    let before = dead.all();
    let mut reborn = options("hybrid", 0);
    reborn.listen = dead.driver.address().clone();
    let reborn = Worker::start(&reborn, None).await;
    reborn.fill(CANARY);
    scene.proxy.release();
    let results = results(alive, 1).await;
    match side {
        Side::Source => assert_eq!(results.received, [request]),
        Side::Destination => assert_eq!(results.sent, [request]),
    }
    alive.fill(CANARY);
    until("quiet", || {
        alive.driver.is_idle() || alive.driver.tables().transfers == 0
    })
    .await;
    assert_eq!(dead.all(), before, "the dead are not written to");
    for worker in [alive, &reborn] {
        let clean = worker.all().iter().flatten().all(|byte| *byte == CANARY);
        assert!(clean, "memory of another life was touched");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_killed_at_any_frame_and_restarted_is_not_taken_for_the_old_one() {
    killed_at_every_frame(Side::Source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_killed_at_any_frame_and_restarted_holds_no_memory_for_ever() {
    killed_at_every_frame(Side::Destination).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_messages_of_an_old_life_are_refused_and_counted() {
    let scene = Scene::new(Mode::Read, None).await;
    scene.source.driver.shutdown().await;
    let address = scene.source.driver.address().clone();
    let mut reborn = options("hybrid", 0);
    reborn.listen = address;
    let reborn = Worker::start(&reborn, None).await;
    scene
        .transfer
        .order(Side::Destination, &scene.destination, &[&scene.source]);
    assert_eq!(results(&scene.destination, 1).await.failed, [RequestKey(1)]);
    assert_eq!(reborn.driver.metrics().refused_stranger, 1);
    assert_eq!(reborn.driver.metrics().connected, 0);
    quiet(&[&scene.destination, &reborn]).await;
}

/// A socket that has the address and listens to nobody, so that no other process gets it.
fn bound(address: &Address) -> TcpSocket {
    let Address::Tcp(address) = address else {
        panic!("of TCP");
    };
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address.parse().unwrap()).unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_nobody_can_reach_fails_the_transfer() {
    for mode in MODES {
        let scene = Scene::new(mode, None).await;
        scene.source.driver.shutdown().await;
        let _deaf = bound(scene.source.driver.address());
        scene
            .transfer
            .order(Side::Destination, &scene.destination, &[&scene.source]);
        assert_eq!(results(&scene.destination, 1).await.failed, [RequestKey(1)]);
        let dialled = scene.destination.driver.metrics().dialled;
        assert!(dialled < 40, "{dialled} tries without a pause");
        assert_eq!(scene.proxy.frames(), 0);
        quiet(&[&scene.destination]).await;
    }
}

/// The connection is closed for the sake of one transfer. A READ that shares it is claimed again,
/// and succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_for_one_transfer_fails_no_other_read() {
    let scene = Scene::new(Mode::Read, Some(data(Mode::Read, Fault::StallInside))).await;
    let table = [(0, 50, 51), (2, 52, 53)];
    let other = Transfer::new(2, Mode::Read, vec![part((0, 0), 0, &table)]);
    // Both are claimed in the first words of the connection, before anything is asked for.
    scene.begin();
    other.begin(&[&scene.source], &[&scene.destination]);
    scene.stalled().await;
    until("both claims", || {
        scene.source.driver.metrics().gauges.claimed_bytes == 14 * 192
    })
    .await;
    scene.destination.driver.cancel(scene.transfer.id);
    let received = results(&scene.destination, 2).await;
    assert_eq!(received.failed, [scene.transfer.request]);
    assert_eq!(scene.destination.block(2, 53), scene.source.block(2, 52));
    let metrics = scene.destination.driver.metrics();
    assert!(metrics.machine.fences_close > 0 && metrics.machine.retries > 0);
    assert_eq!(results(&scene.source, 2).await.sent.len(), 2);
    quiet(&[&scene.source, &scene.destination]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_nothing_is_open_ends_and_is_made_again_when_needed() {
    let mut options = options("hybrid", 0);
    options.bounds.idle_timeout = Duration::from_millis(100);
    let source = Worker::start(&options, None).await;
    let destination = Worker::new("hybrid", 0).await;
    destination.meets(&source);
    for number in 1..4 {
        let table = [(0, 1, 2)];
        let transfer = Transfer::new(number, Mode::Read, vec![part((0, 0), 0, &table)]);
        transfer.begin(&[&source], &[&destination]);
        assert!(results(&destination, 1).await.failed.is_empty());
        results(&source, 1).await;
        until("an end", || destination.driver.metrics().connections == 0).await;
        assert_eq!(destination.driver.metrics().connected, number);
    }
    assert_eq!(source.driver.metrics().closed_late, 3);
    quiet(&[&source, &destination]).await;
}

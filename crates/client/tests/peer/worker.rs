//! Workers with block memory of their own, orders between them, and waiting with a bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tessera_client::layout::{BlockRun, Heads, LayerMemory, Layout};
use tessera_client::peer::{
    BlockRef, Generation, Mode, PartId, PartOrder, PeerBounds, PeerDriver, PeerOptions,
    PeerResults, PeerTimes, Side, TransferId, TransferOrder,
};
use tessera_client::{Incarnation, Lent, Region, Segments, SimDevice};
use tessera_lifecycle::{GroupKind, GroupSpec, RequestKey, Shape};
use tessera_proto::Topology;
use tessera_transport::Address;

/// Blocks of each layer.
pub(crate) const BLOCKS: u32 = 64;
const BLOCK_BYTES: u64 = 96;
const STRIDE: u64 = 128;
/// What freed memory is filled with.
pub(crate) const CANARY: u8 = 0xc5;
/// Longer than anything takes that is going to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Times that let a test see every stage soon.
pub(crate) const TIMES: PeerTimes = PeerTimes {
    ping_ms: 50,
    drain_ms: 100,
    abort_ms: 100,
    fence_ms: 100,
    stop_ms: 60_000,
};

/// The groups of a layout, by name.
pub(crate) fn shape(layout: &str) -> Shape {
    let group = |kind, block_tokens| GroupSpec {
        kind,
        block_tokens,
        replicated: Default::default(),
    };
    let full = group(GroupKind::Full, 4);
    let groups = match layout {
        "full" => vec![full],
        "hybrid" => vec![
            full,
            group(GroupKind::Window { tokens: 6 }, 4),
            group(GroupKind::State, 8),
        ],
        other => panic!("no layout {other}"),
    };
    Shape::new(groups, Some(8), 4, Topology::SINGLE).unwrap()
}

pub(crate) fn options(layout: &str, rank: u16) -> PeerOptions {
    let random = || u128::from(getrandom::u64().unwrap());
    PeerOptions {
        incarnation: Incarnation(random() << 64 | random()),
        rank,
        listen: Address::Tcp("127.0.0.1:0".into()),
        insecure: false,
        model: "m".into(),
        revision: "1".into(),
        weights: vec![0xc0, 0x01],
        tenant: "a".into(),
        dtype: "bfloat16".into(),
        speculative: String::new(),
        layout: [0; 32],
        shape: shape(layout),
        heads: Vec::new(),
        peer_tp: 1,
        times: TIMES,
        limits: Default::default(),
        bounds: PeerBounds {
            piece_bytes: 500,
            dial_limit: Duration::from_secs(5),
            ..PeerBounds::default()
        },
    }
}

/// One worker of an engine.
pub(crate) struct Worker {
    pub(crate) driver: PeerDriver,
    pub(crate) layout: Arc<Layout>,
    pub(crate) rank: u16,
    regions: Vec<Arc<Region>>,
    device: Option<Arc<SimDevice>>,
}

impl Worker {
    pub(crate) async fn new(layout: &str, rank: u16) -> Self {
        Self::start(&options(layout, rank), None).await
    }

    pub(crate) async fn start(options: &PeerOptions, device: Option<Arc<SimDevice>>) -> Self {
        let length = usize::try_from(u64::from(BLOCKS) * STRIDE).unwrap();
        let mut regions = Vec::new();
        let mut layers = Vec::new();
        for group in 0..options.shape.groups().len() {
            for layer in 0..2 {
                let region = match &device {
                    Some(device) => device.allocate(length).unwrap(),
                    None => Region::allocate(length).unwrap(),
                };
                // The second layer of each group keeps its block in two pieces.
                let runs = match layer {
                    0 => vec![(0, BLOCK_BYTES)],
                    _ => vec![(0, 40), (64, 56)],
                };
                let run = |(offset_bytes, length_bytes)| BlockRun {
                    region: Arc::clone(&region),
                    offset_bytes,
                    block_stride_bytes: STRIDE,
                    length_bytes,
                };
                let heads = match layer {
                    0 => [vec![(0, 48)], vec![(48, 48)]],
                    _ => [vec![(0, 20), (64, 28)], vec![(20, 20), (92, 28)]],
                };
                let heads = heads.map(|runs| runs.into_iter().map(run).collect());
                layers.push(LayerMemory {
                    name: format!("layer {group}.{layer}"),
                    group,
                    format: "bytes".into(),
                    num_blocks: u64::from(BLOCKS),
                    runs: runs.into_iter().map(run).collect(),
                    heads: Some(Heads {
                        format: "bytes".into(),
                        runs: heads.to_vec(),
                    }),
                });
                regions.push(region);
            }
        }
        let layout = Arc::new(Layout::new(&options.shape, layers).unwrap());
        let driver = PeerDriver::start(options, Arc::clone(&layout)).await;
        Self {
            driver: driver.unwrap(),
            layout,
            rank: options.rank,
            regions,
            device,
        }
    }

    pub(crate) fn groups(&self) -> usize {
        self.layout.groups()
    }

    /// Fills all memory with one byte.
    pub(crate) fn fill(&self, byte: u8) {
        for region in &self.regions {
            self.compute(region, &vec![byte; region.length_bytes()]);
        }
    }

    /// Fills all memory with bytes of `seed` that differ from place to place.
    pub(crate) fn fill_differently(&self, seed: u64) {
        for (index, region) in self.regions.iter().enumerate() {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
            let next = || {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(99);
                state.to_le_bytes()[7]
            };
            let bytes: Vec<u8> = std::iter::repeat_with(next)
                .take(region.length_bytes())
                .collect();
            self.compute(region, &bytes);
        }
    }

    fn compute(&self, region: &Arc<Region>, bytes: &[u8]) {
        match &self.device {
            Some(device) => {
                for (index, piece) in bytes.chunks(128).enumerate() {
                    device.submit(region, index * 128, piece.to_vec());
                }
            }
            None => {
                let lent = Lent::new(Segments::whole(region));
                lent.unwrap().copy_from(bytes).unwrap();
            }
        }
    }

    /// The content of one block.
    pub(crate) fn block(&self, group: usize, block: u32) -> Vec<u8> {
        tokio::task::block_in_place(|| self.layout.read(group, &[block]).unwrap())
    }

    /// Bytes of one block of `group`.
    pub(crate) fn block_bytes(&self, group: u16) -> u64 {
        self.layout.payload_bytes(group.into(), 1)
    }

    /// Everything, blocks and what lies between them.
    pub(crate) fn all(&self) -> Vec<Vec<u8>> {
        let read = |region: &Arc<Region>| match &self.device {
            Some(device) => tokio::task::block_in_place(|| device.view(region)),
            None => {
                let mut bytes = vec![0; region.length_bytes()];
                Segments::whole(region).copy_to(&mut bytes).unwrap();
                bytes
            }
        };
        self.regions.iter().map(read).collect()
    }

    pub(crate) fn meets(&self, other: &Self) {
        self.meets_at(other, other.driver.address());
    }

    /// Finds `other` at an address that need not be its own.
    pub(crate) fn meets_at(&self, other: &Self, address: &Address) {
        self.driver.introduce(other.driver.incarnation(), address);
    }
}

/// Waits for something to become true.
pub(crate) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits for the results of `count` requests.
pub(crate) async fn results(worker: &Worker, count: usize) -> PeerResults {
    let mut all = PeerResults::default();
    until("results", || {
        let some = worker.driver.collect().unwrap();
        all.sent.extend(some.sent);
        all.received.extend(some.received);
        all.failed.extend(some.failed);
        all.invalid_blocks.extend(some.invalid_blocks);
        all.sent.len() + all.received.len() >= count
    })
    .await;
    all
}

/// Waits until nothing is open on either side.
pub(crate) async fn quiet(workers: &[&Worker]) {
    for worker in workers {
        until("quiet", || worker.driver.is_idle()).await;
        let tables = worker.driver.tables();
        assert_eq!((tables.transfers, tables.releasing), (0, 0));
    }
}

/// Blocks of one part, on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) id: PartId,
    pub(crate) source: Vec<BlockRef>,
    pub(crate) destination: Vec<BlockRef>,
}

pub(crate) fn block(group: u16, block: u32) -> BlockRef {
    BlockRef {
        group,
        block,
        generation: Generation(u64::from(block) + 7),
    }
}

/// A part with the blocks of `table`: group, source, destination.
pub(crate) fn part(ranks: (u16, u16), index: u16, table: &[(u16, u32, u32)]) -> Part {
    Part {
        id: PartId {
            source: ranks.0,
            destination: ranks.1,
            index,
        },
        source: table
            .iter()
            .map(|(of, from, _)| block(*of, *from))
            .collect(),
        destination: table.iter().map(|(of, _, to)| block(*of, *to)).collect(),
    }
}

/// A transfer between workers.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    pub(crate) request: RequestKey,
    pub(crate) mode: Mode,
    pub(crate) parts: Vec<Part>,
    pub(crate) timeout_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) ready: bool,
}

impl Transfer {
    pub(crate) fn new(number: u64, mode: Mode, parts: Vec<Part>) -> Self {
        Self {
            id: TransferId(u128::from(number)),
            request: RequestKey(number),
            mode,
            parts,
            timeout_ms: 20_000,
            lease_ms: 20_000,
            ready: true,
        }
    }

    /// Orders the transfer on one side; `others` are the workers of the other.
    pub(crate) fn order(&self, side: Side, worker: &Worker, others: &[&Worker]) {
        let read = self.mode == Mode::Read;
        let lends = side.lends(self.mode);
        let parts = self.parts.iter().filter_map(|part| {
            let (own, other) = match side {
                Side::Source => (part.id.source, part.id.destination),
                Side::Destination => (part.id.destination, part.id.source),
            };
            if own != worker.rank {
                return None;
            }
            let peer = others.iter().find(|peer| peer.rank == other);
            let peer = peer.expect("a worker of that rank").driver.incarnation();
            let (local, remote) = match side {
                Side::Source => (&part.source, &part.destination),
                Side::Destination => (&part.destination, &part.source),
            };
            let lent = if lends { local } else { remote };
            let known = |block: &&BlockRef| usize::from(block.group) < worker.groups();
            let moving = lent.iter().filter(|block| !block.is_null()).filter(known);
            Some(PartOrder {
                part: part.id,
                peer: (!(read && lends)).then_some(peer),
                local: local.clone(),
                remote: match read && !lends {
                    true => remote.clone(),
                    false => Vec::new(),
                },
                length_bytes: moving.map(|block| worker.block_bytes(block.group)).sum(),
                ready: self.ready || side == Side::Destination,
            })
        });
        worker.driver.order(&TransferOrder {
            transfer: self.id,
            request: self.request,
            mode: self.mode,
            side,
            synchronous: false,
            parts: parts.collect(),
            timeout_ms: self.timeout_ms,
            lease_ms: self.lease_ms,
        });
    }

    /// Orders it on both sides, the source first.
    pub(crate) fn begin(&self, sources: &[&Worker], destinations: &[&Worker]) {
        for source in sources {
            self.order(Side::Source, source, destinations);
        }
        for destination in destinations {
            self.order(Side::Destination, destination, sources);
        }
    }
}

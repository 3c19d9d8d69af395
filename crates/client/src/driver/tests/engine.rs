//! An engine of one or more ranks, with block memory of its own.

use std::sync::Arc;

use tessera_lifecycle::Rank;
use tessera_lifecycle::scheduler::{LookupAnswer, ScheduledRequest, StepInput};
use tessera_transport::{Lent, Region, Segments, SimDevice};

use super::fake::{Fake, eventually};
use crate::driver::{EngineConfig, SchedulerDriver, WorkerDriver};
use crate::layout::{BlockRun, Heads, LayerMemory};

/// Blocks of each layer.
pub(super) const BLOCKS: u64 = 64;
/// Heads of the whole model, 24 bytes each in a block of a layer.
pub(super) const HEADS: u32 = 4;
const STRIDE: u64 = 128;
const STRIDE_BYTES: usize = 128;

pub(super) struct Engine {
    pub(super) scheduler: SchedulerDriver<Fake>,
    pub(super) workers: Vec<Worker>,
    pub(super) groups: usize,
}

pub(super) struct Worker {
    pub(super) driver: WorkerDriver<Fake>,
    pub(super) remote: Fake,
    /// The memory of each layer, two for each group.
    regions: Vec<Memory>,
}

/// Memory of the host or of a device.
pub(super) struct Memory {
    pub(super) region: Arc<Region>,
    device: Option<Arc<SimDevice>>,
}

impl Memory {
    fn new(device: Option<&Arc<SimDevice>>) -> Self {
        let length = usize::try_from(BLOCKS * STRIDE).unwrap();
        let region = match device {
            Some(device) => device.allocate(length),
            None => Region::allocate(length),
        };
        Self {
            region: region.unwrap(),
            device: device.cloned(),
        }
    }

    /// The engine computes something: on a device it stands there some time.
    fn compute(&self, bytes: &[u8]) {
        match &self.device {
            Some(device) => {
                for (index, piece) in bytes.chunks(STRIDE_BYTES).enumerate() {
                    device.submit(&self.region, index * STRIDE_BYTES, piece.to_vec());
                }
            }
            None => Lent::new(Segments::whole(&self.region))
                .unwrap()
                .copy_from(bytes)
                .unwrap(),
        }
    }

    /// What the engine's next work would see.
    pub(super) fn view(&self) -> Vec<u8> {
        if let Some(device) = &self.device {
            return device.view(&self.region);
        }
        let mut all = vec![0; self.region.length_bytes()];
        Segments::whole(&self.region).copy_to(&mut all).unwrap();
        all
    }
}

/// The groups of a layout, by name.
pub(super) fn groups(layout: &str) -> serde_json::Value {
    let full = serde_json::json!({"kind": "full", "block_tokens": 4});
    let window = serde_json::json!({"kind": {"window": {"tokens": 6}}, "block_tokens": 4});
    let state = serde_json::json!({"kind": "state", "block_tokens": 8});
    match layout {
        "full" => serde_json::json!([full]),
        "hybrid" => serde_json::json!([full, window, state]),
        "windowed" => serde_json::json!([full, window]),
        "shared" => {
            let mut shared = window;
            shared["replicated"] = serde_json::json!({"tp": true});
            serde_json::json!([full, shared])
        }
        other => panic!("no layout {other}"),
    }
}

pub(super) fn config(layout: &str, io: &str, tp: u32) -> EngineConfig {
    let options = serde_json::json!({
        "io": io, "chunk_tokens": 8, "load_timeout_ms": 20000, "lookup_timeout_ms": 2000,
        "staging": 1 << 20, "save_timeout_ms": 3000,
    });
    let json = serde_json::json!({
        "namespace": {
            "model": "m", "dtype": "float32", "layout_fingerprint": "ab".repeat(32),
        },
        "groups": groups(layout),
        "hash_tokens": 4,
        "topology": {"tp": tp},
        "options": options,
    });
    EngineConfig::from_json(&json.to_string()).unwrap()
}

impl Engine {
    pub(super) fn new(config: &EngineConfig, remote: &Fake) -> Self {
        Self::on(config, remote, &[None])
    }

    /// An engine whose layers take turns on `devices`; `None` is the host.
    pub(super) fn on(
        config: &EngineConfig,
        remote: &Fake,
        devices: &[Option<Arc<SimDevice>>],
    ) -> Self {
        let scheduler = SchedulerDriver::start_with(config, |_| Ok(remote.another())).unwrap();
        let workers = (0..config.topology.tp).map(|tp| {
            let remote = remote.another();
            let rank = Rank {
                tp,
                ..Rank::default()
            };
            Worker::new(config, rank, remote, devices)
        });
        Self {
            scheduler,
            workers: workers.collect(),
            groups: config.groups.len(),
        }
    }

    /// The prompt's tables: groups do not share blocks.
    pub(super) fn tables(&self, first: u32, tokens: u64) -> Vec<Vec<u32>> {
        let sizes = [4, 4, 8];
        (0..self.groups)
            .map(|group| {
                let blocks = u32::try_from(tokens.div_ceil(sizes[group])).unwrap();
                (first..first + blocks).collect()
            })
            .collect()
    }

    /// Asks until the answer is decided.
    pub(super) fn lookup(&self, request: &str, tokens: u64, computed: u64) -> LookupAnswer {
        let hashes = hashes(tokens);
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        loop {
            let answer = self
                .scheduler
                .lookup(request, tokens, computed, &hashes, true);
            let answer = answer.unwrap();
            if answer.tokens.is_some() {
                return answer;
            }
        }
    }

    /// Computes `tokens` tokens of a request in one step and saves them.
    pub(super) fn compute(&self, request: &str, tables: &[Vec<u32>], tokens: u64) {
        let input = StepInput {
            scheduled: vec![ScheduledRequest {
                request: request.into(),
                whole_tables: true,
                computed_tokens: 0,
                scheduled_tokens: tokens,
                blocks: tables.to_vec(),
                hashes: hashes(tokens),
                hashes_from: 0,
            }],
            ..StepInput::default()
        };
        if let Some(plan) = self.scheduler.step(&input).unwrap() {
            self.execute(&plan);
        }
    }

    pub(super) fn execute(&self, plan: &[u8]) {
        for worker in &self.workers {
            worker.driver.begin_step(plan).unwrap();
            worker.driver.end_step().unwrap();
        }
    }

    pub(super) fn wait_for_saves(&self) {
        for worker in &self.workers {
            eventually("saves end", || worker.driver.is_idle());
        }
    }

    /// A load of all that is promised; the plan of its step.
    pub(super) fn order(&self, request: &str, tables: &[Vec<u32>], tokens: u64) -> Vec<u8> {
        let promised = self.lookup(request, tokens, 0).tokens.unwrap();
        assert!(promised > 0, "nothing is promised");
        self.scheduler.allocated(request, tables, promised).unwrap();
        self.plan(&StepInput::default())
    }

    /// The plan of a step in which the workers have something to do.
    pub(super) fn plan(&self, input: &StepInput) -> Vec<u8> {
        let plan = self.scheduler.step(input).unwrap();
        plan.expect("there is something to do")
    }
}

impl Worker {
    fn new(
        config: &EngineConfig,
        rank: Rank,
        remote: Fake,
        devices: &[Option<Arc<SimDevice>>],
    ) -> Self {
        let mut regions: Vec<Memory> = Vec::new();
        let mut layers = Vec::new();
        for group in 0..config.groups.len() {
            for layer in ["b", "a"] {
                let memory = Memory::new(devices[regions.len() % devices.len()].as_ref());
                // Two runs with a hole between them: contents are 96 of 128 bytes.
                let run = |offset_bytes, length_bytes| BlockRun {
                    region: Arc::clone(&memory.region),
                    offset_bytes,
                    block_stride_bytes: STRIDE,
                    length_bytes,
                };
                // With heads, each has a piece of either run, and this rank has some of four.
                let total = config.heads.get(group).copied().flatten();
                let count = u64::from(total.map_or(HEADS, |heads| heads / config.topology.tp));
                let head = |at: u64| vec![run(at * 8, 8), run(48 + at * 16, 16)];
                layers.push(LayerMemory {
                    name: format!("{layer}{group}"),
                    group,
                    format: format!("{} bytes", count * 24),
                    num_blocks: BLOCKS,
                    runs: vec![run(0, count * 8), run(48, count * 16)],
                    heads: total.map(|_| Heads {
                        format: "24 bytes".into(),
                        runs: (0..count).map(head).collect(),
                    }),
                });
                regions.push(memory);
            }
        }
        let config = EngineConfig {
            rank,
            ..config.clone()
        };
        let client = remote.clone();
        let driver = WorkerDriver::start_with(&config, layers, |_| Ok(client)).unwrap();
        Self {
            driver,
            remote,
            regions,
        }
    }

    /// Fills all memory, holes included.
    pub(super) fn fill(&self, seed: u8) {
        for (layer, memory) in self.regions.iter().enumerate() {
            let byte = |at: usize| {
                let mixed = at.wrapping_mul(31).wrapping_add(layer * 17);
                u8::try_from(mixed % 251).unwrap() ^ seed
            };
            let bytes: Vec<u8> = (0..memory.region.length_bytes()).map(byte).collect();
            memory.compute(&bytes);
        }
    }

    /// The bytes of one head of this rank in one block of a group, both layers.
    pub(super) fn head(&self, group: usize, block: u32, head: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for memory in &self.regions[2 * group..2 * group + 2] {
            let all = memory.view();
            let start = usize::try_from(u64::from(block) * STRIDE).unwrap();
            let head = usize::try_from(head).unwrap();
            let (keys, values) = (start + head * 8, start + 48 + head * 16);
            bytes.extend_from_slice(&all[keys..keys + 8]);
            bytes.extend_from_slice(&all[values..values + 16]);
        }
        bytes
    }

    /// The bytes of one block of a group, both layers, holes left out.
    pub(super) fn block(&self, group: usize, block: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for memory in &self.regions[2 * group..2 * group + 2] {
            let all = memory.view();
            let start = usize::try_from(u64::from(block) * STRIDE).unwrap();
            bytes.extend_from_slice(&all[start..start + 32]);
            bytes.extend_from_slice(&all[start + 48..start + 112]);
        }
        bytes
    }

    pub(super) fn regions(&self) -> Vec<std::sync::Weak<Region>> {
        let regions = self.regions.iter();
        regions
            .map(|memory| Arc::downgrade(&memory.region))
            .collect()
    }

    pub(super) fn memory(&self) -> Vec<Vec<u8>> {
        self.regions.iter().map(Memory::view).collect()
    }

    /// Collects until `request` is reported: the finished and the failed, and invalid blocks.
    pub(super) fn outcome(&self, request: &str) -> (Vec<String>, Vec<String>, Vec<u32>) {
        let collected = parking_lot::Mutex::new((Vec::new(), Vec::new(), Vec::new()));
        eventually("a load is reported", || {
            let results = self.driver.poll().unwrap();
            assert!(results.finished_sending.is_empty());
            let mut all = collected.lock();
            all.0.extend(results.finished_recving);
            all.1.extend(results.failed_recving);
            all.2.extend(self.driver.take_invalid_blocks().unwrap());
            all.0.iter().any(|name| name == request)
        });
        collected.into_inner()
    }

    pub(super) fn assert_nothing_more(&self) {
        let results = self.driver.poll().unwrap();
        assert!(results.finished_recving.is_empty() && results.failed_recving.is_empty());
        assert!(self.driver.take_invalid_blocks().unwrap().is_empty());
    }
}

pub(super) fn hashes(tokens: u64) -> Vec<Vec<u8>> {
    (0..tokens / 4)
        .map(|unit| vec![u8::try_from(unit).unwrap(), 7])
        .collect()
}

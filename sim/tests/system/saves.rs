//! The workers of two engines that compute the same prompt, over one node.

use std::time::{Duration, Instant};

use tessera_client::driver::{EngineConfig, WorkerDriver};
use tessera_client::layout::{BlockRun, LayerMemory};
use tessera_client::{CircuitState, Cluster, Region};
use tessera_lifecycle::{ChunkHash, SaveOrder, StepPlan};
use tokio::runtime::Runtime;

use crate::node_process::{NodeProcess, stat};
use crate::tile::PATIENCE;

/// Chunks of a prompt, each a block of one layer.
const CHUNKS: u8 = 4;
const BLOCK_BYTES: u64 = 1 << 20;

fn config() -> EngineConfig {
    let json = r#"{
        "namespace": {"model": "m", "dtype": "float32", "layout_fingerprint": "FINGERPRINT"},
        "groups": [{"kind": "full", "block_tokens": 8}],
        "hash_tokens": 8,
        "topology": {},
        "options": {"chunk_tokens": 8, "staging": 16777216}
    }"#;
    let json = json.replace("FINGERPRINT", &"ab".repeat(32));
    EngineConfig::from_json(&json).expect("a whole configuration")
}

fn engine(node: &NodeProcess) -> WorkerDriver<Cluster> {
    let blocks = u64::from(CHUNKS) + 1;
    let region = Region::allocate(usize::try_from(blocks * BLOCK_BYTES).expect("small"));
    let run = BlockRun {
        region: region.expect("memory"),
        offset_bytes: 0,
        block_stride_bytes: BLOCK_BYTES,
        length_bytes: BLOCK_BYTES,
    };
    let layer = LayerMemory {
        name: "layer".into(),
        group: 0,
        format: "bytes".into(),
        num_blocks: blocks,
        runs: vec![run],
        heads: None,
    };
    let connect = |runtime: &_| Ok(node.client_on(runtime));
    WorkerDriver::start_with(&config(), vec![layer], connect).expect("a worker")
}

/// Computes the prompt in one step.
fn compute(engine: &WorkerDriver<Cluster>, step: u64) {
    let save = |chunk| SaveOrder {
        group: 0,
        hash: ChunkHash::new(&[chunk]).expect("a short hash"),
        blocks: vec![u32::from(chunk) + 1],
    };
    let plan = StepPlan {
        incarnation: 1,
        step,
        saves: (0..CHUNKS).map(save).collect(),
        ..StepPlan::default()
    };
    engine
        .begin_step(&plan.encode())
        .expect("it takes the plan");
    until("it rests", || engine.is_idle());
    engine.end_step().expect("it saves");
    until("it rests", || engine.is_idle());
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The PUT requests that the node has had, and the payload bytes.
fn received(node: &NodeProcess, runtime: &Runtime) -> (u64, u64) {
    let client = node.client_on(runtime.handle());
    let number = |name| runtime.block_on(stat(&client, name));
    assert_eq!((number("leases"), number("leases_refused")), (0, 0));
    (number("requests_put"), number("received_bytes"))
}

#[test]
fn l15_no_payload_of_what_a_node_has_goes_over_the_wire() {
    let runtime = Runtime::new().expect("a runtime");
    let mut node = NodeProcess::start();
    let all = u64::from(CHUNKS);
    let once = (all, all * BLOCK_BYTES);

    let first = engine(&node);
    compute(&first, 1);
    assert_eq!(first.metrics().machine.saves_stored, all);
    assert_eq!(received(&node, &runtime), once);

    let second = engine(&node);
    compute(&second, 1);
    let counters = second.metrics().machine;
    assert_eq!((counters.saves_stored, counters.saves_existed), (0, all));
    assert_eq!(received(&node, &runtime), once);
    let seen = || second.remote().metrics().nodes.remove(0);
    assert_eq!((seen().probe_present, seen().store_existed), (all, 0));

    // A node that has lost everything is sent everything.
    node.restart();
    let is_back = || seen().connections_made >= 2 && seen().circuit == CircuitState::Closed;
    until("it is connected again", is_back);
    compute(&second, 2);
    assert_eq!(second.metrics().machine.saves_stored, all);
    assert_eq!(received(&node, &runtime), once);
}

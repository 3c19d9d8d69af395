//! What a node has already is not saved again, and whoever cannot say so is sent everything.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_lifecycle::scheduler::{ScheduledRequest, StepInput};
use tessera_transport::{FenceSide, SimDevice};

use super::engine::{Engine, Worker, config, hashes};
use super::fake::{Fake, Word, eventually};

/// Objects of 32 tokens: four chunks in full, four window tails, one state.
const OBJECTS: usize = 9;

/// An engine of one rank on a device, before the end of a step that computes 32 tokens.
struct Step {
    engine: Engine,
    device: Arc<SimDevice>,
}

impl Step {
    fn begin(nodes: &Fake, word: Word) -> Self {
        let device = SimDevice::start(1).unwrap();
        let mut config = config("hybrid", "async", 1);
        config.options.save_timeout = Duration::from_millis(200);
        let devices = [Some(Arc::clone(&device))];
        let engine = Engine::on(&config, nodes, &devices);
        *engine.workers[0].remote.word.lock() = word;
        let step = Self { engine, device };
        step.begin_for("r");
        step
    }

    fn begin_for(&self, request: &str) {
        let scheduled = ScheduledRequest {
            request: request.into(),
            whole_tables: true,
            computed_tokens: 0,
            scheduled_tokens: 32,
            blocks: self.engine.tables(1, 32),
            hashes: hashes(32),
            hashes_from: 0,
        };
        let plan = self.engine.plan(&StepInput {
            scheduled: vec![scheduled],
            ..StepInput::default()
        });
        self.worker().driver.begin_step(&plan).unwrap();
    }

    /// Begins with an engine whose probe is held back.
    fn begin_held(nodes: &Fake) -> (Self, Arc<tokio::sync::Semaphore>) {
        let step = Self::begin(nodes, Word::Truth);
        step.answered();
        step.end();
        let gate = step.worker().remote.hold_probes();
        step.begin_for("s");
        (step, gate)
    }

    fn worker(&self) -> &Worker {
        &self.engine.workers[0]
    }

    /// Waits for the answer of the nodes.
    fn answered(&self) {
        eventually("the nodes answer", || self.worker().driver.is_idle());
        assert_eq!(self.probes(), 1, "asked once for a step");
    }

    fn end(&self) {
        self.worker().driver.end_step().unwrap();
        self.engine.wait_for_saves();
    }

    fn probes(&self) -> usize {
        self.worker().remote.probes.load(Ordering::Relaxed)
    }

    /// Payloads that were sent.
    fn sent(&self) -> usize {
        self.worker().remote.stores.load(Ordering::Relaxed)
    }

    /// Objects that were stored, and those that their node had.
    fn ended(&self) -> (u64, u64) {
        let counters = self.worker().driver.metrics().machine;
        (counters.saves_stored, counters.saves_existed)
    }
}

/// Nodes that have all objects.
fn full() -> Fake {
    let nodes = Fake::new();
    let first = Step::begin(&nodes, Word::Truth);
    first.answered();
    first.end();
    assert_eq!(first.ended(), (9, 0));
    assert_eq!((first.sent(), nodes.objects()), (OBJECTS, OBJECTS));
    nodes
}

#[test]
fn l15_what_a_node_has_is_neither_copied_nor_sent() {
    let step = Step::begin(&full(), Word::Truth);
    step.answered();
    step.end();
    assert_eq!((step.ended(), step.sent()), ((0, 9), 0));
    assert_eq!(
        step.device.fences(FenceSide::Before),
        (0, 0),
        "no block is read"
    );
}

#[test]
fn l15_of_a_step_only_what_is_missing_is_sent() {
    let nodes = full();
    nodes.lose_one();
    let step = Step::begin(&nodes, Word::Truth);
    step.answered();
    step.end();
    assert_eq!((step.ended(), step.sent()), ((1, 8), 1));
    assert_eq!(nodes.objects(), OBJECTS);
}

#[test]
fn l15_an_answer_behind_the_step_spares_the_sending_and_the_engine_does_not_wait_for_it() {
    let (step, gate) = Step::begin_held(&full());
    let worker = step.worker();
    worker.driver.end_step().unwrap();
    assert!(worker.driver.metrics().staging_bytes_used > 0);
    gate.add_permits(1);
    step.engine.wait_for_saves();
    assert_eq!((step.ended(), step.sent()), ((0, 18), 0));
    assert_eq!(worker.driver.metrics().staging_bytes_used, 0);
}

#[test]
fn l15_whatever_the_nodes_say_of_it_what_they_lack_is_saved() {
    for word in [Word::Denial, Word::Short, Word::Silence, Word::Panic] {
        let nodes = Fake::new();
        let step = Step::begin(&nodes, word);
        step.end();
        assert_eq!((step.ended(), step.sent()), ((9, 0), OBJECTS), "{word:?}");
        assert_eq!((step.probes(), nodes.objects()), (1, OBJECTS), "{word:?}");
    }
}

#[test]
fn l15_whoever_does_not_say_what_it_has_is_sent_it_again() {
    for (word, sent) in [
        (Word::Denial, OBJECTS),
        (Word::Short, OBJECTS - 1),
        (Word::Silence, OBJECTS),
        (Word::Panic, OBJECTS),
    ] {
        let step = Step::begin(&full(), word);
        step.end();
        assert_eq!((step.ended(), step.sent()), ((0, 9), sent), "{word:?}");
    }
}

#[test]
fn l15_an_object_that_goes_behind_its_probe_costs_only_its_save() {
    let nodes = full();
    let step = Step::begin(&nodes, Word::Truth);
    step.answered();
    nodes.clear();
    step.end();
    assert_eq!((step.ended(), step.sent()), ((0, 9), 0));
    assert_eq!(step.engine.lookup("q", 33, 0).tokens, Some(0));
    step.begin_for("s");
    step.end();
    assert_eq!((step.ended(), nodes.objects()), ((9, 9), OBJECTS));
}

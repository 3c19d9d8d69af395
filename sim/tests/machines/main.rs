//! The machines of one engine, scheduler and workers, against a model of vLLM and of the nodes, by
//! seed.
//!
//! Everything that can happen happens in an order that the seed chooses: answers late, fetches that
//! fail after a partial write, writes that become visible only behind their fence, fences that
//! fail, nodes that forget and restart, requests that are aborted and come back under the same
//! name. The seed also chooses who executes loads: others beside the engine's steps, or the model
//! thread. After each event every invariant is checked, one file each; then the faults stop, and
//! everything must end.

mod coverage;
mod engine;
mod invariants;
mod nodes;
mod random;
mod rank;
mod request;
mod truth;
mod world;

use crate::coverage::Coverage;
use crate::world::{Faults, World};

/// Seeds of one run of the test. A seed takes some milliseconds.
const SEEDS: u64 = 60;
/// Replays one seed instead.
const SEED_VARIABLE: &str = "TESSERA_SIM_SEED";

/// Says which seed it was when a test ends badly.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with {SEED_VARIABLE}={}", self.0);
        }
    }
}

fn run(seed: u64, faults: Faults) -> Coverage {
    let _replay = Replay(seed);
    let mut world = World::new(seed, faults);
    for _ in 0..1_000 {
        world.event();
    }
    world.finish();
    world.coverage()
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var(SEED_VARIABLE) {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    }
}

#[test]
fn no_order_of_events_breaks_an_invariant_and_everything_ends() {
    let mut total = Coverage::default();
    let all = seeds();
    let whole = all.clone().count() > 1;
    for seed in all {
        total.add(&run(seed, Faults::All));
    }
    assert!(
        !whole || total.is_everything_reached(),
        "the model has gone blind: {total:?}"
    );
}

#[test]
fn without_faults_every_load_succeeds() {
    for seed in seeds().take(30) {
        let coverage = run(seed, Faults::None);
        assert_eq!(coverage.loads_failed, 0, "seed {seed}");
        assert!(coverage.forwards > 0);
    }
}

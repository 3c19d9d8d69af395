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
const SEEDS: u64 = 240;
/// Runs as many seeds instead.
const SEEDS_VARIABLE: &str = "TESSERA_SIM_SEEDS";
/// Replays one seed instead.
const SEED_VARIABLE: &str = "TESSERA_SIM_SEED";
/// Requests of the long life.
const REQUESTS: u64 = 10_000;

/// Says which seed it was when a test ends badly.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("replay: {SEED_VARIABLE}={seed} cargo test -p tessera-sim --test machines");
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
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>());
    match (number(SEED_VARIABLE), number(SEEDS_VARIABLE)) {
        (Some(seed), _) => {
            let seed = seed.expect("a number");
            seed..seed + 1
        }
        (None, Some(count)) => 0..count.expect("a number"),
        (None, None) => 0..SEEDS,
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

#[test]
fn ten_thousand_requests_of_one_engine_leave_nothing_behind() {
    for seed in [1, 2] {
        let _replay = Replay(seed);
        let mut world = World::new(seed, Faults::All);
        while world.coverage().requests_done < REQUESTS {
            world.event();
        }
        // Leases, blocks, names and orders: as at the start.
        world.finish();
        let Coverage {
            aborted_parked,
            loads_failed,
            preempted,
            ..
        } = world.coverage();
        let reached = [aborted_parked, loads_failed, preempted];
        assert!(reached.iter().all(|count| *count >= 10), "{reached:?}");
    }
}

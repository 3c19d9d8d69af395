//! Both machines under an engine, ranks and a store, all simulated from one seed.
//!
//! Memory holds tags instead of bytes: what a block should hold follows from the prompt, so that
//! every block that is read, every object that is stored and every load that is reported can be
//! judged. The properties, after every step of every seed:
//! - no object is ever stored that does not hold what its key says;
//! - no request computes over a block that does not hold what it should;
//! - each load is reported once by each rank, while the engine still holds the request, and nothing
//!   writes to its blocks afterwards;
//! - at the end no load, no lease and no request is left.

mod outputs;
mod random;
mod ranks;
mod scheduling;
mod store;
mod world;

use tessera_proto::Topology;
use world::{Io, Setup, World};

const SEEDS: u64 = 40;

fn run(setup: &Setup) {
    let (mut hit_tokens, mut saved) = (0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(setup, seed);
        for _ in 0..120 {
            world.step();
        }
        world.drain();
        let counters = world.scheduler.counters();
        hit_tokens += counters.hit_tokens;
        saved += counters.saves;
    }
    assert!(
        saved > 1_000,
        "the simulation saves too little to prove anything: {saved}"
    );
    assert!(
        hit_tokens > 2_000,
        "the simulation loads too little to prove anything: {hit_tokens}"
    );
}

fn topology(tp: u32) -> Topology {
    Topology {
        tp,
        ..Topology::SINGLE
    }
}

#[test]
fn a_single_full_group() {
    run(&Setup::full(Io::Beside, topology(1)));
}

#[test]
fn a_single_full_group_on_two_ranks() {
    run(&Setup::full(Io::Beside, topology(2)));
}

#[test]
fn a_single_full_group_on_the_model_thread() {
    run(&Setup::full(Io::ModelThread, topology(1)));
}

#[test]
fn a_single_full_group_on_the_model_threads_of_two_ranks() {
    run(&Setup::full(Io::ModelThread, topology(2)));
}

#[test]
fn a_hybrid_layout() {
    run(&Setup::hybrid(Io::Beside, topology(1)));
}

#[test]
fn a_hybrid_layout_on_the_model_threads_of_two_ranks() {
    run(&Setup::hybrid(Io::ModelThread, topology(2)));
}

#[test]
fn a_hybrid_layout_on_four_ranks_and_two_stages() {
    let topology = Topology {
        tp: 2,
        pp: 2,
        ..Topology::SINGLE
    };
    run(&Setup::hybrid(Io::Beside, topology));
}

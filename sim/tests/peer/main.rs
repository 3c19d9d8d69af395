//! The machines of direct transfers, prefill against decode, over a world that knows who really
//! touches whose memory.
//!
//! One world, three uses: every order of events in small worlds (`model`), long histories by seed,
//! first with faults and then without (`seeds`), and named scenarios (`scenarios`). The properties
//! are those of `docs/peer.md`. Larger budgets are for runs by hand: `TESSERA_MODEL=deep`.

mod actions;
mod apply;
mod ending;
mod law;
mod model;
mod random;
mod reached;
mod scenarios;
mod seeds;
mod worker;
mod world;

//! `tessera bench`: the data path of the shipped binary against the floors of this machine.
//!
//! `main` calls [`run`]. The node runs in a process of its own, the client in this one, and each
//! repeat of a row is followed by a repeat of its floor: machines are noisy, ratios within one run
//! are less so. Nothing that is measured is allocated while it is measured.

mod bare;
pub(crate) mod contest;
mod cost;
mod disk;
pub(crate) mod floor;
mod load;
mod node_process;
mod objects;
mod peer;
pub(crate) mod prefill;
mod report;
mod row;
mod run;
mod statistics;
mod store;
mod wire;

pub(crate) use run::run;

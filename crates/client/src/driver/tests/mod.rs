//! Both drivers over block memory of their own and a store in memory, with faults injected through
//! the interface that production uses.

mod admission;
mod config;
mod devices;
mod endings;
mod engine;
mod failures;
mod fake;
mod handover;
mod handover_shapes;
mod handover_write;
mod log;
mod panics;
mod saves;
mod strangers;
mod transfers;

//! What may happen to a request's loads, saves and direct transfers, as pure state machines.
//!
//! Holds: the shape of an engine's cache ([`Shape`]), the one function that says which objects a
//! boundary needs ([`plan`]), the plan of a step as it travels from the scheduler to its workers
//! ([`StepPlan`]), the two machines of loads, [`SchedulerRoot`] and [`WorkerRoot`], and the two of
//! direct transfers between engines, [`HandoverRoot`] in the scheduler and [`PeerRoot`] in each
//! worker. May import: proto. Never sees: a clock,
//! async, a channel, a lock, a socket, a thread, `unsafe`.
//!
//! # How to drive a machine
//! A root owns all of its state and takes `&mut self`. One mutation (`handle_*`, or one of the
//! engine's hooks), then drain `poll_command` until it is empty, then the next mutation. Time comes
//! in as `now`; `poll_timeout` says when `handle_timeout` is due. A duplicate, late or unknown
//! completion is an expected event that changes nothing but a counter. Every collection is bounded
//! by a named limit. `check_invariants` panics with a message if the machine is broken; tests call
//! it after each step.
#![forbid(unsafe_code)]

pub mod handover;
mod ids;
mod metadata;
pub mod peer;
pub mod plan;
pub mod scheduler;
mod shape;
pub mod worker;

pub use handover::{HandoverConfig, HandoverRoot};
pub use ids::{Attempt, LoadId, LookupId, RequestKey, SaveId};
pub use metadata::{ChunkHash, LeaseOrder, LoadOrder, PlanError, SaveOrder, StepPlan};
pub use peer::{PeerConfig, PeerRoot};
pub use scheduler::{SchedulerConfig, SchedulerRoot};
pub use shape::{Axes, Axis, GroupKind, GroupSpec, LayoutClass, Rank, Shape, ShapeError};
pub use worker::{WorkerConfig, WorkerRoot};

//! Names of the things that the machines speak of. None of them is ever used twice.
//!
//! The engine's own request ids are strings that may come back after a request has ended. A
//! [`RequestKey`] names one life of such a string, so that a completion of an old life cannot
//! touch a new one.

use serde::{Deserialize, Serialize};

/// One life of a request: unique within one scheduler process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestKey(pub u64);

/// Counts the loads of one request, from 1; a load after preemption or failure is a new attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt(pub u32);

/// One load: a request's life and the attempt within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LoadId {
    /// The request.
    pub request: RequestKey,
    /// Which of its loads.
    pub attempt: Attempt,
}

/// One question to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupId(pub u64);

/// One save of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaveId(pub u64);

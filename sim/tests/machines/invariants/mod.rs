//! What must hold after every event. One file each.

pub(crate) mod forward;
pub(crate) mod free_memory;
pub(crate) mod leases;
mod model_thread;
pub(crate) mod objects;
mod privacy;
pub(crate) mod progress;
pub(crate) mod promises;
pub(crate) mod reports;
mod whole;

pub(crate) use whole::check;

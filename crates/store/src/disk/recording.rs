//! Who waits for a removal: told once every disk that may hold what was removed has it in its log.
//!
//! Made by the operations, one for each removal or drop, and shared by the jobs of all disks; the
//! last that lets go of it answers. Invariant: whoever lets go without having recorded it says so
//! first, so that nobody hears that something is gone for good which a start may find.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

/// What was removed is gone from memory and from every disk that works, but not for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a disk that failed, or is being closed, could not record the removal: the next start on this \
     disk may find again what was removed; replace the disk or run `tessera clean` on its folder \
     before that, or remove it again then"
)]
pub struct Unrecorded;

type Done = Box<dyn FnOnce(Result<(), Unrecorded>) + Send + Sync>;

/// A removal on its way to the disks.
pub(crate) struct Recording {
    failed: AtomicBool,
    done: Option<Done>,
}

impl Recording {
    /// `done` is called when the last owner lets go.
    pub(crate) fn new(
        done: impl FnOnce(Result<(), Unrecorded>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            failed: AtomicBool::new(false),
            done: Some(Box::new(done)),
        })
    }

    /// Notes that a disk did not record it and never will.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            let failed = self.failed.load(Ordering::Acquire);
            done(if failed { Err(Unrecorded) } else { Ok(()) });
        }
    }
}

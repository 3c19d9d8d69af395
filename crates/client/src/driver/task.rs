//! Where the worker's code may unwind: its own tasks, and the hooks on the engine's thread.
//!
//! Used by transfers, copies and fences, and by every hook that executes commands. The invariant:
//! code that panics says nothing of the memory that it had, so the worker stops: what the code owed
//! is never reported, and its staging memory stays taken.

use std::future::Future;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::error::MemoryFault;
use super::remote::Remote;
use super::transfer::Shared;

/// Stops the worker when the code that holds it unwinds. It takes the lock of the machine then, so
/// it must be dropped after every guard of it.
pub(super) struct Sentry<R: Remote> {
    shared: Arc<Shared<R>>,
    /// The thread was unwinding before, for another reason.
    unwinding: bool,
}

impl<R: Remote> Sentry<R> {
    /// Over what the calling thread does next.
    pub(super) fn over(shared: &Arc<Shared<R>>) -> Self {
        Self {
            shared: Arc::clone(shared),
            unwinding: std::thread::panicking(),
        }
    }
}

impl<R: Remote> Drop for Sentry<R> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            Shared::stop(&self.shared, MemoryFault::Panicked);
        }
    }
}

impl<R: Remote> Shared<R> {
    /// Starts a task on the worker's runtime.
    pub(super) fn spawn<T: Send + 'static>(
        shared: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let sentry = Sentry {
            shared: Arc::clone(shared),
            unwinding: false,
        };
        shared.runtime.spawn(async move {
            let _sentry = sentry;
            task.await
        })
    }
}

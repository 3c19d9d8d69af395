//! The worker's own tasks.
//!
//! Used by transfers, copies and fences. The invariant: a task that panics says nothing of the
//! memory that it had, so the worker stops: what the task owed is never reported, and its staging
//! memory stays taken.

use std::future::Future;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::error::MemoryFault;
use super::remote::Remote;
use super::transfer::Shared;

/// Stops the worker when the task that holds it unwinds.
struct Sentry<R: Remote>(Arc<Shared<R>>);

impl<R: Remote> Drop for Sentry<R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            Shared::stop(&self.0, MemoryFault::Panicked);
        }
    }
}

impl<R: Remote> Shared<R> {
    /// Starts a task on the worker's runtime.
    pub(super) fn spawn<T: Send + 'static>(
        shared: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let sentry = Sentry(Arc::clone(shared));
        shared.runtime.spawn(async move {
            let _sentry = sentry;
            task.await
        })
    }
}

//! Where the worker's code may unwind: its own tasks, and the hooks on the engine's thread.
//!
//! Used by transfers, copies and fences, and by every hook that executes commands. The invariant:
//! code that panics stops the worker: what it owed is never reported, and its staging memory stays
//! taken.

use std::future::Future;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::error::MemoryFault;
use super::remote::Remote;
use super::transfer::Shared;
use crate::sentry::Sentry;

impl<R: Remote> Shared<R> {
    /// Stops the worker if the calling thread unwinds before the end of a hook.
    pub(super) fn sentry(shared: &Arc<Self>) -> Sentry<impl Fn()> {
        Sentry::here(Self::alarm(shared))
    }

    /// Starts a task on the worker's runtime.
    pub(super) fn spawn<T: Send + 'static>(
        shared: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let sentry = Sentry::of_task(Self::alarm(shared));
        shared.runtime.spawn(async move {
            let _sentry = sentry;
            task.await
        })
    }

    fn alarm(shared: &Arc<Self>) -> impl Fn() + Send + use<R> {
        let own = Arc::clone(shared);
        move || Self::stop(&own, MemoryFault::Panicked)
    }
}

//! A flag that is set once and can be waited for. Connections use it to end their writer, the
//! cluster to end its supervisors.

use std::sync::Arc;

use tokio::sync::watch;

/// Clones share the flag.
#[derive(Debug, Clone)]
pub(crate) struct Latch(Arc<watch::Sender<bool>>);

impl Default for Latch {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Latch {
    /// Sets the flag for good.
    pub(crate) fn set(&self) {
        self.0.send_replace(true);
    }

    /// Whether the flag is set.
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the flag is set.
    pub(crate) async fn waited(&self) {
        // The sender lives in `self`: the wait ends only with the flag.
        let _ = self.0.subscribe().wait_for(|set| *set).await;
    }
}

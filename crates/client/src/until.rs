//! When an operation must be over: at its deadline, or when its memory is called back.
//!
//! Made by callers of the cluster, looked at by everything that waits for a node. The invariant: a
//! recall ends an operation no differently than its deadline does: the memory comes back when
//! nothing can write it any more, and not before.

use std::future::Future;

use tokio::time::{Instant, sleep_until};

use crate::latch::Latch;

/// Calls memory back from operations whose deadline is too far away. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct Recall(Latch);

impl Recall {
    /// Ends every operation that was given it, now and later. What a node has not answered is given
    /// up; an answer that has begun costs its connection.
    pub fn call(&self) {
        self.0.set();
    }

    /// Whether it was called.
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.0.is_set()
    }
}

/// When an operation must be over.
#[derive(Debug, Clone)]
pub struct Until {
    deadline: Instant,
    recall: Option<Recall>,
}

/// Why there is no more time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The deadline has passed.
    Deadline,
    /// The memory is called back.
    Recalled,
}

impl From<Instant> for Until {
    fn from(deadline: Instant) -> Self {
        let recall = None;
        Self { deadline, recall }
    }
}

impl Until {
    /// The deadline, or when `recall` is called.
    #[must_use]
    pub fn new(deadline: Instant, recall: &Recall) -> Self {
        let recall = Some(recall.clone());
        Self { deadline, recall }
    }

    /// The deadline.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Why there is no more time, if there is none.
    #[must_use]
    pub fn over(&self) -> Option<Over> {
        if self.recall.as_ref().is_some_and(Recall::is_called) {
            return Some(Over::Recalled);
        }
        (Instant::now() >= self.deadline).then_some(Over::Deadline)
    }

    /// Waits until there is no more time.
    pub async fn passed(&self) -> Over {
        let Some(Recall(recall)) = &self.recall else {
            sleep_until(self.deadline).await;
            return Over::Deadline;
        };
        tokio::select! {
            biased;
            () = recall.waited() => Over::Recalled,
            () = sleep_until(self.deadline) => Over::Deadline,
        }
    }

    /// What comes first: the end of `work`, or of its time.
    ///
    /// # Errors
    /// Why there is no more time.
    pub async fn limit<F: Future>(&self, work: F) -> Result<F::Output, Over> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            over = self.passed() => Err(over),
        }
    }
}

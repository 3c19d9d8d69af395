//! What notices that code of ours unwinds.
//!
//! Used around everything that has block memory in its hands: tasks, and calls of the engine. The
//! invariant: code that panics says nothing of the memory that it had, so whoever answers for that
//! memory hears of it, once, as the code unwinds.

use std::thread;

/// Raises an alarm when the code that holds it unwinds. An alarm that takes a lock must be dropped
/// after every guard of it.
pub(crate) struct Sentry<F: Fn()> {
    alarm: F,
    /// The thread was unwinding before, for another reason.
    unwinding: bool,
}

impl<F: Fn()> Sentry<F> {
    /// Over what the calling thread does next.
    pub(crate) fn here(alarm: F) -> Self {
        Self {
            alarm,
            unwinding: thread::panicking(),
        }
    }

    /// Over a task, whichever thread runs it.
    pub(crate) const fn of_task(alarm: F) -> Self {
        Self {
            alarm,
            unwinding: false,
        }
    }
}

impl<F: Fn()> Drop for Sentry<F> {
    fn drop(&mut self) {
        if thread::panicking() && !self.unwinding {
            (self.alarm)();
        }
    }
}

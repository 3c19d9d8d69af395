//! The end of something that a device does by itself.
//!
//! Devices keep the [`Promise`], callers the [`Completion`]. The invariant: a completion says what
//! the device proved and nothing else; a device that is gone without an answer proves nothing, so
//! what it used must not be used again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// The device ended without an answer: what it was given may be in use for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device ended without an answer: memory that it was given cannot be used again")]
pub struct DeviceLost;

/// Something that is over when the device says so. Looked at with [`now`](Self::now), or awaited.
#[derive(Debug)]
pub struct Completion<T>(State<T>);

#[derive(Debug)]
enum State<T> {
    Over(Option<T>),
    Pending(oneshot::Receiver<T>),
}

/// The device's side of a [`Completion`]. Dropped without an answer, it reports [`DeviceLost`].
#[derive(Debug)]
pub struct Promise<T>(oneshot::Sender<T>);

impl<T> Completion<T> {
    /// A completion and the promise that ends it.
    pub fn promised() -> (Promise<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        (Promise(sender), Self(State::Pending(receiver)))
    }

    /// What is over already.
    pub fn over(value: T) -> Self {
        Self(State::Over(Some(value)))
    }

    /// The outcome if it is over, without waiting. It is given once.
    pub fn now(&mut self) -> Option<Result<T, DeviceLost>> {
        match &mut self.0 {
            State::Over(value) => value.take().map(Ok),
            State::Pending(receiver) => match receiver.try_recv() {
                Ok(value) => Some(Ok(value)),
                Err(oneshot::error::TryRecvError::Empty) => None,
                Err(oneshot::error::TryRecvError::Closed) => Some(Err(DeviceLost)),
            },
        }
    }
}

impl<T> Completion<T> {
    /// The outcome, waited for on the calling thread.
    ///
    /// # Errors
    /// [`DeviceLost`].
    ///
    /// # Panics
    /// On a thread of a runtime, which must not be held.
    pub fn wait(self) -> Result<T, DeviceLost> {
        match self.0 {
            State::Over(value) => value.ok_or(DeviceLost),
            State::Pending(receiver) => receiver.blocking_recv().map_err(|_| DeviceLost),
        }
    }
}

impl<T: Unpin> Future for Completion<T> {
    type Output = Result<T, DeviceLost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Over(value) => Poll::Ready(value.take().ok_or(DeviceLost)),
            State::Pending(receiver) => {
                let answer = Pin::new(receiver).poll(context);
                answer.map(|answer| answer.map_err(|_| DeviceLost))
            }
        }
    }
}

impl<T> Promise<T> {
    /// Ends the completion. Whoever waited may be gone; that changes nothing for the device.
    pub fn keep(self, value: T) {
        drop(self.0.send(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_seen_when_it_is_kept_and_when_it_is_dropped() {
        assert_eq!(Completion::over(7).now(), Some(Ok(7)));
        let (promise, mut completion) = Completion::promised();
        assert_eq!(completion.now(), None);
        promise.keep(8);
        assert_eq!(completion.now(), Some(Ok(8)));
        let (promise, mut completion) = Completion::<u8>::promised();
        drop(promise);
        assert_eq!(completion.now(), Some(Err(DeviceLost)));
    }
}

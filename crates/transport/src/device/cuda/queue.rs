//! The thread of one GPU: its context, its stream, and what is under way on it.
//!
//! Started by [`CudaDevice`](super::CudaDevice). The invariants: this thread alone makes calls that
//! have a current context; a copy keeps its memory until the event behind it is over, and for ever
//! if the driver cannot say that it is; a fence is answered by an event, never by a clock.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use super::driver::{Context, CudaDriver, Event, Stream};
use crate::device::completion::Promise;
use crate::device::contract::{DeviceError, FenceSide, Written};
use crate::device::host::copies;
use crate::device::ranges::{DeviceRanges, LentRanges, Piece};
use crate::lent::Lent;
use crate::region::Region;
use crate::segments::Segments;

/// How long the thread waits for orders before it looks at events again.
const LOOK: Duration = Duration::from_micros(20);

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
/// Pinned for every context, since several devices may use one staging memory.
const HOST_REGISTER_PORTABLE: c_uint = 1;

/// What the thread is asked for.
#[derive(Debug)]
pub(super) enum Order {
    Fence(FenceSide, Promise<Result<(), DeviceError>>),
    Write(Segments, LentRanges, Promise<Written>),
    Read(DeviceRanges, Lent, Promise<(Result<(), DeviceError>, Lent)>),
    Pin(Arc<Region>, SyncSender<Result<(), DeviceError>>),
}

impl Order {
    /// Drops its promise, and gives the memory to nobody.
    pub(super) fn forget_memory(self) {
        match self {
            Self::Fence(..) | Self::Pin(..) => {}
            Self::Write(from, to, _) => std::mem::forget((from, to)),
            Self::Read(from, to, _) => std::mem::forget((from, to)),
        }
    }
}

/// An event, and what is over with it.
struct Pending {
    event: Event,
    over: Over,
}

enum Over {
    Fence(Promise<Result<(), DeviceError>>),
    /// A copy, and whether all of it was submitted.
    Write(
        Result<(), DeviceError>,
        Segments,
        LentRanges,
        Promise<Written>,
    ),
    Read(
        Result<(), DeviceError>,
        DeviceRanges,
        Lent,
        Promise<(Result<(), DeviceError>, Lent)>,
    ),
}

impl Over {
    fn end(self, outcome: Result<(), DeviceError>) {
        match (self, outcome) {
            (Self::Fence(promise), outcome) => promise.keep(outcome),
            (Self::Write(submitted, from, to, promise), Ok(())) => {
                promise.keep((submitted, from, to));
            }
            (Self::Read(submitted, _, to, promise), Ok(())) => promise.keep((submitted, to)),
            // Whether the copy is over is not known and never will be: its memory is given to
            // nobody, and the dropped promise says so.
            (Self::Write(_, from, to, _), Err(_)) => std::mem::forget((from, to)),
            (Self::Read(_, from, to, _), Err(_)) => std::mem::forget((from, to)),
        }
    }
}

/// The thread's state.
pub(super) struct Queue {
    driver: Arc<CudaDriver>,
    device: c_int,
    name: String,
    orders: Receiver<Order>,
    context: Context,
    stream: Stream,
    pending: Vec<Pending>,
    pinned: Vec<Arc<Region>>,
}

impl Queue {
    /// Takes the device's primary context, which is the engine's too, and makes a stream that waits
    /// for no other and that no other waits for.
    pub(super) fn open(
        driver: Arc<CudaDriver>,
        ordinal: c_int,
        name: String,
        orders: Receiver<Order>,
    ) -> Result<Self, DeviceError> {
        let mut queue = Self {
            driver,
            device: 0,
            name,
            orders,
            context: ptr::null_mut(),
            stream: ptr::null_mut(),
            pending: Vec::new(),
            pinned: Vec::new(),
        };
        let functions = &queue.driver.functions;
        // SAFETY: the place for the device is valid.
        let code = unsafe { (functions.device)(&raw mut queue.device, ordinal) };
        queue.check("cuDeviceGet", code)?;
        // SAFETY: the place for the context is valid, the device is the driver's.
        let code = unsafe { (functions.retain)(&raw mut queue.context, queue.device) };
        queue.check("cuDevicePrimaryCtxRetain", code)?;
        // SAFETY: the context was retained just now and is released with the queue.
        let code = unsafe { (functions.set_current)(queue.context) };
        queue.check("cuCtxSetCurrent", code)?;
        // SAFETY: the place for the stream is valid.
        let code = unsafe { (functions.stream_create)(&raw mut queue.stream, STREAM_NON_BLOCKING) };
        queue.check("cuStreamCreate", code)?;
        Ok(queue)
    }

    pub(super) fn run(mut self) {
        loop {
            let order = match self.pending.is_empty() {
                true => self
                    .orders
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                false => self.orders.recv_timeout(LOOK),
            };
            match order {
                Ok(order) => self.execute(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Fence(side, promise) => match self.fence(side) {
                Ok(Some(event)) => self.pending.push(Pending {
                    event,
                    over: Over::Fence(promise),
                }),
                Ok(None) => promise.keep(Ok(())),
                Err(error) => promise.keep(Err(error)),
            },
            Order::Write(from, to, promise) => {
                let pieces = copies(from.spans(), from.length_bytes(), to.ranges());
                let submitted = pieces.and_then(|pieces| self.submit(&pieces, true));
                self.watch(Over::Write(submitted, from, to, promise));
            }
            Order::Read(from, to, promise) => {
                let pieces = copies(to.spans(), to.length_bytes(), &from);
                let submitted = pieces.and_then(|pieces| self.submit(&pieces, false));
                self.watch(Over::Read(submitted, from, to, promise));
            }
            Order::Pin(region, answer) => drop(answer.send(self.pin(&region))),
        }
    }

    /// An event behind all that the side is about, or none if it is over.
    fn fence(&self, side: FenceSide) -> Result<Option<Event>, DeviceError> {
        let functions = &self.driver.functions;
        if side == FenceSide::After {
            return self.record().map(Some);
        }
        // The engine computes on streams that nobody names to us: all of the context is meant.
        let Some(record) = functions.context_record else {
            // SAFETY: no arguments; the context is current on this thread.
            let code = unsafe { (functions.synchronize)() };
            return self.check("cuCtxSynchronize", code).map(|()| None);
        };
        let event = self.event()?;
        // SAFETY: context and event are alive.
        let code = unsafe { record(self.context, event) };
        self.recorded("cuCtxRecordEvent", code, event).map(Some)
    }

    /// An event behind all that was submitted to the stream.
    fn record(&self) -> Result<Event, DeviceError> {
        let event = self.event()?;
        // SAFETY: event and stream are alive and of one context.
        let code = unsafe { (self.driver.functions.event_record)(event, self.stream) };
        self.recorded("cuEventRecord", code, event)
    }

    fn recorded(
        &self,
        call: &'static str,
        code: c_int,
        event: Event,
    ) -> Result<Event, DeviceError> {
        let recorded = self.check(call, code);
        if recorded.is_err() {
            self.destroy(event);
        }
        recorded.map(|()| event)
    }

    fn event(&self) -> Result<Event, DeviceError> {
        let mut event = ptr::null_mut();
        // SAFETY: the place for the event is valid.
        let code =
            unsafe { (self.driver.functions.event_create)(&raw mut event, EVENT_DISABLE_TIMING) };
        self.check("cuEventCreate", code).map(|()| event)
    }

    fn destroy(&self, event: Event) {
        // SAFETY: the event was created here and is destroyed once. A failure leaks an event.
        let _ = unsafe { (self.driver.functions.event_destroy)(event) };
    }

    /// Submits copies to the stream; after an error no further ones.
    fn submit(&self, pieces: &[Piece], to_device: bool) -> Result<(), DeviceError> {
        let functions = &self.driver.functions;
        for piece in pieces {
            let address = u64::try_from(piece.address).expect("an address has 64 bits");
            // SAFETY: the host's bytes lie in a list and the device's in registered regions; both
            // are kept until an event behind this copy is over.
            let code = unsafe {
                match to_device {
                    true => (functions.copy_to_device)(
                        address,
                        piece.host.cast_const().cast(),
                        piece.length,
                        self.stream,
                    ),
                    false => (functions.copy_to_host)(
                        piece.host.cast(),
                        address,
                        piece.length,
                        self.stream,
                    ),
                }
            };
            let call = if to_device {
                "cuMemcpyHtoDAsync"
            } else {
                "cuMemcpyDtoHAsync"
            };
            self.check(call, code)?;
        }
        Ok(())
    }

    /// Keeps a copy until what was submitted of it is over, whether or not that was all.
    fn watch(&mut self, over: Over) {
        match self.record() {
            Ok(event) => self.pending.push(Pending { event, over }),
            Err(error) => over.end(Err(error)),
        }
    }

    fn look(&mut self) {
        let mut at = 0;
        while let Some(pending) = self.pending.get(at) {
            match self.driver.event_over(&self.name, pending.event) {
                None => at += 1,
                Some(outcome) => {
                    let Pending { event, over } = self.pending.remove(at);
                    self.destroy(event);
                    over.end(outcome);
                }
            }
        }
    }

    fn pin(&mut self, region: &Arc<Region>) -> Result<(), DeviceError> {
        let length = region.length_bytes();
        // SAFETY: the region is mapped, and stays so until it is taken back with the queue.
        let code = unsafe {
            (self.driver.functions.host_register)(
                region.base().cast(),
                length,
                HOST_REGISTER_PORTABLE,
            )
        };
        self.check("cuMemHostRegister", code)?;
        self.pinned.push(Arc::clone(region));
        Ok(())
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), DeviceError> {
        self.driver.check(call, &self.name, code)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Regions hold the device, so that only fences can be left; nobody waits for them.
        for Pending { event, over } in std::mem::take(&mut self.pending) {
            self.destroy(event);
            over.end(Err(DeviceError::Ended {
                device: self.name.clone(),
            }));
        }
        let functions = &self.driver.functions;
        // A failure leaves things behind that end with the process; there is nobody to tell.
        for region in self.pinned.drain(..) {
            // SAFETY: the region was registered by this queue and is still mapped.
            let _ = unsafe { (functions.host_unregister)(region.base().cast()) };
        }
        if !self.stream.is_null() {
            // SAFETY: the stream was created here; nothing is submitted any more.
            let _ = unsafe { (functions.stream_destroy)(self.stream) };
        }
        if !self.context.is_null() {
            // SAFETY: the primary context was retained once.
            let _ = unsafe { (functions.release)(self.device) };
        }
    }
}

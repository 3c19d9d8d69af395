//! One GPU: what callers ask, handed to the thread that alone talks to the driver about it.
//!
//! Made by [`CudaDriver::owner`]. The invariant: no caller's thread waits for the device or changes
//! its own current device; regions hold the device, so that it outlives all copies.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use super::driver::CudaDriver;
use super::queue::{Order, Queue};
use crate::device::completion::Completion;
use crate::device::contract::{Device, DeviceError, FenceSide, Written};
use crate::device::ranges::{DeviceRanges, LentRanges};
use crate::lent::Lent;
use crate::region::Region;
use crate::segments::Segments;

/// One NVIDIA GPU.
#[derive(Debug)]
pub struct CudaDevice {
    driver: Arc<CudaDriver>,
    ordinal: c_int,
    name: String,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl CudaDevice {
    /// Starts the thread of device `ordinal`, with its primary context and a stream of its own.
    pub(super) fn start(
        driver: &Arc<CudaDriver>,
        ordinal: c_int,
    ) -> Result<Arc<Self>, DeviceError> {
        let name = format!("CUDA device {ordinal}");
        let (sender, orders) = mpsc::channel();
        let (ready, started) = mpsc::sync_channel(1);
        let ended = || DeviceError::Ended {
            device: format!("CUDA device {ordinal}"),
        };
        let thread = std::thread::Builder::new().name(format!("tessera-cuda-{ordinal}"));
        let thread = thread.spawn({
            let (driver, name) = (Arc::clone(driver), name.clone());
            move || match Queue::open(driver, ordinal, name, orders) {
                Ok(queue) => {
                    drop(ready.send(Ok(())));
                    queue.run();
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        let thread = thread.map_err(|_| ended())?;
        started.recv().map_err(|_| ended())??;
        Ok(Arc::new(Self {
            driver: Arc::clone(driver),
            ordinal,
            name,
            orders: Some(sender),
            thread: Some(thread),
        }))
    }

    /// An order to a thread that is gone drops its promise, which tells whoever waits.
    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders
            && let Err(refused) = orders.send(order)
        {
            // What a dead queue was given before may still be in use.
            refused.0.forget_memory();
        }
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn register(&self, address: usize, length: usize) -> Result<(), DeviceError> {
        match self.driver.ordinal(address, length) {
            Some(ordinal) if ordinal == self.ordinal => Ok(()),
            _ => Err(DeviceError::NotOwned {
                address,
                length,
                device: self.name.clone(),
            }),
        }
    }

    fn pin(&self, staging: &Arc<Region>) -> Result<(), DeviceError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.order(Order::Pin(Arc::clone(staging), answer));
        let ended = |_| DeviceError::Ended {
            device: self.name.clone(),
        };
        answered.recv().map_err(ended)?
    }

    fn fence(&self, side: FenceSide) -> Completion<Result<(), DeviceError>> {
        let (promise, completion) = Completion::promised();
        self.order(Order::Fence(side, promise));
        completion
    }

    fn write(&self, from: Segments, to: LentRanges) -> Completion<Written> {
        let (promise, completion) = Completion::promised();
        self.order(Order::Write(from, to, promise));
        completion
    }

    fn read(&self, from: DeviceRanges, to: Lent) -> Completion<(Result<(), DeviceError>, Lent)> {
        let (promise, completion) = Completion::promised();
        self.order(Order::Read(from, to, promise));
        completion
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        drop(self.orders.take());
        // The last region may end on the device's own thread, which cannot wait for itself.
        let own = std::thread::current().id();
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            drop(thread.join());
        }
    }
}

//! Fences: the proof that a device's memory is at rest, or that what was written to it shows.
//!
//! Called when the worker's machine or the peer's commands a fence, and at the end of a step for
//! its saves. The invariants: a fence is asked of every device that owns block memory, whoever
//! calls; the machine hears of success only from all of them; a failed fence is asked again until
//! one succeeds; and a device that owes a fence for too long stops the worker, so that memory is
//! never used again on the word of a clock.

use std::sync::Arc;
use std::time::Duration;

use tessera_lifecycle::LoadId;
use tessera_lifecycle::worker::{Phase, WorkerEvent};
use tessera_transport::{Completion, Device, DeviceError, DeviceLost, FenceSide};
use tokio::time::{Instant, sleep, timeout_at};

use super::error::MemoryFault;
use super::remote::Remote;
use super::transfer::Shared;

/// How long a fence that failed is left alone.
const PAUSE: Duration = Duration::from_millis(10);

/// What a device says of a copy, once it is over. Late, it may use the memory for ever.
pub(crate) async fn answered<T: Unpin>(
    device: &Arc<dyn Device>,
    limit: Duration,
    completion: Completion<T>,
) -> Result<T, MemoryFault> {
    let device = || device.name();
    match timeout_at(Instant::now() + limit, completion).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(MemoryFault::Lost { device: device() }),
        Err(_) => Err(MemoryFault::Silent {
            device: device(),
            limit,
        }),
    }
}

/// One fence, asked of several devices.
pub(crate) struct Fences {
    waiting: Vec<Asked>,
    failed: Option<MemoryFault>,
}

struct Asked {
    device: Arc<dyn Device>,
    completion: Completion<Result<(), DeviceError>>,
}

impl Fences {
    /// Asks all of them.
    pub(crate) fn ask(devices: &[Arc<dyn Device>], side: FenceSide) -> Self {
        let mut fences = Self {
            waiting: Vec::new(),
            failed: None,
        };
        for device in devices {
            let mut completion = device.fence(side);
            match completion.now() {
                Some(Ok(Ok(()))) => {}
                Some(answer) => fences.failed = fault(device, answer),
                None => fences.waiting.push(Asked {
                    device: Arc::clone(device),
                    completion,
                }),
            }
        }
        fences
    }

    /// Whether all devices have said so already.
    pub(crate) fn are_over(&self) -> bool {
        self.waiting.is_empty() && self.failed.is_none()
    }

    /// Waits for all; the first that fails is the outcome.
    pub(crate) async fn over(&mut self) -> Result<(), MemoryFault> {
        while let Some(asked) = self.waiting.last_mut() {
            let answer = (&mut asked.completion).await;
            if let Some(fault) = fault(&asked.device, answer) {
                return Err(fault);
            }
            self.waiting.pop();
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Asks again until a fence succeeds. Calls `failed` when the first one did not.
    pub(crate) async fn prove(
        mut self,
        devices: &[Arc<dyn Device>],
        side: FenceSide,
        limit: Duration,
        failed: impl Fn(),
    ) -> Result<(), MemoryFault> {
        let until = Instant::now() + limit;
        let mut last = None;
        loop {
            let fault = match timeout_at(until, self.over()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(fault)) => fault,
                Err(_) => return Err(last.unwrap_or_else(|| self.silent(limit))),
            };
            let lost = matches!(fault, MemoryFault::Lost { .. });
            if lost || Instant::now() + PAUSE >= until {
                return Err(fault);
            }
            if last.is_none() {
                tracing::warn!(%fault, "a transfer fails, and its memory waits for a fence");
                failed();
            }
            last = Some(fault);
            sleep(PAUSE).await;
            self = Self::ask(devices, side);
        }
    }

    /// Why nobody has answered.
    pub(crate) fn silent(&self, limit: Duration) -> MemoryFault {
        let owing = self.waiting.last().map(|asked| asked.device.name());
        MemoryFault::Silent {
            device: owing.unwrap_or_default(),
            limit,
        }
    }
}

fn fault(
    device: &Arc<dyn Device>,
    answer: Result<Result<(), DeviceError>, DeviceLost>,
) -> Option<MemoryFault> {
    let device = || device.name();
    match answer {
        Ok(Ok(())) => None,
        Ok(Err(source)) => Some(MemoryFault::Failing {
            device: device(),
            source,
        }),
        Err(DeviceLost) => Some(MemoryFault::Lost { device: device() }),
    }
}

impl<R: Remote> Shared<R> {
    /// Fences all devices for a load. Answers at once if they are at rest at once; otherwise the
    /// answer comes by itself, and no thread waits for it.
    pub(super) fn fence(shared: &Arc<Self>, load: LoadId, phase: Phase) -> Option<WorkerEvent> {
        let side = match phase {
            Phase::Before => FenceSide::Before,
            Phase::After => FenceSide::After,
        };
        let fences = Fences::ask(shared.layout.devices(), side);
        if fences.are_over() {
            return Some(WorkerEvent::Fenced { load, phase });
        }
        let own = Arc::clone(shared);
        Self::spawn(shared, async move {
            let proof = fences.prove(own.layout.devices(), side, own.proof_timeout, || {
                Self::complete(&own, WorkerEvent::FenceFailed { load, phase });
            });
            match proof.await {
                Ok(()) => Self::complete(&own, WorkerEvent::Fenced { load, phase }),
                Err(fault) => Self::stop(&own, fault),
            }
        });
        None
    }

    /// Waits on the calling thread, until `deadline`, that all work so far of all devices is over.
    pub(super) fn rest(&self, deadline: Instant) -> Result<(), MemoryFault> {
        let mut fences = Fences::ask(self.layout.devices(), FenceSide::Before);
        if fences.are_over() {
            return Ok(());
        }
        let over = async { timeout_at(deadline, fences.over()).await };
        match self.runtime.block_on(over) {
            Ok(answer) => answer,
            Err(_) => Err(fences.silent(self.store_timeout)),
        }
    }

    /// Fail-stop: every hook raises from now on, and no load that waits for proof is ever reported.
    pub(super) fn stop(shared: &Arc<Self>, fault: MemoryFault) {
        tracing::error!(%fault, "the worker stops: block memory may be written for ever");
        let mut machine = shared.machine.lock();
        if machine.stopped.is_none() {
            // What may still be written is never unmapped, and never anybody else's.
            std::mem::forget(Arc::clone(shared));
            machine.stopped = Some(fault);
        }
        drop(machine);
        shared.changed.notify_all();
    }
}

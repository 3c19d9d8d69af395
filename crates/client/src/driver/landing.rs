//! Copies between block memory that no socket reaches and staging memory.
//!
//! Called by the transfers. The invariants: block memory is written only with bytes that were
//! verified; staging memory goes back only when the device has said that it does not use it any
//! more; a device that does not say so in time stops the worker.

use std::sync::Arc;

use tessera_lifecycle::LoadId;
use tessera_lifecycle::plan::Destination;
use tessera_lifecycle::worker::{Fetch, LoadFailure, Save, SaveOutcome};
use tessera_transport::{Device, DeviceRanges, Lent, LentRanges, Region, Segments};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::error::MemoryFault;
use super::fence::answered;
use super::remote::Remote;
use super::staging::Slot;
use super::transfer::Shared;
use crate::layout::{Discard, Unlendable};

/// What an object is received into.
pub(super) struct Landing {
    pub(super) lent: Lent,
    /// Staging memory behind `lent`, if there is some.
    pub(super) slot: Option<Slot>,
    /// Where it is copied to once it is verified; nowhere if it is there already.
    pub(super) places: Vec<(Arc<dyn Device>, LentRanges)>,
}

impl<R: Remote> Shared<R> {
    /// The destination of a fetch: the blocks themselves where a socket reaches them, staging
    /// memory where not, with memory of its own for what has no block.
    pub(super) fn lend(&self, fetch: &Fetch) -> Result<Landing, LoadFailure> {
        let (group, destinations) = (fetch.group, &fetch.destinations);
        if self.layout.is_in_place() {
            let length = self.layout.discarded_bytes(group, destinations);
            let (slot, discard) = self.memory(length)?;
            let lent = self.layout.scatter(group, destinations, discard.as_ref());
            return Ok(Landing {
                lent: lent?,
                slot,
                places: Vec::new(),
            });
        }
        let places = self.layout.ranges(group, destinations);
        let places = places.map_err(Unlendable::from)?;
        let lend = |(device, ranges): (_, DeviceRanges)| Ok((device, ranges.lend()?));
        let places: Result<Vec<_>, Unlendable> = places.into_iter().map(lend).collect();
        let places = places?;
        let length = self.layout.payload_bytes(group, destinations.len());
        let (slot, memory) = self.memory(length)?;
        let mut segments = Segments::with_capacity(1);
        if let (Some(memory), Ok(length)) = (memory, usize::try_from(length)) {
            let pushed = segments.push(&memory.region, memory.offset, length);
            pushed.map_err(|_| LoadFailure::Abnormal)?;
        }
        Ok(Landing {
            lent: Lent::new(segments).map_err(Unlendable::from)?,
            slot,
            places,
        })
    }

    /// Clears the blocks of a fetch that lost what it was lent, when nothing writes them any more.
    /// Blocks that no socket reaches were not written.
    pub(super) fn clear(&self, fetch: &Fetch) {
        if self.layout.is_in_place()
            && let Ok(mut landing) = self.lend(fetch)
        {
            landing.lent.clear();
        }
    }

    /// Host memory: a slot of staging, or memory of its own when that is full.
    fn memory(&self, length: u64) -> Result<(Option<Slot>, Option<Discard>), LoadFailure> {
        let length = usize::try_from(length).map_err(|_| LoadFailure::Abnormal)?;
        if length == 0 {
            return Ok((None, None));
        }
        if let Some(slot) = self.staging.take(length) {
            let memory = slot.discard();
            return Ok((Some(slot), Some(memory)));
        }
        let region = Region::allocate(length).map_err(|_| LoadFailure::Abnormal)?;
        Ok((None, Some(Discard { region, offset: 0 })))
    }

    /// Copies a verified payload to its places, which stay lent for `load` until its fence. An
    /// error of the inner result fails the load, one of the outer stops the worker: the device may
    /// use the payload for ever.
    pub(super) async fn land(
        &self,
        load: LoadId,
        mut payload: Segments,
        places: Vec<(Arc<dyn Device>, LentRanges)>,
    ) -> Result<Result<(), LoadFailure>, MemoryFault> {
        for (device, ranges) in places {
            let write = device.write(payload, ranges);
            let (done, back, written) = answered(&device, self.proof_timeout, write).await?;
            self.machine.lock().hold(load, written);
            if let Err(error) = done {
                tracing::warn!(%error, "a load fails");
                return Ok(Err(LoadFailure::Device));
            }
            payload = back;
        }
        Ok(Ok(()))
    }

    /// Begins to copy an object into a slot, which comes back when the devices have done it.
    pub(super) fn copy_out(shared: &Arc<Self>, save: &Save, slot: Slot) -> Option<Copying> {
        let blocks: Vec<Destination> = save
            .blocks
            .iter()
            .copied()
            .map(Destination::Block)
            .collect();
        let places = shared.layout.ranges(save.group, &blocks).ok()?;
        let own = Arc::clone(shared);
        let reading = Reading::begin(shared);
        Some(Self::spawn(shared, async move {
            let _reading = reading;
            let Ok(mut lent) = Lent::new(slot.segments()) else {
                return Err(SaveOutcome::StagingFull);
            };
            for (device, ranges) in places {
                let read = device.read(ranges, lent);
                match answered(&device, own.proof_timeout, read).await {
                    Ok((Ok(()), back)) => lent = back,
                    Ok((Err(error), _)) => {
                        tracing::warn!(%error, "an object is not saved");
                        return Err(SaveOutcome::Device);
                    }
                    Err(fault) => {
                        // The slot may be written for ever.
                        std::mem::forget(slot);
                        Self::stop(&own, fault);
                        return Err(SaveOutcome::Device);
                    }
                }
            }
            Ok(slot)
        }))
    }

    /// Waits on the calling thread for one copy. The copy of which nobody waits for the end keeps
    /// its slot until then, and is stored nowhere.
    pub(super) fn copied(&self, copying: Copying, deadline: Instant) -> Result<Slot, SaveOutcome> {
        let copied = async { timeout_at(deadline, copying).await };
        match self.runtime.block_on(copied) {
            Ok(Ok(copied)) => copied,
            Ok(Err(_)) | Err(_) => Err(SaveOutcome::Device),
        }
    }
}

impl From<Unlendable> for LoadFailure {
    /// A block that another operation may still write is a mistake of ours or of the engine: the
    /// load fails before it can do harm.
    fn from(error: Unlendable) -> Self {
        match error {
            Unlendable::Block(_) => Self::Unallocated,
            Unlendable::Lent(error) => {
                tracing::error!(%error, "a load fails: its memory is not free");
                Self::Abnormal
            }
        }
    }
}

/// A copy into a slot that is under way.
pub(super) type Copying = JoinHandle<Result<Slot, SaveOutcome>>;

/// A copy out of block memory that a device may not have finished; shutdown waits for it.
struct Reading<R: Remote>(Arc<Shared<R>>);

impl<R: Remote> Reading<R> {
    fn begin(shared: &Arc<Shared<R>>) -> Self {
        shared.machine.lock().copies_out += 1;
        Self(Arc::clone(shared))
    }
}

impl<R: Remote> Drop for Reading<R> {
    fn drop(&mut self) {
        // A panic says nothing of the memory: the worker stops instead.
        if !std::thread::panicking() {
            self.0.machine.lock().copies_out -= 1;
            self.0.changed.notify_all();
        }
    }
}

//! A device made of host memory, on which a missing fence shows.
//!
//! Used by tests of the drivers and of the real engine, and by simulations, through the trait that
//! production uses. A thread of its own takes orders one after the other. What is written waits, in
//! pieces, and lands late and out of order: a few pieces by chance before each order, all of them
//! behind a fence. The order depends on the seed and on the orders only, never on time. Work of the
//! engine ([`submit`](SimDevice::submit)) and copies wait apart, so that no fence does the other's
//! duty. The invariant: between the answer to an order and the next order no memory is touched.

use std::io;
use std::ptr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use super::completion::{Completion, Promise};
use super::contract::{Device, DeviceError, FenceSide, Written};
use super::host::copies;
use super::ranges::{DeviceRanges, LentRanges};
use crate::lent::Lent;
use crate::region::Region;
use crate::segments::Segments;

/// Bytes that become visible at once.
const PIECE_BYTES: usize = 64;

/// A simulated device.
#[derive(Debug)]
pub struct SimDevice {
    name: String,
    orders: Option<Sender<Order>>,
    injected: Arc<Injected>,
    thread: Option<JoinHandle<()>>,
}

/// What the queue's thread is asked for.
#[derive(Debug)]
enum Order {
    Fence(FenceSide, Promise<Result<(), DeviceError>>),
    Write(Segments, LentRanges, Promise<Written>),
    Read(DeviceRanges, Lent, Promise<(Result<(), DeviceError>, Lent)>),
    Work(Weak<Region>, usize, Vec<u8>),
    Owed,
}

/// Faults, and what has happened.
#[derive(Debug, Default)]
struct Injected {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: bool,
    dead: bool,
    /// Fences of each side that will fail.
    failing: [u32; 2],
    failing_copies: u32,
    /// Whether the next fence of each side will be the last of what goes on.
    holding: [bool; 2],
    /// Fences of each side that will be owed.
    owing: [u32; 2],
    /// Fences of each side that will lie.
    lying: [u32; 2],
    /// Calls that will panic: copies, and fences of each side.
    breaking_copies: u32,
    breaking_fences: [u32; 2],
    /// Whether a call for a fence returns with the answer.
    prompt: bool,
    /// Fences of each side.
    asked: [u64; 2],
    answered: [u64; 2],
    /// Orders that came to a dead device.
    abandoned: u64,
}

impl Injected {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn index(side: FenceSide) -> usize {
    match side {
        FenceSide::Before => 0,
        FenceSide::After => 1,
    }
}

/// Bytes that were written and do not show.
#[derive(Debug)]
struct Unseen {
    region: Weak<Region>,
    offset: usize,
    bytes: Vec<u8>,
}

/// The queue's thread.
struct Queue {
    name: String,
    orders: Receiver<Order>,
    injected: Arc<Injected>,
    random: u64,
    work: Vec<Unseen>,
    writes: Vec<Unseen>,
    owed: Vec<(FenceSide, Promise<Result<(), DeviceError>>)>,
}

impl SimDevice {
    /// A device whose writes land in an order of `seed`.
    ///
    /// # Errors
    /// The system's answer when it has no thread.
    pub fn start(seed: u64) -> io::Result<Arc<Self>> {
        let (sender, orders) = mpsc::channel();
        let injected = Arc::new(Injected::default());
        let name = format!("simulated device {seed}");
        let queue = Queue {
            name: name.clone(),
            orders,
            injected: Arc::clone(&injected),
            random: seed,
            work: Vec::new(),
            writes: Vec::new(),
            owed: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("tessera-sim-device".into());
        let thread = thread.spawn(move || queue.run())?;
        Ok(Arc::new(Self {
            name,
            orders: Some(sender),
            injected,
            thread: Some(thread),
        }))
    }

    /// Memory of this device, zeroed.
    ///
    /// # Errors
    /// The system's answer when it has no such memory.
    pub fn allocate(self: &Arc<Self>, length: usize) -> io::Result<Arc<Region>> {
        let device: Arc<dyn Device> = Arc::<Self>::clone(self);
        Region::allocate_on(Some(device), length)
    }

    /// Work of the engine: `bytes` will stand at `offset` of `region` some time, and certainly
    /// behind a fence [`FenceSide::Before`].
    pub fn submit(&self, region: &Arc<Region>, offset: usize, bytes: Vec<u8>) {
        self.order(Order::Work(Arc::downgrade(region), offset, bytes));
    }

    /// What work that began now would see in `region`.
    ///
    /// # Panics
    /// If the queue's thread has failed.
    pub fn view(&self, region: &Arc<Region>) -> Vec<u8> {
        let mut ranges = DeviceRanges::with_capacity(1);
        let length = region.length_bytes();
        ranges.push(region, 0, length).expect("the whole of it");
        let copy = Region::allocate(length).expect("memory for a copy");
        let lent = Lent::new(Segments::whole(&copy)).expect("memory of its own");
        let (promise, mut completion) = Completion::promised();
        self.order(Order::Read(ranges, lent, promise));
        let (_, lent) = loop {
            match completion.now() {
                Some(answer) => break answer.expect("the queue answers"),
                None => std::thread::yield_now(),
            }
        };
        let mut bytes = vec![0; length];
        lent.copy_to(&mut bytes).expect("one length");
        bytes
    }

    /// Holds the device back: nothing that it is asked for goes on until
    /// [`release`](Self::release).
    pub fn hold(&self) {
        self.injected.lock().held = true;
    }

    /// Holds the device back as soon as it has answered the next fence of one side.
    pub fn hold_behind(&self, side: FenceSide) {
        self.injected.lock().holding[index(side)] = true;
    }

    /// Lets the device go on, and answers the fences that it owes.
    pub fn release(&self) {
        let mut state = self.injected.lock();
        (state.held, state.owing, state.holding) = (false, [0; 2], [false; 2]);
        drop(state);
        self.injected.changed.notify_all();
        self.order(Order::Owed);
    }

    /// Lets the next `count` fences of one side hang until [`release`](Self::release). All else
    /// goes on, as on a device with several queues.
    pub fn owe_fences(&self, side: FenceSide, count: u32) {
        self.injected.lock().owing[index(side)] = count;
    }

    /// Lets every fence be over when the call for it returns, as one of an idle device may be. Not
    /// together with [`hold`](Self::hold) or [`owe_fences`](Self::owe_fences).
    pub fn answer_promptly(&self) {
        self.injected.lock().prompt = true;
    }

    /// Lets the next `count` fences of one side fail, without effect.
    pub fn fail_fences(&self, side: FenceSide, count: u32) {
        self.injected.lock().failing[index(side)] = count;
    }

    /// Lets the next `count` fences of one side succeed without effect: what a driver that forgets
    /// them would see, the control of every test that needs them.
    pub fn skip_fences(&self, side: FenceSide, count: u32) {
        self.injected.lock().lying[index(side)] = count;
    }

    /// Lets the next `count` copies fail, after a part of each.
    pub fn fail_copies(&self, count: u32) {
        self.injected.lock().failing_copies = count;
    }

    /// Lets the next `count` calls for a copy panic, with the copy in the queue all the same.
    pub fn break_copies(&self, count: u32) {
        self.injected.lock().breaking_copies = count;
    }

    /// Lets the next `count` calls for a fence of one side panic.
    pub fn break_fences(&self, side: FenceSide, count: u32) {
        self.injected.lock().breaking_fences[index(side)] = count;
    }

    /// The device dies: what it was asked for is never answered, nor is anything later.
    pub fn kill(&self) {
        let mut state = self.injected.lock();
        (state.dead, state.held) = (true, false);
        drop(state);
        self.injected.changed.notify_all();
    }

    /// Fences of one side that were asked for, and how many of them succeeded.
    pub fn fences(&self, side: FenceSide) -> (u64, u64) {
        let state = self.injected.lock();
        (state.asked[index(side)], state.answered[index(side)])
    }

    /// Orders that a dead device has taken and will never answer.
    pub fn abandoned(&self) -> u64 {
        self.injected.lock().abandoned
    }

    /// The injected panic of a call whose faults `left` finds.
    fn breaks(&self, left: impl Fn(&mut State) -> &mut u32) {
        let mut state = self.injected.lock();
        let left = left(&mut state);
        if *left > 0 {
            *left -= 1;
            drop(state);
            panic!("injected: the code of {} fails", self.name);
        }
    }

    /// An order to a dead queue drops its promise, which tells whoever waits.
    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            drop(orders.send(order));
        }
    }
}

impl Device for SimDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn register(&self, _address: usize, _length: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn pin(&self, _staging: &Arc<Region>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn fence(&self, side: FenceSide) -> Completion<Result<(), DeviceError>> {
        self.injected.lock().asked[index(side)] += 1;
        let (promise, mut completion) = Completion::promised();
        self.order(Order::Fence(side, promise));
        self.breaks(|state| &mut state.breaking_fences[index(side)]);
        while self.injected.lock().prompt {
            if let Some(Ok(answer)) = completion.now() {
                return Completion::over(answer);
            }
            std::thread::yield_now();
        }
        completion
    }

    fn write(&self, from: Segments, to: LentRanges) -> Completion<Written> {
        let (promise, completion) = Completion::promised();
        self.order(Order::Write(from, to, promise));
        self.breaks(|state| &mut state.breaking_copies);
        completion
    }

    fn read(&self, from: DeviceRanges, to: Lent) -> Completion<(Result<(), DeviceError>, Lent)> {
        let (promise, completion) = Completion::promised();
        self.order(Order::Read(from, to, promise));
        self.breaks(|state| &mut state.breaking_copies);
        completion
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        self.release();
        drop(self.orders.take());
        // The last region may end on the queue's own thread, which cannot wait for itself.
        let thread = self.thread.take();
        let own = std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            drop(thread.join());
        }
    }
}

impl Queue {
    fn run(mut self) {
        while let Ok(order) = self.orders.recv() {
            let state = self.injected.lock();
            let held = |state: &mut State| state.held;
            let waited = self.injected.changed.wait_while(state, held);
            if waited.unwrap_or_else(PoisonError::into_inner).dead {
                // What it was given stays as if in use for ever.
                std::mem::forget(order);
                self.injected.lock().abandoned += 1;
                continue;
            }
            if self.chance(4) {
                let from_work = self.chance(2);
                self.land_one(from_work);
            }
            self.execute(order);
        }
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Work(region, offset, bytes) => self.work.push(Unseen {
                region,
                offset,
                bytes,
            }),
            Order::Fence(side, promise) if self.is_owed(side) => self.owed.push((side, promise)),
            Order::Fence(side, promise) => promise.keep(self.fence(side)),
            Order::Owed => {
                for (side, promise) in std::mem::take(&mut self.owed) {
                    promise.keep(self.fence(side));
                }
            }
            Order::Write(from, to, promise) => {
                let done = self.write(&from, to.ranges());
                promise.keep((done, from, to));
            }
            Order::Read(from, to, promise) => {
                let done = self.read(&from, &to);
                drop(from);
                promise.keep((done, to));
            }
        }
    }

    fn is_owed(&self, side: FenceSide) -> bool {
        let owing = &mut self.injected.lock().owing[index(side)];
        let is_owed = *owing > 0;
        *owing = owing.saturating_sub(1);
        is_owed
    }

    fn fence(&mut self, side: FenceSide) -> Result<(), DeviceError> {
        let injected = Arc::clone(&self.injected);
        let mut state = injected.lock();
        let failing = &mut state.failing[index(side)];
        if *failing > 0 {
            *failing -= 1;
            return Err(self.failure());
        }
        let lying = &mut state.lying[index(side)];
        match lying.checked_sub(1) {
            Some(left) => *lying = left,
            None => while self.land_one(side == FenceSide::Before) {},
        }
        state.answered[index(side)] += 1;
        state.held |= std::mem::take(&mut state.holding[index(side)]);
        Ok(())
    }

    fn failure(&self) -> DeviceError {
        DeviceError::Injected {
            device: self.name.clone(),
        }
    }

    fn write(&mut self, from: &Segments, to: &DeviceRanges) -> Result<(), DeviceError> {
        let mut pieces = copies(from.spans(), from.length_bytes(), to)?;
        let failed = self.copy_fails();
        if failed {
            pieces.truncate(pieces.len().div_ceil(2));
        }
        for piece in pieces {
            let region = to.regions().iter().find(|region| {
                let start = region.base().addr();
                (start..start + region.length_bytes()).contains(&piece.address)
            });
            let region = region.expect("a place lies in a region of its list");
            for start in (0..piece.length).step_by(PIECE_BYTES) {
                let length = PIECE_BYTES.min(piece.length - start);
                let mut bytes = vec![0; length];
                let host = piece.host.wrapping_add(start).cast_const();
                // SAFETY: the piece lies in a span of `from`, which keeps it mapped.
                unsafe { ptr::copy_nonoverlapping(host, bytes.as_mut_ptr(), length) };
                self.writes.push(Unseen {
                    region: Arc::downgrade(region),
                    offset: piece.address + start - region.base().addr(),
                    bytes,
                });
            }
        }
        match failed {
            true => Err(self.failure()),
            false => Ok(()),
        }
    }

    fn read(&mut self, from: &DeviceRanges, to: &Lent) -> Result<(), DeviceError> {
        let pieces = copies(to.spans(), to.length_bytes(), from)?;
        if self.copy_fails() {
            return Err(self.failure());
        }
        for piece in pieces {
            let place = ptr::with_exposed_provenance::<u8>(piece.address);
            // SAFETY: both lists keep their regions mapped, this thread alone touches the device's,
            // and `Lent` is the right to write.
            unsafe { ptr::copy_nonoverlapping(place, piece.host, piece.length) };
        }
        Ok(())
    }

    fn copy_fails(&self) -> bool {
        let mut state = self.injected.lock();
        let fails = state.failing_copies > 0;
        state.failing_copies = state.failing_copies.saturating_sub(1);
        fails
    }

    /// Lets one piece show, whichever. False if there is none.
    fn land_one(&mut self, from_work: bool) -> bool {
        let count = match from_work {
            true => self.work.len(),
            false => self.writes.len(),
        };
        if count == 0 {
            return false;
        }
        let at = self.below(count);
        let unseen = match from_work {
            true => self.work.swap_remove(at),
            false => self.writes.swap_remove(at),
        };
        let Some(region) = unseen.region.upgrade() else {
            return true;
        };
        if let Some(place) = region.range(unseen.offset, unseen.bytes.len()) {
            // SAFETY: the range is inside the region, which is alive, and this thread alone touches
            // the device's memory.
            unsafe {
                ptr::copy_nonoverlapping(unseen.bytes.as_ptr(), place.as_ptr(), unseen.bytes.len());
            };
        }
        true
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// A number below `count`, from a counter mixed as SplitMix64 does.
    fn below(&mut self, count: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        usize::try_from(mixed % count).unwrap_or(0)
    }
}

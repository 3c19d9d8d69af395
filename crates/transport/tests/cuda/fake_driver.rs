//! A CUDA driver without a GPU: device memory is host memory that was declared to be a device's.
//!
//! Compiled by the tests beside it into a library that the product loads as it loads the real one.
//! What is submitted to a stream happens only when an event behind it is asked about, so that code
//! which does not wait for its event sees nothing of it. Calls that the real driver would refuse,
//! for a wrong current context or foreign memory, are refused.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

const INVALID_VALUE: c_int = 1;
const NOT_INITIALIZED: c_int = 3;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;

/// A copy of bytes from one address to another.
struct Copy {
    number: u64,
    from: usize,
    to: usize,
    length: usize,
}

struct Stream {
    context: usize,
    copies: VecDeque<Copy>,
}

#[derive(Clone)]
enum Recorded {
    Nothing,
    Stream {
        stream: usize,
        until: u64,
    },
    Context {
        context: usize,
        until: u64,
        work: u64,
    },
}

#[derive(Default)]
struct State {
    started: bool,
    owned: Vec<(usize, usize, c_int)>,
    retained: HashMap<c_int, u32>,
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Recorded>,
    handles: usize,
    copies: u64,
    held: bool,
    /// Steps of the engine that were launched and that are over, for each context.
    work: HashMap<usize, (u64, u64)>,
    pinned: Vec<usize>,
    failures: HashMap<String, (u32, c_int)>,
    calls: HashMap<String, u64>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

struct Locked(MutexGuard<'static, Option<State>>);

fn state() -> Locked {
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    Locked(guard)
}

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("made in `state`")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("made in `state`")
    }
}

impl State {
    /// Counts a call; the code with which it was told to fail, if it was.
    fn call(&mut self, name: &str) -> Option<c_int> {
        *self.calls.entry(name.to_owned()).or_default() += 1;
        let (left, code) = self.failures.get_mut(name)?;
        *left = left.checked_sub(1)?;
        Some(*code)
    }

    fn handle(&mut self) -> usize {
        self.handles += 16;
        self.handles
    }

    fn owner(&self, address: usize, length: usize) -> Option<c_int> {
        let inside = |(start, bytes, _): &&(usize, usize, c_int)| {
            *start <= address && address + length <= start + bytes
        };
        self.owned.iter().find(inside).map(|(.., ordinal)| *ordinal)
    }

    fn run(&mut self, stream: usize, until: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return;
        };
        while let Some(copy) = stream.copies.front().filter(|copy| copy.number <= until) {
            let from = std::ptr::with_exposed_provenance::<u8>(copy.from);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(copy.to);
            // SAFETY: whoever submitted the copy keeps both sides until an event behind it is over.
            unsafe { std::ptr::copy(from, to, copy.length) };
            stream.copies.pop_front();
        }
    }
}

fn context_of(ordinal: c_int) -> usize {
    0x1000 * (usize::try_from(ordinal).unwrap_or(0) + 1)
}

/// Declares memory to be a device's.
#[unsafe(no_mangle)]
pub extern "C" fn fake_own(address: usize, length: usize, ordinal: c_int) {
    state().owned.push((address, length, ordinal));
}

/// Nothing that was submitted happens while the devices are held.
#[unsafe(no_mangle)]
pub extern "C" fn fake_hold(held: bool) {
    state().held = held;
}

/// The engine launches a step, or one is over.
#[unsafe(no_mangle)]
pub extern "C" fn fake_work(ordinal: c_int, launched: u64, over: u64) {
    let mut state = state();
    let work = state.work.entry(context_of(ordinal)).or_default();
    work.0 += launched;
    work.1 += over;
}

/// # Safety
/// `name` ends in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail(name: *const c_char, count: u32, code: c_int) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let name = name.to_string_lossy().into_owned();
    state().failures.insert(name, (count, code));
}

/// # Safety
/// `name` ends in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_calls(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let calls = state().calls.get(&*name.to_string_lossy()).copied();
    calls.unwrap_or(0)
}

/// What is left: streams, events, pinned ranges, retained contexts.
#[unsafe(no_mangle)]
pub extern "C" fn fake_left() -> u64 {
    let state = state();
    let retained: u32 = state.retained.values().sum();
    let left = state.streams.len() + state.events.len() + state.pinned.len();
    u64::from(retained) + left as u64
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> c_int {
    let mut state = state();
    if let Some(code) = state.call("cuInit") {
        return code;
    }
    state.started = true;
    if flags == 0 { 0 } else { INVALID_VALUE }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let text = match code {
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's promise.
    unsafe { *name = text.as_ptr() };
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    to: *mut c_void,
    attribute: c_uint,
    address: u64,
) -> c_int {
    let state = state();
    if !state.started {
        return NOT_INITIALIZED;
    }
    let Some(ordinal) = state.owner(address as usize, 1) else {
        return INVALID_VALUE;
    };
    let value = match attribute {
        2 if ordinal < 0 => 1,
        2 => 2,
        9 => ordinal,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's promise; both attributes have four bytes.
    unsafe { *to.cast::<c_int>() = value };
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: the caller's promise. A device is not its ordinal, so that nobody mixes them up.
    unsafe { *device = ordinal + 40 };
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut *mut c_void,
    device: c_int,
) -> c_int {
    let mut state = state();
    if let Some(code) = state.call("cuDevicePrimaryCtxRetain") {
        return code;
    }
    *state.retained.entry(device - 40).or_default() += 1;
    // SAFETY: the caller's promise.
    unsafe { *context = std::ptr::without_provenance_mut(context_of(device - 40)) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    match state().retained.get_mut(&(device - 40)) {
        Some(count) if *count > 0 => *count -= 1,
        _ => return INVALID_VALUE,
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    CURRENT.set(context.addr());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    loop {
        let mut state = state();
        let current = CURRENT.get();
        if current == 0 {
            return INVALID_CONTEXT;
        }
        let (launched, over) = state.work.get(&current).copied().unwrap_or_default();
        if launched == over && !state.held {
            return state.call("cuCtxSynchronize").unwrap_or(0);
        }
        drop(state);
        std::thread::yield_now();
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) -> c_int {
    let mut state = state();
    if flags != 1 {
        // A stream that waits for the engine's default stream would hold the engine up.
        return INVALID_VALUE;
    }
    if let Some(code) = state.call("cuStreamCreate") {
        return code;
    }
    let handle = state.handle();
    let (context, copies) = (CURRENT.get(), VecDeque::new());
    state.streams.insert(handle, Stream { context, copies });
    // SAFETY: the caller's promise.
    unsafe { *stream = std::ptr::without_provenance_mut(handle) };
    if context == 0 { INVALID_CONTEXT } else { 0 }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
    let removed = state().streams.remove(&stream.addr());
    if removed.is_some() { 0 } else { INVALID_VALUE }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    let mut state = state();
    if let Some(code) = state.call("cuEventCreate") {
        return code;
    }
    let handle = state.handle();
    state.events.insert(handle, Recorded::Nothing);
    // SAFETY: the caller's promise.
    unsafe { *event = std::ptr::without_provenance_mut(handle) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
    let mut state = state();
    if let Some(code) = state.call("cuEventRecord") {
        return code;
    }
    let (stream, until) = (stream.addr(), state.copies);
    match state.streams.get(&stream).map(|stream| stream.context) {
        Some(context) if context == CURRENT.get() => {}
        _ => return INVALID_CONTEXT,
    }
    let recorded = Recorded::Stream { stream, until };
    state.events.insert(event.addr(), recorded);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: *mut c_void) -> c_int {
    let mut state = state();
    if let Some(code) = state.call("cuEventQuery") {
        return code;
    }
    let Some(recorded) = state.events.get(&event.addr()).cloned() else {
        return INVALID_VALUE;
    };
    if state.held {
        return NOT_READY;
    }
    match recorded {
        Recorded::Nothing => {}
        Recorded::Stream { stream, until } => state.run(stream, until),
        Recorded::Context {
            context,
            until,
            work,
        } => {
            if state.work.get(&context).is_some_and(|done| done.1 < work) {
                return NOT_READY;
            }
            let of_context =
                |entry: (&usize, &Stream)| (entry.1.context == context).then_some(*entry.0);
            let streams: Vec<usize> = state.streams.iter().filter_map(of_context).collect();
            for stream in streams {
                state.run(stream, until);
            }
        }
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    let removed = state().events.remove(&event.addr());
    if removed.is_some() { 0 } else { INVALID_VALUE }
}

fn submit(name: &str, host: usize, device: usize, length: usize, stream: usize, up: bool) -> c_int {
    let mut state = state();
    if let Some(code) = state.call(name) {
        return code;
    }
    state.copies += 1;
    let number = state.copies;
    let owner = state.owner(device, length).map(context_of);
    let Some(stream) = state.streams.get_mut(&stream) else {
        return INVALID_VALUE;
    };
    if stream.context != CURRENT.get() {
        return INVALID_CONTEXT;
    }
    if owner != Some(stream.context) {
        return INVALID_VALUE;
    }
    let (from, to) = if up { (host, device) } else { (device, host) };
    stream.copies.push_back(Copy {
        number,
        from,
        to,
        length,
    });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    device: u64,
    host: *const c_void,
    length: usize,
    stream: *mut c_void,
) -> c_int {
    let host = host.expose_provenance();
    submit(
        "cuMemcpyHtoDAsync",
        host,
        device as usize,
        length,
        stream.addr(),
        true,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    host: *mut c_void,
    device: u64,
    length: usize,
    stream: *mut c_void,
) -> c_int {
    let host = host.expose_provenance();
    submit(
        "cuMemcpyDtoHAsync",
        host,
        device as usize,
        length,
        stream.addr(),
        false,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(host: *mut c_void, _length: usize, _flags: c_uint) -> c_int {
    let mut state = state();
    if let Some(code) = state.call("cuMemHostRegister") {
        return code;
    }
    state.pinned.push(host.addr());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(host: *mut c_void) -> c_int {
    let mut state = state();
    let before = state.pinned.len();
    state.pinned.retain(|pinned| *pinned != host.addr());
    if state.pinned.len() < before {
        0
    } else {
        INVALID_VALUE
    }
}

/// Drivers before 12.5 lack it; so does the library when it is compiled as one of them.
#[cfg(not(old_driver))]
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxRecordEvent(context: *mut c_void, event: *mut c_void) -> c_int {
    let mut state = state();
    if let Some(code) = state.call("cuCtxRecordEvent") {
        return code;
    }
    let (context, until) = (context.addr(), state.copies);
    let work = state.work.get(&context).map_or(0, |work| work.0);
    let name = format!("cuCtxRecordEvent {context:#x}");
    state.call(&name);
    let recorded = Recorded::Context {
        context,
        until,
        work,
    };
    state.events.insert(event.addr(), recorded);
    0
}

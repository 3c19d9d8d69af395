//! The driver library: its functions by name, and who owns an address.
//!
//! Called by the device beside it. The invariant: a function is called with the types that
//! `cuda.h` declares for it, and every failure carries its name and code.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libloading::Library;

use super::device::CudaDevice;
use crate::device::contract::{Device, DeviceError};

/// What the driver installs, on Linux.
const LIBRARY: &str = "libcuda.so.1";

pub(super) type Context = *mut c_void;
pub(super) type Stream = *mut c_void;
pub(super) type Event = *mut c_void;

/// Codes of `CUresult` that decide something here.
const SUCCESS: c_int = 0;
const NOT_READY: c_int = 600;

/// Kinds of `CUpointer_attribute` and `CUmemorytype`.
const ATTRIBUTE_MEMORY_TYPE: c_uint = 2;
const ATTRIBUTE_DEVICE_ORDINAL: c_uint = 9;
const MEMORY_TYPE_DEVICE: c_uint = 2;

macro_rules! functions {
    ($($field:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// Functions of the library, valid while it is loaded.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Drivers before CUDA 12.5 have no events of whole contexts.
            pub(super) context_record: Option<unsafe extern "C" fn(Context, Event) -> c_int>,
        }

        impl Functions {
            /// # Safety
            /// The library is a CUDA driver: its functions have the types of `cuda.h`.
            unsafe fn of(library: &Library) -> Result<Self, DeviceError> {
                Ok(Self {
                    $($field: {
                        type Function = unsafe extern "C" fn($($argument),*) -> c_int;
                        // SAFETY: the caller's promise gives the symbol this type.
                        let found = unsafe { library.get::<Function>($symbol.as_bytes()) };
                        *found.map_err(|_| DeviceError::NoFunction {
                            function: $symbol,
                        })?
                    },)*
                    context_record: {
                        type Function = unsafe extern "C" fn(Context, Event) -> c_int;
                        // SAFETY: as above.
                        let found = unsafe { library.get::<Function>(b"cuCtxRecordEvent") };
                        found.ok().map(|found| *found)
                    },
                })
            }
        }
    };
}

functions! {
    init: "cuInit" (c_uint);
    error_name: "cuGetErrorName" (c_int, *mut *const c_char);
    pointer_attribute: "cuPointerGetAttribute" (*mut c_void, c_uint, u64);
    device: "cuDeviceGet" (*mut c_int, c_int);
    retain: "cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    release: "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current: "cuCtxSetCurrent" (Context);
    synchronize: "cuCtxSynchronize" ();
    stream_create: "cuStreamCreate" (*mut Stream, c_uint);
    stream_destroy: "cuStreamDestroy_v2" (Stream);
    event_create: "cuEventCreate" (*mut Event, c_uint);
    event_record: "cuEventRecord" (Event, Stream);
    event_query: "cuEventQuery" (Event);
    event_destroy: "cuEventDestroy_v2" (Event);
    copy_to_device: "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Stream);
    copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Stream);
    host_register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister: "cuMemHostUnregister" (*mut c_void);
}

/// The loaded driver library, and the devices that are in use through it.
#[derive(Debug)]
pub struct CudaDriver {
    pub(super) functions: Functions,
    devices: Mutex<BTreeMap<c_int, Weak<CudaDevice>>>,
    /// Keeps the functions loaded; dropped last.
    _library: Library,
}

impl CudaDriver {
    /// Loads the library of the installed driver.
    ///
    /// # Errors
    /// [`DeviceError::NoDriver`] on a machine without one, [`DeviceError::NoFunction`] for a driver
    /// that is too old, [`DeviceError::Call`] when it does not start.
    pub fn load() -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the name is that of the NVIDIA driver, whose initializers the engine runs too.
        unsafe { Self::load_from(LIBRARY) }
    }

    /// Loads a library that is a CUDA driver, by name or path.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Safety
    /// The library's functions of the driver's names have the types and the behaviour of `cuda.h`.
    pub unsafe fn load_from(path: impl AsRef<OsStr>) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the caller's promise.
        let library = unsafe { Library::new(path.as_ref()) };
        let library = library.map_err(|error| DeviceError::NoDriver {
            reason: error.to_string(),
        })?;
        // SAFETY: the caller's promise.
        let functions = unsafe { Functions::of(&library) }?;
        let driver = Self {
            functions,
            devices: Mutex::default(),
            _library: library,
        };
        // SAFETY: the one argument is the flags, which must be 0.
        driver.check("cuInit", "the driver", unsafe {
            (driver.functions.init)(0)
        })?;
        Ok(Arc::new(driver))
    }

    /// The device that owns `length` bytes from `address`. One value for each device, however often
    /// it is asked for.
    ///
    /// # Errors
    /// [`DeviceError::NotOwned`] for memory of no device or of more than one,
    /// [`DeviceError::Call`] when the device does not start.
    pub fn owner(
        self: &Arc<Self>,
        address: usize,
        length: usize,
    ) -> Result<Arc<dyn Device>, DeviceError> {
        let ordinal = self.ordinal(address, length);
        let ordinal = ordinal.ok_or_else(|| DeviceError::NotOwned {
            address,
            length,
            device: "a GPU".into(),
        })?;
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let device = CudaDevice::start(self, ordinal)?;
        devices.insert(ordinal, Arc::downgrade(&device));
        Ok(device)
    }

    /// The one device on which both ends of a range lie.
    pub(super) fn ordinal(&self, address: usize, length: usize) -> Option<c_int> {
        let last = address.checked_add(length.checked_sub(1)?)?;
        let (first, last) = (self.ordinal_of(address)?, self.ordinal_of(last)?);
        (first == last).then_some(first)
    }

    fn ordinal_of(&self, address: usize) -> Option<c_int> {
        let address = u64::try_from(address).ok()?;
        let (mut kind, mut ordinal): (c_uint, c_int) = (0, 0);
        let ask = |to: *mut c_void, attribute| {
            // SAFETY: both attributes are four bytes, which `to` has; the address is only looked
            // up.
            unsafe { (self.functions.pointer_attribute)(to, attribute, address) }
        };
        let known = ask(ptr::from_mut(&mut kind).cast(), ATTRIBUTE_MEMORY_TYPE);
        if known != SUCCESS || kind != MEMORY_TYPE_DEVICE {
            return None;
        }
        let known = ask(ptr::from_mut(&mut ordinal).cast(), ATTRIBUTE_DEVICE_ORDINAL);
        (known == SUCCESS).then_some(ordinal)
    }

    /// The outcome of a call.
    pub(super) fn check(
        &self,
        call: &'static str,
        device: &str,
        code: c_int,
    ) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(DeviceError::Call {
            call,
            device: device.to_owned(),
            code,
            name: self.name_of(code),
        })
    }

    fn name_of(&self, code: c_int) -> String {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the place for a pointer is valid; an unknown code leaves it null.
        let known = unsafe { (self.functions.error_name)(code, &raw mut name) };
        if known != SUCCESS || name.is_null() {
            return "unknown".into();
        }
        // SAFETY: the driver's names are constant strings that end in a zero.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// Whether an event is over: `None` while it is not.
    pub(super) fn event_over(&self, device: &str, event: Event) -> Option<Result<(), DeviceError>> {
        // SAFETY: the event was created by this driver and is not destroyed yet.
        match unsafe { (self.functions.event_query)(event) } {
            NOT_READY => None,
            code => Some(self.check("cuEventQuery", device, code)),
        }
    }
}

//! The fake driver as a library: compiled once for all tests, loaded by each test from a copy of
//! its own, so that no test sees the state of another.

use std::ffi::{CString, c_char, c_int};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;
use tessera_transport::CudaDriver;

static COPIES: AtomicU32 = AtomicU32::new(0);

/// The test's own view of the driver that the product has loaded.
pub(crate) struct Fake {
    library: Library,
    path: PathBuf,
}

impl Fake {
    /// A driver of today, or one without events of whole contexts.
    pub(crate) fn load(old: bool) -> (Self, Arc<CudaDriver>) {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("libcuda-{number}.so"));
        provide(&path, old);
        // SAFETY: the library was compiled from the file beside this one.
        let library = unsafe { Library::new(&path) }.expect("the fake driver loads");
        // SAFETY: as above; its functions are declared as in `cuda.h`.
        let driver = unsafe { CudaDriver::load_from(&path) }.expect("the fake driver starts");
        (Self { library, path }, driver)
    }

    /// Declares memory to be device `ordinal`'s.
    pub(crate) fn own(&self, memory: &[u8], ordinal: c_int) {
        // SAFETY: the types are those of the fake driver.
        let own = unsafe {
            self.library
                .get::<extern "C" fn(usize, usize, c_int)>(b"fake_own")
        };
        own.unwrap()(memory.as_ptr().expose_provenance(), memory.len(), ordinal);
    }

    pub(crate) fn hold(&self, held: bool) {
        // SAFETY: as above.
        let hold = unsafe { self.library.get::<extern "C" fn(bool)>(b"fake_hold") };
        hold.unwrap()(held);
    }

    pub(crate) fn work(&self, ordinal: c_int, launched: u64, over: u64) {
        // SAFETY: as above.
        let work = unsafe {
            self.library
                .get::<extern "C" fn(c_int, u64, u64)>(b"fake_work")
        };
        work.unwrap()(ordinal, launched, over);
    }

    pub(crate) fn fail(&self, name: &str, count: u32, code: c_int) {
        let name = CString::new(name).unwrap();
        // SAFETY: as above; the name ends in a zero.
        unsafe {
            let fail = self
                .library
                .get::<unsafe extern "C" fn(*const c_char, u32, c_int)>(b"fake_fail");
            fail.unwrap()(name.as_ptr(), count, code);
        }
    }

    pub(crate) fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        // SAFETY: as above; the name ends in a zero.
        unsafe {
            let calls = self
                .library
                .get::<unsafe extern "C" fn(*const c_char) -> u64>(b"fake_calls");
            calls.unwrap()(name.as_ptr())
        }
    }

    pub(crate) fn left(&self) -> u64 {
        // SAFETY: as above.
        let left = unsafe { self.library.get::<extern "C" fn() -> u64>(b"fake_left") };
        left.unwrap()()
    }

    /// Makes a device the current one of this thread.
    pub(crate) fn set_current(&self, context: usize) {
        // SAFETY: as above.
        let set = unsafe {
            self.library
                .get::<extern "C" fn(usize) -> c_int>(b"cuCtxSetCurrent")
        };
        assert_eq!(set.unwrap()(context), 0);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(folder) = self.path.parent() {
            drop(std::fs::remove_dir_all(folder));
        }
    }
}

/// Copies the compiled driver to `to`; compiles it if its source has changed. Other tests may do
/// the same at the same time, so that it appears whole.
fn provide(to: &Path, old: bool) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/fake_driver.rs");
    let text = std::fs::read(&source).expect("the fake driver's source");
    let mut hasher = DefaultHasher::new();
    (text, old).hash(&mut hasher);
    let name = format!("fake-cuda-{:x}.so", hasher.finish());
    let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !compiled.exists() {
        compile(&source, to, old);
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let whole = compiled.with_extension(format!("{}-{number}", std::process::id()));
        std::fs::copy(to, &whole).expect("a copy");
        std::fs::rename(&whole, &compiled).expect("a whole library");
        return;
    }
    std::fs::copy(&compiled, to).expect("a copy of its own");
}

fn compile(source: &Path, to: &Path, old: bool) {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(compiler);
    command.args(["--edition", "2024", "--crate-type", "cdylib"]);
    command.args(["--crate-name", "fake_driver", "-D", "warnings"]);
    command.args(["--check-cfg", "cfg(old_driver)", "-A", "non_snake_case"]);
    if old {
        command.args(["--cfg", "old_driver", "-A", "dead_code"]);
    }
    let status = command.arg("-o").arg(to).arg(source).status();
    assert!(
        status.expect("a compiler").success(),
        "the fake driver compiles"
    );
}

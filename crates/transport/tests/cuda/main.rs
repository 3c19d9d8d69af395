//! The CUDA device against a driver without a GPU: what it asks of the driver, and when it answers.

use std::sync::Arc;

use tessera_transport::{
    Completion, CudaDriver, Device, DeviceError, DeviceLost, DeviceRanges, FenceSide, Lent,
    LentRanges, Region, Segments,
};

use library::Fake;

mod library;

const LENGTH: usize = 256;

/// Memory that the fake driver takes for a device's.
struct Gpu {
    _memory: Vec<u8>,
    region: Arc<Region>,
    device: Arc<dyn Device>,
}

impl Gpu {
    fn new(fake: &Fake, driver: &Arc<CudaDriver>, ordinal: i32) -> Self {
        let mut memory = vec![0; LENGTH];
        fake.own(&memory, ordinal);
        let base = memory.as_mut_ptr();
        let device = driver.owner(base.expose_provenance(), LENGTH).unwrap();
        // SAFETY: the memory is dropped with the region, and nobody else uses it.
        let region = unsafe { Region::on_device(&device, base, LENGTH) }.unwrap();
        Self {
            _memory: memory,
            region,
            device,
        }
    }

    /// The payload's two halves, exchanged, with a hole between them.
    fn ranges(&self) -> DeviceRanges {
        let mut ranges = DeviceRanges::with_capacity(2);
        ranges.push(&self.region, 128, 32).unwrap();
        ranges.skip(16);
        ranges.push(&self.region, 0, 32).unwrap();
        ranges
    }

    fn lent(&self) -> LentRanges {
        self.ranges().lend().unwrap()
    }

    fn view(&self) -> Vec<u8> {
        // SAFETY: the region covers the memory, and nothing writes to it while this reads.
        unsafe { std::slice::from_raw_parts(self.region.base(), LENGTH) }.to_vec()
    }
}

fn staged() -> (Segments, Vec<u8>) {
    let pattern: Vec<u8> = (1..=80).collect();
    let mut lent = Lent::new(Segments::whole(&Region::allocate(80).unwrap())).unwrap();
    lent.copy_from(&pattern).unwrap();
    (lent.into_segments(), pattern)
}

fn expected(pattern: &[u8]) -> Vec<u8> {
    let mut all = vec![0; LENGTH];
    all[128..160].copy_from_slice(&pattern[..32]);
    all[..32].copy_from_slice(&pattern[48..]);
    all
}

fn wait<T>(mut completion: Completion<T>) -> Result<T, DeviceLost> {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        match completion.now() {
            Some(answer) => return answer,
            None => assert!(std::time::Instant::now() < limit, "never answered"),
        }
        std::thread::yield_now();
    }
}

/// Waits until the driver was asked `count` times.
fn asked(fake: &Fake, name: &str, count: u64) {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while fake.calls(name) < count {
        assert!(std::time::Instant::now() < limit, "{name} is never called");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_go_to_the_device_and_back_and_each_copy_ends_with_its_event() {
    let (fake, driver) = Fake::load(false);
    let gpu = Gpu::new(&fake, &driver, 1);
    let (from, pattern) = staged();
    fake.hold(true);
    let mut write = gpu.device.write(from, gpu.lent());
    asked(&fake, "cuEventQuery", 2);
    assert!(write.now().is_none(), "the event is not over");
    assert_eq!(gpu.view(), [0; LENGTH]);
    fake.hold(false);
    assert_eq!(wait(write).unwrap().0, Ok(()));
    assert_eq!(wait(gpu.device.fence(FenceSide::After)), Ok(Ok(())));
    assert_eq!(gpu.view(), expected(&pattern));
    let back = Region::allocate(80).unwrap();
    let lent = Lent::new(Segments::whole(&back)).unwrap();
    let (done, lent) = wait(gpu.device.read(gpu.ranges(), lent)).unwrap();
    assert_eq!(done, Ok(()));
    let mut bytes = vec![0; 80];
    lent.copy_to(&mut bytes).unwrap();
    assert_eq!(
        (&bytes[..32], &bytes[48..]),
        (&pattern[..32], &pattern[48..])
    );
}

#[test]
fn the_fence_before_waits_for_all_work_that_was_launched_earlier() {
    for old in [false, true] {
        let (fake, driver) = Fake::load(old);
        let gpu = Gpu::new(&fake, &driver, 0);
        fake.work(0, 1, 0);
        let mut fence = gpu.device.fence(FenceSide::Before);
        if !old {
            asked(&fake, "cuEventQuery", 3);
            // A step that is launched later is not waited for.
            fake.work(0, 1, 0);
        }
        assert!(fence.now().is_none(), "the engine still computes");
        fake.work(0, 0, 1);
        assert_eq!(wait(fence), Ok(Ok(())), "old: {old}");
    }
}

#[test]
fn the_fence_after_covers_every_copy_that_was_asked_for_before() {
    let (fake, driver) = Fake::load(false);
    let gpu = Gpu::new(&fake, &driver, 0);
    fake.hold(true);
    let (from, pattern) = staged();
    let write = gpu.device.write(from, gpu.lent());
    let mut fence = gpu.device.fence(FenceSide::After);
    asked(&fake, "cuEventQuery", 4);
    assert!(fence.now().is_none());
    fake.hold(false);
    assert_eq!(wait(fence), Ok(Ok(())));
    assert_eq!(gpu.view(), expected(&pattern));
    assert_eq!(wait(write).unwrap().0, Ok(()));
}

#[test]
fn l04_the_owner_is_that_of_the_memory_and_never_that_of_the_calling_thread() {
    let (fake, driver) = Fake::load(false);
    let (one, two) = (Gpu::new(&fake, &driver, 0), Gpu::new(&fake, &driver, 1));
    assert!(!Arc::ptr_eq(&one.device, &two.device));
    let same = Gpu::new(&fake, &driver, 1);
    assert!(
        Arc::ptr_eq(&two.device, &same.device),
        "one value for each device"
    );
    // The calling thread computes on device 0.
    fake.set_current(0x1000);
    let (from, pattern) = staged();
    assert_eq!(wait(two.device.write(from, two.lent())).unwrap().0, Ok(()));
    assert_eq!(two.view(), expected(&pattern));
    assert_eq!(wait(two.device.fence(FenceSide::Before)), Ok(Ok(())));
    assert_eq!(fake.calls("cuCtxRecordEvent 0x2000"), 1);
    assert_eq!(fake.calls("cuCtxRecordEvent 0x1000"), 0);
    // Memory of one device cannot be registered with another.
    // SAFETY: the memory outlives the refusal.
    let refused = unsafe { Region::on_device(&one.device, two.region.base(), LENGTH) };
    assert!(matches!(refused, Err(DeviceError::NotOwned { .. })));
}

#[test]
fn memory_of_the_host_or_of_two_devices_has_no_owner() {
    let (fake, driver) = Fake::load(false);
    let memory = [0_u8; 64];
    let address = memory.as_ptr().expose_provenance();
    assert!(driver.owner(address, 64).is_err(), "unknown to the driver");
    fake.own(&memory[..32], 0);
    fake.own(&memory[32..], 1);
    assert!(driver.owner(address, 32).is_ok());
    let both = driver.owner(address, 64).unwrap_err();
    assert!(
        both.to_string().contains("do not belong to a GPU"),
        "{both}"
    );
    assert!(driver.owner(address, 0).is_err());
    let pinned = [0_u8; 64];
    fake.own(&pinned, -1);
    assert!(
        driver
            .owner(pinned.as_ptr().expose_provenance(), 64)
            .is_err(),
        "the host's"
    );
}

#[test]
fn a_copy_that_was_submitted_in_part_fails_when_its_part_is_over() {
    let (fake, driver) = Fake::load(false);
    let gpu = Gpu::new(&fake, &driver, 0);
    // The second of its two pieces is refused.
    let (from, _) = staged();
    assert_eq!(wait(gpu.device.write(from, gpu.lent())).unwrap().0, Ok(()));
    fake.fail("cuMemcpyHtoDAsync", 1, 719);
    let (from, _) = staged();
    let (done, ..) = wait(gpu.device.write(from, gpu.lent())).unwrap();
    let error = done.unwrap_err().to_string();
    assert!(
        error.contains("CUDA_ERROR_LAUNCH_FAILED") && error.contains("719"),
        "{error}"
    );
    assert_eq!(wait(gpu.device.fence(FenceSide::After)), Ok(Ok(())));
    let short = Lent::new(Segments::whole(&Region::allocate(8).unwrap())).unwrap();
    let (done, _) = wait(gpu.device.read(gpu.ranges(), short)).unwrap();
    assert_eq!(done, Err(DeviceError::Length { have: 8, want: 80 }));
}

#[test]
fn a_copy_whose_end_is_unknown_gives_its_memory_to_nobody() {
    for call in ["cuEventQuery", "cuEventRecord", "cuEventCreate"] {
        let (fake, driver) = Fake::load(false);
        let gpu = Gpu::new(&fake, &driver, 0);
        let region = Region::allocate(80).unwrap();
        let staging = Arc::downgrade(&region);
        let from = Segments::whole(&region);
        drop(region);
        fake.fail(call, 1, 700);
        assert_eq!(
            wait(gpu.device.write(from, gpu.lent())).unwrap_err(),
            DeviceLost,
            "{call}"
        );
        assert!(
            staging.upgrade().is_some(),
            "{call}: it may be read for ever"
        );
    }
}

#[test]
fn a_failed_fence_is_an_error_and_the_next_one_a_proof() {
    for (call, side) in [
        ("cuCtxRecordEvent", FenceSide::Before),
        ("cuEventQuery", FenceSide::Before),
        ("cuEventRecord", FenceSide::After),
        ("cuEventCreate", FenceSide::After),
        ("cuEventQuery", FenceSide::After),
    ] {
        let (fake, driver) = Fake::load(false);
        let gpu = Gpu::new(&fake, &driver, 0);
        fake.fail(call, 1, 700);
        let failed = wait(gpu.device.fence(side)).unwrap().unwrap_err();
        assert!(
            failed.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
            "{failed}"
        );
        assert_eq!(wait(gpu.device.fence(side)), Ok(Ok(())), "{call}");
    }
}

#[test]
fn nothing_is_left_behind_when_the_last_region_is_gone() {
    let (fake, driver) = Fake::load(false);
    let gpu = Gpu::new(&fake, &driver, 0);
    let staging = Region::allocate(4096).unwrap();
    gpu.device.pin(&staging).unwrap();
    fake.fail("cuMemHostRegister", 1, 719);
    assert!(gpu.device.pin(&staging).is_err(), "slower, and no more");
    let (from, _) = staged();
    let write = gpu.device.write(from, gpu.lent());
    assert_eq!(wait(write).unwrap().0, Ok(()));
    assert!(fake.left() > 0);
    drop(gpu);
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while fake.left() > 0 {
        assert!(
            std::time::Instant::now() < limit,
            "{} things are left",
            fake.left()
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_device_or_driver_that_does_not_start_says_why() {
    // SAFETY: there is no such library.
    let none = unsafe { CudaDriver::load_from("libcuda-that-is-not-there.so") }.unwrap_err();
    assert!(
        none.to_string().contains("install the NVIDIA driver"),
        "{none}"
    );
    // SAFETY: a library of other functions, of which none is called.
    let other = unsafe { CudaDriver::load_from("libc.so.6") }.unwrap_err();
    assert!(
        matches!(other, DeviceError::NoFunction { function: "cuInit" }),
        "{other}"
    );
    let (fake, driver) = Fake::load(false);
    let memory = [0_u8; 16];
    fake.own(&memory, 3);
    fake.fail("cuStreamCreate", 1, 719);
    let address = memory.as_ptr().expose_provenance();
    let error = driver.owner(address, 16).unwrap_err().to_string();
    assert!(
        error.contains("cuStreamCreate failed on CUDA device 3"),
        "{error}"
    );
    assert_eq!(fake.left(), 0, "the context is given back");
    assert!(driver.owner(address, 16).is_ok(), "and may start later");
}

//! The simulated device: what it hides without a fence, and shows behind one.

use std::sync::Arc;

use tessera_transport::{
    Completion, Device as _, DeviceError, DeviceLost, DeviceRanges, FenceSide, Lent, LentRanges,
    Region, SegmentError, Segments, SimDevice,
};

const LENGTH: usize = 4096;

fn wait<T>(mut completion: Completion<T>) -> Result<T, DeviceLost> {
    loop {
        match completion.now() {
            Some(answer) => return answer,
            None => std::thread::yield_now(),
        }
    }
}

fn until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

fn whole(region: &Arc<Region>) -> DeviceRanges {
    let mut ranges = DeviceRanges::with_capacity(1);
    ranges.push(region, 0, LENGTH).unwrap();
    ranges
}

fn lent(region: &Arc<Region>) -> LentRanges {
    whole(region).lend().unwrap()
}

fn staged(byte: u8) -> Segments {
    let region = Region::allocate(LENGTH).unwrap();
    let mut lent = Lent::new(Segments::whole(&region)).unwrap();
    lent.copy_from(&[byte; LENGTH]).unwrap();
    lent.into_segments()
}

fn written(seed: u64) -> (Arc<SimDevice>, Arc<Region>) {
    let device = SimDevice::start(seed).unwrap();
    let memory = device.allocate(LENGTH).unwrap();
    let (done, ..) = wait(device.write(staged(7), lent(&memory))).unwrap();
    assert_eq!(done, Ok(()));
    (device, memory)
}

#[test]
fn writes_show_late_in_an_order_of_the_seed_and_whole_behind_their_fence_only() {
    let views = |seed| {
        let (device, memory) = written(seed);
        let views: Vec<Vec<u8>> = (0..64).map(|_| device.view(&memory)).collect();
        wait(device.fence(FenceSide::Before)).unwrap().unwrap();
        assert_ne!(device.view(&memory), [7; LENGTH], "the other fence");
        wait(device.fence(FenceSide::After)).unwrap().unwrap();
        assert_eq!(device.view(&memory), [7; LENGTH]);
        assert_eq!(device.fences(FenceSide::After), (1, 1));
        views
    };
    let first = views(1);
    let seen = |view: &Vec<u8>| view.iter().filter(|byte| **byte == 7).count();
    assert!(seen(&first[0]) <= 64, "most of it is late");
    assert!(seen(&first[63]) > 0, "some of it shows early");
    let gap = first[63].iter().skip_while(|byte| **byte != 7);
    assert!(
        gap.skip_while(|byte| **byte == 7).any(|byte| *byte == 7),
        "out of order"
    );
    assert_eq!(first, views(1), "one seed, one order");
    assert_ne!(first, views(2), "another seed, another order");
}

#[test]
fn work_of_the_engine_is_over_behind_the_fence_before() {
    let (device, memory) = written(3);
    wait(device.fence(FenceSide::After)).unwrap().unwrap();
    device.submit(&memory, 0, vec![9; LENGTH]);
    wait(device.fence(FenceSide::Before)).unwrap().unwrap();
    assert_eq!(device.view(&memory), [9; LENGTH]);
}

#[test]
fn a_device_held_back_answers_nothing_and_loses_nothing() {
    let (device, memory) = written(4);
    device.hold();
    let mut fence = device.fence(FenceSide::After);
    assert!(fence.now().is_none());
    assert_eq!(device.fences(FenceSide::After), (1, 0));
    device.release();
    wait(fence).unwrap().unwrap();
    assert_eq!(device.view(&memory), [7; LENGTH]);
}

#[test]
fn an_owed_fence_hangs_alone_until_its_release() {
    let (device, memory) = written(11);
    device.owe_fences(FenceSide::After, 1);
    let mut owed = device.fence(FenceSide::After);
    wait(device.fence(FenceSide::Before)).unwrap().unwrap();
    assert!(owed.now().is_none(), "the other side goes on");
    assert_ne!(device.view(&memory), [7; LENGTH]);
    device.release();
    wait(owed).unwrap().unwrap();
    assert_eq!(device.view(&memory), [7; LENGTH]);
}

#[test]
fn a_skipped_fence_succeeds_and_shows_nothing() {
    let (device, memory) = written(12);
    device.skip_fences(FenceSide::After, 1);
    wait(device.fence(FenceSide::After)).unwrap().unwrap();
    assert_ne!(device.view(&memory), [7; LENGTH]);
    wait(device.fence(FenceSide::After)).unwrap().unwrap();
    assert_eq!(device.view(&memory), [7; LENGTH]);
}

#[test]
fn a_failed_fence_shows_nothing_and_the_next_one_all() {
    let (device, memory) = written(5);
    device.fail_fences(FenceSide::After, 1);
    let failed = wait(device.fence(FenceSide::After)).unwrap();
    assert!(matches!(failed, Err(DeviceError::Injected { .. })));
    assert_ne!(device.view(&memory), [7; LENGTH]);
    wait(device.fence(FenceSide::After)).unwrap().unwrap();
    assert_eq!(device.view(&memory), [7; LENGTH]);
    device.fail_copies(1);
    let (failed, ..) = wait(device.write(staged(8), lent(&memory))).unwrap();
    assert!(failed.is_err());
}

#[test]
fn a_dead_device_never_answers_and_keeps_what_it_was_given() {
    let (device, memory) = written(6);
    device.kill();
    let source = staged(1);
    let mut write = device.write(source, lent(&memory));
    let mut fence = device.fence(FenceSide::After);
    let copy = Arc::downgrade(&memory);
    drop(memory);
    until(|| device.abandoned() == 2);
    assert!(write.now().is_none() && fence.now().is_none());
    drop(device);
    assert!(copy.upgrade().is_some(), "memory in use is never freed");
}

#[test]
fn host_code_cannot_list_device_memory() {
    let (_device, memory) = written(8);
    let mut segments = Segments::with_capacity(1);
    assert!(segments.push(&memory, 0, 1).is_err());
    assert_eq!(segments.length_bytes(), 0);
}

#[test]
fn memory_of_a_dropped_operation_is_lent_until_the_operation_is_over() {
    let device = SimDevice::start(9).unwrap();
    let memory = device.allocate(LENGTH).unwrap();
    let staging = Region::allocate(LENGTH).unwrap();
    let staged = || Lent::new(Segments::whole(&staging));
    device.hold();
    drop(device.read(whole(&memory), staged().unwrap()));
    let source = Lent::new(Segments::whole(&Region::allocate(LENGTH).unwrap())).unwrap();
    drop(device.write(source.into_segments(), lent(&memory)));
    let fence = device.fence(FenceSide::After);
    let refused = staged().unwrap_err();
    assert!(matches!(refused, SegmentError::Lent { .. }), "{refused}");
    let refused = whole(&memory).lend().unwrap_err();
    assert!(matches!(refused, SegmentError::Lent { .. }), "{refused}");
    device.release();
    wait(fence).unwrap().unwrap();
    assert!(staged().is_ok() && whole(&memory).lend().is_ok());
}

#[test]
fn memory_of_an_operation_without_an_end_is_lent_for_ever() {
    let device = SimDevice::start(10).unwrap();
    let memory = device.allocate(LENGTH).unwrap();
    let staging = Region::allocate(LENGTH).unwrap();
    device.kill();
    let lent = Lent::new(Segments::whole(&staging)).unwrap();
    let mut pending = device.read(whole(&memory), lent);
    until(|| device.abandoned() == 1);
    assert!(pending.now().is_none());
    drop(pending);
    drop(device);
    let refused = Lent::new(Segments::whole(&staging)).unwrap_err();
    assert!(matches!(refused, SegmentError::Lent { .. }), "{refused}");
}

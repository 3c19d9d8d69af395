//! A store over given disks, and operations that wait for their answers.
//!
//! Called by the tests beside it. Every wait is bounded.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tessera_proto::WriteId;
use tessera_proto::checksum;
use tessera_store::{
    Disk, DiskConfig, DiskTier, Dropped, Fetched, OpenError, Published, RamStore, ReserveRefusal,
    Store, StoreConfig, TenantLimits, Unrecorded, WritePolicy,
};

use super::memory::MemoryDisk;
use crate::sample::{T0, fill, header, id, namespace_of};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
/// The smallest segments that there are.
pub(crate) const SEGMENT: u64 = 256 * KIB;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config() -> DiskConfig {
    DiskConfig {
        segment_bytes: SEGMENT,
        write: WritePolicy::Through,
        objects_max: 100_000,
        readers: 2,
        tenants: TenantLimits::default(),
    }
}

pub(crate) fn try_open(
    ram_bytes: u64,
    config: &DiskConfig,
    disks: &[Arc<MemoryDisk>],
) -> Result<Store, OpenError> {
    try_open_with(StoreConfig::with_capacity(ram_bytes), config, disks)
}

pub(crate) fn try_open_with(
    ram: StoreConfig,
    config: &DiskConfig,
    disks: &[Arc<MemoryDisk>],
) -> Result<Store, OpenError> {
    let ram = RamStore::new(ram).expect("a small arena");
    let disks = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Disk>);
    let tier = DiskTier::open(ram.clone(), config, disks.collect())?;
    Ok(Store::new(ram, Some(tier)))
}

pub(crate) fn open(ram_bytes: u64, disk: &Arc<MemoryDisk>) -> Store {
    try_open(ram_bytes, &config(), std::slice::from_ref(disk)).expect("a disk of ours")
}

/// A store whose time begins in second `epoch_s`.
pub(crate) fn open_at(ram_bytes: u64, epoch_s: u32, disk: &Arc<MemoryDisk>) -> Store {
    let ram = StoreConfig {
        epoch_s,
        ..StoreConfig::with_capacity(ram_bytes)
    };
    try_open_with(ram, &config(), std::slice::from_ref(disk)).expect("a disk of ours")
}

/// An answer that is still to come.
pub(crate) struct Answer<T>(Receiver<T>);

impl<T> Answer<T> {
    pub(crate) fn wait(self) -> T {
        self.0.recv_timeout(PATIENCE).expect("an answer in time")
    }

    /// The answer, if it is there.
    pub(crate) fn now(&self) -> Option<T> {
        self.0.try_recv().ok()
    }
}

pub(crate) fn begin_put(
    store: &Store,
    key: u64,
    write: u64,
    length: u64,
) -> Result<Answer<Published>, ReserveRefusal> {
    let mut extent = store.reserve(length, T0)?;
    fill(&mut extent, key, write);
    let header = header(key, write, &extent);
    let (sender, receiver) = channel();
    store.publish(extent, id(key), header, T0, move |published| {
        let _ = sender.send(published);
    });
    Ok(Answer(receiver))
}

pub(crate) fn put(store: &Store, key: u64, write: u64, length: u64) -> Published {
    begin_put(store, key, write, length).expect("room").wait()
}

pub(crate) fn begin_get(store: &Store, key: u64) -> Answer<Fetched> {
    let (sender, receiver) = channel();
    store.fetch(id(key), None, T0, move |fetched| {
        let _ = sender.send(fetched);
    });
    Answer(receiver)
}

/// The write and length of what is found, every byte compared with what that write stored.
pub(crate) fn get(store: &Store, key: u64) -> Option<(u64, u64)> {
    checked(begin_get(store, key).wait(), key)
}

pub(crate) fn checked(fetched: Fetched, key: u64) -> Option<(u64, u64)> {
    let pin = match fetched {
        Fetched::Found(pin) => pin,
        Fetched::Missing => return None,
        Fetched::Busy => panic!("no room to read key {key}"),
    };
    pin.header()
        .check_payload(checksum(&pin))
        .expect("verified bytes");
    let write = pin.header().write.0;
    let mut expected = vec![0; pin.len()];
    fill(&mut expected, key, write);
    assert!(*pin == *expected, "other bytes than were stored");
    assert_eq!(pin.header(), &header(key, write, &pin));
    Some((write, pin.len() as u64))
}

type Recorded<T> = Result<T, Unrecorded>;

pub(crate) fn begin_remove(store: &Store, key: u64, write: Option<u64>) -> Answer<Recorded<bool>> {
    let (sender, receiver) = channel();
    let sender = parking_lot::Mutex::new(sender);
    store.remove(id(key), write.map(WriteId), move |gone| {
        let _ = sender.into_inner().send(gone);
    });
    Answer(receiver)
}

pub(crate) fn remove(store: &Store, key: u64) -> bool {
    begin_remove(store, key, None).wait().expect("recorded")
}

/// Begins to drop the namespace of a key.
pub(crate) fn begin_drop(store: &Store, key: u64) -> Answer<Recorded<Dropped>> {
    let (sender, receiver) = channel();
    let sender = parking_lot::Mutex::new(sender);
    store.drop_namespace(namespace_of(key), move |dropped| {
        let _ = sender.into_inner().send(dropped);
    });
    Answer(receiver)
}

pub(crate) fn drop_namespace(store: &Store, key: u64) -> Dropped {
    begin_drop(store, key).wait().expect("recorded")
}

/// Pushes everything out of RAM that is not held, with objects that no test reads.
pub(crate) fn empty_ram(store: &Store, keys: &[u64]) {
    let length = store.stat().capacity_bytes / 8;
    let mut filler = 1 << 40;
    while keys.iter().any(|key| store.ram().contains(&id(*key))) {
        let mut extent = store.reserve(length, T0).expect("room");
        filler += 1;
        fill(&mut extent, filler, 1);
        let header = header(filler, 1, &extent);
        store.ram().publish(extent, id(filler), header, T0);
    }
}

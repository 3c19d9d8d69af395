//! The store of a node: memory, and its data folders if it has any.
//!
//! Called once, by `Node::start`, on a thread that may wait. Invariant: the folders are locked
//! before memory is taken and anything is read, so that a mistake costs no time.

use std::thread::available_parallelism;
use std::time::SystemTime;

use tessera_store::{DataFolder, DiskConfig, DiskSize, DiskTier, RamStore, Store, StoreConfig};

use crate::config::{DataConfig, NodeConfig};
use crate::error::StartError;

/// Disk bytes for each object that the index may hold: it takes at most a sixty-fourth of them in
/// memory.
const DISK_BYTES_AN_OBJECT: u64 = 4 << 10;
/// Objects that the index of the smallest disk may hold.
const OBJECTS_MIN: u64 = 1 << 20;
/// Threads that read each disk: while some verify what they read, the others keep the disk busy.
const READERS: usize = 8;

/// Takes the memory, opens the folders and finds what they hold.
pub(crate) fn open(config: &NodeConfig) -> Result<Store, StartError> {
    let folders = match &config.data {
        Some(data) => folders(data)?,
        None => Vec::new(),
    };
    let ram = RamStore::new(ram(config))?;
    let Some(data) = &config.data else {
        return Ok(Store::new(ram, None));
    };
    let segment_bytes = folders.first().map_or(0, DataFolder::segment_bytes);
    let disks: Vec<_> = folders.into_iter().map(DataFolder::into_disk).collect();
    let bytes: u64 = disks.iter().map(|disk| disk.length_bytes()).sum();
    let objects_max = (bytes / DISK_BYTES_AN_OBJECT).max(OBJECTS_MIN);
    let config = DiskConfig {
        segment_bytes,
        write: data.write,
        objects_max: u32::try_from(objects_max).unwrap_or(u32::MAX),
        readers: READERS,
        tenants: data.tenants.clone(),
    };
    let disk = DiskTier::open(ram.clone(), &config, disks)?;
    let stat = disk.stat();
    tracing::info!(
        objects = stat.recovered,
        bytes = stat.bytes,
        "found on disk"
    );
    Ok(Store::new(ram, Some(disk)))
}

fn folders(data: &DataConfig) -> Result<Vec<DataFolder>, StartError> {
    let size = data.bytes.map(DiskSize::of);
    let mut folders = Vec::with_capacity(data.folders.len());
    for folder in &data.folders {
        let folder = DataFolder::open(folder, size)?;
        tracing::info!(path = ?folder.path(), engine = ?folder.engine(), "data folder");
        folders.push(folder);
    }
    Ok(folders)
}

fn ram(config: &NodeConfig) -> StoreConfig {
    let limits = &config.limits;
    let mut wanted = StoreConfig::with_capacity(config.ram_bytes);
    wanted.max_object_bytes = limits.object_bytes;
    wanted.leases.store_bytes_max = limits.leased_bytes;
    wanted.leases.owner_bytes_max = limits.own_leased_bytes();
    wanted.tenants = config.tenants.clone();
    wanted.lifetimes = config.lifetimes.clone();
    wanted.epoch_s = epoch_s();
    wanted.fault_threads = available_parallelism().map_or(1, usize::from);
    wanted
}

/// What the system's clock says of the start of this node. A clock before 1970 says nothing.
fn epoch_s() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
    })
}

//! The disk rows of the store family: objects through both tiers, against blocks through io_uring,
//! on the same file system at the same depth; the start of a store that holds a million objects.
//!
//! Called by the bench. Both files are written once, untimed, before anything is measured: the
//! first write of a block costs what no later one does. The disk of the store is full then, so
//! that each write that is measured pays for what has to leave.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use tessera_client::local::LocalNode;
use tessera_client::options::Options;
use tessera_client::{KeyDigest, NamespaceDigest, ObjectHeader, TenantTag, WriteId};
use tessera_node::store::{
    DataFolder, Direction, DiskConfig, DiskSize, DiskTier, Engine, Fetched, Instant, Published,
    RamStore, RawDisk, Store, StoreConfig, TenantLimits, WritePolicy, checksum,
};

use super::cost;
use super::row::Row;
use super::statistics::{core_time, median};

const REPEATS: u32 = 5;
const BLOCK_BYTES: usize = 1 << 20;
const DEPTH: u32 = 16;
/// What the disk of the store takes, and blocks of the raw file.
const DISK_BLOCKS: u64 = 1_280;
/// The newest objects, all of them still on the full disk; three times the memory.
const READ_BLOCKS: u64 = 768;
const RAM_BYTES: u64 = 256 << 20;

const SMALL_OBJECTS: u64 = 1_000_000;
const SMALL_BYTES: usize = 128;
const SMALL_DISK_BYTES: u64 = 1 << 30;
const SMALL_DEPTH: u32 = 512;

/// Rows of this file, for the progress bar.
pub(crate) const ROWS: u64 = 6;

/// A folder that goes with this value.
struct Folder(PathBuf);

impl Folder {
    fn make(parent: Option<&Path>) -> Result<Self> {
        let parent = match parent {
            Some(parent) => parent.to_owned(),
            None => LocalNode::data_folder(&Options::default())?,
        };
        let folder = parent.with_file_name(format!("bench-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is named by its place, and lies where the caller wanted it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures the rows; one that repeats takes about `seconds`.
pub(crate) fn run(folder: Option<&Path>, seconds: u32, progress: &ProgressBar) -> Result<Vec<Row>> {
    let slice = Duration::from_secs(u64::from(seconds)) / (2 * REPEATS);
    let folder = Folder::make(folder)?;
    progress.set_message("disk 1MiB");
    let mut rows = throughput_rows(&folder.0, slice)?;
    progress.inc(4);
    progress.set_message("disk restart");
    rows.append(&mut restart_rows(&folder.0)?);
    progress.inc(2);
    Ok(rows)
}

/// A store on its own folder, with operations in flight.
struct Bench {
    store: Store,
    depth: u32,
    done: (SyncSender<bool>, Receiver<bool>),
    payload: Vec<u8>,
    payload_checksum: u64,
    /// All memory has held the payload, which is that of every object, so that it is not copied
    /// there again: like the floor, what is measured moves bytes to the disk and makes none.
    filled: bool,
    written: u64,
    asked: u64,
}

impl Bench {
    fn open(folder: &Path, disk_bytes: u64, ram: RamStore) -> Result<Store> {
        let folder = DataFolder::open(folder, Some(DiskSize::of(disk_bytes)))?;
        ensure!(
            folder.engine() == Engine::Uring,
            "no direct I/O through io_uring in {}: name another folder with --data",
            folder.path().display()
        );
        let config = DiskConfig {
            segment_bytes: folder.segment_bytes(),
            write: WritePolicy::Through,
            objects_max: u32::MAX,
            readers: 8,
            tenants: TenantLimits::default(),
        };
        let disk = DiskTier::open(ram.clone(), &config, vec![folder.into_disk()])?;
        Ok(Store::new(ram, Some(disk)))
    }

    fn new(store: Store, object_bytes: usize, depth: u32) -> Self {
        let payload: Vec<u8> = (0..object_bytes)
            .map(|at| u8::try_from(at % 251).expect("below 251"))
            .collect();
        Self {
            store,
            depth,
            done: sync_channel(usize::try_from(depth).expect("a few")),
            payload_checksum: checksum(&payload),
            payload,
            filled: false,
            written: 0,
            asked: 0,
        }
    }

    fn header(&self, number: u64) -> ObjectHeader {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        ObjectHeader {
            namespace: NamespaceDigest([0xd1; 32]),
            key: KeyDigest(key),
            layout: 1,
            length_bytes: self.payload.len() as u64,
            checksum: self.payload_checksum,
            write: WriteId(number),
            tenant: TenantTag::NONE,
        }
    }

    fn begin_put(&mut self) -> Result<()> {
        let header = self.header(self.written);
        self.written += 1;
        let mut extent = self.store.reserve(header.length_bytes, Instant(0))?;
        if !self.filled {
            extent.copy_from_slice(&self.payload);
        }
        let done = self.done.0.clone();
        let told = move |published| {
            // The bench that nobody reads any more has failed.
            let _ = done.send(published == Published::Stored);
        };
        self.store
            .publish(extent, header.id(), header, Instant(0), told);
        Ok(())
    }

    fn begin_get(&mut self) -> Result<()> {
        let oldest = self.written - READ_BLOCKS;
        let id = self.header(oldest + self.asked % READ_BLOCKS).id();
        self.asked += 1;
        let done = self.done.0.clone();
        self.store.fetch(id, None, Instant(0), move |fetched| {
            let _ = done.send(matches!(fetched, Fetched::Found(_)));
        });
        Ok(())
    }

    fn end_one(&self) -> Result<()> {
        let good = self.done.1.recv().context("an operation has no answer")?;
        ensure!(good, "an operation failed");
        Ok(())
    }

    /// Keeps `depth` operations in flight as long as `more` says so.
    fn drive(
        &mut self,
        begin: fn(&mut Self) -> Result<()>,
        mut more: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let mut in_flight = 0;
        while in_flight > 0 || more(self) {
            while in_flight < self.depth && more(self) {
                begin(self)?;
                in_flight += 1;
            }
            self.end_one()?;
            in_flight -= 1;
        }
        Ok(())
    }

    fn fill(&mut self, objects: u64) -> Result<()> {
        self.drive(Self::begin_put, |bench| bench.written < objects)
    }

    /// Bytes a second that went to the disk.
    fn write_speed(&mut self, slice: Duration) -> Result<f64> {
        let (begun, before) = (Clock::now(), self.written);
        self.drive(Self::begin_put, |_| begun.elapsed() < slice)?;
        let bytes = (self.written - before) * self.payload.len() as u64;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    /// Bytes a second that came from the disk.
    fn read_speed(&mut self, slice: Duration) -> Result<f64> {
        let (begun, before) = (Clock::now(), self.store.disk_stat().read_bytes);
        self.drive(Self::begin_get, |_| begun.elapsed() < slice)?;
        let bytes = self.store.disk_stat().read_bytes - before;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }
}

/// Bytes a second of the raw loop, over the first `blocks` of the file, each shown to `moved`.
fn raw_speed(
    raw: &mut RawDisk,
    direction: Direction,
    blocks: u64,
    slice: Duration,
    moved: impl FnMut(&[u8]),
) -> Result<f64> {
    let (begun, mut asked) = (Clock::now(), 0_u64);
    let numbers = std::iter::from_fn(|| {
        asked += 1;
        (begun.elapsed() < slice).then_some(asked % blocks)
    });
    raw.run(direction, numbers, moved)?;
    let bytes = (asked - 1) * BLOCK_BYTES as u64;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

fn throughput_rows(folder: &Path, slice: Duration) -> Result<Vec<Row>> {
    let memory = usize::try_from(RAM_BYTES)? / BLOCK_BYTES;
    let mut raw = RawDisk::create(&folder.join("raw"), DISK_BLOCKS, BLOCK_BYTES, DEPTH, memory)?;
    raw.run(Direction::Write, 0..DISK_BLOCKS, |_| {})?;
    let ram = RamStore::new(StoreConfig::with_capacity(RAM_BYTES))?;
    let disk_bytes = DISK_BLOCKS * BLOCK_BYTES as u64;
    let store = Bench::open(&folder.join("objects"), disk_bytes, ram)?;
    let mut bench = Bench::new(store, BLOCK_BYTES, DEPTH);
    bench.fill(DISK_BLOCKS)?;
    bench.filled = true;
    let (mut writes, mut reads) = (Pairs::default(), Pairs::default());
    for _ in 0..REPEATS {
        let floor = raw_speed(&mut raw, Direction::Write, DISK_BLOCKS, slice, |_| {})?;
        writes.add(bench.write_speed(slice)?, floor);
    }
    for _ in 0..REPEATS {
        let floor = raw_speed(&mut raw, Direction::Read, READ_BLOCKS, slice, |_| {})?;
        reads.add(bench.read_speed(slice)?, floor);
    }
    if bench.store.disk_stat().skipped > 0 {
        bail!("the disk did not take every object");
    }
    let mut read = |moved: fn(&[u8])| {
        raw_speed(
            &mut raw,
            Direction::Read,
            READ_BLOCKS,
            slice / cost::SHORTER,
            moved,
        )
    };
    let cost = cost::row("disk read 1MiB x16, checksum", |with| match with {
        true => read(|block| {
            black_box(checksum(block));
        }),
        false => read(|_| {}),
    })?;
    let share = median(&reads.speeds) / checksum_speed()?;
    Ok(vec![
        writes.row("disk write 1MiB x16"),
        reads.row("disk read 1MiB x16"),
        cost,
        Row {
            name: "disk checksum at the speed of a read".to_owned(),
            value: share,
            unit: "of a core",
            floor: None,
            must: None,
            reach: None,
            higher: false,
            absolute: format!("{:.1} %", share * 100.0),
        },
    ])
}

/// Bytes that are checked in a second of one core, in memory that no cache holds.
fn checksum_speed() -> Result<f64> {
    let arena = vec![3_u8; usize::try_from(RAM_BYTES)?];
    let before = core_time()?;
    for block in arena.chunks(BLOCK_BYTES) {
        black_box(checksum(block));
    }
    Ok(arena.len() as f64 / (core_time()? - before).as_secs_f64())
}

/// What was measured, each beside its floor.
#[derive(Default)]
struct Pairs {
    speeds: Vec<f64>,
    floors: Vec<f64>,
    ratios: Vec<f64>,
}

impl Pairs {
    fn add(&mut self, speed: f64, floor: f64) {
        self.speeds.push(speed);
        self.floors.push(floor);
        self.ratios.push(speed / floor);
    }

    fn row(&self, name: &str) -> Row {
        Row {
            name: name.to_owned(),
            value: median(&self.ratios),
            unit: "of raw io_uring",
            floor: Some(median(&self.floors) / 1e9),
            must: Some(0.90),
            reach: Some(0.97),
            higher: true,
            absolute: format!("{:.2} GB/s", median(&self.speeds) / 1e9),
        }
    }
}

fn restart_rows(folder: &Path) -> Result<Vec<Row>> {
    let folder = folder.join("small");
    let ram = || RamStore::new(StoreConfig::with_capacity(RAM_BYTES));
    let store = Bench::open(&folder, SMALL_DISK_BYTES, ram()?)?;
    let mut bench = Bench::new(store, SMALL_BYTES, SMALL_DEPTH);
    bench.fill(SMALL_OBJECTS)?;
    drop(bench);
    let ram = ram()?;
    let (begun, core_begun, before) = (Clock::now(), core_time()?, resident_bytes()?);
    let store = Bench::open(&folder, SMALL_DISK_BYTES, ram)?;
    let seconds = begun.elapsed().as_secs_f64();
    let of_a_core = (core_time()? - core_begun).as_secs_f64();
    let grown = resident_bytes()?.saturating_sub(before);
    let stat = store.disk_stat();
    ensure!(
        stat.objects == SMALL_OBJECTS,
        "{} of {SMALL_OBJECTS} objects are there after a restart",
        stat.objects
    );
    let index_bytes = stat.index_bytes as f64 / SMALL_OBJECTS as f64;
    let row = |name: &str, value, unit, must, reach, absolute| Row {
        name: name.to_owned(),
        value,
        unit,
        floor: None,
        must: Some(must),
        reach: Some(reach),
        higher: false,
        absolute,
    };
    let of_millions = seconds / (SMALL_OBJECTS as f64 / 1e6);
    let grown = format!("{:.0} MiB resident", grown as f64 / f64::from(1 << 20));
    Ok(vec![
        row(
            "disk restart",
            of_millions,
            "s a million",
            3.0,
            1.0,
            format!("{seconds:.2} s, {of_a_core:.2} of a core"),
        ),
        row(
            "disk index",
            index_bytes,
            "bytes an object",
            64.0,
            40.0,
            grown,
        ),
    ])
}

/// Memory of this process that is in RAM.
pub(crate) fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|rest| rest.trim().strip_suffix(" kB"));
    Ok(kib.context("no resident memory")?.trim().parse::<u64>()? << 10)
}

//! What every disk does, whatever it is made of: one suite, run over all of them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tessera_store::{BLOCK_BYTES, Disk, FileDisk, Transfer, UringDisk};

use super::memory::MemoryDisk;
use crate::sample::{Numbers, fill};

const BLOCKS: usize = 512;
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// Memory in whole blocks, at an address that is a multiple of a block.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let memory = vec![0; length + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Self {
            memory,
            start,
            length,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

fn file(path: &Path, flags: i32) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .expect("a file");
    file.set_len((BLOCKS * BLOCK_BYTES) as u64).expect("room");
    file
}

fn on_every_disk(suite: impl Fn(&dyn Disk)) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let direct = file(&folder.path().join("direct"), O_DIRECT);
    let plain = file(&folder.path().join("plain"), 0);
    let disks: [Arc<dyn Disk>; 3] = [
        Arc::new(UringDisk::new(direct).expect("io_uring")),
        Arc::new(FileDisk::new(plain).expect("a length")),
        MemoryDisk::of(vec![0; BLOCKS * BLOCK_BYTES]),
    ];
    for disk in disks {
        suite(&*disk);
    }
}

#[test]
fn disk_gives_back_what_was_written_and_zeros_elsewhere() {
    on_every_disk(|disk| {
        assert_eq!(disk.length_bytes(), (BLOCKS * BLOCK_BYTES) as u64);
        let mut truth = vec![0; BLOCKS * BLOCK_BYTES];
        let mut numbers = Numbers(7);
        for round in 0..20 {
            let mut memory: Vec<_> = (0..1 + numbers.below(100))
                .map(|_| Aligned::new((1 + numbers.below(5) as usize) * BLOCK_BYTES))
                .collect();
            let mut transfers = Vec::new();
            // Places of one call do not overlap: their order is the disk's to choose.
            for (at, memory) in memory.iter_mut().enumerate() {
                let to = at * 5 * BLOCK_BYTES;
                fill(memory.bytes(), round, at as u64);
                truth[to..to + memory.length].copy_from_slice(memory.bytes());
                transfers.push(Transfer::write(to as u64, memory.bytes()));
            }
            disk.run(&mut transfers);
            for transfer in transfers {
                transfer.outcome.expect("written");
            }
            disk.sync().expect("synced");
            let mut whole = Aligned::new(truth.len());
            let mut read = [Transfer::read(0, whole.bytes())];
            disk.run(&mut read);
            let [read] = read;
            read.outcome.expect("read");
            assert!(whole.bytes() == truth, "round {round}");
        }
    });
}

#[test]
fn reads_and_writes_of_one_call_have_an_outcome_each() {
    on_every_disk(|disk| {
        let (mut one, mut two) = (Aligned::new(BLOCK_BYTES), Aligned::new(2 * BLOCK_BYTES));
        one.bytes().fill(9);
        let mut transfers = [
            Transfer::write(0, one.bytes()),
            Transfer::read(4 * BLOCK_BYTES as u64, two.bytes()),
        ];
        disk.run(&mut transfers);
        assert!(transfers.iter().all(|transfer| transfer.outcome.is_ok()));
        disk.run(&mut []);
    });
}

#[test]
fn range_inside_the_disk_can_be_allocated_again_and_again() {
    on_every_disk(|disk| {
        for _ in 0..3 {
            disk.allocate(0, 64 * BLOCK_BYTES as u64).expect("room");
        }
    });
}

#[test]
fn file_engines_report_the_end_and_errors_for_the_transfer_that_met_them() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("short");
    let direct = file(&path, O_DIRECT);
    let plain = file(&path, 0);
    let disks: [Arc<dyn Disk>; 2] = [
        Arc::new(UringDisk::new(direct.try_clone().expect("a file")).expect("io_uring")),
        Arc::new(FileDisk::new(plain).expect("a length")),
    ];
    direct.set_len(3 * BLOCK_BYTES as u64).expect("cut");
    for disk in disks {
        let (mut good, mut over) = (Aligned::new(BLOCK_BYTES), Aligned::new(4 * BLOCK_BYTES));
        let mut transfers = [
            Transfer::read(0, good.bytes()),
            Transfer::read(BLOCK_BYTES as u64, over.bytes()),
        ];
        disk.run(&mut transfers);
        let [good, over] = transfers;
        good.outcome.expect("before the end");
        let error = over.outcome.expect_err("over the end");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
    let reading = OpenOptions::new().read(true).open(&path).expect("a file");
    let readers: [Arc<dyn Disk>; 2] = [
        Arc::new(UringDisk::new(reading.try_clone().expect("a file")).expect("io_uring")),
        Arc::new(FileDisk::new(reading).expect("a length")),
    ];
    for disk in readers {
        let mut memory = Aligned::new(BLOCK_BYTES);
        let mut transfers = [Transfer::write(0, memory.bytes())];
        disk.run(&mut transfers);
        let [write] = transfers;
        assert!(write.outcome.is_err(), "the file is open for reading only");
    }
}

#[test]
fn file_that_ends_inside_a_block_is_read_up_to_its_last_whole_block_and_no_further() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("cut");
    let direct = file(&path, O_DIRECT);
    let plain = file(&path, 0);
    let written = [7; 4 * BLOCK_BYTES];
    plain.write_all_at(&written, 0).expect("room");
    plain.sync_all().expect("synced");
    let disks: [Arc<dyn Disk>; 2] = [
        Arc::new(UringDisk::new(direct.try_clone().expect("a file")).expect("io_uring")),
        Arc::new(FileDisk::new(plain).expect("a length")),
    ];
    direct
        .set_len(3 * BLOCK_BYTES as u64 + 512)
        .expect("cut inside a block");
    for disk in disks {
        let mut memory = Aligned::new(4 * BLOCK_BYTES);
        let mut transfers = [Transfer::read(0, memory.bytes())];
        disk.run(&mut transfers);
        let [read] = transfers;
        let error = read.outcome.expect_err("it is not whole");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(memory.bytes()[..3 * BLOCK_BYTES] == written[..3 * BLOCK_BYTES]);
    }
}

/// What the child of the test below is told: the folder of its files.
const CHILD: &str = "TESSERA_TEST_SHORT_WRITES";

/// The system cuts a write short that crosses the limit on the length of files, and refuses what is
/// beyond. It does so for a whole process, so that this needs one of its own, which ignores the
/// signal that comes with it.
#[test]
fn write_that_the_system_cuts_short_is_gone_on_with_and_fails_for_what_stopped_it() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return short_writes(Path::new(&folder));
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    for name in ["direct", "plain"] {
        drop(file(&folder.path().join(name), 0));
    }
    let own = std::env::current_exe().expect("a path");
    let name = "disk::conformance::write_that_the_system_cuts_short_is_gone_on_with_and_fails_for_\
                what_stopped_it";
    let mut child = Command::new("sh");
    child
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .arg(own);
    child.args(["--exact", name, "--nocapture"]);
    let output = child.env(CHILD, folder.path()).output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "it ran nothing: {said}");
}

fn short_writes(folder: &Path) {
    let limit = rustix::process::Rlimit {
        current: Some(4 * BLOCK_BYTES as u64),
        maximum: None,
    };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("our own limit");
    let open = |name, flags: i32| {
        let mut how = OpenOptions::new();
        how.read(true).write(true).custom_flags(flags);
        how.open(folder.join(name)).expect("a file")
    };
    let direct = UringDisk::new(open("direct", O_DIRECT)).expect("io_uring");
    let plain = FileDisk::new(open("plain", 0)).expect("a length");
    let disks: [&dyn Disk; 2] = [&direct, &plain];
    for disk in disks {
        let (mut below, mut across) = (Aligned::new(BLOCK_BYTES), Aligned::new(4 * BLOCK_BYTES));
        below.bytes().fill(5);
        across.bytes().fill(6);
        let mut transfers = [
            Transfer::write(0, below.bytes()),
            Transfer::write(2 * BLOCK_BYTES as u64, across.bytes()),
        ];
        disk.run(&mut transfers);
        let [below, across] = transfers;
        below.outcome.expect("below the limit");
        let error = across.outcome.expect_err("beyond the limit");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let mut memory = Aligned::new(6 * BLOCK_BYTES);
        let mut transfers = [Transfer::read(0, memory.bytes())];
        disk.run(&mut transfers);
        let [read] = transfers;
        read.outcome.expect("the file is as long as before");
        let blocks = [5, 0, 6, 6, 0, 0];
        for (block, byte) in memory.bytes().chunks(BLOCK_BYTES).zip(blocks) {
            assert!(block.iter().all(|found| *found == byte), "block of {byte}");
        }
    }
}

//! The disk tier: objects on one or several data folders, kept through crashes.
//!
//! Called by [`Store`](crate::Store) only. Nothing here is seen by a reader before it verified.
//!
//! | file | holds |
//! |---|---|
//! | `device.rs` | the trait [`Disk`], transfers, aligned memory |
//! | `uring.rs`, `portable.rs` | its two engines |
//! | `folder.rs` | a data folder: its file, its lock, its engine |
//! | `format.rs`, `table.rs` | every byte on the disk, drawn in docs/disk-format.md |
//! | `contents.rs` | what a segment stores, removes and drops |
//! | `layout.rs` | sizes: images, segments, footers |
//! | `superblock.rs` | the identity and geometry of a disk |
//! | `recovery.rs` | from bytes to the log of each segment |
//! | `records.rs` | the index: 48 bytes an object and its place in a hash table |
//! | `namespaces.rs` | what each namespace comes to, and which were dropped |
//! | `directory.rs` | what one lock guards: index, segments, queues, leases |
//! | `log.rs` | the open segment: append, seal, open, erase |
//! | `writer.rs` | one thread a disk: queue to log |
//! | `recording.rs` | who waits for a removal |
//! | `evict.rs` | how a segment leaves |
//! | `reader.rs` | the threads that read a disk: queue to RAM |
//! | `scrub.rs` | the check in the background |
//! | `tier.rs` | the operations |
//! | `tenants.rs`, `quota.rs` | who holds how much, and who has to leave |
//! | `admission.rs` | which objects are written at all |
//! | `drop.rs` | the drop of a namespace |
//! | `leases.rs` | the operations on leases |
//! | `opening.rs` | start |
//! | `verify.rs` | the offline check |
//! | `floor.rs` | the raw loop that the bench compares with |

mod admission;
mod contents;
mod device;
mod directory;
mod drop;
mod evict;
mod floor;
mod folder;
mod format;
mod layout;
mod leases;
mod log;
mod namespaces;
mod opening;
mod portable;
mod quota;
mod reader;
mod recording;
mod records;
mod recovery;
mod scrub;
mod stat;
mod superblock;
mod table;
mod tenants;
mod tier;
mod uring;
mod verify;
mod writer;

pub use device::{BLOCK_BYTES, Bytes, Disk, Transfer};
pub use floor::{Direction, RawDisk};
pub use folder::{DataFolder, Engine, FolderError};
pub use layout::DiskSize;
pub use opening::{Admission, DiskConfig, OpenError, WritePolicy};
pub use portable::FileDisk;
pub use recording::Unrecorded;
pub use scrub::{Scrub, ScrubStep};
pub use stat::DiskStat;
pub use superblock::FormatError;
pub use tier::{DiskTier, Fetched};
pub use uring::UringDisk;
pub use verify::{DiskReport, verify};

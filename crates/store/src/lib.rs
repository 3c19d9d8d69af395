//! Keeps objects on this machine.
//!
//! Holds: the RAM tier, [`RamStore`]: a pre-faulted arena, its allocator, the index, leases, pins
//! and eviction; the disk tier, [`DiskTier`]: data folders with a log of segments each; and both
//! together, [`Store`]. May import: proto. Never sees: the transport, the lifecycle, a socket, a
//! clock.
//!
//! The life of an object in memory: [`RamStore::reserve`] gives a writer memory of his own, he
//! fills it, verifies the checksum and hands it to [`RamStore::publish`]; from then on readers
//! [`pin`](RamStore::pin) it, or [`acquire`](RamStore::acquire) a lease first, which promises that
//! it will be there. It ends by eviction, which spares what is held, or by
//! [`remove`](RamStore::remove), which is final. Memory behind a guard is never reused before the
//! guard is dropped.
//!
//! | file | holds |
//! |---|---|
//! | `store.rs` | the operations on both tiers |
//! | `disk` | the disk tier |
//! | `ram.rs`, `acquire.rs` | the operations in memory |
//! | `core.rs` | the parts together, and the order of locks |
//! | `guard.rs` | `WriteExtent`, `ReadPin` |
//! | `space.rs` | making room: what the space lock guards |
//! | `extents.rs`, `geometry.rs` | the allocator |
//! | `tenants.rs` | who holds how much, and who pays |
//! | `order.rs`, `ghost.rs` | the order of eviction |
//! | `prices.rs` | what a byte of a namespace is worth in it |
//! | `index.rs` | ids to records |
//! | `slots.rs`, `state.rs` | the records, 48 bytes each |
//! | `ages.rs`, `expiry.rs` | the time, who lives how long, and the end of it |
//! | `leases.rs` | who holds what until when |
//! | `drops.rs` | how a namespace leaves memory |
//! | `stamp.rs` | the header as it is kept |
//! | `arena.rs` | the memory |
//! | `invariants.rs` | what must never be found |

mod acquire;
mod ages;
mod arena;
mod config;
mod core;
mod disk;
mod drops;
mod expiry;
mod extents;
#[cfg(feature = "fault-injection")]
mod fault;
mod geometry;
mod ghost;
mod guard;
mod index;
mod invariants;
mod leases;
mod order;
mod prices;
mod ram;
mod slots;
mod space;
mod stamp;
mod stat;
mod state;
mod store;
mod tenants;

pub use acquire::Acquired;
pub use config::{LeaseLimits, Lifetimes, StoreConfig, StoreError, TenantLimits};
pub use disk::{
    Admission, BLOCK_BYTES, Bytes, DataFolder, Direction, Disk, DiskConfig, DiskReport, DiskSize,
    DiskStat, DiskTier, Engine, Fetched, FileDisk, FolderError, FormatError, OpenError, RawDisk,
    Scrub, ScrubStep, Transfer, Unrecorded, UringDisk, WritePolicy, verify,
};
pub use drops::Dropped;
pub use guard::{ReadPin, WriteExtent};
pub use leases::OwnerId;
pub use ram::{Published, RamStore, ReserveRefusal};
pub use stat::{StoreStat, TenantStat};
pub use store::Store;
pub use tessera_proto::message::{AcquireItem, Presence};

//! What an operator can set about a node, and how its limits must relate.
//!
//! Built by `tessera node` and by tests; checked once, by `Node::start`, so that no later code has
//! to ask whether a limit makes sense.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tessera_proto::limits;
use tessera_store::{Lifetimes, TenantLimits, WritePolicy};
use tessera_transport::Address;

use crate::error::StartError;

/// Most tenants with a name in the limits: each has numbers of its own in STAT.
const TENANTS_NAMED_MAX: usize = 128;

/// An object is small if it takes no more than one part in so many of what may be in reception.
const SMALL_SHARE: u64 = 16;

/// Everything that a node is told at its start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where to listen; port 0 asks the system for a free one.
    pub listen: Address,
    /// Bytes of the RAM tier, taken and faulted in at the start.
    pub ram_bytes: u64,
    /// Where objects are kept beyond memory and across starts; none: in memory only.
    pub data: Option<DataConfig>,
    /// How much of memory tenants may hold.
    pub tenants: TenantLimits,
    /// How long objects are found.
    pub lifetimes: Lifetimes,
    /// Allows an address that other machines can reach and a folder that other users can enter.
    pub insecure: bool,
    /// Held while the node runs; a unix socket has one of its own if none is given.
    pub lock: Option<PathBuf>,
    /// End after this long without a connection; `None` means run until told to stop.
    pub idle_exit: Option<Duration>,
    /// Bounds on what clients can make the node hold.
    pub limits: NodeLimits,
}

/// The disk tier of a node.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// Folders, best on a disk each; every one is used by one node at a time.
    pub folders: Vec<PathBuf>,
    /// Bytes in each folder; needed for new ones, and others must have been made with it.
    pub bytes: Option<u64>,
    /// When a PUT is answered.
    pub write: WritePolicy,
    /// What tenants may hold on the disks together. The names are those in [`NodeConfig::tenants`].
    pub tenants: TenantLimits,
    /// Bytes a second at which the disks are read for damage that nobody meets; 0 for never.
    pub scrub_bytes_s: u64,
}

/// Bounds on what clients can make the node hold, and on how long they can take.
#[derive(Clone, Debug)]
pub struct NodeLimits {
    /// Connections at once; one more is closed at once and counted.
    pub connections: u32,
    /// Answers that one connection may have waiting. Beyond it the node stops reading it.
    pub in_flight: u32,
    /// Bytes of one object's payload.
    pub object_bytes: u64,
    /// Bytes of objects that are being received, over all connections. Beyond it: busy.
    pub unpublished_bytes: u64,
    /// Bytes under lease, over all connections.
    pub leased_bytes: u64,
    /// Bytes of objects that are being sent, over all connections. Beyond it they take turns.
    pub sending_bytes: u64,
    /// From the connection to the last byte of its HELLO.
    pub hello_timeout: Duration,
    /// A connection that asked for nothing for so long leaves for a new one when all are taken.
    pub silent_timeout: Duration,
    /// From the first byte of a frame to its last, in both directions.
    pub frame_timeout: Duration,
    /// From the order to stop to the end of the last answer.
    pub drain_timeout: Duration,
}

impl NodeConfig {
    /// The defaults for a node of `ram_bytes` at `listen`.
    pub fn new(listen: Address, ram_bytes: u64) -> Self {
        let limits = NodeLimits::for_ram(ram_bytes);
        Self {
            listen,
            ram_bytes,
            data: None,
            tenants: TenantLimits::default(),
            lifetimes: Lifetimes::default(),
            insecure: false,
            lock: None,
            idle_exit: None,
            limits,
        }
    }
}

/// What the limits of tenants must fulfil, in memory and on disk.
pub(crate) fn check_tenants(config: &NodeConfig) -> Result<(), StartError> {
    let limits = &config.tenants;
    let names: BTreeSet<_> = limits.named.iter().map(|(name, _)| name).collect();
    if names.len() < limits.named.len() {
        return Err(StartError::Limits("a tenant has two quotas: give one"));
    }
    if names.len() > TENANTS_NAMED_MAX {
        let message = "more than 128 tenants have a quota: let others share one, with `*=SIZE`";
        return Err(StartError::Limits(message));
    }
    let on_disk = config.data.as_ref().map(|data| &data.tenants.named);
    let same = on_disk.is_none_or(|named| {
        named.len() == names.len() && named.iter().all(|(name, _)| names.contains(name))
    });
    if !same {
        let message = "tenants have names of their own in memory or on disk: name them in both";
        return Err(StartError::Limits(message));
    }
    Ok(())
}

/// What lifetimes must fulfil.
pub(crate) fn check_lifetimes(lifetimes: &Lifetimes) -> Result<(), StartError> {
    let names: BTreeSet<_> = lifetimes.named.iter().map(|(name, _)| name).collect();
    if names.len() < lifetimes.named.len() {
        return Err(StartError::Limits("a tenant has two lifetimes: give one"));
    }
    let all = lifetimes.named.iter().map(|(_, ttl_s)| *ttl_s);
    if all.chain(lifetimes.others).any(|ttl_s| ttl_s == 0) {
        return Err(StartError::Limits("objects live at least a second"));
    }
    Ok(())
}

impl NodeLimits {
    /// A quarter of the memory may be in reception, half of it under lease and an eighth of it on
    /// its way to readers: an eighth is left, which is the largest object, and publishing always
    /// finds something to evict.
    pub fn for_ram(ram_bytes: u64) -> Self {
        Self {
            connections: 1024,
            in_flight: 256,
            object_bytes: (ram_bytes / 8).min(limits::OBJECT_BYTES_MAX),
            unpublished_bytes: ram_bytes / 4,
            leased_bytes: ram_bytes / 2,
            sending_bytes: ram_bytes / 8,
            hello_timeout: Duration::from_secs(5),
            silent_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
        }
    }

    /// Bytes in reception on one connection: half of them, so that others have the other half.
    pub(crate) fn own_unpublished_bytes(&self) -> u64 {
        (self.unpublished_bytes / 2).max(self.object_bytes)
    }

    /// Bytes under lease on one connection: half of them.
    pub(crate) fn own_leased_bytes(&self) -> u64 {
        self.leased_bytes / 2
    }

    /// What may be in reception, all in all, once an object of `length_bytes` is as well. Large
    /// ones leave a quarter to small ones: a few that were announced and never come do not keep
    /// everybody out until their deadline.
    pub(crate) fn unpublished_bytes_with(&self, length_bytes: u64) -> u64 {
        let is_small = length_bytes <= self.unpublished_bytes / SMALL_SHARE;
        match is_small {
            true => self.unpublished_bytes,
            false => self.unpublished_bytes / 4 * 3,
        }
    }

    /// The relations that the serving code relies on.
    pub(crate) fn check(&self, ram_bytes: u64) -> Result<(), StartError> {
        let relations = [
            (
                self.connections > 0,
                "the limit on connections must be at least 1",
            ),
            (
                (1..=limits::IN_FLIGHT_MAX).contains(&self.in_flight),
                "the limit on requests in flight must be at least 1 and within the protocol's",
            ),
            (
                self.object_bytes > 0,
                "the RAM tier is too small for any object: raise --ram",
            ),
            (
                self.object_bytes <= limits::OBJECT_BYTES_MAX,
                "the limit on one object is above what the protocol allows",
            ),
            (
                self.object_bytes <= self.unpublished_bytes_with(self.object_bytes),
                "three quarters of the limit on unpublished bytes must hold at least one object",
            ),
            (
                self.object_bytes <= self.sending_bytes,
                "the limit on bytes that are being sent must hold at least one object",
            ),
            (
                [self.leased_bytes, self.sending_bytes]
                    .into_iter()
                    .fold(self.unpublished_bytes, u64::saturating_add)
                    <= ram_bytes,
                "what is received, leased and sent must fit into the RAM tier together",
            ),
        ];
        match relations.iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, message)) => Err(StartError::Limits(message)),
        }
    }
}

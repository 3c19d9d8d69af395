//! One RDMA device: found by name, opened, with a protection domain of its own.
//!
//! Opened by whoever configures transports, shared by its registrations and queue pairs, which keep
//! it open. The invariant: a rail has a port with an address that a peer can reach.

use std::io;
use std::sync::{Arc, OnceLock};

use libloading::Library;
use rustix::io::Errno;
use sideway::ibverbs::address::{Gid, GidType};
use sideway::ibverbs::device::{DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{DeviceContext, LinkLayer, PortAttr, PortState};
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::error::VerbsError;

/// The library that has verbs, as rdma-core installs it.
const LIBRARY: &str = "libibverbs.so.1";

/// The port that is used: every device that is sold has its second port as a device of its own.
pub(super) const PORT: u8 = 1;

/// An opened device.
#[derive(Debug)]
pub struct Rail {
    name: String,
    pub(super) context: Arc<DeviceContext>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) address: PortAddress,
    pub(super) limits: Limits,
}

/// Where a port is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortAddress {
    pub(super) gid: Gid,
    pub(super) gid_index: u8,
    pub(super) lid: u16,
    pub(super) mtu: u8,
}

/// What the device can do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Requests in one queue.
    pub(super) requests: u32,
    /// Reads at once.
    pub(super) reads: u8,
    /// Ranges of memory in one request.
    pub(super) ranges: usize,
}

/// Whether a port can carry anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// The link is down.
    Down,
    /// The link is up.
    Up,
}

impl Rail {
    /// The names of all devices of this machine; none is an answer too.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], or the library's refusal.
    pub fn names() -> Result<Vec<String>, VerbsError> {
        Ok(list()?.iter().map(|device| device.name()).collect())
    }

    /// Opens the device `name`.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], [`VerbsError::NoDevice`], [`VerbsError::NoAddress`], or the
    /// device's refusal.
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let devices = list()?;
        let Some(device) = devices.iter().find(|device| device.name() == name) else {
            let names: Vec<String> = devices.iter().map(|device| device.name()).collect();
            return Err(VerbsError::NoDevice {
                wanted: name.to_owned(),
                found: names.join(", "),
            });
        };
        let context = device
            .open()
            .map_err(|error| VerbsError::refused("ibv_open_device", name, &error))?;
        let domain = context
            .alloc_pd()
            .map_err(|error| VerbsError::refused("ibv_alloc_pd", name, &error))?;
        let address = address(&context, name)?;
        let limits = limits(&context, name)?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            context,
            domain,
            address,
            limits,
        }))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its link is up now.
    ///
    /// # Errors
    /// The device's refusal, for one because it was removed.
    pub fn link(&self) -> Result<LinkState, VerbsError> {
        let port = port(&self.context, &self.name)?;
        Ok(match port.port_state() {
            PortState::Active => LinkState::Up,
            _ => LinkState::Down,
        })
    }
}

/// All devices, if there is a library to ask.
fn list() -> Result<DeviceList, VerbsError> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| load(LIBRARY));
    if let Err(reason) = loaded {
        let reason = reason.clone();
        return Err(VerbsError::NoLibrary { reason });
    }
    DeviceList::new().map_err(|error| match io::Error::last_os_error().raw_os_error() {
        Some(code) if code == Errno::NOSYS.raw_os_error() => VerbsError::NoKernel,
        _ => VerbsError::refused("ibv_get_device_list", "any", &error),
    })
}

fn load(library: &str) -> Result<Library, String> {
    // SAFETY: rdma-core's library may be loaded by anybody; its initialisers only prepare tables.
    unsafe { Library::new(library) }.map_err(|error| error.to_string())
}

fn port(context: &Arc<DeviceContext>, name: &str) -> Result<PortAttr, VerbsError> {
    let port = context.query_port(PORT);
    port.map_err(|error| VerbsError::refused("ibv_query_port", name, &error))
}

/// The address to be reached at: on Ethernet the first that routers carry, IPv4 before IPv6.
fn address(context: &Arc<DeviceContext>, name: &str) -> Result<PortAddress, VerbsError> {
    let port = port(context, name)?;
    let table = context
        .query_gid_table()
        .map_err(|error| VerbsError::refused("ibv_query_gid_table", name, &error))?;
    let ethernet = port.link_layer() == LinkLayer::Ethernet;
    let order = |gid: &Gid| (gid.raw[..12] != IPV4[..], gid.is_unicast_link_local());
    let chosen = table
        .iter()
        .filter(|entry| entry.port_num() == u32::from(PORT))
        .filter(|entry| !ethernet || entry.gid_type() == GidType::RoceV2)
        .min_by_key(|entry| (ethernet.then(|| order(&entry.gid())), entry.gid_index()));
    let index = chosen.map(|entry| (entry.gid(), u8::try_from(entry.gid_index())));
    let Some((gid, Ok(gid_index))) = index else {
        return Err(VerbsError::NoAddress {
            device: name.to_owned(),
        });
    };
    Ok(PortAddress {
        gid,
        gid_index,
        lid: port.lid(),
        mtu: port.active_mtu() as u8,
    })
}

/// How an IPv4 address begins that is written as a GID.
const IPV4: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

fn limits(context: &Arc<DeviceContext>, name: &str) -> Result<Limits, VerbsError> {
    let device = context
        .query_device()
        .map_err(|error| VerbsError::refused("ibv_query_device_ex", name, &error))?;
    let reads = device.max_qp_rd_atom().clamp(1, MOST_READS);
    Ok(Limits {
        requests: u32::try_from(device.max_qp_wr()).unwrap_or(1),
        reads: u8::try_from(reads).unwrap_or(1),
        ranges: usize::try_from(device.max_sge()).unwrap_or(1),
    })
}

/// Reads at once that a pair asks for: more do not make one link faster.
const MOST_READS: i32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_answered_with_what_to_do() {
        let error = Rail::open("no-such-device").unwrap_err();
        let said = match &error {
            VerbsError::NoLibrary { .. } => "install libibverbs1",
            VerbsError::NoKernel => "modprobe",
            VerbsError::NoDevice { .. } => "rdma link",
            other => panic!("{other}"),
        };
        assert!(error.to_string().contains(said), "{error}");
    }

    #[test]
    fn a_library_that_is_not_there_is_answered_with_its_name_and_what_to_install() {
        let reason = load("libno-such-verbs.so.1").unwrap_err();
        let error = VerbsError::NoLibrary { reason }.to_string();
        assert!(
            error.contains("libno-such-verbs.so.1") && error.contains("install"),
            "{error}"
        );
    }
}

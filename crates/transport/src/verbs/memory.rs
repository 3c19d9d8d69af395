//! Memory that a device may reach: registered for our own requests, or exposed to a peer.
//!
//! Registered by whoever owns arenas and block memory, exposed by the lender of a transfer. The
//! invariants: a registration keeps its region mapped until the device has given it up; what is
//! exposed comes back with the proof that no peer reaches it, and not before; if the device does
//! not give it up, both stay for ever.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::{ibv_access_flags, ibv_dereg_mr, ibv_mr, ibv_reg_mr, ibv_sge};

use super::error::VerbsError;
use super::rail::Rail;
use crate::lent::Lent;
use crate::region::Region;
use crate::segments::{Segments, Span};

/// What a peer may do with registered memory. Our own requests may always read and write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Nothing.
    Local,
    /// Read it.
    Read,
    /// Write it.
    Write,
}

impl Rights {
    fn flags(self) -> c_int {
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        let flags = match self {
            Self::Local => local,
            Self::Read => local | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
            Self::Write => local | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        };
        c_int::try_from(flags).expect("access flags are small")
    }
}

/// Where a peer's memory is, and the key that opens it. Only numbers: the device of the peer judges
/// whoever uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The address in the peer's process.
    pub address: u64,
    /// The key.
    pub key: u32,
    /// Bytes from the address.
    pub length: u64,
}

/// One registration. It must be given up with [`give_up`](Self::give_up) or forgotten.
#[derive(Debug)]
struct Handle {
    mr: NonNull<ibv_mr>,
    rail: Arc<Rail>,
}

// SAFETY: verbs may be called from any thread, and what the handle points to does not move.
unsafe impl Send for Handle {}
// SAFETY: as above; through a shared handle only constant fields are read.
unsafe impl Sync for Handle {}

impl Handle {
    fn new(
        rail: &Arc<Rail>,
        base: *mut u8,
        length: usize,
        rights: Rights,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the domain lives as long as the rail, which the handle keeps; a range that cannot
        // be reached is refused by the kernel, which pins what it registers.
        let mr = unsafe {
            let domain = rail.domain.pd().as_ptr();
            ibv_reg_mr(domain, base.cast(), length, rights.flags())
        };
        let refused = || VerbsError::Register {
            device: rail.name().to_owned(),
            address: base.addr(),
            length,
            reason: io::Error::last_os_error().to_string(),
        };
        Ok(Self {
            mr: NonNull::new(mr).ok_or_else(refused)?,
            rail: Arc::clone(rail),
        })
    }

    /// Makes the device give the memory up. Afterwards it neither reads nor writes it, whoever asks
    /// it to.
    fn give_up(&mut self) -> Result<(), VerbsError> {
        // SAFETY: the handle came from `ibv_reg_mr`, and whoever calls this does so until it
        // succeeds once.
        match unsafe { ibv_dereg_mr(self.mr.as_ptr()) } {
            0 => Ok(()),
            code => Err(VerbsError::refused(
                "ibv_dereg_mr",
                self.rail.name(),
                &io::Error::from_raw_os_error(code),
            )),
        }
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration lives as long as the handle, and its keys do not change.
        let mr = unsafe { self.mr.as_ref() };
        (mr.lkey, mr.rkey)
    }
}

/// A region that a device may reach: an arena, block memory. Requests hold it while they are
/// posted.
///
/// A peer that has a [`Remote`] of it reaches it through every pair that it has with us, until
/// those pairs are [reset](super::QueuePair::reset) or the last holder lets the registration go.
#[derive(Debug)]
pub struct Registered {
    handle: Handle,
    region: Arc<Region>,
}

impl Registered {
    /// Registers `region` on `rail`.
    ///
    /// # Errors
    /// [`VerbsError::Register`].
    pub fn new(
        rail: &Arc<Rail>,
        region: &Arc<Region>,
        rights: Rights,
    ) -> Result<Arc<Self>, VerbsError> {
        Ok(Arc::new(Self {
            handle: Handle::new(rail, region.base(), region.length_bytes(), rights)?,
            region: Arc::clone(region),
        }))
    }

    /// How a peer names `length` bytes from `offset` of the region.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegistration`].
    pub fn remote(&self, offset: usize, length: usize) -> Result<Remote, VerbsError> {
        let base = self.region.range(offset, length);
        let base = base.ok_or(VerbsError::OutOfRegistration {
            offset,
            length,
            registered: self.region.length_bytes(),
        })?;
        let (_, key) = self.handle.keys();
        Ok(remote(base.as_ptr(), key, length))
    }

    /// The entry of a request for `span`, if it lies inside.
    pub(super) fn entry(&self, span: Span) -> Option<ibv_sge> {
        let offset = span.base.addr().checked_sub(self.region.base().addr())?;
        self.region.range(offset, span.length)?;
        let (key, _) = self.handle.keys();
        Some(ibv_sge {
            addr: span.base.expose_provenance() as u64,
            length: u32::try_from(span.length).ok()?,
            lkey: key,
        })
    }

    /// Whether it is a registration on `rail`.
    pub(super) fn is_on(&self, rail: &Arc<Rail>) -> bool {
        Arc::ptr_eq(&self.handle.rail, rail)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.handle.give_up().is_err() {
            // The device may still reach it: it must stay mapped.
            mem::forget(Arc::clone(&self.region));
            mem::forget(Arc::clone(&self.handle.rail));
        }
    }
}

fn remote(base: *mut u8, key: u32, length: usize) -> Remote {
    Remote {
        address: base.expose_provenance() as u64,
        key,
        length: length as u64,
    }
}

/// What can be exposed to a peer: a list that it may read, or a loan that it may write.
pub trait Loaned: Send + private::Spans {
    /// What a peer may do with it.
    const RIGHTS: Rights;
}

mod private {
    /// Lists that this crate made; nobody outside has others.
    pub trait Spans {
        /// Where each range begins, and its bytes.
        fn ranges(&self) -> Vec<(*mut u8, usize)>;
    }
}

fn pairs(spans: &[Span]) -> Vec<(*mut u8, usize)> {
    let ranges = spans.iter().map(|span| (span.base, span.length));
    ranges.collect()
}

impl private::Spans for Lent {
    fn ranges(&self) -> Vec<(*mut u8, usize)> {
        pairs(self.spans())
    }
}

impl private::Spans for Segments {
    fn ranges(&self) -> Vec<(*mut u8, usize)> {
        pairs(self.spans())
    }
}

impl Loaned for Lent {
    const RIGHTS: Rights = Rights::Write;
}

impl Loaned for Segments {
    const RIGHTS: Rights = Rights::Read;
}

/// Memory that a peer may reach until it is revoked: each range has a registration, and so a key,
/// of this loan alone.
#[derive(Debug)]
pub struct Exposed<M: Loaned> {
    handles: Vec<Handle>,
    // Taken out when it is revoked.
    memory: Option<M>,
}

impl<M: Loaned> Exposed<M> {
    /// Exposes `memory` on `rail`.
    ///
    /// # Errors
    /// [`VerbsError::Register`], with the memory, of which no peer was told. Without it, if the
    /// device does not give up what it had registered of it: then it is kept for ever.
    pub fn new(rail: &Arc<Rail>, memory: M) -> Result<Self, Box<(VerbsError, Option<M>)>> {
        let ranges = memory.ranges();
        let mut exposed = Self {
            handles: Vec::with_capacity(ranges.len()),
            memory: Some(memory),
        };
        for (base, length) in ranges {
            match Handle::new(rail, base, length, M::RIGHTS) {
                Ok(handle) => exposed.handles.push(handle),
                Err(error) => return Err(Box::new((error, exposed.revoke().ok()))),
            }
        }
        Ok(exposed)
    }

    /// How the peer names its ranges, in order.
    pub fn remotes(&self) -> Vec<Remote> {
        let ranges = self.memory.iter().flat_map(|memory| memory.ranges());
        let named = self.handles.iter().zip(ranges);
        named
            .map(|(handle, (base, length))| remote(base, handle.keys().1, length))
            .collect()
    }

    /// F3: takes the peer's access away. The memory that comes back is the proof: what the peer has
    /// posted or will post changes no byte of it from now on, and reads none.
    ///
    /// # Errors
    /// The device's refusal, with what is still exposed: nothing is proven.
    pub fn revoke(mut self) -> Result<M, Box<(Self, VerbsError)>> {
        if let Err(error) = self.give_up() {
            return Err(Box::new((self, error)));
        }
        Ok(self.memory.take().expect("memory is taken out once"))
    }

    fn give_up(&mut self) -> Result<(), VerbsError> {
        while let Some(handle) = self.handles.last_mut() {
            handle.give_up()?;
            self.handles.pop();
        }
        Ok(())
    }
}

impl<M: Loaned> Drop for Exposed<M> {
    fn drop(&mut self) {
        if self.give_up().is_err() {
            // A peer may still reach it: it stays lent, and mapped.
            mem::forget(self.memory.take());
            mem::forget(mem::take(&mut self.handles));
        }
    }
}

//! The namespaces whose objects the index holds: what each comes to, and which were dropped.
//!
//! Called under the directory's lock. A record has the number of its namespace; one that is dropped
//! keeps its number until its last record has left, so that a drop touches no record. Each disk has
//! numbers of its own, since each has its own log. Invariant: the sums of a namespace that is not
//! dropped are those of its records in the tables.

use std::collections::HashMap;

use tessera_proto::{NamespaceDigest, TenantTag};

use super::contents::NamespaceName;

/// Most namespaces for which new objects are taken: each costs some hundred bytes of memory.
const NAMESPACES_MAX: usize = 1 << 16;

/// Names a namespace on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceId(u32);

impl NamespaceId {
    /// Of a record that was never entered.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// What objects come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) objects: u64,
    /// Payload bytes.
    pub(crate) bytes: u64,
    /// Payload bytes under lease, each object once.
    pub(crate) leased_bytes: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, more: &Self) {
        self.objects += more.objects;
        self.bytes += more.bytes;
        self.leased_bytes += more.leased_bytes;
    }

    pub(crate) fn sub(&mut self, less: &Self) {
        self.objects -= less.objects;
        self.bytes -= less.bytes;
        self.leased_bytes -= less.leased_bytes;
    }
}

/// One namespace on one disk.
#[derive(Debug)]
struct Namespace {
    disk: usize,
    name: NamespaceName,
    dropped: bool,
    sums: Sums,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    all: Vec<Namespace>,
    free: Vec<NamespaceId>,
    ids: HashMap<(usize, NamespaceName), NamespaceId>,
}

impl Namespaces {
    /// How many have objects that are found.
    pub(crate) fn count(&self) -> usize {
        self.ids.len()
    }

    /// Whether a new object of a namespace may have a number for it.
    pub(crate) fn takes(&self, disk: usize, name: NamespaceName) -> bool {
        self.all.len() - self.free.len() < NAMESPACES_MAX || self.ids.contains_key(&(disk, name))
    }

    /// The number of a namespace, whose record enters now.
    pub(crate) fn enter(&mut self, disk: usize, name: NamespaceName) -> NamespaceId {
        if let Some(id) = self.ids.get(&(disk, name)) {
            return *id;
        }
        let namespace = Namespace {
            disk,
            name,
            dropped: false,
            sums: Sums::default(),
        };
        let id = match self.free.pop() {
            Some(id) => {
                *self.at_mut(id) = namespace;
                id
            }
            None => {
                self.all.push(namespace);
                NamespaceId(u32::try_from(self.all.len() - 1).expect("as many as records at most"))
            }
        };
        self.ids.insert((disk, name), id);
        id
    }

    /// Which namespace a number is.
    pub(crate) fn name(&self, id: NamespaceId) -> NamespaceName {
        self.all[id.0 as usize].name
    }

    /// Whether the objects of a number are gone.
    pub(crate) fn is_dropped(&self, id: NamespaceId) -> bool {
        self.all[id.0 as usize].dropped
    }

    /// Counts what entered or was leased.
    pub(crate) fn add(&mut self, id: NamespaceId, sums: &Sums) {
        self.at_mut(id).sums.add(sums);
    }

    /// Counts what left or is leased no more. With its last record the number is free.
    pub(crate) fn sub(&mut self, id: NamespaceId, sums: &Sums) {
        let namespace = &mut self.all[id.0 as usize];
        namespace.sums.sub(sums);
        if namespace.sums.objects == 0 {
            if !namespace.dropped {
                self.ids.remove(&(namespace.disk, namespace.name));
            }
            self.free.push(id);
        }
    }

    /// Drops a namespace, whoever is charged for its objects, on every disk or on one. Returns what
    /// is not found any more, of whom.
    pub(crate) fn drop_all(
        &mut self,
        digest: NamespaceDigest,
        only: Option<usize>,
    ) -> Vec<(TenantTag, Sums)> {
        let mut dropped = Vec::new();
        let all = &mut self.all;
        self.ids.retain(|(disk, name), id| {
            let stays = name.digest != digest || only.is_some_and(|only| *disk != only);
            if !stays {
                let namespace = &mut all[id.0 as usize];
                namespace.dropped = true;
                dropped.push((name.tenant, namespace.sums));
            }
            stays
        });
        dropped
    }

    fn at_mut(&mut self, id: NamespaceId) -> &mut Namespace {
        &mut self.all[id.0 as usize]
    }
}

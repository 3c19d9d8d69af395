//! What a segment stores, removes and drops, in order: what its footer says, and what a scan finds.
//!
//! Called by the log as it appends, by recovery and by the footer's reader. A namespace is named
//! once for each segment; entries have its number. Invariant: every number names a row.

use std::collections::HashMap;

use tessera_proto::{NamespaceDigest, ObjectHeader, ObjectId, TenantTag};

use super::table::Entry;

/// A namespace and who is charged for its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceName {
    pub(crate) digest: NamespaceDigest,
    pub(crate) tenant: TenantTag,
}

impl NamespaceName {
    /// That of an object.
    pub(crate) fn of(header: &ObjectHeader) -> Self {
        Self {
            digest: header.namespace,
            tenant: header.tenant,
        }
    }
}

/// Where an object lies and what it is, as the index needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredObject {
    pub(crate) id: ObjectId,
    /// Where the image begins in the segment, units of 256 bytes.
    pub(crate) offset: u32,
    /// Bytes of the payload.
    pub(crate) length_bytes: u32,
    /// The write.
    pub(crate) write: u64,
    /// When it was stored, seconds since the start of 1970.
    pub(crate) stored_s: u32,
    /// Which row names its namespace.
    pub(crate) namespace: u32,
}

/// One thing that happened in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An object was stored.
    Object(StoredObject),
    /// What was stored under this id is gone.
    Removal(ObjectId),
    /// What was stored in the namespace of this row is gone, whoever is charged for it.
    Drop(u32),
}

/// Everything that happened in a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    events: Vec<Event>,
    names: Vec<NamespaceName>,
    numbers: HashMap<NamespaceName, u32>,
}

impl Contents {
    /// What a footer said. None if an event names a row that is not there.
    pub(crate) fn of(events: Vec<Event>, names: Vec<NamespaceName>) -> Option<Self> {
        let is_named = |event: &Event| match event {
            Event::Object(StoredObject { namespace, .. }) | Event::Drop(namespace) => {
                (*namespace as usize) < names.len()
            }
            Event::Removal(_) => true,
        };
        events.iter().all(is_named).then(|| Self {
            numbers: names.iter().copied().zip(0..).collect(),
            events,
            names,
        })
    }

    /// In the order in which they happened.
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    /// The namespaces, by their numbers.
    pub(crate) fn names(&self) -> &[NamespaceName] {
        &self.names
    }

    /// The namespace with this number.
    pub(crate) fn name(&self, number: u32) -> NamespaceName {
        self.names[number as usize]
    }

    /// Rows of the footer: one for each event and each namespace.
    pub(crate) fn rows(&self) -> usize {
        self.events.len() + self.names.len()
    }

    /// Adds what an entry of a table says.
    pub(crate) fn push(&mut self, entry: &Entry) {
        let event = match entry {
            Entry::Object {
                header,
                stored_s,
                offset,
            } => Event::Object(StoredObject {
                id: header.id(),
                offset: *offset,
                length_bytes: u32::try_from(header.length_bytes).expect("it fits a segment"),
                write: header.write.0,
                stored_s: *stored_s,
                namespace: self.number(NamespaceName::of(header)),
            }),
            Entry::Removal(id) => Event::Removal(*id),
            Entry::Drop(digest) => Event::Drop(self.number(NamespaceName {
                digest: *digest,
                tenant: TenantTag::NONE,
            })),
        };
        self.events.push(event);
    }

    fn number(&mut self, name: NamespaceName) -> u32 {
        let next = u32::try_from(self.names.len()).expect("rows fit a segment");
        *self.numbers.entry(name).or_insert_with(|| {
            self.names.push(name);
            next
        })
    }
}

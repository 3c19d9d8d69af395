//! Who an object is: namespace, key, and the digests that name it.
//!
//! Called by the client, once for each object that is saved, looked up or loaded. One pure
//! function,
//! [`ObjectKey::digest`], derives the name for all three, so that they cannot disagree.

mod key;
mod namespace;
mod tenant;

pub use key::{BlockHash, Component, Coordinate, Coordinates, KeyDigest, ObjectId, ObjectKey};
pub use namespace::{Namespace, NamespaceDigest, Topology};
pub use tenant::TenantTag;

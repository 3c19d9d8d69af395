//! A stored object holds what its name says: no save reads memory that was given up, failed to load
//! or was not computed yet.

use std::collections::HashMap;

use tessera_lifecycle::worker::Save;
use tessera_proto::KeyDigest;

use crate::nodes::Payload;

pub(crate) fn check(expected: &HashMap<KeyDigest, Payload>, save: &Save, payload: &Payload) {
    let right = expected
        .get(&save.key)
        .expect("an object of a request that was made");
    assert!(
        right == payload,
        "group {} was stored with wrong content",
        save.group
    );
}

//! The objects that can exist in a world: one for each request, rank, group and chunk.

use std::collections::BTreeMap;

use tessera_lifecycle::{Shape, plan};
use tessera_proto::{BlockHash, KeyDigest, NamespaceDigest, ObjectId};

use crate::world::Setup;

pub(crate) const NAMESPACE: NamespaceDigest = NamespaceDigest([3; 32]);

/// What stands in a block of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    /// Of an earlier owner, or nothing.
    Stale,
    /// A part may have written some of it.
    Dirty,
    /// The tokens of a chunk of a request's text.
    Right {
        text: usize,
        group: usize,
        chunk: usize,
    },
}

/// One object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) rank: usize,
    pub(crate) content: Content,
}

/// All of them, by number.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    pub(crate) all: Vec<Object>,
    ids: BTreeMap<ObjectId, usize>,
    keys: BTreeMap<KeyDigest, usize>,
}

impl Objects {
    pub(crate) fn new(setup: &Setup, shape: &Shape) -> Self {
        let mut objects = Self {
            all: Vec::new(),
            ids: BTreeMap::new(),
            keys: BTreeMap::new(),
        };
        for (text, tokens) in setup.prompts.iter().enumerate() {
            for (chunk, hash) in hashes(text, *tokens).iter().enumerate() {
                for group in 0..shape.groups().len() {
                    for (rank, place) in shape.ranks().into_iter().enumerate() {
                        let hash = BlockHash::new(hash).expect("two bytes");
                        let at = plan::coordinates(shape, group, place);
                        let key = plan::key(&NAMESPACE, group, at, &hash);
                        let number = objects.all.len();
                        objects.ids.insert(key.object_id(), number);
                        objects.keys.insert(key, number);
                        let content = Content::Right { text, group, chunk };
                        objects.all.push(Object { rank, content });
                    }
                }
            }
        }
        objects
    }

    pub(crate) fn by_id(&self, id: &ObjectId) -> usize {
        self.ids[id]
    }

    pub(crate) fn by_key(&self, key: &KeyDigest) -> usize {
        self.keys[key]
    }
}

/// The engine's hashes of a text, one for each chunk.
pub(crate) fn hashes(text: usize, tokens: u64) -> Vec<[u8; 2]> {
    let text = u8::try_from(text).expect("few texts");
    let chunks = u8::try_from(tokens / crate::world::CHUNK).expect("short texts");
    (0..chunks).map(|chunk| [text + 1, chunk]).collect()
}

//! What the bytes must be: the content of a token follows from all tokens up to it, the group and
//! the shard, as keys and values do in a real engine.

use crate::random::mix;

/// The tokens of a request. Equal beginnings are equal for all that is derived from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    /// For each token a number that stands for it and all before it.
    folds: Vec<u64>,
}

impl Text {
    pub(crate) fn push(&mut self, token: u64) {
        let before = self.folds.last().copied().unwrap_or(0x7e55_e7a0);
        self.folds.push(mix(before ^ mix(token + 1)));
    }

    pub(crate) fn len(&self) -> u64 {
        self.folds.len() as u64
    }

    /// The engine's hashes, one for each `hash_tokens` tokens.
    pub(crate) fn hashes(&self, hash_tokens: u64) -> Vec<Vec<u8>> {
        let units = self.len() / hash_tokens;
        let end = |unit: u64| self.fold((unit + 1) * hash_tokens - 1);
        (0..units)
            .map(|unit| end(unit).to_le_bytes().to_vec())
            .collect()
    }

    /// The content of token `at` in one shard of one group.
    pub(crate) fn content(&self, group: usize, shard: usize, at: u64) -> u64 {
        mix(self.fold(at) ^ mix((group as u64) << 32 | shard as u64))
    }

    /// A number that stands for token `at` and all before it.
    pub(crate) fn fold(&self, at: u64) -> u64 {
        self.folds[usize::try_from(at).expect("a token")]
    }
}

//! The two caches that a node is compared with, of the same number of blocks.
//!
//! Called by the replay. LRU forgets what was used longest ago, where a request uses
//! all of its blocks from the first to the last. Belady sees the future and forgets what is asked
//! for last, of one request the last block first; since no block is asked for without those before
//! it, no cache of that size finds more blocks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;

use super::cache::Cache;
use super::trace::Trace;

/// The least recently used leaves.
#[derive(Debug)]
pub(crate) struct Lru {
    capacity: usize,
    now: u64,
    last_use: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
}

impl Lru {
    /// Of `capacity` blocks.
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            now: 0,
            last_use: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }
}

impl Cache for Lru {
    fn request(&mut self, blocks: &[u64]) -> Result<usize> {
        let is_here = |block: &&u64| self.last_use.contains_key(block);
        let hits = blocks.iter().take_while(is_here).count();
        for block in blocks {
            self.now += 1;
            if let Some(before) = self.last_use.insert(*block, self.now) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.now, *block);
            if self.last_use.len() > self.capacity
                && let Some((_, oldest)) = self.by_use.pop_first()
            {
                self.last_use.remove(&oldest);
            }
        }
        Ok(hits)
    }
}

/// The one that is asked for last leaves.
#[derive(Debug)]
pub(crate) struct Belady {
    capacity: usize,
    number: usize,
    /// The requests that ask for a block, the last one first.
    uses: HashMap<u64, Vec<usize>>,
    here: HashMap<u64, (usize, usize)>,
    /// Next use, depth in its request, block.
    by_next: BTreeSet<(usize, usize, u64)>,
}

impl Belady {
    /// Of `capacity` blocks, for the requests of `trace`.
    pub(crate) fn new(trace: &Trace, capacity: u64) -> Self {
        let mut uses: HashMap<u64, Vec<usize>> = HashMap::new();
        for (number, request) in trace.requests.iter().enumerate().rev() {
            for block in &request.blocks {
                uses.entry(*block).or_default().push(number);
            }
        }
        Self {
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            number: 0,
            uses,
            here: HashMap::new(),
            by_next: BTreeSet::new(),
        }
    }

    /// The next request that asks for `block`, if there is one.
    fn next_use(&mut self, block: u64) -> Option<usize> {
        let uses = self.uses.get_mut(&block)?;
        while uses.last().is_some_and(|next| *next <= self.number) {
            uses.pop();
        }
        uses.last().copied()
    }
}

impl Cache for Belady {
    fn request(&mut self, blocks: &[u64]) -> Result<usize> {
        let is_here = |block: &&u64| self.here.contains_key(block);
        let hits = blocks.iter().take_while(is_here).count();
        for (depth, block) in blocks.iter().enumerate() {
            if let Some((next, depth)) = self.here.remove(block) {
                self.by_next.remove(&(next, depth, *block));
            }
            // What nobody asks for again is not kept at all.
            let Some(next) = self.next_use(*block) else {
                continue;
            };
            self.here.insert(*block, (next, depth));
            self.by_next.insert((next, depth, *block));
            if self.here.len() > self.capacity
                && let Some((_, _, last)) = self.by_next.pop_last()
            {
                self.here.remove(&last);
            }
        }
        self.number += 1;
        Ok(hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::cache::replay;
    use crate::replay::trace::Request;

    fn trace(requests: &[&[u64]]) -> Trace {
        let requests = requests.iter().map(|blocks| Request {
            tokens: blocks.len() as u64 * 512,
            blocks: blocks.to_vec(),
        });
        Trace {
            requests: requests.collect(),
        }
    }

    #[test]
    fn lru_forgets_what_was_used_longest_ago_and_belady_what_comes_last() {
        let trace = trace(&[&[1], &[2], &[3], &[1], &[2], &[3], &[1]]);
        let hits = |cache: &mut dyn FnMut() -> Result<u64>| cache().expect("no input") / 512;
        let lru = hits(&mut || Ok(replay(&trace, &mut Lru::new(2), |_| ())?.hit_tokens));
        let mut belady = Belady::new(&trace, 2);
        let belady = hits(&mut || Ok(replay(&trace, &mut belady, |_| ())?.hit_tokens));
        assert_eq!((lru, belady), (0, 3));
    }

    #[test]
    fn a_block_behind_a_gap_is_no_hit() {
        let trace = trace(&[&[1, 2, 3], &[9], &[1, 2, 3]]);
        // LRU of three has lost the first of three.
        let tally = replay(&trace, &mut Lru::new(3), |_| ()).expect("no input");
        assert_eq!(tally.hit_tokens, 0);
        let tally = replay(&trace, &mut Belady::new(&trace, 2), |_| ()).expect("no input");
        assert_eq!(
            tally.hit_tokens,
            2 * 512,
            "the beginning stays, the end goes"
        );
    }
}

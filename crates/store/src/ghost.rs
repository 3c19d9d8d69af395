//! Remembers which objects were evicted lately, and from which list, at four bytes each.
//!
//! Called by the order of eviction under the space lock, and by the disk tier under its own, for
//! what it did not write. A bounded table of fingerprints with the time of eviction, counted in
//! evictions: an entry is forgotten when three quarters as many others followed it as there are
//! entries. By then hardly any bucket was too small, so that the chunks of one prompt, which left
//! together, are known or forgotten together. There are as many entries as objects, and none before
//! the first eviction. A false answer (1 in 80,000) takes a new object for one that was asked for,
//! which costs nothing but its room.

/// Fingerprints of one bucket: four cache lines.
const WAYS: usize = 64;
/// Ticks in which as many objects leave as there are entries.
const TICKS: u32 = 64;
/// Ticks until an entry is forgotten.
const TICKS_KEPT: u32 = 48;
/// Ticks in which an object that comes back came back soon.
const TICKS_SOON: u32 = 16;
/// A table that is this many times too large gives its memory back: others may need as much.
const SHRINK_FROM: usize = 4;

/// An eviction: the highest bits of the hash, the origin, and the low bits of the tick. A
/// fingerprint of zero is none; a number, so that an empty table costs nothing.
type Entry = u32;

const PRINT_BITS: u32 = 22;
const ORIGIN_SHIFT: u32 = 9;
const TICK_MASK: u32 = (1 << ORIGIN_SHIFT) - 1;

const _: () = assert!(PRINT_BITS + 1 + ORIGIN_SHIFT == Entry::BITS);

/// What is remembered of an object that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// It had been asked for.
    pub(crate) was_proven: bool,
    /// It left within the latest third of what is remembered.
    pub(crate) soon: bool,
}

/// The memory of evictions.
#[derive(Debug)]
pub(crate) struct Ghost {
    buckets: Vec<[Entry; WAYS]>,
    tick: u32,
    since_tick: usize,
}

impl Ghost {
    pub(crate) fn new() -> Self {
        Self {
            buckets: Vec::new(),
            tick: 0,
            since_tick: 0,
        }
    }

    /// Makes room for as many entries as there are `objects`. Another table starts empty: for
    /// one round, returning objects are taken for new ones again.
    pub(crate) fn keep(&mut self, objects: usize) {
        let wanted = objects.div_ceil(WAYS).max(1);
        let have = self.buckets.len();
        if wanted > have || have / SHRINK_FROM > wanted {
            // A little more, so that a few objects more need no other table.
            self.buckets = vec![[0; WAYS]; wanted + wanted / 16];
        }
    }

    /// Remembers an eviction. `hash` is uniform; there is room for some.
    pub(crate) fn remember(&mut self, hash: u64, was_proven: bool) {
        self.since_tick += 1;
        if self.since_tick * TICKS as usize >= self.buckets.len() * WAYS {
            self.since_tick = 0;
            self.tick = self.tick.wrapping_add(1);
        }
        let tick = self.tick;
        let oldest = self
            .bucket(hash)
            .iter_mut()
            .max_by_key(|entry| match **entry {
                0 => Entry::MAX,
                entry => age(entry, tick),
            })
            .expect("a bucket has ways");
        let origin = u32::from(was_proven) << ORIGIN_SHIFT;
        *oldest = print(hash) << (ORIGIN_SHIFT + 1) | origin | tick & TICK_MASK;
    }

    /// What is remembered of an object's last eviction; forgets it.
    pub(crate) fn take(&mut self, hash: u64) -> Option<Returned> {
        if self.buckets.is_empty() {
            return None;
        }
        let (print, tick) = (print(hash), self.tick);
        let is_it = |entry: Entry| {
            let same = entry >> (ORIGIN_SHIFT + 1) == print;
            same && age(entry, tick) < TICKS_KEPT
        };
        let found = self.bucket(hash).iter_mut().find(|entry| is_it(**entry))?;
        let entry = std::mem::take(found);
        Some(Returned {
            was_proven: entry >> ORIGIN_SHIFT & 1 == 1,
            soon: age(entry, tick) < TICKS_SOON,
        })
    }

    fn bucket(&mut self, hash: u64) -> &mut [Entry; WAYS] {
        // The place is scaled from the bits that are not in the fingerprint.
        let scaled = u128::from(hash << PRINT_BITS) * self.buckets.len() as u128;
        let at = usize::try_from(scaled >> 64).expect("below the number of buckets");
        &mut self.buckets[at]
    }
}

/// The highest bits of the hash; never zero.
fn print(hash: u64) -> u32 {
    let high = u32::try_from(hash >> (64 - PRINT_BITS)).expect("as many bits");
    high.max(1)
}

/// Ticks since the eviction.
fn age(entry: Entry, tick: u32) -> u32 {
    tick.wrapping_sub(entry) & TICK_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A uniform sequence of hashes.
    fn hash(number: u64) -> u64 {
        let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }

    #[test]
    fn table_follows_the_number_of_objects_in_both_directions() {
        let mut ghost = Ghost::new();
        assert_eq!(ghost.take(hash(1)), None);
        let sizes = [(4_096, 68), (4_352, 68), (1_088, 68), (1_024, 17), (1, 1)];
        for (objects, buckets) in sizes {
            ghost.keep(objects);
            assert_eq!(ghost.buckets.len(), buckets, "{objects} objects");
        }
    }

    #[test]
    fn the_latest_evictions_are_known_once_and_old_ones_are_forgotten() {
        let mut ghost = Ghost::new();
        ghost.keep(4_096);
        for number in 0..20_000 {
            ghost.remember(hash(number), number % 2 == 1);
        }
        let known = |ghost: &mut Ghost, range: std::ops::Range<u64>| {
            range
                .filter(|number| {
                    let returned = ghost.take(hash(*number));
                    returned.is_some_and(|returned| returned.was_proven == (number % 2 == 1))
                })
                .count()
        };
        assert!(known(&mut ghost, 18_000..20_000) == 2_000, "lately evicted");
        assert!(known(&mut ghost, 18_000..20_000) == 0, "known once");
        assert!(known(&mut ghost, 0..16_000) == 0, "long evicted");
    }
}

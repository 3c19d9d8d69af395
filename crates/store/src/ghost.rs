//! Remembers which objects were evicted lately, and from which queue, at four bytes each.
//!
//! Called by the eviction queues under the space lock. A bounded table of fingerprints with the
//! time of eviction, counted in evictions: an entry is forgotten when as many others followed it
//! as there are entries to keep, or when its bucket needs the room. A false answer (1 in 2,000)
//! puts a new object into the main queue, which costs nothing but its room there.

/// Fingerprints of one bucket: a cache line.
const WAYS: usize = 16;
/// Ticks until an entry is forgotten; one tick is this fraction of the entries to keep.
const TICKS_KEPT: u16 = 64;

/// A table that is this many times too large gives its memory back: others may need as much.
const SHRINK_FROM: usize = 16;

/// An eviction; a fingerprint of zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Fifteen bits of the hash that do not choose the bucket, and below them the origin.
    print: u16,
    tick: u16,
}

/// What is remembered of an object that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// It had left the main queue, not probation.
    pub(crate) from_main: bool,
    /// It left within the later half of what is remembered.
    pub(crate) soon: bool,
}

/// The memory of evictions.
#[derive(Debug)]
pub(crate) struct Ghost {
    buckets: Vec<[Entry; WAYS]>,
    tick: u16,
    since_tick: usize,
}

impl Ghost {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![[Entry::default(); WAYS]],
            tick: 0,
            since_tick: 0,
        }
    }

    /// Makes room for as many entries as there are `objects`. Another table starts empty: for
    /// one round, returning objects pass through probation again.
    pub(crate) fn keep(&mut self, objects: usize) {
        let wanted = objects.div_ceil(WAYS).next_power_of_two();
        let have = self.buckets.len();
        if wanted > have || wanted <= have / SHRINK_FROM {
            self.buckets = vec![[Entry::default(); WAYS]; wanted];
        }
    }

    /// Remembers an eviction. `hash` is uniform.
    pub(crate) fn remember(&mut self, hash: u64, from_main: bool) {
        self.since_tick += 1;
        let per_tick = (self.buckets.len() * WAYS).div_ceil(usize::from(TICKS_KEPT));
        if self.since_tick >= per_tick {
            self.since_tick = 0;
            self.tick = self.tick.wrapping_add(1);
        }
        let tick = self.tick;
        let print = print(hash) << 1 | u16::from(from_main);
        let oldest = self
            .bucket(hash)
            .iter_mut()
            .max_by_key(|entry| match entry.print {
                0 => u16::MAX,
                _ => tick.wrapping_sub(entry.tick),
            })
            .expect("a bucket has ways");
        *oldest = Entry { print, tick };
    }

    /// What is remembered of an object's last eviction; forgets it.
    pub(crate) fn take(&mut self, hash: u64) -> Option<Returned> {
        let (print, tick) = (print(hash), self.tick);
        let age = |entry: &Entry| tick.wrapping_sub(entry.tick);
        let found = self
            .bucket(hash)
            .iter_mut()
            .find(|entry| entry.print >> 1 == print && age(entry) < TICKS_KEPT)?;
        let entry = std::mem::take(found);
        Some(Returned {
            from_main: entry.print & 1 == 1,
            soon: age(&entry) < TICKS_KEPT / 2,
        })
    }

    fn bucket(&mut self, hash: u64) -> &mut [Entry; WAYS] {
        let mask = self.buckets.len() as u64 - 1;
        let at = usize::try_from(hash & mask).expect("below the number of buckets");
        &mut self.buckets[at]
    }
}

/// Fifteen bits of the hash that do not choose the bucket; never zero.
fn print(hash: u64) -> u16 {
    let [high, low, ..] = hash.to_be_bytes();
    (u16::from_be_bytes([high, low]) >> 1).max(1)
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
        for (objects, buckets) in [(4_096, 256), (300, 256), (272, 256), (256, 16), (1, 1)] {
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
                    returned.is_some_and(|returned| returned.from_main == (number % 2 == 1))
                })
                .count()
        };
        assert!(known(&mut ghost, 18_000..20_000) > 1_980, "lately evicted");
        assert!(known(&mut ghost, 18_000..20_000) < 10, "known once");
        assert!(known(&mut ghost, 0..15_000) < 150, "long evicted");
    }
}

//! Remembers which objects were evicted lately, and from which queue, at four bytes each.
//!
//! Called by the order of eviction under the space lock. A bounded table of fingerprints with the
//! day of the eviction: an entry is forgotten when it is [`DAYS_KEPT`] days old, or when its
//! bucket needs the room. A false answer (1 in 2,000) takes a new object for one that was read.

/// Fingerprints of one bucket: a cache line.
const WAYS: usize = 16;
/// Days until an entry is forgotten.
const DAYS_KEPT: u64 = 128;

/// An eviction; a fingerprint of zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Fifteen bits of the hash that do not choose the bucket, and below them the origin.
    print: u16,
    /// The low bits of the day.
    day: u16,
}

impl Entry {
    fn age(&self, today: u64) -> u64 {
        u64::from(low(today).wrapping_sub(self.day))
    }
}

/// What is remembered of an object that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// It had been read.
    pub(crate) was_proven: bool,
    /// Days since it left.
    pub(crate) days: u64,
}

/// The memory of evictions.
#[derive(Debug)]
pub(crate) struct Ghost {
    buckets: Vec<[Entry; WAYS]>,
}

impl Ghost {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![[Entry::default(); WAYS]],
        }
    }

    /// Makes room for `entries`. A larger table starts empty: for one round, returning objects
    /// are taken for new ones again.
    pub(crate) fn keep(&mut self, entries: usize) {
        let wanted = entries.div_ceil(WAYS).next_power_of_two();
        if wanted > self.buckets.len() {
            self.buckets = vec![[Entry::default(); WAYS]; wanted];
        }
    }

    /// Remembers an eviction. `hash` is uniform.
    pub(crate) fn remember(&mut self, hash: u64, was_proven: bool, today: u64) {
        let print = print(hash) << 1 | u16::from(was_proven);
        let oldest = self
            .bucket(hash)
            .iter_mut()
            .max_by_key(|entry| match entry.print {
                0 => u64::MAX,
                _ => entry.age(today),
            })
            .expect("a bucket has ways");
        *oldest = Entry {
            print,
            day: low(today),
        };
    }

    /// What is remembered of an object's last eviction; forgets it.
    pub(crate) fn take(&mut self, hash: u64, today: u64) -> Option<Returned> {
        let print = print(hash);
        let found = self
            .bucket(hash)
            .iter_mut()
            .find(|entry| entry.print >> 1 == print && entry.age(today) < DAYS_KEPT)?;
        let entry = std::mem::take(found);
        Some(Returned {
            was_proven: entry.print & 1 == 1,
            days: entry.age(today),
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

/// The low bits of a day.
fn low(day: u64) -> u16 {
    let [low, high, ..] = day.to_le_bytes();
    u16::from_le_bytes([low, high])
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
    fn the_latest_evictions_are_known_once_and_old_ones_are_forgotten() {
        let mut ghost = Ghost::new();
        ghost.keep(4_096);
        for number in 0..20_000 {
            ghost.remember(hash(number), number % 2 == 1, 70_000 + number / 100);
        }
        let today = 70_000 + 200;
        let known = |ghost: &mut Ghost, range: std::ops::Range<u64>| {
            range
                .filter(|number| {
                    let returned = ghost.take(hash(*number), today);
                    returned.is_some_and(|returned| {
                        returned.was_proven == (number % 2 == 1)
                            && returned.days == 200 - number / 100
                    })
                })
                .count()
        };
        assert!(known(&mut ghost, 18_000..20_000) > 1_980, "lately evicted");
        assert!(known(&mut ghost, 18_000..20_000) < 10, "known once");
        assert!(known(&mut ghost, 0..15_000) < 150, "long evicted");
    }

    #[test]
    fn eviction_is_forgotten_after_its_days() {
        let mut ghost = Ghost::new();
        ghost.keep(64);
        for (today, known) in [(DAYS_KEPT - 1, true), (DAYS_KEPT, false)] {
            ghost.remember(hash(1), true, 0);
            assert_eq!(ghost.take(hash(1), today).is_some(), known, "day {today}");
        }
    }
}

//! Remembers which objects were evicted lately, and from which queue, at four bytes each.
//!
//! Called by the order of eviction under the space lock. A bounded table of fingerprints with the
//! day of the eviction: an entry is forgotten when it is [`DAYS_KEPT`] days old, or when its
//! bucket needs the room. A false answer (1 in 2,000) takes a new object for one that was read.

/// Fingerprints of one bucket: a cache line.
const WAYS: usize = 16;
/// Days until an entry is forgotten.
const DAYS_KEPT: u64 = 128;

/// An eviction: fifteen bits of the hash that do not choose the bucket, the origin, and the low
/// sixteen bits of the day. Zero is none; a number, so that an empty table costs nothing.
type Entry = u32;

const PRINT_SHIFT: u32 = 17;
const ORIGIN: Entry = 1 << 16;

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
            buckets: Vec::new(),
        }
    }

    /// Makes room for about `entries`. A table of another size starts empty: for one round,
    /// returning objects are taken for new ones again.
    pub(crate) fn keep(&mut self, entries: usize) {
        let wanted = entries.div_ceil(WAYS).max(1);
        let has = self.buckets.len();
        if wanted > has || has > 4 * wanted + 4 {
            self.buckets = vec![[0; WAYS]; wanted + wanted / 8];
        }
    }

    /// Remembers an eviction. `hash` is uniform. There is room for some.
    pub(crate) fn remember(&mut self, hash: u64, was_proven: bool, today: u64) {
        let oldest = self
            .bucket(hash)
            .iter_mut()
            .max_by_key(|entry| match **entry {
                0 => u64::MAX,
                entry => age(entry, today),
            })
            .expect("a bucket has ways");
        let origin = if was_proven { ORIGIN } else { 0 };
        *oldest = print(hash) << PRINT_SHIFT | origin | u32::from(low(today));
    }

    /// What is remembered of an object's last eviction; forgets it.
    pub(crate) fn take(&mut self, hash: u64, today: u64) -> Option<Returned> {
        if self.buckets.is_empty() {
            return None;
        }
        let print = print(hash);
        let is_it = |entry: Entry| entry >> PRINT_SHIFT == print && age(entry, today) < DAYS_KEPT;
        let found = self.bucket(hash).iter_mut().find(|entry| is_it(**entry))?;
        let entry = std::mem::take(found);
        Some(Returned {
            was_proven: entry & ORIGIN != 0,
            days: age(entry, today),
        })
    }

    /// Its memory, bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.buckets[..])
    }

    fn bucket(&mut self, hash: u64) -> &mut [Entry; WAYS] {
        let scaled = u128::from(hash << 16) * self.buckets.len() as u128;
        let at = usize::try_from(scaled >> 64).expect("below the number of buckets");
        &mut self.buckets[at]
    }
}

/// Fifteen bits of the hash that do not choose the bucket; never zero.
fn print(hash: u64) -> u32 {
    let [high, low, ..] = hash.to_be_bytes();
    u32::from((u16::from_be_bytes([high, low]) >> 1).max(1))
}

/// The low bits of a day.
fn low(day: u64) -> u16 {
    let [low, high, ..] = day.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Days since the eviction.
fn age(entry: Entry, today: u64) -> u64 {
    let [low_byte, high_byte, ..] = entry.to_le_bytes();
    u64::from(low(today).wrapping_sub(u16::from_le_bytes([low_byte, high_byte])))
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
            ghost.remember(hash(number), number % 2 == 1, 70_000 + number / 200);
        }
        let today = 70_000 + 100;
        let known = |ghost: &mut Ghost, range: std::ops::Range<u64>| {
            range
                .filter(|number| {
                    let returned = ghost.take(hash(*number), today);
                    returned.is_some_and(|returned| {
                        returned.was_proven == (number % 2 == 1)
                            && returned.days == 100 - number / 200
                    })
                })
                .count()
        };
        assert!(known(&mut ghost, 18_000..20_000) > 1_980, "lately evicted");
        assert!(known(&mut ghost, 18_000..20_000) < 10, "known once");
        assert!(known(&mut ghost, 0..10_000) < 150, "long evicted");
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

    #[test]
    fn table_follows_what_is_held_up_and_down() {
        let mut ghost = Ghost::new();
        assert_eq!(ghost.take(hash(1), 0), None);
        for (entries, bucket_count) in [
            (0, 1),
            (128, 9),
            (144, 9),
            (1_600, 112),
            (448, 112),
            (320, 22),
        ] {
            ghost.keep(entries);
            assert_eq!(ghost.bytes(), bucket_count * 64, "for {entries} entries");
        }
    }
}

//! Which bytes of this process are lent, so that none is lent twice.
//!
//! Asked by [`Lent`](crate::Lent) for the host and by [`LentRanges`](crate::LentRanges) for
//! devices. The invariant: an address is in the table exactly as long as the value that it was lent
//! to lives, wherever that is: with its owner, inside an operation, or nowhere any more, if the
//! operation has no end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::segments::SegmentError;

/// Ranges that are lent: first address to the one behind the last. They do not overlap.
static LENT: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn lent() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    LENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Addresses in use by one operation; dropping it is the end of that use.
#[derive(Debug)]
pub(crate) struct Loan(Vec<Range<usize>>);

impl Loan {
    /// Lends addresses, none of them empty.
    ///
    /// # Errors
    /// [`SegmentError::Overlap`] if one is given twice, [`SegmentError::Lent`] if one is lent.
    pub(crate) fn of(mut ranges: Vec<Range<usize>>) -> Result<Self, SegmentError> {
        ranges.sort_unstable_by_key(|range| range.start);
        for pair in ranges.windows(2) {
            if pair[1].start < pair[0].end {
                return Err(SegmentError::Overlap {
                    address: pair[1].start,
                    length: pair[0].end.min(pair[1].end) - pair[1].start,
                });
            }
        }
        // Neighbours are one entry of the table.
        ranges.dedup_by(|next, range| {
            let joins = next.start == range.end;
            if joins {
                range.end = next.end;
            }
            joins
        });
        let mut lent = lent();
        for range in &ranges {
            let other = lent.range(..range.end).next_back();
            if let Some((start, end)) = other.filter(|(_, end)| **end > range.start) {
                let address = range.start.max(*start);
                return Err(SegmentError::Lent {
                    address,
                    length: range.end.min(*end) - address,
                });
            }
        }
        lent.extend(ranges.iter().map(|range| (range.start, range.end)));
        drop(lent);
        Ok(Self(ranges))
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut lent = lent();
        for range in &self.0 {
            lent.remove(&range.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Addresses that no memory of this process has, so that tests beside this one are not met.
    const BASE: usize = 1 << 62;

    fn at(start: usize, length: usize) -> Range<usize> {
        BASE + start..BASE + start + length
    }

    #[test]
    fn a_byte_is_lent_once_and_again_when_the_loan_is_over() {
        let loan = Loan::of(vec![at(20, 10), at(0, 10), at(10, 5)]).unwrap();
        for (start, length) in [(0, 1), (9, 2), (14, 1), (29, 5), (0, 40), (15, 6)] {
            let refused = Loan::of(vec![at(100, 4), at(start, length)]).unwrap_err();
            assert!(matches!(refused, SegmentError::Lent { .. }), "{refused}");
        }
        let beside = Loan::of(vec![at(15, 5), at(30, 1), at(100, 4)]).unwrap();
        drop(loan);
        assert!(Loan::of(vec![at(0, 15), at(20, 10)]).is_ok());
        assert!(Loan::of(vec![at(0, 16)]).is_err(), "the other goes on");
        drop(beside);
        assert!(Loan::of(vec![at(0, 200)]).is_ok());
    }

    #[test]
    fn a_list_that_names_a_byte_twice_is_refused_with_the_byte() {
        let refused = Loan::of(vec![at(1000, 10), at(1020, 4), at(1008, 6)]).unwrap_err();
        let (address, length) = (BASE + 1008, 2);
        assert_eq!(refused, SegmentError::Overlap { address, length });
        assert!(refused.to_string().contains("the block table"), "{refused}");
        assert!(Loan::of(vec![at(1000, 30)]).is_ok(), "nothing was lent");
    }

    /// Some ranges, each a place and a length.
    fn ranges() -> impl Strategy<Value = Vec<(usize, usize)>> {
        prop::collection::vec((0_usize..60, 1_usize..9), 0..4)
    }

    proptest! {
        #[test]
        fn loans_agree_with_a_table_of_bytes(
            steps in prop::collection::vec((ranges(), any::<prop::sample::Index>()), 1..40)
        ) {
            let base = 10_000;
            let mut loans: Vec<(Loan, Vec<usize>)> = Vec::new();
            for (ranges, drops) in steps {
                let bytes: Vec<usize> = ranges.iter().flat_map(|(at, of)| *at..at + of).collect();
                let twice = (1..bytes.len()).any(|at| bytes[..at].contains(&bytes[at]));
                let taken = bytes.iter().any(|byte| {
                    loans.iter().any(|(_, bytes)| bytes.contains(byte))
                });
                let ranges = ranges.iter().map(|(start, of)| at(base + start, *of)).collect();
                match Loan::of(ranges) {
                    Ok(loan) => {
                        prop_assert!(!twice && !taken);
                        loans.push((loan, bytes));
                    }
                    Err(SegmentError::Overlap { .. }) => prop_assert!(twice),
                    Err(_) => prop_assert!(taken),
                }
                if loans.len() > 3 {
                    loans.swap_remove(drops.index(loans.len()));
                }
            }
        }
    }
}

//! A free block is the destination of nothing: no fetch can write it, and no write is still to
//! become visible.

use std::collections::HashSet;

use tessera_lifecycle::plan::Destination;

use crate::rank::RankModel;

pub(crate) fn check(free: &HashSet<u32>, rank: &RankModel) {
    for fetch in &rank.fetches {
        for destination in &fetch.destinations {
            if let Destination::Block(block) = destination {
                assert!(
                    !free.contains(block),
                    "{:?} writes free block {block}",
                    fetch.load
                );
            }
        }
    }
    for write in &rank.invisible {
        assert!(
            !free.contains(&write.block),
            "a late write hits free block {}",
            write.block
        );
    }
}

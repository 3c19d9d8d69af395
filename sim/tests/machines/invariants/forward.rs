//! A forward reads only content that is right: computed, or loaded in full, verified and visible.

use crate::rank::RankModel;
use crate::request::Request;

/// Panics unless all that a forward of `request` reads is right, on every rank.
pub(crate) fn check(ranks: &[RankModel], request: &Request) {
    if let Some((group, token)) = ranks.iter().find_map(|rank| rank.first_wrong(request)) {
        panic!(
            "{} computes from token {} on wrong content of token {token} in group {group}",
            request.name, request.computed
        );
    }
}

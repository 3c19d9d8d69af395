//! A forward reads only content that is right: computed, or loaded in full, verified and visible.

use crate::rank::RankModel;
use crate::request::Request;

pub(crate) fn check(rank: &RankModel, request: &Request) {
    if let Some((group, token)) = rank.first_wrong(request) {
        panic!(
            "{} computes from token {} on wrong content of token {token} in group {group}",
            request.name, request.computed
        );
    }
}

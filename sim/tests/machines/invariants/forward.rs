//! A forward reads only content that is right: computed, or loaded in full, verified and visible.
//! One beside a load on the model thread may read what failed to come, if its output then does not
//! count.

use crate::rank::RankModel;
use crate::request::Request;

/// Whether all that a forward of `request` reads is right, on every rank.
pub(crate) fn check(ranks: &[RankModel], request: &Request) -> bool {
    let wrong = ranks.iter().find_map(|rank| rank.first_wrong(request));
    if let (Some((group, token)), None) = (wrong, request.beside_load) {
        panic!(
            "{} computes from token {} on wrong content of token {token} in group {group}",
            request.name, request.computed
        );
    }
    wrong.is_none()
}

/// The output of a forward counts: it must have been sound.
pub(crate) fn check_output(request: &Request, sound: bool) {
    assert!(
        sound,
        "{} goes on from what it computed on wrong content",
        request.name
    );
}

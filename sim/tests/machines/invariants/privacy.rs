//! What a rank may still write for a load belongs to one request, which is parked and which that
//! rank has not reported: no block of a load is computed on or shared before.

use crate::rank::RankModel;
use crate::request::{Phase, Request};

pub(crate) fn check(requests: &[Request], place: usize, rank: &RankModel) {
    for block in rank.written() {
        let holders: Vec<&Request> = requests.iter().filter(|at| at.holds(block)).collect();
        let own = match holders[..] {
            [request] => match &request.phase {
                Phase::Parked { finished, .. } => !finished.contains(&place),
                _ => false,
            },
            _ => false,
        };
        assert!(
            own,
            "rank {place} may write block {block}, which is used by {holders:?}"
        );
    }
}

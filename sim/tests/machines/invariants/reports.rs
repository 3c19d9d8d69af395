//! Each rank reports each load at most once, and only while the engine holds the request.

use crate::request::{Phase, Request};

/// Notes that rank `place` has finished its receive for `name`. Returns how many ranks have.
pub(crate) fn take(requests: &mut [Request], name: &str, place: usize) -> usize {
    match parked(requests, name) {
        Phase::Parked { finished, .. } => {
            assert!(finished.insert(place), "rank {place} reports {name} twice");
            finished.len()
        }
        other => panic!("rank {place} reports {name}, which is {other:?}"),
    }
}

/// Notes that a rank has failed.
pub(crate) fn fail(requests: &mut [Request], name: &str) {
    if let Phase::Parked { failed, .. } = parked(requests, name) {
        *failed = true;
    }
}

fn parked<'a>(requests: &'a mut [Request], name: &str) -> &'a mut Phase {
    let request = requests.iter_mut().find(|request| request.name == name);
    &mut request
        .unwrap_or_else(|| panic!("{name} is reported and unknown"))
        .phase
}

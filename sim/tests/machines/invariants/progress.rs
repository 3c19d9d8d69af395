//! Without faults everything ends: every request is done, every transfer is over.

use crate::world::World;

/// Whether nothing is left.
pub(crate) fn is_over(world: &World) -> bool {
    let idle = world
        .ranks
        .iter()
        .all(|rank| rank.root.is_idle() && !rank.is_busy());
    world.requests.is_empty() && !world.is_asked() && idle
}

/// For the message of a simulation that does not end.
pub(crate) fn what_is_left(world: &World) -> String {
    let requests: Vec<_> = world
        .requests
        .iter()
        .map(|request| (&request.name, &request.phase))
        .collect();
    format!("requests {requests:?}, free blocks {}", world.free.len())
}

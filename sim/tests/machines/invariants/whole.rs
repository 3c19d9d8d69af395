//! The invariants that are checked after every event.

use crate::invariants::{free_memory, model_thread, privacy};
use crate::world::World;

/// Checks the machines and the memory between them.
pub(crate) fn check(world: &World) {
    world.root.check_invariants();
    model_thread::check(world);
    let free = world.free.iter().copied().collect();
    for (place, rank) in world.ranks.iter().enumerate() {
        rank.root.check_invariants();
        free_memory::check(&free, rank);
        privacy::check(&world.requests, place, rank);
    }
}

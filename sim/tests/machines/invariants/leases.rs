//! Every lease that a node granted is given back exactly once. That it is not given back twice is
//! checked where it is given back.

use crate::world::World;

/// When nothing is left to do, nothing is held.
pub(crate) fn check_at_the_end(world: &World) {
    assert_eq!(world.nodes.outstanding(), 0, "leases are held for nobody");
}

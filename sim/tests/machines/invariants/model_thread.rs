//! A load on the model thread is over when its step is.

use tessera_client::options::IoMode;

use crate::world::World;

pub(super) fn check(world: &World) {
    let loading = world.ranks.iter().any(|rank| rank.root.is_any_loading());
    assert!(
        world.io == IoMode::Async || !loading,
        "a load on the model thread goes on after its step"
    );
}

//! A node that is there and says nothing: the deadline bounds what it costs, then the circuit does.

use std::time::Duration;

use tessera_client::{CircuitState, FetchOutcome, Presence, StoreOutcome};
use tokio::time::{Instant, sleep};

use crate::node_process::NodeProcess;
use crate::tile::{Tile, soon};

/// The deadline of every operation on the silent node.
const DEADLINE: Duration = Duration::from_millis(300);
/// What a loaded machine may add to it.
const SLACK: Duration = Duration::from_millis(1_500);

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_node_costs_no_more_than_the_deadline_and_is_used_again_when_it_goes_on() {
    let node = NodeProcess::start();
    let client = node.client();
    let tile = Tile::new(1, 1 << 20);
    let another = Tile::new(2, 1 << 20);
    assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);

    node.pause();
    let started = Instant::now();
    let deadline = started + DEADLINE;
    let (loaded, stored, found) = tokio::join!(
        tile.load(&client, None, deadline),
        another.save(&client, deadline),
        tile.acquire(&client, deadline),
    );
    assert!(
        started.elapsed() < DEADLINE + SLACK,
        "{:?}",
        started.elapsed()
    );
    assert_eq!(loaded, FetchOutcome::Deadline);
    let not_stored = matches!(stored, StoreOutcome::Deadline | StoreOutcome::Unreachable);
    assert!(not_stored, "{stored:?}");
    assert_eq!(found, Presence::Unreachable);

    let mut at_once = 0;
    while at_once < 100 {
        let asked = Instant::now();
        let outcome = tile.load(&client, None, asked + DEADLINE).await;
        assert!(asked.elapsed() < DEADLINE + SLACK, "{:?}", asked.elapsed());
        let missed = matches!(outcome, FetchOutcome::Unreachable | FetchOutcome::Deadline);
        assert!(missed, "{outcome:?}");
        at_once += u32::from(outcome == FetchOutcome::Unreachable);
        assert!(
            started.elapsed() < 10 * DEADLINE + SLACK,
            "the circuit stays closed"
        );
    }
    assert_ne!(client.metrics().nodes[0].circuit, CircuitState::Closed);

    node.resume();
    let until = soon();
    while tile.load(&client, None, Instant::now() + DEADLINE).await != FetchOutcome::Loaded {
        assert!(
            Instant::now() < until,
            "the client never came back to the node"
        );
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(client.metrics().nodes[0].circuit, CircuitState::Closed);
    client.shutdown().await;
}

//! A node that is full for good: three times as much is asked for as it can hold, in two sizes,
//! some of it under lease.

use std::collections::{BTreeMap, HashMap};

use tessera_client::{Cluster, FetchOutcome, Lease, StoreOutcome};

use crate::node_process::{NodeProcess, stat};
use crate::tile::{Tile, held, soon};

const RAM_MIB: u64 = 4;
const DISK_MIB: u64 = 64;
const LENGTHS: [usize; 2] = [30_000, 300_000];
/// Three times the disk.
const OBJECTS: u64 = 3 * (DISK_MIB << 20) / 165_000;
/// A third of the disk, and five times the memory.
const HOT: u64 = OBJECTS / 9;
const REQUESTS: u64 = 4_000;
/// Numbers of the objects that are leased all the time, and that nobody asks for.
const LEASED: std::ops::Range<u64> = OBJECTS..OBJECTS + 20;

fn tile(number: u64) -> Tile {
    let odd = usize::try_from(number % 2).expect("a bit");
    Tile::new(number, LENGTHS[odd])
}

/// Numbers of objects: six of ten requests ask for one that is hot, the others for any.
fn asked() -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..REQUESTS).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state % 10 {
            0..6 => (state >> 20) % HOT,
            _ => HOT + (state >> 20) % (OBJECTS - HOT),
        }
    })
}

/// How often exact LRU in `room` bytes would have had what is asked for.
fn hits_of_lru(room: u64) -> u64 {
    let (mut order, mut last) = (BTreeMap::new(), HashMap::new());
    let (mut used, mut hits) = (0, 0);
    for (now, number) in asked().enumerate() {
        match last.insert(number, now) {
            Some(before) => {
                hits += 1;
                order.remove(&before);
            }
            None => used += tile_bytes(number),
        }
        order.insert(now, number);
        while used > room {
            let (_, oldest) = order.pop_first().expect("something is held");
            last.remove(&oldest);
            used -= tile_bytes(oldest);
        }
    }
    hits
}

fn tile_bytes(number: u64) -> u64 {
    LENGTHS[usize::try_from(number % 2).expect("a bit")] as u64
}

/// Objects that are leased where they are on disk only.
async fn lease_some(client: &Cluster) -> Vec<(Tile, Lease)> {
    let tiles: Vec<Tile> = LEASED.map(tile).collect();
    let passing = (2 * OBJECTS..2 * OBJECTS + 60).map(tile);
    for tile in tiles.iter().cloned().chain(passing) {
        assert_eq!(tile.save(client, soon()).await, StoreOutcome::Stored);
    }
    let mut leased = Vec::new();
    for tile in tiles {
        let lease = held(tile.acquire(client, soon()).await);
        leased.push((tile, lease));
    }
    assert_eq!(stat(client, "disk_leases").await, LEASED.end - LEASED.start);
    leased
}

#[tokio::test(flavor = "multi_thread")]
async fn three_times_the_capacity_is_served_as_by_lru_and_nothing_is_refused_or_lost_under_lease() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let node = NodeProcess::start_small(folder.path(), RAM_MIB, DISK_MIB);
    let client = node.client();
    let leased = lease_some(&client).await;
    let mut hits = 0;
    for number in asked() {
        let tile = tile(number);
        match tile.load(&client, None, soon()).await {
            FetchOutcome::Loaded => hits += 1,
            FetchOutcome::Missing => {
                let saved = tile.save(&client, soon()).await;
                assert_eq!(saved, StoreOutcome::Stored, "object {number}");
            }
            other => panic!("object {number}: {other:?}"),
        }
    }
    // One segment of so small a disk is always being filled, and one emptied: a sixteenth each.
    let held: u64 = LEASED.map(tile_bytes).sum();
    let lru = hits_of_lru((DISK_MIB << 20) * 14 / 16 - held);
    assert!(hits * 100 >= lru * 95, "{hits} hits, {lru} of LRU");
    assert!(stat(&client, "disk_evictions").await > OBJECTS / 2);
    for refused in [
        "put_no_space",
        "disk_skipped",
        "disk_damaged",
        "disk_fenced",
    ] {
        assert_eq!(stat(&client, refused).await, 0, "{refused}");
    }
    for (tile, lease) in leased {
        let loaded = tile.load(&client, Some(lease), soon()).await;
        assert_eq!(loaded, FetchOutcome::Loaded);
    }
    client.shutdown().await;
}

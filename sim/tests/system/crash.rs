//! A node with a data folder that is killed under load, again and again: every object that was
//! acknowledged is there after the next start, nothing that was removed or dropped is, and no byte
//! is wrong.
//!
//! `TESSERA_CRASH_ROUNDS` sets how often it is killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_client::{Cluster, FetchOutcome, NamespaceDigest, NodeIndex, StoreOutcome};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::node_process::{NodeProcess, stat};
use crate::tile::{PATIENCE, Tile, namespace, soon};

const ROUNDS: u64 = 3;
/// Who stores, loads and removes at once, each in a namespace of its own.
const WORKERS: u64 = 8;
/// One in this many drops its namespace now and then.
const DROPPERS: u64 = 4;
/// Most objects of one worker in one round.
const WORKER_OBJECTS: u64 = 1_000;
/// Room for what the rounds write, megabytes: nothing has to leave.
const ROUND_MIB: u64 = 32;
const LENGTHS: [usize; 6] = [1, 700, 4_096, 60_000, 65_536, 900_000];

/// What is known of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Stored,
    Removed,
    /// The node died over the answer.
    Either,
}

type Ledger = HashMap<u64, Known>;

fn tile(number: u64) -> Tile {
    let lengths = LENGTHS.len() as u64;
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let length = LENGTHS[usize::try_from(mixed % lengths).expect("a few")];
    Tile::of(
        &namespace_of(worker_of(number)),
        &number.to_le_bytes(),
        number,
        length,
    )
}

fn worker_of(number: u64) -> u64 {
    number / WORKER_OBJECTS % WORKERS
}

fn namespace_of(worker: u64) -> NamespaceDigest {
    namespace(&format!("the model of worker {worker}"))
}

/// What is known once the namespace of a worker was dropped, or maybe was.
fn note_drop(ledger: &mut Ledger, worker: u64, known: Known) {
    let its = ledger
        .iter_mut()
        .filter(|(number, _)| worker_of(**number) == worker);
    for (_, before) in its.filter(|(_, before)| **before != Known::Removed) {
        *before = known;
    }
}

fn rounds() -> u64 {
    let asked = std::env::var("TESSERA_CRASH_ROUNDS");
    asked.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_node_finds_all_that_it_acknowledged_and_nothing_that_it_removed() {
    let (folder, rounds) = (folder(), rounds());
    let disk_mib = (rounds + 2) * ROUND_MIB;
    let mut ledger = Ledger::new();
    for round in 0..=rounds {
        let mut node = NodeProcess::start_on(folder.path(), disk_mib);
        let client = node.client();
        // The last round all, for it is the newest; in the end, everything.
        let from = match round == rounds {
            true => 0,
            false => round.saturating_sub(1) * WORKERS * WORKER_OBJECTS,
        };
        check(
            &client,
            ledger.iter().filter(|(number, _)| **number >= from),
        )
        .await;
        assert_eq!(stat(&client, "disk_evictions").await, 0);
        let answered = Arc::new(AtomicU64::new(0));
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let first = (round * WORKERS + worker) * WORKER_OBJECTS;
            workers.spawn(work(client.clone(), first, Arc::clone(&answered)));
        }
        // Another moment in each round, always in the middle of the load.
        until(&answered, 20 + round * 37 % 200).await;
        node.kill();
        while let Some(known) = workers.join_next().await {
            let Worked {
                worker,
                own,
                dropped,
            } = known.expect("a worker ends by itself");
            if let Some(known) = dropped {
                note_drop(&mut ledger, worker, known);
            }
            ledger.extend(own);
        }
        client.shutdown().await;
    }
    let stored = ledger.values().filter(|known| **known == Known::Stored);
    assert!(stored.count() as u64 > 10 * rounds, "hardly any load");
}

/// Waits until so many requests were answered.
async fn until(answered: &AtomicU64, count: u64) {
    let begun = Instant::now();
    while answered.load(Ordering::Relaxed) < count {
        assert!(begun.elapsed() < PATIENCE, "the workers are stuck");
        sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// What one worker did in a round.
struct Worked {
    worker: u64,
    own: Ledger,
    /// What is known of its objects of earlier rounds, if it dropped its namespace.
    dropped: Option<Known>,
}

/// Stores, loads, removes and drops until the node is gone; says what is known of each object.
async fn work(client: Cluster, first: u64, answered: Arc<AtomicU64>) -> Worked {
    let worker = worker_of(first);
    let mut dropped = None;
    let mut own = Ledger::new();
    for number in first..first + WORKER_OBJECTS {
        if !store_and_remove(&client, number, &mut own).await {
            break;
        }
        answered.fetch_add(1, Ordering::Relaxed);
        if worker.is_multiple_of(DROPPERS) && number % 5 == 4 {
            let dropping = client.drop_namespace(NodeIndex(0), namespace_of(worker), soon());
            let known = match dropping.await {
                Ok(_) => Known::Removed,
                Err(_) => Known::Either,
            };
            note_drop(&mut own, worker, known);
            // Once they are gone they stay so, whatever became of a later drop.
            if dropped != Some(Known::Removed) {
                dropped = Some(known);
            }
            if known == Known::Either {
                break;
            }
        }
    }
    Worked {
        worker,
        own,
        dropped,
    }
}

/// Stores an object and maybe removes an older one. False if the node is gone.
async fn store_and_remove(client: &Cluster, number: u64, ledger: &mut Ledger) -> bool {
    let saved = tile(number).save(client, soon()).await;
    if saved != StoreOutcome::Stored {
        ledger.insert(number, Known::Either);
        return false;
    }
    ledger.insert(number, Known::Stored);
    if number % 3 == 2 {
        let older = number - 2;
        let removed = client.remove(tile(older).id(), None, soon()).await;
        // A drop may have been faster.
        let was_there = ledger.get(&older) != Some(&Known::Removed);
        if removed != Ok(was_there) {
            ledger.insert(older, Known::Either);
            return false;
        }
        ledger.insert(older, Known::Removed);
    }
    true
}

async fn check(client: &Cluster, ledger: impl Iterator<Item = (&u64, &Known)>) {
    for (number, known) in ledger {
        // A load compares every byte.
        let outcome = tile(*number).load(client, None, soon()).await;
        match known {
            Known::Stored => assert_eq!(outcome, FetchOutcome::Loaded, "object {number}"),
            Known::Removed => assert_eq!(outcome, FetchOutcome::Missing, "object {number}"),
            Known::Either => assert!(
                matches!(outcome, FetchOutcome::Loaded | FetchOutcome::Missing),
                "object {number}: {outcome:?}"
            ),
        }
    }
    assert_eq!(client.metrics().integrity_failures(), 0);
    assert_eq!(stat(client, "integrity_failures").await, 0);
}

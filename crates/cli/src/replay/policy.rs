//! The store's order of eviction over the public traces, without a node around it: the simulator
//! of the shipped policy, because it is the shipped policy.
//!
//! Called by the test runner. The traces are not part of this repository: their tests look in
//! `$TESSERA_TRACES`, or in `shared/traces` in or beside the checkout, and say so where they find
//! none. The generated trace is always there.

use std::path::PathBuf;

use anyhow::Result;
use tessera_client::{KeyDigest, NamespaceDigest, ObjectHeader, TenantTag, WriteId};
use tessera_node::store::{Instant, Published, RamStore, Store, StoreConfig};

use super::cache::{Cache, Tally, replay};
use super::oracle::{Belady, Lru};
use super::trace::{Request, Trace};

const T0: Instant = Instant(0);
/// With its header, an object takes a KiB.
const PAYLOAD_BYTES: u64 = 896;
const EXTENT_BYTES: u64 = 1024;

/// A store that is asked directly.
pub(super) struct Direct {
    store: Store,
    payload_bytes: u64,
}

impl Direct {
    /// With memory for `blocks` and for the one that is being written.
    pub(super) fn new(blocks: u64, payload_bytes: u64, extent_bytes: u64) -> Self {
        let config = StoreConfig {
            max_object_bytes: payload_bytes,
            ..StoreConfig::with_capacity((blocks * extent_bytes).next_multiple_of(4096))
        };
        let ram = RamStore::new(config).expect("a small arena");
        Self {
            store: Store::new(ram, None),
            payload_bytes,
        }
    }

    fn header(&self, block: u64) -> ObjectHeader {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&block.to_le_bytes());
        ObjectHeader {
            namespace: NamespaceDigest([7; 32]),
            key: KeyDigest(key),
            layout: 1,
            length_bytes: self.payload_bytes,
            checksum: 0,
            write: WriteId(1),
            tenant: TenantTag::NONE,
        }
    }
}

impl Cache for Direct {
    fn request(&mut self, blocks: &[u64]) -> Result<usize> {
        let is_read = |block: &&u64| {
            let id = self.header(**block).id();
            self.store.ram().pin(&id, None, T0).is_some()
        };
        let hits = blocks.iter().take_while(is_read).count();
        for block in &blocks[hits..] {
            let header = self.header(*block);
            let id = header.id();
            if self.store.contains(&id) {
                self.store.join(&id, |_| ());
                continue;
            }
            let extent = self.store.reserve(self.payload_bytes, T0)?;
            let stored = |published| assert_eq!(published, Published::Stored);
            self.store.publish(extent, id, header, T0, stored);
        }
        Ok(hits)
    }
}

/// The trace, or the printed reason why there is none.
pub(super) fn public_trace(name: &str) -> Option<Trace> {
    let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let named = std::env::var_os("TESSERA_TRACES").map(PathBuf::from);
    let beside = ["shared/traces", "../shared/traces"].map(|at| PathBuf::from(checkout).join(at));
    let file = format!("mooncake_{name}_trace.jsonl");
    let mut files = named
        .into_iter()
        .chain(beside)
        .map(|folder| folder.join(&file));
    let Some(path) = files.find(|path| path.exists()) else {
        println!("skipped: {file} is neither in $TESSERA_TRACES nor in shared/traces");
        return None;
    };
    Some(Trace::read(&path, usize::MAX).expect("a trace"))
}

fn tally(trace: &Trace, cache: &mut impl Cache) -> Tally {
    replay(trace, cache, |_| ()).expect("nothing is held")
}

fn with_room_for_everything(name: &str, percent: &str) {
    let Some(trace) = public_trace(name) else {
        return;
    };
    let unique = trace.unique_blocks();
    let mut direct = Direct::new(unique + 16, 128, 256);
    assert_eq!(tally(&trace, &mut direct).rounded(), percent);
    assert_eq!(tally(&trace, &mut Lru::new(unique)).rounded(), percent);
    assert_eq!(
        tally(&trace, &mut Belady::new(&trace, unique)).rounded(),
        percent
    );
    assert_eq!(direct.store.ram().stat().evictions, 0);
}

#[test]
fn conversation_with_room_for_everything_hits_what_the_trace_repeats() {
    with_room_for_everything("conversation", "37.36");
}

#[test]
fn synthetic_with_room_for_everything_hits_what_the_trace_repeats() {
    with_room_for_everything("synthetic", "65.12");
}

/// Prints all figures; panics where the store is below `least` of LRU.
fn bounded(name: &str, trace: &Trace, percents: &[(u64, f64)]) {
    let unique = trace.unique_blocks();
    let mut below = Vec::new();
    for (percent, least) in percents {
        let blocks = unique * percent / 100;
        let mut direct = Direct::new(blocks, PAYLOAD_BYTES, EXTENT_BYTES);
        let store = tally(trace, &mut direct).percent();
        let lru = tally(trace, &mut Lru::new(blocks)).percent();
        let belady = tally(trace, &mut Belady::new(trace, blocks)).percent();
        println!(
            "{name} {percent:>2} %: {store:.2}, LRU {lru:.2} ({:.3}), Belady {belady:.2} ({:.3})",
            store / lru,
            store / belady
        );
        assert!(belady >= store && belady >= lru, "Belady is the best");
        assert_eq!(direct.store.ram().stat().refused_no_space, 0);
        if store < lru * least {
            below.push(*percent);
        }
    }
    assert!(below.is_empty(), "below LRU at {below:?} % of {name}");
}

/// Capacities in percent of the working set, and what must be reached of LRU's hit rate.
const CONVERSATION: [(u64, f64); 7] = [
    (1, 1.5),
    (5, 1.05),
    (10, 1.0),
    (15, 1.0),
    (20, 0.99),
    (25, 1.0),
    (50, 1.0),
];
/// At five percent, where chance decides which of the long prompts stay whole, a little below.
const SYNTHETIC: [(u64, f64); 7] = [
    (1, 0.97),
    (5, 0.93),
    (10, 1.0),
    (15, 1.01),
    (20, 1.01),
    (25, 1.01),
    (50, 1.01),
];

#[test]
fn conversation_is_not_below_lru_where_less_fits_than_is_asked_for() {
    if let Some(trace) = public_trace("conversation") {
        bounded("conversation", &trace, &CONVERSATION);
    }
}

#[test]
fn synthetic_is_near_lru_where_little_fits_and_above_it_elsewhere() {
    if let Some(trace) = public_trace("synthetic") {
        bounded("synthetic", &trace, &SYNTHETIC);
    }
}

/// Conversations that go on for a while, with breaks, between requests that nobody repeats.
pub(super) fn generated_trace(requests: u64) -> Trace {
    let mut seed = 1_u64;
    let mut below = move |bound: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let (mut talks, mut next) = (Vec::<Vec<u64>>::new(), 1_000);
    let mut new_blocks = |count: u64| {
        next += count;
        (next - count..next).collect::<Vec<_>>()
    };
    let requests = (0..requests).map(|_| {
        let blocks = match below(10) {
            0..3 => new_blocks(4 + below(20)),
            3..5 => {
                let mut talk = vec![1, 2, 3];
                talk.extend(new_blocks(1 + below(8)));
                talks.push(talk.clone());
                talk
            }
            _ => {
                let recent = talks.len().min(40) as u64;
                match talks
                    .len()
                    .checked_sub(1 + usize::try_from(below(recent.max(1))).expect("small"))
                {
                    Some(at) => {
                        talks[at].extend(new_blocks(1 + below(4)));
                        talks[at].clone()
                    }
                    None => new_blocks(5),
                }
            }
        };
        Request {
            tokens: blocks.len() as u64 * 512 - below(512),
            blocks,
        }
    });
    Trace {
        requests: requests.collect(),
    }
}

#[test]
fn generated_conversations_are_near_lru_and_above_it_where_little_fits() {
    let trace = generated_trace(3_000);
    let near = [5, 10, 20, 40].map(|percent| (percent, 0.99));
    bounded("generated", &trace, &near);
    bounded("generated", &trace, &[(2, 1.05)]);
}

//! The store's order of eviction over the public traces, beside LRU and Belady.
//!
//! Called by the test runner. The traces are not part of this repository: their tests look in
//! `$TESSERA_TRACES`, else in `shared/traces` in the checkout or in a folder above it, and say so
//! where they find none. The generated trace is always there.

use std::path::{Path, PathBuf};

use super::cache::{Cache, Tally, replay};
use super::direct::Direct;
use super::oracle::{Belady, Lru};
use super::trace::{Request, Trace};

/// Capacities in percent of the working set.
const PERCENTS: [u64; 5] = [1, 5, 10, 25, 50];

/// The trace, or the printed reason why there is none.
fn public_trace(name: &str) -> Option<Trace> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("TESSERA_TRACES").map(PathBuf::from);
    let around = checkout.ancestors().map(|at| at.join("shared/traces"));
    let file = format!("mooncake_{name}_trace.jsonl");
    let mut files = named.into_iter().chain(around).map(|at| at.join(&file));
    let Some(path) = files.find(|path| path.exists()) else {
        eprintln!("skipped: {file} is neither in $TESSERA_TRACES nor in shared/traces");
        return None;
    };
    Some(Trace::read(&path).expect("a trace"))
}

fn tally(trace: &Trace, cache: &mut impl Cache) -> Tally {
    replay(trace, cache, |_| ()).expect("nothing is held")
}

fn direct(blocks: u64) -> Direct {
    Direct::new(blocks).expect("a small arena")
}

fn with_room_for_everything(name: &str, percent: &str) {
    let Some(trace) = public_trace(name) else {
        return;
    };
    let unique = trace.unique_blocks();
    let mut store = direct(unique);
    assert_eq!(tally(&trace, &mut store).rounded(), percent);
    assert_eq!(store.store().stat().evictions, 0);
    assert_eq!(tally(&trace, &mut Lru::new(unique)).rounded(), percent);
    let mut belady = Belady::new(&trace, unique);
    assert_eq!(tally(&trace, &mut belady).rounded(), percent);
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
fn bounded(name: &str, trace: &Trace, percents: &[u64], least: f64) {
    let unique = trace.unique_blocks();
    let mut below = Vec::new();
    for percent in percents {
        let blocks = unique * percent / 100;
        let mut direct = direct(blocks);
        let store = tally(trace, &mut direct);
        let lru = tally(trace, &mut Lru::new(blocks));
        let belady = tally(trace, &mut Belady::new(trace, blocks));
        println!(
            "{name} {percent:>2} %: {}, LRU {} ({:.3}), Belady {} ({:.3}); computing saved \
             {:.2}, LRU {:.2}, Belady {:.2}",
            store.rounded(),
            lru.rounded(),
            store.percent() / lru.percent(),
            belady.rounded(),
            store.percent() / belady.percent(),
            store.saved_percent(),
            lru.saved_percent(),
            belady.saved_percent()
        );
        let best = belady.hit_tokens >= store.hit_tokens.max(lru.hit_tokens);
        assert!(best, "Belady is the best");
        let stat = direct.store().stat();
        assert_eq!((stat.objects, stat.refused_no_space), (blocks, 0));
        let of_lru = store.percent() / lru.percent();
        let saved_of_lru = store.saved_percent() / lru.saved_percent();
        // The order counts tokens; a hundredth of what they save may lie in which tokens they are.
        if of_lru < least || saved_of_lru < least - 0.01 {
            below.push(*percent);
        }
    }
    assert!(below.is_empty(), "below LRU at {below:?} % of {name}");
}

#[test]
fn conversation_is_never_below_lru_however_little_fits() {
    if let Some(trace) = public_trace("conversation") {
        bounded("conversation", &trace, &PERCENTS, 1.0);
    }
}

#[test]
fn synthetic_is_never_below_lru_however_little_fits() {
    if let Some(trace) = public_trace("synthetic") {
        bounded("synthetic", &trace, &PERCENTS, 1.0);
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
    bounded("generated", &trace, &[2], 1.05);
    bounded("generated", &trace, &[5, 10, 25], 0.99);
}

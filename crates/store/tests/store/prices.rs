//! Prices: of two models that share a store, what is dear to compute stays for longer.
//!
//! Called by the test runner.

use std::num::NonZeroU32;

use tessera_proto::NamespaceDigest;
use tessera_store::{OwnerId, RamStore};

use crate::sample::{NAMESPACE_SHIFT, Numbers, T0, id, namespace_of, put, store};

const CAPACITY: u64 = 8 << 20;
const REQUESTS: u64 = 10_000;

/// A model: large objects that are cheap to compute, or small ones that are dear.
#[derive(Clone, Copy)]
struct Model {
    first_key: u64,
    objects: u64,
    length_bytes: u64,
    ns_per_kib: u64,
}

/// Each would fill the store four times over, and is asked for as many bytes.
const MODELS: [Model; 2] = [
    Model {
        first_key: 0,
        objects: 520,
        length_bytes: 64_000,
        ns_per_kib: 128,
    },
    Model {
        first_key: 1 << NAMESPACE_SHIFT,
        objects: 2_080,
        length_bytes: 16_000,
        ns_per_kib: 1_024,
    },
];

fn namespace(model: Model) -> NamespaceDigest {
    namespace_of(model.first_key)
}

fn price(store: &RamStore, model: Model, ns_per_kib: u64) {
    let ns_per_kib = u32::try_from(ns_per_kib).ok().and_then(NonZeroU32::new);
    store.price(namespace(model), ns_per_kib.expect("a price"));
}

/// Computing that is saved by what is found, percent of what all requests cost.
fn saved(store: &RamStore) -> f64 {
    let (mut numbers, mut cost, mut saved) = (Numbers(5), 0, 0);
    for _ in 0..REQUESTS {
        // Four of the small ones have the bytes of a large one; some of each are asked for often.
        let model = MODELS[usize::from(numbers.below(5) > 0)];
        let rank = model.objects * numbers.below(1_000).pow(3) / 1_000_u64.pow(3);
        let key = model.first_key + rank;
        let price = model.length_bytes * model.ns_per_kib;
        cost += price;
        let acquired = store.acquire(OwnerId(1), &[id(key)], 1, u64::MAX, T0);
        match acquired.lease {
            Some(lease) => {
                saved += price;
                store.release(lease, None);
            }
            None => {
                put(store, key, 1, model.length_bytes, T0).expect("nothing is held");
            }
        }
    }
    store.check_invariants();
    100.0 * saved as f64 / cost as f64
}

#[test]
fn prices_save_more_computing_than_an_order_that_knows_none() {
    let blind = saved(&store(CAPACITY));
    let priced = store(CAPACITY);
    for model in MODELS {
        price(&priced, model, model.ns_per_kib);
    }
    let priced = saved(&priced);
    println!("computing saved: {priced:.2} % with prices, {blind:.2} % without");
    assert!(priced > blind * 1.08, "{priced:.2} %, {blind:.2} %");
}

#[test]
fn one_price_for_all_is_as_good_as_none_also_beside_what_has_none() {
    let blind = saved(&store(CAPACITY));
    for count in 1..=MODELS.len() {
        let same = store(CAPACITY);
        for model in &MODELS[..count] {
            price(&same, *model, 700);
        }
        let same = saved(&same);
        // The memory of evictions mistakes another few objects each time.
        assert!(
            (same / blind - 1.0).abs() < 0.01,
            "{same:.2} %, {blind:.2} %"
        );
    }
}

#[test]
fn what_is_dear_and_asked_for_no_more_leaves_all_the_same() {
    let store = store(CAPACITY);
    let [cheap, dear] = MODELS;
    price(&store, cheap, 1);
    price(&store, dear, u64::from(u32::MAX));
    for key in 0..100 {
        put(&store, dear.first_key + key, 1, dear.length_bytes, T0).expect("room");
    }
    let left = |store: &RamStore| {
        let dear = (0..100).filter(|key| store.contains(&id(dear.first_key + key)));
        dear.count()
    };
    let mut cycles = 0;
    while left(&store) > 0 {
        for key in 0..CAPACITY / cheap.length_bytes {
            let key = cycles * 1_000 + key;
            put(&store, key, 1, cheap.length_bytes, T0).expect("room");
        }
        cycles += 1;
        assert!(cycles < 40, "{} of it are still there", left(&store));
    }
    assert!(cycles > 8, "gone after {cycles} times the capacity");
    store.check_invariants();
}

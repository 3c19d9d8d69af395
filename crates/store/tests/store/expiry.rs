//! The lifetime of objects in memory: what is over is missing at once, what is leased is not over.

use tessera_proto::Instant;
use tessera_store::{Lifetimes, OwnerId, Presence, Published, RamStore, StoreConfig};

use crate::sample::{TENANT_SHIFT, get, id, put};

const OWNER: OwnerId = OwnerId(1);

fn at(seconds: u64) -> Instant {
    Instant(seconds * 1_000_000_000)
}

/// Tenant 1 has ten seconds, tenant 2 a hundred, all others sixty.
fn store() -> RamStore {
    let named = [("1", 10), ("2", 100)];
    let lifetimes = Lifetimes {
        named: named.map(|(name, ttl_s)| (name.to_owned(), ttl_s)).into(),
        others: Some(60),
    };
    RamStore::new(StoreConfig {
        lifetimes,
        epoch_s: 1_800_000_000,
        ..StoreConfig::with_capacity(1 << 20)
    })
    .expect("a small arena")
}

#[test]
fn object_is_found_for_its_lifetime_and_missing_from_then_on() {
    let store = store();
    let keys = [1 << TENANT_SHIFT, 2 << TENANT_SHIFT, 3 << TENANT_SHIFT, 4];
    for key in keys {
        assert_eq!(put(&store, key, 1, 1_000, at(5)), Ok(Published::Stored));
    }
    for (now, expected) in [
        (14, [true, true, true, true]),
        (15, [false, true, true, true]),
        (64, [false, true, true, true]),
        (65, [false, true, false, false]),
        (105, [false; 4]),
    ] {
        store.expire(at(now));
        assert_eq!(
            keys.map(|key| store.contains(&id(key))),
            expected,
            "{now} s"
        );
        let found = keys.map(|key| get(&store, key, at(now)).is_some());
        assert_eq!(found, expected, "{now} s");
    }
    let stat = store.stat();
    assert_eq!((stat.expired, stat.objects, stat.bytes), (4, 0, 0));
    store.check_invariants();
}

#[test]
fn object_in_the_place_of_one_that_is_over_is_stored_and_lives_its_own_time() {
    let store = store();
    assert_eq!(put(&store, 1, 1, 1_000, at(0)), Ok(Published::Stored));
    assert_eq!(put(&store, 1, 2, 1_000, at(59)), Ok(Published::Existed));
    assert_eq!(put(&store, 1, 3, 1_000, at(60)), Ok(Published::Stored));
    assert!(get(&store, 1, at(119)).is_some());
    assert!(get(&store, 1, at(120)).is_none());
    store.check_invariants();
}

#[test]
fn leased_object_outlives_its_time_until_the_lease_ends_and_no_lease_prolongs_it() {
    let store = store();
    assert_eq!(put(&store, 1, 1, 1_000, at(0)), Ok(Published::Stored));
    let acquire = |now| store.acquire(OWNER, &[id(1)], 20_000_000_000, u64::MAX, now);
    assert!(acquire(at(50)).lease.is_some());
    assert!(get(&store, 1, at(69)).is_some());
    let again = acquire(at(69));
    assert_eq!(again.items[0].presence, Presence::Missing);
    assert_eq!(again.lease, None);
    assert!(get(&store, 1, at(70)).is_none());
    store.check_invariants();
}

#[test]
fn read_that_began_in_time_ends_with_its_bytes() {
    let store = store();
    assert_eq!(put(&store, 1, 1, 1_000, at(0)), Ok(Published::Stored));
    let pin = store.pin(&id(1), None, at(59)).expect("in time");
    let bytes = pin.to_vec();
    assert!(get(&store, 1, at(60)).is_none());
    assert_eq!(put(&store, 1, 2, 1_000, at(60)), Ok(Published::Stored));
    assert_eq!(*pin, *bytes);
    drop(pin);
    store.check_invariants();
}

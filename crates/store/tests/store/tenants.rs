//! Tenants: who pays when a store is full, or when somebody is at his limit.

use tessera_proto::TenantTag;
use tessera_store::{Published, RamStore, ReserveRefusal, StoreConfig, TenantLimits, TenantStat};

use crate::sample::{T0, TENANT_SHIFT, fill, get, header, id, put, tenant_of};

const KIB: u64 = 1 << 10;
const CAPACITY: u64 = 1 << 20;
const LENGTH: u64 = 9 * KIB;

/// Key `number` of tenant `tenant`.
fn key(tenant: u64, number: u64) -> u64 {
    tenant << TENANT_SHIFT | number
}

fn store(quotas: &[(u64, u64)], others: Option<u64>) -> RamStore {
    let named = quotas.iter();
    let named = named.map(|(tenant, quota)| (tenant.to_string(), Some(*quota)));
    let tenants = TenantLimits {
        named: named.collect(),
        others,
    };
    RamStore::new(StoreConfig {
        tenants,
        ..StoreConfig::with_capacity(CAPACITY)
    })
    .expect("a small arena")
}

fn stored(store: &RamStore, tenant: u64, number: u64) {
    let published = put(store, key(tenant, number), 1, LENGTH, T0);
    assert_eq!(published, Ok(Published::Stored));
}

/// How many of the first `count` objects of a tenant are there.
fn present(store: &RamStore, tenant: u64, count: u64) -> u64 {
    let there = (0..count).filter(|number| store.contains(&id(key(tenant, *number))));
    there.count() as u64
}

fn usage(store: &RamStore) -> Vec<TenantStat> {
    store.check_invariants();
    store.tenants()
}

#[test]
fn tenant_at_its_quota_evicts_its_own_objects_and_nobody_elses() {
    let store = store(&[(1, 100 * KIB)], None);
    for number in 0..20 {
        stored(&store, 2, number);
    }
    for number in 0..200 {
        stored(&store, 1, number);
        let quota = usage(&store)[0].bytes;
        assert!(quota <= 100 * KIB, "{quota} bytes");
    }
    assert_eq!(present(&store, 2, 20), 20, "nobody else paid");
    assert_eq!(present(&store, 1, 200), 11, "the quota is of use");
    assert!(store.contains(&id(key(1, 199))), "the newest stays");
    let expected = |name: &str, objects: u64, evictions| TenantStat {
        name: name.to_owned(),
        objects,
        bytes: objects * LENGTH,
        evictions,
        ..TenantStat::default()
    };
    assert_eq!(usage(&store), [expected("1", 11, 189), expected("", 20, 0)]);
    assert!(store.stat().free_bytes > CAPACITY / 2);
}

#[test]
fn quota_of_others_is_that_of_each_of_them() {
    let store = store(&[], Some(50 * KIB));
    for number in 0..50 {
        stored(&store, 1, number);
        stored(&store, 2, number);
    }
    assert_eq!((present(&store, 1, 50), present(&store, 2, 50)), (5, 5));
    usage(&store);
}

#[test]
fn object_over_the_whole_quota_is_refused_and_costs_no_other_tenant() {
    let store = store(&[(1, 8 * KIB)], None);
    stored(&store, 2, 0);
    let refused = put(&store, key(1, 0), 1, LENGTH, T0);
    assert_eq!(refused, Err(ReserveRefusal::NoSpace));
    assert_eq!(present(&store, 2, 1), 1);
}

#[test]
fn what_is_being_written_counts_towards_the_quota_and_is_given_back() {
    let store = store(&[(1, 2 * LENGTH)], None);
    let reserve = || store.reserve_for(tenant_of(key(1, 0)), LENGTH, T0);
    let both = (reserve().expect("room"), reserve().expect("room"));
    assert_eq!(reserve().err(), Some(ReserveRefusal::NoSpace));
    usage(&store);
    drop(both);
    assert!(reserve().is_ok());
    usage(&store);
}

#[test]
fn object_that_came_without_its_tenant_is_charged_when_it_is_published() {
    let store = store(&[(1, 3 * LENGTH)], None);
    for number in 0..9 {
        let mut extent = store.reserve(LENGTH, T0).expect("room");
        fill(&mut extent, key(1, number), 1);
        let header = header(key(1, number), 1, &extent);
        assert_eq!(
            store.publish(extent, header.id(), header, T0),
            Published::Stored
        );
        assert!(usage(&store)[0].bytes <= 3 * LENGTH);
    }
    assert_eq!(present(&store, 1, 9), 3);
}

#[test]
fn flood_of_one_tenant_leaves_the_share_of_another_that_reads() {
    let store = store(&[], None);
    for number in 0..30 {
        stored(&store, 2, number);
    }
    for number in 0..1_000 {
        stored(&store, 1, number);
        // It reads now and then, a single object.
        if number % 50 == 0 {
            assert!(get(&store, key(2, 7), T0).is_some());
        }
    }
    assert_eq!(present(&store, 2, 30), 30);
    // Beyond an equal share it pays as well: both end with half.
    for number in 30..1_000 {
        stored(&store, 2, number);
        stored(&store, 1, 1_000 + number);
    }
    let stat = usage(&store);
    let (one, two) = (present(&store, 1, 2_000), present(&store, 2, 1_000));
    assert!(
        one.abs_diff(two) <= 2,
        "{one} and {two} of {}",
        stat[0].objects
    );
}

#[test]
fn tenant_that_does_nothing_while_a_whole_arena_passes_leaves() {
    let store = store(&[], None);
    for number in 0..30 {
        stored(&store, 2, number);
    }
    for number in 0..400 {
        stored(&store, 1, number);
    }
    assert_eq!(present(&store, 2, 30), 0);
    let free = store.stat().free_bytes;
    assert!(free < 2 * (LENGTH + KIB), "{free} bytes free");
}

#[test]
fn tenant_whose_number_went_to_another_is_not_charged_to_that_one() {
    let store = store(&[], Some(250));
    let small = |tenant, number| {
        let published = put(&store, key(tenant, number), 1, 100, T0);
        assert_eq!(published, Ok(Published::Stored));
    };
    for tenant in 1..512 {
        small(tenant, 0);
        assert!(store.remove(&id(key(tenant, 0)), None));
    }
    for tenant in 1_000..1_200 {
        small(tenant, 0);
        small(tenant, 1);
    }
    for tenant in 1..200 {
        small(tenant, 0);
        small(tenant, 1);
    }
    assert_eq!(usage(&store)[0].objects, 2 * (200 + 199));
}

#[test]
fn more_tenants_than_have_numbers_are_one_to_the_rest() {
    let store = store(&[(1, 64 * KIB)], None);
    for tenant in 1..3_000 {
        let published = put(&store, key(tenant, 0), 1, 100, T0);
        assert_eq!(published, Ok(Published::Stored));
    }
    let stat = usage(&store);
    assert_eq!((stat[0].objects, stat[1].objects), (1, 2_998));
    // Numbers of those who hold nothing any more are given to others.
    for tenant in 2..3_000 {
        assert!(store.remove(&id(key(tenant, 0)), None));
    }
    for tenant in 5_000..5_400 {
        let published = put(&store, key(tenant, 0), 1, 100, T0);
        assert_eq!(published, Ok(Published::Stored));
    }
    assert_eq!(usage(&store)[1].objects, 400);
    assert_eq!(tenant_of(key(0, 5)), TenantTag::NONE);
}
